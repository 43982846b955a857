"""Two ways of one run, in turn, each in a process of its own: one thread and two, busy-until and explicit ports.

Both give the same digest, or the bench ends. The answer is the median of the ratios of speeds, second way over first:
of wall time for threads, which is what they are for, else of CPU time. On a machine that does other work besides,
threads wait for each other at the end of each window: the load average is told, and beside the ratio the CPU time that
both threads take, over that of one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import engine

import metaroce as mr

TOPOLOGY = "multiplane-4x64"


def _threads(kind: str, loss: str) -> tuple[mr.Scenario, mr.Scenario]:
    scenario = mr.Scenario(topology=TOPOLOGY, workload=mr.Collective(kind=kind, size="64MiB"), loss=loss)
    return scenario, scenario.replace(threads=2)


def _explicit(work: str) -> tuple[mr.Scenario, mr.Scenario]:
    scenario = engine.WORKS[work][0]()
    return scenario, scenario.replace(topology=scenario.topology.replace(explicit_queues=True))


WORKS = {
    "threads-all_reduce": lambda: _threads("all_reduce", "0"),
    "threads-all_reduce-1%": lambda: _threads("all_reduce", "1%"),
    "threads-alltoall": lambda: _threads("alltoall", "0"),
    "threads-alltoall-1%": lambda: _threads("alltoall", "1%"),
    "explicit-P128-100": lambda: _explicit("P128-100"),
    "explicit-A2A64-400": lambda: _explicit("A2A64-400"),
}


def main() -> None:
    """Measure the works asked for, all by default."""
    arguments = engine.parsed(engine.command(__doc__, WORKS), WORKS)
    measured = {}
    for name in arguments.works:
        measured[name] = found = compare(name, arguments.pairs)
        print(f"{name:22} {', '.join(f'{key} {value}' for key, value in found.items())}", file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps(measured, indent=1))


def compare(name: str, pairs: int) -> dict[str, Any]:
    """Medians and ranges over the pairs."""
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch)
        first, second = WORKS[name]()
        engine.compile_into(first, files)
        (files / "other.json").write_text(json.dumps(second.spec(second.program())))
        taken = [(engine.run(files), engine.run(files, spec="other.json")) for _ in range(pairs)]
    if len({found["digest"] for pair in taken for found in pair}) > 1:
        raise SystemExit(f"{name}: the digests of the two ways differ")
    clock = "wall_seconds" if second.threads > 1 else "seconds"
    speeds = [one[clock] / other[clock] for one, other in taken]
    ways = [[found[way][clock] for found in taken] for way in (0, 1)]
    return {
        clock: " | ".join(f"{median(way):.2f} ({min(way):.2f}-{max(way):.2f})" for way in ways),
        "speed": f"{median(speeds):.2f} ({min(speeds):.2f}-{max(speeds):.2f})",
        "cpu": round(median(other["seconds"] / one["seconds"] for one, other in taken), 2),
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    main()
