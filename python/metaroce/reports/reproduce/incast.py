"""R6: N senders, one receiver."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from ...collectives import Array
from ...metrics import jain
from ...result import Result
from ...topology import load
from ..topology import round_trip_ps
from .analysis import round_trips, settled
from .model import MIB, Check, Figure, Finding, Setup, Sheet, Sheets, Target, failures, scenario

FABRIC = "incast-1000"
WATCHED = 32
"""Senders whose connections are sampled, spread evenly over all."""
LEFT = 0.05
"""A watched sender with so much of its bytes left ends the time in which all surely have data (*ours*)."""
WITHIN, TRIPS, FAIR, LOST, TAIL = 0.05, 2.0, 0.99, 0.001, 1.1
"""Of the fair share; round trips (published: one or two); Jain's index; packets
lost once settled; p99 completion over the ideal (*ours*)."""

_TRIPS = "{:.1f}"


def r6(quick: bool) -> Target:
    """With hints and without."""
    sizes: dict[int, float] = {8: 4, 32: 4} if quick else {8: 4, 32: 4, 128: 2, 512: 1, 1000: 0.5}
    settling = (
        Figure("first_us", "first", "hint us", "{:.0f}"),
        Figure("own_trips", "settled", "own RTT", _TRIPS),
        Figure("own_trips_worst", "slowest", "own RTT", _TRIPS),
        Figure("base_trips", "settled", "base RTT", _TRIPS),
    )
    common = (
        Figure("jain", "Jain", "half-way", "{:.4f}"),
        Figure("jain_rates", "Jain", "rates", "{:.4f}"),
        Figure("lost_before", "lost", "before", "{:.2%}"),
        Figure("lost_after", "lost", "after", "{:.2%}"),
        Figure("of_receiver", "of line", "rate", "{:.1%}"),
        Figure("fct_p50", "p50 FCT", "/ ideal", "{:.2f}"),
        Figure("fct_p99", "p99 FCT", "/ ideal", "{:.2f}"),
        Figure("queue_kib", "queue", "peak KiB", "{:.0f}"),
    )
    sheets = tuple(
        Sheet(
            title,
            ("senders",),
            (*figures, *common),
            tuple(
                Setup((str(n),), _incast(n, int(mib * MIB), step, hints), incast, goal=_goal(n, hints))
                for n, mib in sizes.items()
                for step in ("1us" if n < 128 else "5us",)
            ),
        )
        for title, hints, figures in (
            ("Rate hints on (the default)", None, settling),
            ("Rate hints off, ECN alone: before and after the first half", "off", ()),
        )
    )
    return Target(
        "R6",
        "N:1 incast: resolved in 1–2 round trips; fair; low tail latency",
        f"fabric {FABRIC}, N = {', '.join(map(str, sizes))}, all at once; settled: from a sender's first hint until "
        f"its granted rate stays within {WITHIN:.0%} of 1/N of the port, until a watched one has {LEFT:.0%} left, "
        f"median and slowest of {WATCHED} watched; in round trips as it measures them, and of an idle network",
        sheets,
        judge_r6,
    )


def _goal(senders: int, hints: str | None) -> str:
    return "Jain 0.995, at most 0.1 % dropped, 95 % of line rate" if senders == 32 and hints is None else ""


def _incast(senders: int, size: int, step: str, hints: str | None) -> str:
    transport = {"transport": {"kind": "metaroce", "hints": hints}} if hints else {}
    watched = tuple(range(1, senders + 1, max(1, senders // WATCHED)))[:WATCHED]
    recorded = {"record_wqes": True, "record_paths": step, "record_paths_ranks": watched}
    workload = f"mr.Incast(senders={senders}, bytes={size})"
    return scenario(workload, topology=FABRIC, ranks=senders + 1, **transport, **recorded)


@cache
def _port() -> tuple[int, int]:
    """Bits a second of a host's ports together, and the round trip of the idle fabric in ps."""
    fabric = load(FABRIC).fabric
    rate = sum(link.rate for a, b, link in zip(fabric.a, fabric.b, fabric.links, strict=True) if 0 in (a, b))
    return rate, round_trip_ps(fabric)[1]


def incast(result: Result) -> dict[str, float]:
    """Settling of the watched senders, fairness, losses and completion times."""
    assert result.connections is not None, "the scenario records paths"
    assert result.paths is not None, "the scenario records paths"
    assert result.wqe_placed_ps is not None, "the scenario records entries"
    rate, base = _port()
    senders = result.ranks - 1
    time, columns = _series(result.connections)
    ending = columns["unsent_bytes"] <= LEFT * result.size_bytes / senders
    busy = np.flatnonzero(ending.any(axis=0) & (columns["sent_bytes"] > 0).any(axis=0))
    end = int(busy[0]) if len(busy) else len(time)
    trip = _trips(result.paths, time, columns["src"][:, 0])
    firsts, own, bases = [], [], []
    for granted, trips in zip(columns["hint_bps"], trip, strict=True):
        found = settled(time[:end], granted[:end], rate / senders, WITHIN)
        firsts.append(found[0] / 1e6 if found else math.inf)
        own.append(round_trips(time, trips, *found) if found else math.inf)
        bases.append((found[1] - found[0]) / base if found else math.inf)
    half = int(np.searchsorted(time, result.time_ps / 2))
    hinted = bool(columns["hint_bps"].any())
    settled_at = max(f + b * base / 1e6 for f, b in zip(firsts, bases, strict=True)) * 1e6 if hinted else time[half]
    before, after = _lost(result.paths, settled_at)
    after = after if math.isfinite(settled_at) else math.inf  # there is no time after it
    placed = result.wqe_placed_ps.astype(float)
    ideal = result.size_bytes * 8e12 / result.payload_line_rate_bps
    p50, p99 = (float(np.percentile(placed, p, method="inverted_cdf")) / ideal for p in (50, 99))
    return {
        "first_us": float(np.median(firsts)),
        "own_trips": float(np.median(own)),
        "own_trips_worst": max(own),
        "base_trips": float(np.median(bases)),
        "jain": jain(columns["acked_bytes"][:, half].astype(float)),
        "jain_rates": jain(1 / placed),
        "lost_before": before,
        "lost_after": after,
        "of_receiver": ideal / result.time_ps,
        "fct_p50": p50,
        "fct_p99": p99,
        "queue_kib": result.counters["max_queue_bytes"] / 1024,
        "dropped": result.counters["dropped_queue"] / result.counters["data_packets_sent"],
        "stopped": float(result.status != "done"),
    }


def _series(table: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
    """Sample times, and columns [sender, sample] from the first time at which every sender has a connection."""
    sources, counts = np.unique(table["src"], return_counts=True)
    order = np.lexsort((table["time_ps"], table["src"]))
    least, starts = counts.min(), np.cumsum(counts)
    rows = order[starts[:, None] - least + np.arange(least)]
    assert len(rows) == len(sources)
    return table["time_ps"][rows[0]], {name: column[rows] for name, column in table.items()}


def _trips(paths: dict[str, Array], time: Array, sources: Array) -> Array:
    """Mean smoothed round trip of a sender's measured paths, ps, [sender, sample]; 0 where none is measured."""
    shape = (len(sources), len(time))
    seen = (paths["srtt_ps"] > 0) & (paths["time_ps"] >= time[0])
    at = np.searchsorted(sources, paths["src"][seen]) * len(time) + np.searchsorted(time, paths["time_ps"][seen])
    counts = np.bincount(at, minlength=shape[0] * shape[1])
    sums = np.bincount(at, paths["srtt_ps"][seen].astype(float), shape[0] * shape[1])
    return (sums / np.maximum(counts, 1)).reshape(shape)


def _lost(paths: dict[str, Array], until: float) -> tuple[float, float]:
    """Packets that the watched senders found lost up to a time and after it, as shares of all they sent."""
    lost = (paths["lost_gap"] + paths["lost_tail"]).astype(float)
    ends = paths["time_ps"] == paths["time_ps"].max()
    times = np.unique(paths["time_ps"])
    cut = times[min(int(np.searchsorted(times, until)), len(times) - 1)]
    first, total = lost[paths["time_ps"] == cut].sum(), lost[ends].sum()
    sent = max(1.0, float(paths["sent"][ends].sum()))
    return float(first) / sent, float(total - first) / sent


def judge_r6(sheets: Sheets) -> Finding:
    """With hints: settled, fair, calm afterwards, and done when the port allows; without, only shown."""
    on, off = sheets
    slow = failures(on, lambda row: row.median("own_trips") <= TRIPS, lambda row: _settling(row.median("own_trips")))
    unfair = failures(on, lambda row: row.median("jain") >= FAIR, lambda row: f"Jain {row.median('jain'):.4f}")
    noisy = failures(
        on,
        lambda row: row.median("lost_after") <= LOST,
        lambda row: (
            f"{row.median('lost_after'):.2%} lost after" if math.isfinite(row.median("lost_after")) else "never settled"
        ),
    )
    late = failures(
        on, lambda row: row.median("fct_p99") <= TAIL, lambda row: f"p99 {row.median('fct_p99'):.3f} of ideal"
    )
    resolved = [row.name for row in on if row.median("own_trips") <= TRIPS]
    return Finding(
        "; ".join(f"{row.name}:1 {_settling(row.median('own_trips'))}" for row in on)
        + f"; p99 completion {min(row.median('fct_p99') for row in on):.2f} to "
        f"{max(row.median('fct_p99') for row in on):.2f} of ideal, without hints "
        f"{min(row.median('fct_p99') for row in off):.2f} to {max(row.median('fct_p99') for row in off):.2f}",
        f"1–2 round trips hold for N = {', '.join(resolved) or 'none'}",
        (
            Check(f"the median sender is settled {TRIPS:.0f} of its round trips after its first hint", slow),
            Check(f"fair: Jain's index of what was delivered half-way at least {FAIR}", unfair),
            Check(f"at most {LOST:.1%} of the packets are lost once settled", noisy),
            Check(f"low tail: p99 completion within {TAIL} of N x size at the receiver's rate", late),
        ),
    )


def _settling(trips: float) -> str:
    return f"settled in {trips:.1f} round trips" if math.isfinite(trips) else "never settled"
