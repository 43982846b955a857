"""Remake docs/results.md: what the model must hold, medians of five seeds with their range.

Every row states the scenario it comes from as Python text, and that text is what runs here, with S the seed. Needs the
package installed; `nox -s docs` installs and runs it. Runs are independent and take all cores; results do not depend on
how many there are. `metaroce compare` shows the same cells of the first table, one seed at a time, checked.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import metaroce as mr
from metaroce.reports.plan import loss_definition
from metaroce.reports.plot import PUBLISHED_SHARE
from metaroce.reports.topology import headline

SEEDS = (1, 2, 3, 4, 5)
SENDERS, EACH = 32, 4 << 20
FAULT_US, BIN_US, LOST_PLANE = 150, 10, 1

Results = Mapping[tuple[str, int], mr.Result]


@dataclass(frozen=True)
class Row:
    """Labels, and the scenario as Python text; `reference` is the text its share is measured against."""

    labels: tuple[str, ...]
    scenario: str
    reference: str
    target: str = ""


def _collective(kind: str, transport: str, loss: str) -> str:
    workload = f'mr.Collective(kind="{kind}", size="64MiB")'
    return f'mr.Scenario(workload={workload}, transport="{transport}", loss="{loss}", seed=S)'


def _planes(planes: int, loss: str) -> str:
    fabric = f'mr.topology.load("multiplane-4x64").replace(planes={planes})'
    workload = f'mr.Collective(kind="all_reduce", size="{32 * planes}MiB")'
    return f'mr.Scenario(topology={fabric}, workload={workload}, loss="{loss}", seed=S)'


TARGETS = {
    ("all_reduce", "metaroce", "0"): "96 % of line rate",
    ("all_reduce", "metaroce", "1%"): "90 % of line rate, 86 % of own",
    ("all_reduce", "metaroce", "10%"): "above 40 % of line rate",
    ("alltoall", "metaroce", "0"): "94 % of line rate",
    ("alltoall", "metaroce", "1%"): "90 % of line rate",
}
UNDER_LOSS = [
    Row(
        (kind, transport, loss),
        _collective(kind, transport, loss),
        _collective(kind, transport, "0"),
        TARGETS.get((kind, transport, loss), ""),
    )
    for kind in ("all_reduce", "alltoall")
    for transport in mr.TRANSPORTS
    for loss in (("0", "1%", "10%") if transport == "metaroce" else ("0", "1%"))
]
SCALING = [
    Row((str(planes), loss), _planes(planes, loss), _planes(1, loss), "97 % of linear" if planes > 1 else "")
    for loss in ("0", "1%")
    for planes in (1, 2, 4, 8)
]
INCAST = f"mr.Scenario(workload=mr.Incast(senders={SENDERS}, bytes={EACH}), record_wqes=True, seed=S)"
_RING = 'workload=mr.Collective(kind="all_reduce", size="16MiB")'
_FAULT = f'faults=[{{"at": "{FAULT_US}us", "target": "plane", "id": {LOST_PLANE}}}]'
WHOLE = f"mr.Scenario({_RING}, seed=S)"
DEATH = f"mr.Scenario({_RING}, check=True, {_FAULT}, seed=S)"
FREE = f'mr.Scenario(workload=mr.Permutation(bytes="32MiB"), {_FAULT}, record_bin="{BIN_US}us", seed=S)'


def main() -> None:
    """Run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    arguments = parser.parse_args()
    results = _run_all(arguments.seeds)
    arguments.out.write_text("\n".join(_page(arguments.seeds, results)) + "\n")
    print(f"wrote {arguments.out}", file=sys.stderr)


def _run_all(seeds: Sequence[int]) -> Results:
    rows = [*UNDER_LOSS, *SCALING]
    texts = dict.fromkeys([*(row.scenario for row in rows), *(row.reference for row in rows)])
    texts |= dict.fromkeys((INCAST, WHOLE, DEATH, FREE))
    keys = [(text, seed) for text in reversed(texts) for seed in seeds]
    results = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, (key, result) in enumerate(zip(keys, pool.map(_run, keys), strict=True), 1):
            results[key] = result
            print(f"\r{done} of {len(keys)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def _run(key: tuple[str, int]) -> mr.Result:
    text, seed = key
    return mr.run(eval(text, {"mr": mr, "S": seed}))  # the table's own text: it cannot state anything else


def _page(seeds: Sequence[int], results: Results) -> Iterator[str]:
    fabric = mr.topology.load("multiplane-4x64")
    yield from (
        "# Results",
        "",
        f"MetaRoCE-style model, independent, not affiliated with Meta; metaroce {mr.__version__}. Made by one command:",
        "`nox -s docs`, or `python docs/make_results.py` where the package is installed.",
        "",
        f"Medians of seeds {', '.join(map(str, seeds))}, the range in brackets; S in a scenario is the seed.",
        f"Fabric, unless a row says otherwise: {headline(fabric)}; one rank a host, random placement.",
        f"Loss: {loss_definition({})}. Line rate is that of payload, all ports of a host together.",
    )
    yield from _under_loss(seeds, results)
    yield from _scaling(seeds, results)
    yield from _incast(seeds, results)
    yield from _death(seeds, results)


def _under_loss(seeds: Sequence[int], results: Results) -> Iterator[str]:
    yield from ("", "## Collectives under loss", "", "64 MiB a rank, timed without payload.", "")
    yield from _head(
        "collective", "transport", "loss", "busbw GB/s", "of line rate", "of own loss-free", "resent", "timeouts"
    )
    for row in UNDER_LOSS:
        own, ratio = _own(row, seeds, results), _to_reference(row, seeds, results)
        values = (
            _middle([r.busbw_gbs for r in own], "{:.2f}"),
            _middle([r.of_line_rate for r in own], "{:.1%}"),
            _middle(ratio, "{:.1%}"),
            f"{median(r.retransmitted for r in own):.2%}",
            f"{median(r.timeouts for r in own):.0f}",
        )
        yield _line(*row.labels, *values, row.target, f"`{row.scenario}`")
    at_one = next(row for row in UNDER_LOSS if row.labels == ("all_reduce", "metaroce", "1%"))
    share = median(_to_reference(at_one, seeds, results))
    side = "above" if share > PUBLISHED_SHARE else "below"
    yield from (
        "",
        f"Meta published about {PUBLISHED_SHARE:.0%} of loss-free throughput at 1 % loss, measured on 64 GPU nodes.",
        f"The AllReduce of this model keeps {share:.1%}, {side} that figure. The model has no hosts, and its rules are",
        "one choice of several that fit what is published, so neither figure is a measurement of the other.",
    )


def _scaling(seeds: Sequence[int], results: Results) -> Iterator[str]:
    yield from ("", "## From 1 to 8 planes", "", "Ring AllReduce, 32 MiB a rank and plane, 200 Gbit/s a plane.", "")
    yield from _head("planes", "loss", "busbw GB/s", "of linear")
    for row in SCALING:
        planes = int(row.labels[0])
        linear = [ratio / planes for ratio in _to_reference(row, seeds, results)]
        busbw = _middle([r.busbw_gbs for r in _own(row, seeds, results)], "{:.2f}")
        yield _line(*row.labels, busbw, _middle(linear, "{:.1%}"), row.target, f"`{row.scenario}`")


def _incast(seeds: Sequence[int], results: Results) -> Iterator[str]:
    runs = [results[INCAST, seed] for seed in seeds]
    drops = [r.counters["dropped_queue"] / r.counters["data_packets_sent"] for r in runs]
    rates = [[EACH / float(at) for at in r.wqe_placed_ps] for r in runs]
    fairness = [sum(x) ** 2 / (len(x) * sum(y * y for y in x)) for x in rates]
    of_rate = [SENDERS * EACH * 8e12 / r.time_ps / r.payload_line_rate_bps for r in runs]
    yield from ("", f"## Incast {SENDERS}:1", "", f"{EACH >> 20} MiB a sender, all at once: `{INCAST}`.", "")
    yield from _head("measure", "value", scenario=False)
    yield _line("Jain's index of the senders' rates", _middle(fairness, "{:.4f}"), "0.995")
    yield _line("packets dropped by full queues", _middle(drops, "{:.3%}"), "at most 0.1 %")
    yield _line("of the receiver's payload rate", _middle(of_rate, "{:.1%}"), "95 %")


def _death(seeds: Sequence[int], results: Results) -> Iterator[str]:
    runs, whole, free = ([results[text, seed] for seed in seeds] for text in (DEATH, WHOLE, FREE))
    yield from ("", "## A plane dies and stays dead", "", f"One of four planes goes at {FAULT_US} us.", "")
    yield from _head("measure", "value")
    yield _line("wrong elements, all seeds", str(sum(r.wrong or 0 for r in runs)), "0", f"`{DEATH}`")
    yield _line("elements compared a seed", str(min(r.checked for r in runs)), "all", "the same")
    yield _line("its time, us", _middle([r.time_us for r in runs], "{:.0f}"), "finishes", "the same")
    yield _line("time without the fault, us", _middle([r.time_us for r in whole], "{:.0f}"), "", f"`{WHOLE}`")
    stall = _middle([_slowest(r) for r in free], "{:.1%}")
    yield _line(f"slowest {BIN_US} us of any other plane, of its mean before", stall, "never stalls", f"`{FREE}`")
    yield from (
        "",
        "In the ring every chunk soon waits for a packet that the dead plane took along. Until those are resent, for",
        "20 us, the other planes have little to send; transfers that do not wait for each other keep them full.",
    )


def _slowest(result: mr.Result) -> float:
    """The least a surviving plane moved in one bin after the fault, over its mean before; both ends are left out."""
    others = [bins for plane, bins in enumerate(result.plane_bins) if plane != LOST_PLANE]
    fault, last = FAULT_US // BIN_US, int(result.time_us * 0.9) // BIN_US
    return min(min(bins[fault:last]) * (fault - 1) / sum(bins[1:fault]) for bins in others)


def _own(row: Row, seeds: Sequence[int], results: Results) -> list[mr.Result]:
    return [results[row.scenario, seed] for seed in seeds]


def _to_reference(row: Row, seeds: Sequence[int], results: Results) -> list[float]:
    return [results[row.scenario, seed].busbw_gbs / results[row.reference, seed].busbw_gbs for seed in seeds]


def _middle(values: Sequence[float], form: str) -> str:
    text: Callable[[float], str] = form.format
    return text(median(values)) + (f" ({text(min(values))} - {text(max(values))})" if len(values) > 1 else "")


def _head(*names: str, scenario: bool = True) -> Iterator[str]:
    names = (*names, "must hold", *(("scenario",) if scenario else ()))
    yield _line(*names)
    yield _line(*["---"] * len(names))


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
