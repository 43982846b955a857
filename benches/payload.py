"""What payload costs: CPU time of `simulate` with payload, over that of the same program without it.

Both are run in turn in one process and judged by the median of the ratios, since absolute speeds move with the machine.
With payload the time includes memory, inputs, every copy and sum, and the comparison of every element at the end.
The first run, before the pairs, takes its memory from the system; those after it have the same pages again.
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import Any

import engine

import metaroce as mr
from metaroce import _core

TOPOLOGY = "multiplane-4x64"
WORKS = {
    "all_reduce-16MiB": lambda: mr.Collective(kind="all_reduce", size="16MiB"),
    "all_reduce-4MiB": lambda: mr.Collective(kind="all_reduce", size="4MiB"),
    "alltoall-16MiB": lambda: mr.Collective(kind="alltoall", size="16MiB"),
    "alltoall-4MiB": lambda: mr.Collective(kind="alltoall", size="4MiB"),
    "all_reduce-bfloat16-8MiB": lambda: mr.Collective(kind="all_reduce", size="8MiB", dtype="bfloat16"),
    "all_reduce-float16-8MiB": lambda: mr.Collective(kind="all_reduce", size="8MiB", dtype="float16"),
    "reduce_scatter-8MiB": lambda: mr.Collective(kind="reduce_scatter", size="8MiB"),
    "all_gather-8MiB": lambda: mr.Collective(kind="all_gather", size="8MiB"),
    # Its parts are not whole pages of memory.
    "all_reduce-6000000B": lambda: mr.Collective(kind="all_reduce", size="6000000"),
}


def main() -> None:
    """Measure the works asked for, all by default."""
    arguments = engine.parsed(engine.command(__doc__, WORKS), WORKS)
    measured = {}
    for name in arguments.works:
        measured[name] = found = _ratios(name, arguments.pairs)
        if not arguments.json:
            print(
                f"{name:26} timing only {found['timing_s'][0]:.3f}-{found['timing_s'][1]:.3f} s, "
                f"with payload {found['payload_s'][0]:.3f}-{found['payload_s'][1]:.3f} s, "
                f"ratio {found['ratio']:.2f} ({found['range'][0]:.2f}-{found['range'][1]:.2f}), "
                f"first {found['first']:.2f}",
                flush=True,
            )
    if arguments.json:
        print(json.dumps(measured, indent=1))


def _ratios(name: str, pairs: int) -> dict[str, Any]:
    scenario = mr.Scenario(topology=TOPOLOGY, workload=WORKS[name]())
    program = scenario.program()
    timing = json.dumps(scenario.spec(program)), program.columns()
    payload = {"payload": {"dtype": program.dtype}}
    moved = json.dumps(scenario.spec(program) | payload), timing[1] | program.payload_columns()
    first, _ = _seconds(*moved)
    taken = [(_seconds(*timing), _seconds(*moved)) for _ in range(pairs)]
    ratios = [with_payload / without for (without, _), (with_payload, _) in taken]
    if len({digest for pair in taken for _, digest in pair}) != 1:
        raise SystemExit(f"{name}: payload changes what happens")
    return {
        "ratio": round(median(ratios), 3),
        "range": [round(min(ratios), 3), round(max(ratios), 3)],
        "first": round(first / taken[0][0][0], 3),
        "timing_s": _range([without for (without, _), _ in taken]),
        "payload_s": _range([with_payload for _, (with_payload, _) in taken]),
    }


def _seconds(spec: str, columns: dict[str, Any]) -> tuple[float, str]:
    begun = time.thread_time()
    result = _core.simulate(spec, columns)
    seconds = time.thread_time() - begun
    if result["status"] != "done" or result["wrong"]:
        raise SystemExit(f"status {result['status']}, wrong {result['wrong']}")
    return seconds, result["digest"]


def _range(values: list[float]) -> list[float]:
    return [round(min(values), 4), round(max(values), 4)]


if __name__ == "__main__":
    main()
