"""Every collective on engines over 2 .. 40 ranks and 1 .. 16 engines, rehearsed with random delays; prints a table.

    python benches/offload_programs.py [--kinds all_reduce ...] [--ranks 2-40] [--engines 1-16] [--seeds 50] [--verify]

A cell is a collective, a number of ranks (one domain, or racks of 16) and of engines; the algorithm and count are drawn
from the cell, so that all algorithms and counts from one element to several chunks come up. Exit status 1 where an
element is wrong, a run does not end, a program is refused, or a message that was to be announced comes early.
"""

import argparse
import sys
import time
from collections import Counter

import numpy as np

from metaroce.errors import ProgramError
from metaroce.offload import OffloadOptions, compile, node
from metaroce.simulation import rehearse

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "alltoall", "alltoallv")


def bounds(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def cell(kind, ranks, engines, verified):
    """A program for one cell, and what was drawn for it."""
    draw = np.random.default_rng([KINDS.index(kind), ranks, engines])
    domains = [0] * ranks if draw.random() < 0.5 else [rank // 16 for rank in range(ranks)]
    fitting = ["auto", "put", "direct", "hierarchical"]
    if not kind.startswith("alltoall"):
        fitting += ["ring"] * 2 + ["recursive"] * (ranks & (ranks - 1) == 0)
    options = OffloadOptions(
        algorithm=str(draw.choice(fitting)),
        engines=engines,
        chunk=int(draw.choice([64, 256, 1024])),
        ready=str(draw.choice(["never", "first", "first", "every"])),
        posters=bool(draw.random() < 0.3),
    )
    matrix = draw.integers(0, 64, (ranks, ranks)) * 4 * (draw.random((ranks, ranks)) < 0.7)
    matrix[0, 1] += 4
    one = node(kind, ranks, count=int(draw.choice([1, 7, 64, 500])), matrix=matrix, inplace=bool(draw.random() < 0.5))
    compiled = compile(one, domains, options=options, verified=verified)
    return compiled, options


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--ranks", type=bounds, default=range(2, 41))
    parser.add_argument("--engines", type=bounds, default=range(1, 17))
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--verify", action="store_true", help="also prove every program, which takes longer")
    asked = parser.parse_args()
    begun, failed = time.monotonic(), []
    print("| collective | ranks | engines | programs | runs | elements compared | wrong | too early | algorithms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in asked.kinds:
        runs = checked = wrong = early = programs = 0
        algorithms = Counter()
        for ranks in asked.ranks:
            for engines in asked.engines:
                try:
                    compiled, options = cell(kind, ranks, engines, asked.verify)
                except ProgramError as error:
                    failed.append(f"{kind} of {ranks} ranks, {engines} engines: {error}")
                    continue
                found = rehearse(compiled.program(), range(asked.seeds))
                programs, runs = programs + 1, runs + asked.seeds
                checked, wrong = checked + int(found.checked.sum()), wrong + int(found.wrong.sum())
                early += int(found.rnr.sum())
                algorithms[compiled.module.nodes[0].algorithm] += 1
                if not found.exact or (options.ready == "every" and found.early_bytes.any()):
                    failed.append(f"{kind} of {ranks} ranks, {engines} engines, {options}: {found.reason}")
        shown = ", ".join(f"{name} {many}" for name, many in sorted(algorithms.items()))
        span = [f"{r.start}-{r.stop - 1}" for r in (asked.ranks, asked.engines)]
        row = (kind, *span, programs, runs, checked, wrong, early, shown)
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    for line in failed:
        print(line, file=sys.stderr)
    print(f"{len(failed)} failed, {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
