"""What a run gives back: times, bandwidths, counters, digest, and what was resolved to get them.

Ratios are fractions in 0-1, times microseconds where a name says ``_us`` and integers of picoseconds where it says
``_ps``. A run stopped by its time limit has status ``bound``: its time is a lower bound and its bandwidths upper
bounds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from . import metrics
from .collectives import Array, Program
from .flow import NOTE
from .scenario import Scenario

PATH_STATES = ("up", "suspect", "down", "denied")
"""What the numbers in the column ``state`` of `Result.paths` mean."""


@dataclass(frozen=True, eq=False)
class Result:
    """One run. ``wrong`` counts elements that differ from what they must be; None when the run was not checked."""

    status: str
    """``done``, ``bound`` (stopped by the time limit), ``stalled`` or ``deadlock`` (links of a lossless class that wait
    for each other)."""
    time_ps: float
    """Mean time of an iteration; of an unfinished first one, the time so far."""
    iteration_us: list[float]
    size_bytes: int
    count: int
    dtype: str
    collective: str
    ranks: int
    topology: str
    transport: str
    profile: str
    seed: int
    version: str
    digest: str
    counters: dict[str, int]
    payload_line_rate_bps: int
    """Payload bits per second that a host's ports carry at most, all planes together."""
    resolved: dict[str, Any]
    """The specification with every default filled in, without the list of links."""
    plane_bytes: list[int]
    plane_bins: list[list[int]]
    stalled_flows: list[dict[str, Any]]
    pauses: list[dict[str, Any]] = field(default_factory=list)
    """Of a lossless class: for each link that was paused its name, "from -> to", how often (``count``) and for how long
    in all (``time_us``)."""
    deadlock: list[str] = field(default_factory=list)
    """Names of the links that wait, each for the next and the last for the first."""
    wrong: int | None = None
    checked: int = 0
    """Elements compared."""
    fidelity: str = "packet"
    """``packet``, or ``flow``: an estimate, without the counters of packets."""
    check_note: str | None = None
    """Why ``wrong`` is None although a check was asked for."""
    wqe_done_ps: Array | None = None
    """u64 per entry, last iteration, 2^64 - 1 = never; with ``record_wqes``."""
    wqe_placed_ps: Array | None = None
    wqe_issued_ps: Array | None = None
    """When message engines issued each entry; with ``record_wqes``."""
    engines: dict[str, Array] | None = None
    """What message engines did in all iterations, warm-up included: columns, a row for each engine of each rank.

    ``rank``, ``engine``, ``issued`` (entries), ``cpu_ps`` and ``unit_ps`` (busy), ``unit_wait_ps`` (operations waiting
    for the near-memory unit, summed up), ``stall_ps`` (a started subgraph had entries to issue, but none could).
    """
    outstanding_most: Array | None = None
    """Of each rank with message engines: most transfers that were issued and not complete at once."""
    connections: dict[str, Array] | None = None
    """With ``record_paths``: columns of equal length, a row for each sample of each side that sends.

    ``time_ps``, ``src`` and ``dst`` ranks, ``window_bytes``, ``in_flight_bytes``, ``hint_bps`` (0: none),
    ``least_rtt_ps``, ``sent_bytes``, ``acked_bytes`` (of an open message, each packet that lacks counts in full),
    ``unsent_bytes``, and ``rate_bps``, what was acknowledged since the sample before. RoCEv2: the windows of all QPs
    (0: no limit), no hint and no round trip (0).
    """
    paths: dict[str, Array] | None = None
    """The same for each path of those connections; RoCEv2: for each QP, MRC: for each entropy value (no window).

    ``time_ps``, ``src``, ``dst``, ``path``, ``plane``, ``state`` (an index of `PATH_STATES`), ``window_bytes`` (0: no
    limit), ``in_flight_bytes``, ``srtt_ps`` (0: not measured), ``pace_bps`` (0: not paced), ``ecn_permille`` (marked
    share as the congestion control estimates it), and totals in packets: ``sent``, ``lost_gap`` (a later packet
    arrived; RoCEv2: rewinds after a NAK), ``lost_tail`` (time ran out), ``marked`` (marks the sender knows of; RoCEv2:
    CNPs).
    """

    @classmethod
    def of(cls, scenario: Scenario, program: Program, raw: dict[str, Any]) -> Result:
        """Read the core's answer."""
        fabric = scenario.topology.fabric
        starts, ends = raw["iteration_start_ps"], raw["iteration_end_ps"]
        spans = [end - start for start, end in zip(starts, ends, strict=True)]
        so_far = raw["time_ps"] / (scenario.warmup + 1)  # of an iteration that did not end, warm-up included
        return cls(
            status=raw["status"],
            time_ps=sum(spans) / len(spans) if spans else so_far,
            iteration_us=[span / 1e6 for span in spans],
            size_bytes=program.size_bytes,
            count=program.count,
            dtype=program.dtype,
            collective=scenario.workload.name,
            ranks=program.ranks,
            topology=scenario.topology.name or scenario.topology.kind,
            transport=scenario.transport.kind,
            profile=scenario.transport.profile,
            seed=scenario.seed,
            version=raw["version"],
            digest=raw["digest"],
            counters=dict(raw["counters"]),
            payload_line_rate_bps=raw["payload_line_rate_bps"],
            resolved=json.loads(raw["resolved"]),
            plane_bytes=list(raw["plane_bytes"]),
            plane_bins=[list(bins) for bins in raw["plane_bins"]],
            stalled_flows=list(raw["stalled_flows"]),
            pauses=[
                {"link": fabric.link_name(link), "count": count, "time_us": time / 1e6}
                for link, count, time in raw.get("pauses", ())
            ],
            deadlock=[fabric.link_name(link) for link in raw.get("deadlock", ())],
            wrong=raw["wrong"],
            checked=raw["checked"],
            fidelity=scenario.fidelity,
            wqe_done_ps=_column(raw["wqe_done_ps"]),
            wqe_placed_ps=_column(raw["wqe_placed_ps"]),
            wqe_issued_ps=_column(raw.get("wqe_issued_ps", b"")),
            engines=_table(raw.get("engines"), "issued"),
            outstanding_most=_column(raw.get("outstanding_most", b"")),
            connections=_with_rates(_table(raw.get("connections"))),
            paths=_table(raw.get("paths")),
        )

    @property
    def time_us(self) -> float:
        """Mean time of an iteration in microseconds."""
        return self.time_ps / 1e6

    @property
    def algbw_gbs(self) -> float:
        """Size over time, GB/s."""
        return metrics.algbw(self.size_bytes, self.time_ps)

    @property
    def busbw_gbs(self) -> float:
        """algbw times the collective's factor, GB/s; compares with a host's speed."""
        return metrics.busbw(self.collective, self.ranks, self.size_bytes, self.time_ps)

    @property
    def of_line_rate(self) -> float:
        """busbw over the payload rate of a host's ports."""
        return self.busbw_gbs * 8e9 / self.payload_line_rate_bps

    @property
    def retransmitted(self) -> float:
        """Share of the data packets sent that were sent again."""
        sent = self.counters.get("data_packets_sent", 0)
        return self.counters.get("retransmitted_packets", 0) / sent if sent else 0.0

    @property
    def paused_us(self) -> float:
        """Microseconds that ports were paused, summed over all of them."""
        return sum((port["time_us"] for port in self.pauses), 0.0)

    @property
    def timeouts(self) -> int:
        """Last-resort timers that fired."""
        return self.counters.get("timeouts", 0)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the arrays, JSON-ready, derived values included."""
        arrays = ("wqe_done_ps", "wqe_placed_ps", "wqe_issued_ps", "engines", "outstanding_most")
        skipped = (*arrays, "plane_bins", "connections", "paths")
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in skipped}
        derived = ("time_us", "algbw_gbs", "busbw_gbs", "of_line_rate", "retransmitted", "timeouts")
        return fields | {name: getattr(self, name) for name in derived}

    def _repr_html_(self) -> str:
        wrong = "N/A" if self.wrong is None else str(self.wrong)
        rows = {
            f"{self.collective}, {self.ranks} ranks": f"{self.size_bytes} B of {self.dtype}",
            **({} if self.fidelity == "packet" else {"fidelity": NOTE}),
            "topology, transport": f"{self.topology}, {self.transport} ({self.profile})",
            "status": self.status,
            "time": f"{self.time_us:.2f} us",
            "algbw, busbw": f"{self.algbw_gbs:.2f}, {self.busbw_gbs:.2f} GB/s",
            "of line rate": f"{self.of_line_rate:.1%}",
            "retransmitted, timeouts": f"{self.retransmitted:.2%}, {self.timeouts}",
            "#wrong": wrong,
            "seed, version, digest": f"{self.seed}, {self.version}, {self.digest}",
        }
        cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows.items())
        return f"<table>{cells}</table>"


def _column(data: bytes) -> Array | None:
    return np.frombuffer(data, np.uint64) if data else None


def _table(columns: dict[str, bytes] | None, longest: str = "time_ps") -> dict[str, Array] | None:
    if columns is None:
        return None
    rows = len(columns[longest]) // 8
    return {name: np.frombuffer(data, f"<u{len(data) // rows if rows else 8}") for name, data in columns.items()}


def _with_rates(table: dict[str, Array] | None) -> dict[str, Array] | None:
    if table is None:
        return None
    order = np.lexsort((table["time_ps"], table["dst"], table["src"]))
    src, dst, time, acked = (table[name][order].astype(np.int64) for name in ("src", "dst", "time_ps", "acked_bytes"))
    goes_on = (np.diff(src) == 0) & (np.diff(dst) == 0)
    rates = np.zeros(len(order), np.uint64)
    rates[order[1:][goes_on]] = (np.diff(acked)[goes_on] * 8e12 / np.diff(time)[goes_on]).round()
    return {**table, "rate_bps": rates}
