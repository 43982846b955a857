"""Instructions of fixed runs, counted by Callgrind: unlike times, they are the same on a busy machine.

The runs are those of rust/driver/benches/fixed_runs.rs, in the profile that users get. Set-up and run are counted
apart, lowering of the program and reporting of results not at all. `--check` fails where a count has risen by more than
3 % over benches/baseline.json, `--update` remakes that file; a change that makes the engine faster has to do so, too,
or the next ones may give back what it won. Compilers differ as much as small changes do: the baseline names its own.
Needs nothing but Python, Cargo and Valgrind.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ROOT / "benches" / "baseline.json"
TOLERANCE = 0.03
MARKS = {"set_up": None, "counted_run": "setup_instructions", "results": "run_instructions"}
"""Functions of fixed_runs.rs where counting begins anew, and what was counted until there."""
COUNTED = [key for key in MARKS.values() if key]
# The C library has a memcpy for each kind of processor, and picks one when it starts. All of them here take that of the
# plainest one. (Names of several versions of it; what it does not know it ignores.)
PLAIN = "glibc.cpu.hwcaps=" + ",".join(
    f"-{name}{suffix}" for suffix in ("", "_Usable") for name in ("AVX512F", "AVX512VL", "AVX2", "AVX", "ERMS", "FSRM")
)


def main() -> None:
    """Count, show, and compare or remake the baseline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="all by default; an unknown name lists them")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--check", action="store_true", help="fail where a count is more than 3 %% above the baseline")
    kind.add_argument("--update", action="store_true", help="remake benches/baseline.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time (default: all cores)")
    arguments = parser.parse_args()
    if not shutil.which("valgrind"):
        raise SystemExit("valgrind is not installed: no instructions can be counted (Debian: apt-get install valgrind)")
    program = _built()
    names = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    if unknown := [name for name in arguments.runs if name not in names]:
        parser.error(f"RUN = {unknown[0]!r}: unknown; allowed: {', '.join(names)}")
    if arguments.update and arguments.runs:
        parser.error("--update counts all runs: RUN is not allowed with it")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        counts = dict(pool.map(lambda name: (name, count(program, name)), arguments.runs or names))
    print(table(counts))
    if arguments.update:
        BASELINE.write_text(json.dumps({"tools": _tools(), "runs": counts}, indent=1) + "\n")
    if arguments.check:
        recorded = json.loads(BASELINE.read_text())
        worse, notes = compared(counts, recorded["runs"])
        if recorded["tools"] != _tools():
            notes.append(f"counted with {_tools()}; the baseline was with {recorded['tools']}")
        for line in (*notes, *worse):
            print(line, file=sys.stderr)
        raise SystemExit(1 if worse else 0)


def count(program: Path, name: str) -> dict[str, int]:
    """Instructions of a run and of its set-up, and its link-hops."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        dumps = [f"--dump-before=fixed_runs::{function}" for function in MARKS]
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *dumps, program, name]
        # No other variable: those lie on the stack, whose place decides how what is on it is aligned.
        environment = {"PATH": os.environ["PATH"], "GLIBC_TUNABLES": PLAIN}
        done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: valgrind ended with status {done.returncode}: {done.stderr[-2000:]}")
        shown = json.loads(done.stdout)
        if shown["status"] != "Done":
            raise SystemExit(f"{name}: the run did not finish: {shown['status']}")
        # A dump holds what was counted since the one before.
        texts = [path.read_text() for path in Path(scratch).glob("out.*")]
        counts = {key: _total(texts, function) for function, key in MARKS.items() if key}
        return {"link_hops": shown["link_hops"], **counts}


def compared(counts: dict[str, Any], recorded: dict[str, Any]) -> tuple[list[str], list[str]]:
    """A line for each count that is too high, and one for whatever else is worth to know."""
    worse, notes = [], []
    for name, found in counts.items():
        if name not in recorded:
            worse.append(f"{name}: not in {BASELINE.name}: remake it with --update")
            continue
        base = recorded[name]
        if found["link_hops"] != base["link_hops"]:
            notes.append(f"{name}: link_hops = {found['link_hops']:,}, not {base['link_hops']:,}: the work has changed")
        for key in COUNTED:
            ratio = found[key] / base[key]
            line = f"{name}: {key} = {found[key]:,}: {ratio - 1:+.1%} against the baseline of {base[key]:,}"
            if ratio > 1 + TOLERANCE:
                worse.append(f"{line}; allowed: {TOLERANCE:+.0%}")
            elif ratio < 1 - TOLERANCE:
                notes.append(f"{line}: remake it with --update, or that much may creep back")
    return worse, notes


def table(counts: dict[str, Any]) -> str:
    """One line a run."""
    lines = [f"{'run':32} {'link-hops':>10} {'instructions':>14} {'a hop':>7} {'set-up':>12}"]
    for name, found in counts.items():
        hops, run, setup = found["link_hops"], found["run_instructions"], found["setup_instructions"]
        lines.append(f"{name:32} {hops:10,} {run:14,} {run / hops:7.0f} {setup:12,}")
    return "\n".join(lines)


def _built() -> Path:
    """The program with the runs, whatever flags the caller builds with otherwise."""
    environment = {key: value for key, value in os.environ.items() if not key.endswith("RUSTFLAGS")}
    command = "cargo bench -p metaroce-driver --bench fixed_runs --no-run --locked --message-format=json".split()
    built = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        raise SystemExit("cargo could not build fixed_runs: see above")
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    mine = [m for m in messages if m.get("executable") and m["target"]["name"] == "fixed_runs"]
    return Path(mine[-1]["executable"])


def _total(texts: list[str], function: str) -> int:
    due = [text for text in texts if f"desc: Trigger: --dump-before=fixed_runs::{function}\n" in text]
    if len(due) != 1:
        raise SystemExit(f"callgrind saw {function} of fixed_runs.rs begin {len(due)} times, not once")
    return int(re.search(r"^totals: (\d+)", due[0], re.MULTILINE).group(1))


def _tools() -> dict[str, str]:
    """Versions of what decides on a count."""
    versions = {}
    for tool in ("rustc", "valgrind"):
        text = subprocess.run([tool, "--version"], check=True, capture_output=True, text=True).stdout
        versions[tool] = re.search(r"\d+\.\d+\.\d+", text).group()
    return versions


if __name__ == "__main__":
    main()
