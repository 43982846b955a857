"""Measure with packets what loss does to a message, for flow fidelity: ``python benches/make_flow_curves.py``.

One connection on `multiplane-4x64` sends messages far apart from each other, of each size, at each loss; what a message
takes beyond its bytes at the connection's long-run goodput is sorted into ranks. Writes
``python/metaroce/flow_curves.json``; ``--quick`` measures few messages, for a test.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import metaroce as mr
from metaroce.engine import Flows

TOPOLOGY = "multiplane-4x64"
RATE = 800e9
SIZES = (1 / 128, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 16, 64)
"""In bandwidth-delay products; the smallest is one packet."""
RANKS = (*(k / 20 for k in range(19)), 0.92, 0.94, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.9975, 1.0)
LOSSES = (0.001, 0.003, 0.01, 0.03, 0.1)
ROCE = (0.001, 0.003, 0.01)
TRANSPORTS = {  # losses, unit of recovery, pause between messages in us
    "metaroce": (LOSSES, "rtt", 1_000),
    "mrc": (LOSSES, "rtt", 4_000),
    "rocev2-adaptive": (ROCE, "ps", 60_000),
    "rocev2-67ms": (ROCE, "ps", 600_000),
    "rocev2-sr": (LOSSES[:-1], "ps", 10_000),  # at more its QPs give up
    "rocev2-1qp": (ROCE, "ps", 60_000),
}
BDP_PACKETS = (40, 600)
"""Bandwidth-delay products that the curves are good for: a third to four times the one they were measured at."""
LONG = (9, 11)
"""The sizes between which long-run goodput is measured."""


def placed(transport: str, sizes: list[int], pause_us: int, loss: float, seed: int, fidelity: str) -> np.ndarray:
    """Picoseconds from the start of each message until its last byte is placed."""
    gap = pause_us * 10**6
    workload = Flows(writes=[(0, 1, size, k * gap) for k, size in enumerate(sizes)])
    scenario = mr.Scenario(
        topology=TOPOLOGY,
        ranks=2,
        transport=transport,
        workload=workload,
        loss=loss,
        seed=seed,
        record_wqes=True,
        fidelity=fidelity,
    )
    at = mr.run(scenario).wqe_placed_ps
    return at.astype(np.int64) - np.arange(len(sizes)) * gap


def measure(transport: str, bdp: float, loss: float, messages: float, pause_us: int) -> list[np.ndarray]:
    """Times of the messages of each size."""
    counts = [int(max(80, messages * min(1.0, 2 / size))) for size in SIZES]
    sizes = [int(size * bdp) for size in SIZES]
    return [placed(transport, [size] * n, pause_us, loss, 1, "packet") for size, n in zip(sizes, counts, strict=True)]


def without_loss(transport: str, bdp: float, pause_us: int) -> np.ndarray:
    """The same of one message each, as a fluid."""
    return placed(transport, [int(size * bdp) for size in SIZES], pause_us, 0.0, 1, "flow").astype(float)


def rate_factor(times: list[np.ndarray], fluid: np.ndarray) -> float:
    """Long-run goodput, from what the longest messages take beyond shorter ones."""
    short, long = (float(np.median(times[k])) for k in LONG)
    return min(1.0, float(fluid[LONG[1]] - fluid[LONG[0]]) / (long - short))


def added(times: list[np.ndarray], fluid: np.ndarray, goodput: float, idle: float) -> np.ndarray:
    """Rows by size, columns by rank, picoseconds."""
    expected = idle + (fluid - idle) / goodput
    return np.array([np.quantile(row - least, RANKS) for row, least in zip(times, expected, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--transport", action="append", choices=TRANSPORTS, help="only these; the others stay as they are"
    )
    parser.add_argument("--out", default=str(Path(__file__).parents[1] / "python" / "metaroce" / "flow_curves.json"))
    arguments = parser.parse_args()
    messages = 100 if arguments.quick else 2000
    rtt = placed("metaroce", [4096], 1000, 0.0, 1, "flow")[0] + placed("metaroce", [1], 1000, 0.0, 1, "flow")[0]
    bdp = RATE * rtt / 8e12
    out = Path(arguments.out)
    tables = json.loads(out.read_text())["transports"] if arguments.transport else {}
    for name in arguments.transport or TRANSPORTS:
        losses, unit, pause = TRANSPORTS[name]
        begun = time.time()
        fluid, idle = without_loss(name, bdp, pause), float(placed(name, [1], pause, 0.0, 1, "flow")[0])
        factors, table = [], []
        for loss in losses:
            times = measure(name, bdp, loss, messages, pause)
            # Where timers decide, there is no rate to speak of: what a message takes longer says it all.
            factors.append(rate_factor(times, fluid) if unit == "rtt" else 1.0)
            rows = added(times, fluid, factors[-1], idle)
            table.append((rows / rtt).round(4).tolist() if unit == "rtt" else rows.round().astype(int).tolist())
        tables[name] = {
            "loss": losses,
            "unit": unit,
            "rate_factor": [round(f, 4) for f in factors],
            "bdp": SIZES,
            "added": table,
        }
        print(f"{name}: {tables[name]['rate_factor']}, {time.time() - begun:.0f} s", flush=True)
        write(out, messages, tables)


def write(out: Path, messages: int, tables: dict[str, object]) -> None:
    about = (
        f"python benches/make_flow_curves.py; {TOPOLOGY}, one connection, {messages} messages a size, loss per packet"
    )
    document = {"about": about, "bdp_packets": BDP_PACKETS, "ranks": RANKS, "transports": tables}
    text = json.dumps(document)
    for mark in ("]], ", "}, "):
        text = text.replace(mark, mark.strip() + "\n")
    out.write_text(text + "\n")


if __name__ == "__main__":
    main()
