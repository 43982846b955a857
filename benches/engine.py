"""Speed of the engine: link-hops a second without payload, one thread, one process a work.

A link-hop is one packet, data or acknowledgement, serialised on one link, host links included. The first four works
are those on which other packet-level simulators were measured, so the counts of data link-hops are known; a count more
than 2 % off would be other work and is refused. `seconds` is CPU time inside the core's one call: compiling a program
and checking it are left out, as building a fabric's routes is not. Absolute speeds move with the machine by a factor of
two: where another guest uses the other thread of the same core, they fall in two groups. So works are run in turn,
`--runs` times each, and the fastest run, that of a quiet core, stands beside the median, and beside the fastest of
benches/yardstick.rs in the same minutes; `--yardstick` compares P128-100 with that, or with another program, in pairs,
judged by the median of ratios.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import metaroce as mr
from metaroce.collectives.program import Builder, Entry, Op, Program, Ranges
from metaroce.engine import Workload

MIB = 1 << 20
TOLERANCE = 0.02
YARDSTICK = Path(__file__).with_name("yardstick.rs")
YARDSTICK_ARGUMENTS = ("128", "4", "10", "100", "1", "wheel")  # hosts, half radix, MB a flow, Gbit/s, times, queue


class DependentRing(Workload):
    """`steps` messages of `bytes` from every rank to the next; each waits for the one before it from the other side."""

    steps: int
    bytes: int

    @property
    def name(self) -> str:
        return "dependent_ring"

    def program(self, ranks: int, seed: int) -> Program:
        rank = np.arange(ranks)[:, None, None]
        builder = Builder(ranks, 2 * self.steps)
        received, sent = builder.block(
            self.steps,
            1,
            Entry(Op.RECV, (rank - 1) % ranks, 0, self.bytes, 0, self.bytes),
            Entry(Op.SEND, (rank + 1) % ranks, 0, 0, 0, self.bytes),
        )
        builder.depend(sent[1:], received[:-1])
        nothing = Ranges.of([], [], [], [], [])
        total = self.steps * self.bytes
        return builder.program(
            dtype="int8", memory_bytes=2 * self.bytes, fill=nothing, expect=nothing, size_bytes=total, count=total
        )


def _packed(topology: str, workload: Workload, seed: int = 1) -> mr.Scenario:
    return mr.Scenario(topology=topology, workload=workload, placement="packed", seed=seed)


# The seeds of the permutations are the first whose pairs are as far apart as those of the published measurements.
WORKS: dict[str, tuple[Callable[[], mr.Scenario], int | None]] = {
    "P128-100": (lambda: _packed("fat-tree-128", mr.Permutation(bytes=10_000_000), seed=5), 1_802_196),
    "RING64-400": (lambda: _packed("fat-tree-64", DependentRing(steps=127, bytes=MIB)), 5_462_016),
    "A2A64-400": (
        lambda: _packed("fat-tree-64", mr.Collective(kind="alltoall", size=16 * MIB, peers_at_a_time=8)),
        1_400_832,
    ),
    "P1024-100": (lambda: _packed("fat-tree-1024", mr.Permutation(bytes=2_000_000), seed=45), 2_938_890),
    "ring-64-multiplane": (
        lambda: mr.Scenario(topology="multiplane-4x64", workload=mr.Collective(kind="all_reduce", size="64MiB")),
        None,
    ),
}
"""Name: how to make the scenario, and the data link-hops it must count (None: our own work)."""


class Yardstick:
    """A program that prints, once with one event a hop and once with two, how many million hops a second it makes.

    Ours reads the first of `YARDSTICK_ARGUMENTS` alone and tells CPU time; others may tell wall time.
    """

    def __init__(self, program: Path, scratch: Path) -> None:
        """Builds it in `scratch` if it is a .rs file."""
        self.program = program.resolve()
        if program.suffix == ".rs":
            self.program = scratch / "yardstick"
            flags = ["-A", "warnings", "--edition", "2024", "-C", "opt-level=3"]
            subprocess.run(["rustc", *flags, program, "-o", self.program], check=True)
        self.clock = "wall_seconds"

    def speeds(self) -> list[float]:
        """Link-hops a second with one event a hop, and with two."""
        command = [self.program, *YARDSTICK_ARGUMENTS]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        self.clock = "seconds" if "by CPU time" in text else "wall_seconds"
        return [float(speed) * 1e6 for speed in re.findall(r"\| ([0-9.]+) M hops/s", text)]


def command(about: str | None, works: Iterable[str]) -> argparse.ArgumentParser:
    """What the benches of named works have in common on their command lines."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", metavar="WORK", help=" ".join(works).replace("%", "%%"))
    parser.add_argument("--json", action="store_true", help="one JSON object, a member a work")
    parser.add_argument("--pairs", type=int, default=5, help="how often each of two is run, in turn")
    return parser


def parsed(parser: argparse.ArgumentParser, works: Iterable[str]) -> argparse.Namespace:
    """The arguments, all works by default; ends with one line for a work that is none."""
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.works if name not in works]:
        parser.error(f"WORK = {unknown[0]!r}: unknown; allowed: {', '.join(works)}")
    arguments.works = arguments.works or list(works)
    return arguments


def main() -> None:
    """Measure the works asked for, all by default."""
    parser = command(__doc__, WORKS)
    parser.add_argument(
        "--yardstick",
        type=Path,
        nargs="?",
        const=YARDSTICK,
        metavar="PATH",
        help="run P128-100 in turn with this program, or .rs (default: benches/yardstick.rs)",
    )
    parser.add_argument("--runs", type=int, default=3, help="how often each work is run, in turn with the others")
    arguments = parsed(parser, WORKS)
    if arguments.runs < 1:
        parser.error(f"--runs = {arguments.runs}: must be at least 1")
    if arguments.yardstick:
        found = against_yardstick(arguments.yardstick, arguments.pairs)
        print(json.dumps(found) if arguments.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
        return
    measured = in_turn(arguments.works, arguments.runs)
    print(json.dumps(measured, indent=1) if arguments.json else "\n".join(_table(measured)))


def in_turn(works: Sequence[str], runs: int) -> dict[str, dict[str, Any]]:
    """The fastest of so many runs of each work, and the median of their speeds."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in works}
    beside: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        yardstick = Yardstick(YARDSTICK, Path(scratch))
        for name in works:
            (Path(scratch) / name).mkdir()
            compile_into(WORKS[name][0](), Path(scratch) / name)
        for _ in range(runs):
            beside.append(yardstick.speeds()[0])
            for name in works:
                found[name].append(_measure(Path(scratch) / name))
                print(f"{name}: {found[name][-1]['seconds']:.2f} s", file=sys.stderr)
    return {name: _row(name, found[name], max(beside)) for name in works}


def against_yardstick(program: Path, pairs: int) -> dict[str, Any]:
    """Medians and ranges of P128-100 against the yardstick's two modes, by its clock, each pair within seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        yardstick = Yardstick(program, Path(scratch))
        compile_into(WORKS["P128-100"][0](), Path(scratch))
        taken = [(yardstick.speeds(), _measure(Path(scratch))) for _ in range(pairs)]
    ours = [found["counters"]["link_hops"] / found[yardstick.clock] for _, found in taken]
    answer: dict[str, Any] = {"pairs": pairs, "ours_hops_per_s": _range(ours)}
    for mode, name in enumerate(("one_event_a_hop", "two_events_a_hop")):
        theirs = [speeds[mode] for speeds, _ in taken]
        ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
        answer[f"yardstick_{name}_hops_per_s"] = _range(theirs)
        answer[f"ratio_to_{name}"] = {"median": round(median(ratios), 3), "range": _range(ratios, 3)}
    return answer


def compile_into(scenario: mr.Scenario, files: Path) -> None:
    """Write what `run` takes: the specification, and a file a column."""
    program = scenario.program()
    (files / "spec.json").write_text(json.dumps(scenario.spec(program)))
    for column, values in program.columns().items():
        (files / f"{column}.{np.dtype(values.dtype).char.replace('L', 'Q')}").write_bytes(values.tobytes())


def run(files: Path, *, spec: str = "spec.json", limits: Sequence[str] = (), timeout: float | None = None) -> Any:
    """What one_run.py says of it; `limits` are arguments of prlimit(1)."""
    child = [sys.executable, str(Path(__file__).with_name("one_run.py")), str(files), spec]
    command = ["prlimit", *limits, *child] if limits else child
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=timeout).stdout)


def _measure(files: Path) -> dict[str, Any]:
    found = run(files)
    if found["status"] != "done":
        raise SystemExit(f"the run did not finish: {found['status']}")
    return dict(found)


def _row(name: str, runs: list[dict[str, Any]], yardstick: float) -> dict[str, Any]:
    fastest, due = min(runs, key=lambda run: run["seconds"]), WORKS[name][1]
    counters, seconds = fastest["counters"], fastest["seconds"]
    hops = counters["data_link_hops"]
    if due is not None and abs(hops - due) > TOLERANCE * due:
        raise SystemExit(f"{name}: data_link_hops = {hops}: other work; must be within {TOLERANCE:.0%} of {due}")
    return {
        "link_hops": counters["link_hops"],
        "data_link_hops": hops,
        "seconds": round(seconds, 4),
        "link_hops_per_s": round(counters["link_hops"] / seconds),
        "median_link_hops_per_s": round(counters["link_hops"] / median(run["seconds"] for run in runs)),
        "yardstick_hops_per_s": round(yardstick),
        "ratio": round(counters["link_hops"] / seconds / yardstick, 3),
        "events_per_s": round(counters["events"] / seconds),
        "peak_rss_mib": round(max(run["peak_rss_mib"] for run in runs), 1),
    }


def _table(measured: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        f"{'work':20} {'link-hops':>11} {'of data':>10} {'s':>7} {'M hops/s':>9} {'median':>7} {'yardstick':>9} "
        f"{'ratio':>6} {'M events/s':>10} {'peak MiB':>9}"
    ]
    for name, row in measured.items():
        lines.append(
            f"{name:20} {row['link_hops']:11} {row['data_link_hops']:10} {row['seconds']:7.2f} "
            f"{row['link_hops_per_s'] / 1e6:9.2f} {row['median_link_hops_per_s'] / 1e6:7.2f} "
            f"{row['yardstick_hops_per_s'] / 1e6:9.2f} {row['ratio']:6.2f} "
            f"{row['events_per_s'] / 1e6:10.2f} {row['peak_rss_mib']:9.1f}"
        )
    return lines


def _range(values: Sequence[float], digits: int | None = None) -> list[float]:
    return [round(min(values), digits), round(max(values), digits)]


if __name__ == "__main__":
    main()
