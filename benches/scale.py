"""How cost grows with hosts, planes, connections and message size, as a Markdown table for docs/performance.md.

A row is one run without payload. Speed is link-hops by CPU time, the median of `--times` runs, and its ratio to what
benches/yardstick.rs reached beside each; set-up is what the core takes until picosecond 1, and not part of the speed;
compile is what Python takes from the scenario to the specification. Memory is the peak of a process with nothing in it
but the core. A row that needs more memory or time than it may have says so, and the others are measured all the same.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from engine import YARDSTICK, Yardstick, compile_into, run

import metaroce as mr
from metaroce.topology import FatTree, LeafSpine

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LINK = {
    "rate": "100Gbps",
    "delay": "1us",
    "queue": "350000B",
    "ecn": {"kmin": "35000B", "kmax": "140000B", "pmax": 1.0},
}
# Pods and radix of a three-tier fat tree with full bisection.
TREES = {16: (4, 2), 64: (4, 4), 128: (8, 4), 256: (16, 4), 1024: (16, 8), 4096: (16, 16)}


def tree(hosts: int) -> FatTree:
    """That of so many hosts; 100 Gbit/s."""
    pods, radix = TREES[hosts]
    shape = dict.fromkeys(("tors_per_pod", "aggs_per_pod", "cores_per_agg", "hosts_per_tor"), radix)
    return FatTree(name=f"fat-tree-{hosts}", pods=pods, link=LINK, **shape)


def _packed(topology: Any, workload: Any) -> mr.Scenario:
    return mr.Scenario(topology=topology, workload=workload, placement="packed", seed=1)


def _permutation(hosts: int) -> mr.Scenario:
    """256 MB in all, and 0.5 MB a host at least."""
    return _packed(tree(hosts), mr.Permutation(bytes=max(256_000_000 // hosts, 500_000)))


def _planes(planes: int) -> mr.Scenario:
    """64 hosts of 800 Gbit/s, whatever the planes that share it."""
    link = LINK | {
        "rate": f"{800 // planes}Gbps",
        "queue": "2800kB",
        "ecn": {"kmin": "280kB", "kmax": "1120kB", "pmax": 1.0},
    }
    topology = LeafSpine(name=f"{planes}-planes", planes=planes, leaves=8, spines=8, hosts_per_leaf=8, link=link)
    return _packed(topology, mr.Permutation(bytes=16 * MIB))


def _peers(peers: int) -> mr.Scenario:
    """256 hosts, each to the `peers` behind it, 2 MB in all: 256 * `peers` connections."""
    size = 2_000_000 // peers
    return _packed(tree(256), _flows((h, (h + k) % 256, size) for h in range(256) for k in range(1, peers + 1)))


def _messages(size: int) -> mr.Scenario:
    """128 hosts, each to the one half the fabric away, 512 packets in messages of `size` bytes."""
    count = 512 // -(-size // 4096)
    return _packed(tree(128), _flows((h, (h + 64) % 128, size) for h in range(128) for _ in range(count)))


def _flows(writes: Iterable[tuple[int, int, int]]) -> mr.Flows:
    return mr.Flows(writes=tuple(writes))


def _alltoall(hosts: int, size: int) -> mr.Scenario:
    """`size` bytes a pair."""
    return _packed(tree(hosts), mr.Collective(kind="alltoall", size=size * hosts, peers_at_a_time=8))


ROWS: dict[str, Callable[[], mr.Scenario]] = {
    **{f"hosts/permutation-{n}": lambda n=n: _permutation(n) for n in TREES},
    **{f"hosts/alltoall-{n}": lambda n=n: _alltoall(n, 16 * KIB) for n in (64, 128, 256)},
    "hosts/alltoall-1024": lambda: _alltoall(1024, 4 * KIB),
    **{f"planes/{n}": lambda n=n: _planes(n) for n in (1, 2, 4, 8)},
    **{f"connections/{256 * n}": lambda n=n: _peers(n) for n in (1, 4, 16, 40, 120)},
    **{f"message/{n}": lambda n=n: _messages(n) for n in (256, 4 * KIB, 64 * KIB, MIB)},
}
"""Name: its scenario. The first ones are the largest, too: 4,096 hosts, and 523,776 connections."""


def main() -> None:
    """Measure the rows asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="rows by name, as 'hosts/*'; names: " + " ".join(ROWS)
    )
    parser.add_argument("--times", type=int, default=3, help="runs a row (default: 3)")
    parser.add_argument("--memory", type=float, default=8, metavar="GIB", help="address space of a run (default: 8)")
    parser.add_argument("--seconds", type=float, default=600, help="wall time of a run (default: 600)")
    parser.add_argument("--json", action="store_true", help="one JSON object, a member a row")
    arguments = parser.parse_args()
    names = [name for name in ROWS if fnmatch.fnmatch(name, arguments.only)]
    if not names:
        parser.error(f"--only {arguments.only!r}: no row has such a name; rows: {', '.join(ROWS)}")
    if not arguments.json:
        print(*HEAD, sep="\n", flush=True)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        yardstick = Yardstick(YARDSTICK, Path(scratch))
        for name in names:
            found[name] = measured(name, yardstick, arguments)
            if not arguments.json:
                print(line(name, found[name]), flush=True)
    if arguments.json:
        print(json.dumps(found, indent=1))


def measured(name: str, yardstick: Yardstick, arguments: argparse.Namespace) -> dict[str, Any]:
    """A row, or why there is none."""
    limits = [f"--as={int(arguments.memory * GIB)}"]
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch)
        # Compiled in a process of its own, which gives its memory back.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            seconds = pool.submit(compiled, name, files).result()
        try:
            first = run(files, spec="setup.json", limits=limits, timeout=arguments.seconds)
            setup = first["seconds"]
            taken = []
            for _ in range(arguments.times):
                taken.append((yardstick.speeds()[0], run(files, limits=limits, timeout=arguments.seconds)))
        except subprocess.TimeoutExpired:
            return {"compile_seconds": seconds, "failed": f"more than {arguments.seconds:g} s"}
        except subprocess.CalledProcessError as error:
            return {"compile_seconds": seconds, "failed": f"status {error.returncode} with {arguments.memory:g} GiB"}
    if taken[0][1]["status"] != "done":
        return {"compile_seconds": seconds, "failed": taken[0][1]["status"]}
    counters = taken[0][1]["counters"]
    hops = counters["link_hops"]
    speeds = [hops / max(one["seconds"] - setup, 1e-9) for _, one in taken]
    return {
        "link_hops": hops,
        "link_hops_per_s": round(median(speeds)),
        "ratio": round(median(own / other for own, (other, _) in zip(speeds, taken, strict=True)), 3),
        "events_a_hop": round(counters["events"] / hops, 3),
        "setup_seconds": round(setup, 3),
        "compile_seconds": seconds,
        "peak_rss_mib": round(max(one["peak_rss_mib"] for _, one in taken), 1),
    }


def compiled(name: str, files: Path) -> float:
    """Seconds that it took; beside the specification it leaves one that ends at picosecond 1."""
    begin = time.perf_counter()
    compile_into(ROWS[name](), files)
    seconds = round(time.perf_counter() - begin, 2)
    spec = json.loads((files / "spec.json").read_text())
    (files / "setup.json").write_text(json.dumps(spec | {"time_limit_ps": 1}))
    return seconds


HEAD = (
    "| run | link-hops | M link-hops/s | of the yardstick | events a hop | set-up, s | compile, s | peak, MiB |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


def line(name: str, row: dict[str, Any]) -> str:
    """A line of the table."""
    if "failed" in row:
        return f"| {name} | {row['failed']} | | | | | {row['compile_seconds']} | |"
    cells = [
        f"{row['link_hops']:,}",
        f"{row['link_hops_per_s'] / 1e6:.2f}",
        f"{row['ratio']:.2f}",
        f"{row['events_a_hop']:.2f}",
        f"{row['setup_seconds']:.3f}",
        f"{row['compile_seconds']:.2f}",
        f"{row['peak_rss_mib']:.0f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
