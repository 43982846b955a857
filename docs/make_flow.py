"""Remake docs/flow.md: what flow fidelity is worth beside the packet model, and how far it goes.

`python docs/make_flow.py`, where the package is installed, takes some minutes; nearly all of them are the packet runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import metaroce as mr

TOPOLOGIES = ("multiplane-4x64", "fat-tree-64")
TRANSPORTS = ("metaroce", "mrc", "rocev2-adaptive", "rocev2-sr")
LOSSES = ("0", "0.1%", "1%")
WORKLOADS = {
    "all_reduce": [mr.Collective(kind="all_reduce", size=size) for size in ("1MiB", "16MiB")],
    "alltoall": [mr.Collective(kind="alltoall", size=size) for size in ("1MiB", "16MiB")],
    "permutation": [mr.Permutation(bytes=size) for size in ("256KiB", "8MiB")],
    "incast": [mr.Incast(senders=16, bytes=size) for size in ("64KiB", "1MiB")],
}
TREES = {  # pods, ToRs a pod, aggregation switches a pod, cores of each, hosts of a ToR
    1_000: (10, 10, 10, 10, 10),
    10_000: (25, 20, 20, 20, 20),
    100_000: (50, 40, 50, 40, 50),
}
PERMUTATION = 'mr.Permutation(bytes="1MiB")'
GROUPS = 'mr.Groups(collective=mr.Collective(kind="all_reduce", size="16MiB", chunks=1), group={})'
SCALE = [
    *((hosts, "metaroce", loss, PERMUTATION) for hosts in TREES for loss in ("0", "1%")),
    (10_000, "rocev2-adaptive", "0", PERMUTATION),
    (1_000, "metaroce", "0", 'mr.Collective(kind="alltoall", size="16MiB")'),
    (10_000, "metaroce", "0", GROUPS.format(50)),
    (10_000, "metaroce", "1%", GROUPS.format(50)),
    (100_000, "metaroce", "0", GROUPS.format(4)),
]
ONE = """
import json, resource, time
import metaroce as mr
from metaroce.topology import FatTree
names = ("pods", "tors_per_pod", "aggs_per_pod", "cores_per_agg", "hosts_per_tor")
tree = FatTree(link={{"rate": "400Gbps", "delay": "1us", "queue": "1400000B"}}, **dict(zip(names, {tree})))
run = mr.run(mr.Scenario(topology=tree, transport="{transport}", loss="{loss}", workload={workload}, fidelity="flow"))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([run.time_us, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, run.counters["messages"]]))
"""


@dataclass(frozen=True)
class Pair:
    """One scenario at both fidelities; times in us, None of a packet run that did not finish."""

    transport: str
    collective: str
    size: int
    loss: str
    topology: str
    packet: float | None
    flow: float

    @property
    def ratio(self) -> float:
        """Estimate over packet level."""
        return self.flow / self.packet if self.packet else 0.0


def pair(topology: str, transport: str, loss: str, workload: mr.Collective | mr.Permutation | mr.Incast) -> Pair:
    """Run it twice."""
    scenario = mr.Scenario(topology=topology, transport=transport, loss=loss, workload=workload)
    flow = mr.run(scenario.replace(fidelity="flow"))
    try:
        packet = mr.run(scenario).time_us
    except mr.SimulationStalled:
        packet = None
    size = workload.size if isinstance(workload, mr.Collective) else workload.bytes
    return Pair(transport, workload.name, size, loss, topology, packet, flow.time_us)


def grid() -> list[Pair]:
    """Every scenario of the grid."""
    pairs = []
    for topology in TOPOLOGIES:
        for transport in TRANSPORTS:
            for loss in LOSSES:
                pairs += [pair(topology, transport, loss, w) for some in WORKLOADS.values() for w in some]
                sys.stderr.write(f"{topology}, {transport}, loss {loss}\n")
    return pairs


def groups(pairs: list[Pair]) -> list[str]:
    """Median and worst ratio of every transport, collective and loss."""
    lines = [
        "| transport | collective | " + " | ".join(f"loss {loss}" for loss in LOSSES) + " |",
        "| --- | --- |" + " --- |" * len(LOSSES),
    ]
    for transport in TRANSPORTS:
        for collective in WORKLOADS:
            cells = []
            for loss in LOSSES:
                ratios = [
                    p.ratio
                    for p in pairs
                    if (p.transport, p.collective, p.loss) == (transport, collective, loss) and p.packet
                ]
                worst = max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=0.0)
                cells.append(f"{median(ratios):.2f}, {worst:.2f}" if ratios else "-")
            lines.append(f"| {transport} | {collective} | " + " | ".join(cells) + " |")
    return lines


def table(pairs: list[Pair]) -> list[str]:
    """Every scenario."""
    lines = ["| topology | transport | workload | loss | packet us | flow us | ratio |", "| --- " * 7 + "|"]
    for p in pairs:
        packet = f"{p.packet:.1f} | {p.flow:.1f} | {p.ratio:.3f}" if p.packet else f"does not finish | {p.flow:.1f} | -"
        size = f"{p.size // 1024} KiB"
        lines.append(f"| {p.topology} | {p.transport} | {p.collective} {size} | {p.loss} | {packet} |")
    return lines


def scale() -> list[str]:
    """Whole processes: import, topology, program, estimate."""
    lines = [
        "| hosts | transport | loss | workload | estimate us | messages | CPU seconds | MB |",
        "| --- " * 8 + "|",
    ]
    for hosts, transport, loss, workload in SCALE:
        program = ONE.format(tree=TREES[hosts], transport=transport, loss=loss, workload=workload)
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        time, cpu, memory, messages = json.loads(ran.stdout)
        row = f"{hosts:,} | {transport} | {loss} | `{workload}` | {time:.1f} | {messages:,} | {cpu:.1f} | {memory:.0f}"
        lines.append(f"| {row} |")
        sys.stderr.write(row + "\n")
    return lines


def main() -> None:
    """Fill docs/flow.in.md in."""
    parser = argparse.ArgumentParser(description=__doc__)
    folder = Path(__file__).parent
    parser.add_argument("--out", type=Path, default=folder / "flow.md")
    out = parser.parse_args().out
    pairs = grid()
    sections = {"groups": groups(pairs), "scale": scale(), "pairs": table(pairs), "version": [mr.__version__]}
    text = (folder / "flow.in.md").read_text()
    for name, lines in sections.items():
        text = text.replace("{{" + name + "}}", "\n".join(lines))
    out.write_text(text)


if __name__ == "__main__":
    main()
