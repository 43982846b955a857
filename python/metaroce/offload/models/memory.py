"""Memory that collectives and kernels share: bytes counted from a compiled program, and who gets how much.

A rank's program touches device memory (HBM) and the staging partition of the on-chip memory. What a staging range or a
range just written by the program itself is asked for is found on chip for the share ``absorbed`` = h of it; everything
else is an access to HBM. A result is always written to HBM once, and what nobody on the chip wrote is always read from
it. Sizes are bytes, rates GB/s (10^9 bytes a second).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...collectives.program import Op, Program
from ...errors import ConfigError

Staging = tuple[int, int]
"""First byte and end of the staging partition in a rank's memory."""


@dataclass(frozen=True)
class Traffic:
    """Bytes one rank's program moves: over the network, and in each memory."""

    sent: float = 0.0
    received: float = 0.0
    hbm_read: float = 0.0
    hbm_written: float = 0.0
    chip_read: float = 0.0
    chip_written: float = 0.0

    @property
    def amplification(self) -> float:
        """Bytes of HBM a byte received; 0 for a rank that receives nothing."""
        return (self.hbm_read + self.hbm_written) / self.received if self.received else 0.0


def absorbed(partition_bytes: float, footprint_bytes: float) -> float:
    """h: the share of staging traffic that the on-chip partition takes; 1 when there is nothing to stage."""
    if partition_bytes < 0:
        raise ConfigError.of("partition_bytes", partition_bytes, "must be at least 0")
    return min(1.0, partition_bytes / footprint_bytes) if footprint_bytes > 0 else 1.0


def amplification(kind: str, share: float) -> float:
    """HBM bytes a byte received of a long pipelined collective, from h = ``share`` (docs/offload.md).

    ReduceScatter reads its input (1) and stages: arrival, its reading, the partial sum, its sending. AllGather writes
    its output (1) and sends it on. AllToAll reads and writes. AllReduce is half of each of the first two.
    """
    if not 0.0 <= share <= 1.0:
        raise ConfigError.of("absorbed", share, "must be in [0, 1]")
    scatter, gather = 1 + 4 * (1 - share), 1 + (1 - share)
    kinds = {"reduce_scatter": scatter, "all_gather": gather, "all_reduce": (scatter + gather) / 2, "alltoall": 2.0}
    if kind not in kinds:
        raise ConfigError.unknown("kind", kind, kinds)
    return kinds[kind]


def traffic(program: Program, staging: Staging | None = None, absorbed: float = 0.0) -> list[Traffic]:
    """What each rank's memories see of ``program``, with the share ``absorbed`` of staging accesses on chip.

    A WRITE is read at its sender and written at its peer. Entries of a rank count in the order of the program.
    """
    arrivals = _arrivals(program)
    return [
        _of_rank(_accesses(program, rank), arrivals.get(rank, []), staging, absorbed) for rank in range(program.ranks)
    ]


def footprint(program: Program, staging: Staging | None = None) -> int:
    """The most staging bytes a rank needs at once: its slots, and what it has received and not yet sent on.

    Subgraphs (``extra["subgraph_start"]``) run side by side, so theirs add up; a program without any is one.
    """
    starts = getattr(program, "extra", {}).get("subgraph_start")
    bounds = program.rank_start if starts is None else np.union1d(program.rank_start, starts)
    need = dict.fromkeys(range(program.ranks), 0)
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rank = int(np.searchsorted(program.rank_start, first, side="right")) - 1
        need[rank] += _forwarded_most(list(_entries(program, first, end)), staging)
    for rank in need:
        used = _Spans()
        for access in _accesses(program, rank):
            if access.staged(staging):
                used.add(access.start, access.start + access.size)
        need[rank] += used.total
    return max(need.values(), default=0)


@dataclass(frozen=True)
class _Access:
    start: int
    size: int
    writes: bool
    network: bool = False

    def staged(self, staging: Staging | None) -> bool:
        return staging is not None and staging[0] <= self.start < staging[1]


def _entries(program: Program, first: int, end: int) -> Iterator[_Access]:
    """Accesses of entries to their own rank's memory, reads before writes."""
    ops, bytes_ = program.op[first:end].tolist(), program.bytes[first:end].tolist()
    locals_, remotes = program.local[first:end].tolist(), program.remote[first:end].tolist()
    for op, size, local, remote in zip(ops, bytes_, locals_, remotes, strict=True):
        if not size:
            continue
        if op in (Op.SEND, Op.WRITE, Op.WRITE_IMM):
            yield _Access(local, size, writes=False, network=True)
        elif op == Op.RECV:
            yield _Access(local, size, writes=True, network=True)
        elif op in (Op.COPY, Op.SUM):
            yield _Access(remote, size, writes=False)
            if op == Op.SUM:
                yield _Access(local, size, writes=False)
            yield _Access(local, size, writes=True)


def _accesses(program: Program, rank: int) -> Iterator[_Access]:
    return _entries(program, int(program.rank_start[rank]), int(program.rank_start[rank + 1]))


def _arrivals(program: Program) -> dict[int, list[_Access]]:
    """What one-sided writes put into each rank's memory."""
    landed: dict[int, list[_Access]] = {}
    rows = np.flatnonzero(np.isin(program.op, (Op.WRITE, Op.WRITE_IMM)) & (program.bytes > 0))
    for row in rows.tolist():
        access = _Access(int(program.remote[row]), int(program.bytes[row]), writes=True, network=True)
        landed.setdefault(int(program.peer[row]), []).append(access)
    return landed


def _of_rank(
    accesses: Iterator[_Access], arrivals: Sequence[_Access], staging: Staging | None, share: float
) -> Traffic:
    sent = received = 0.0
    memory = {(chip, writes): 0.0 for chip in (False, True) for writes in (False, True)}
    written = _Spans()
    for access in (*arrivals, *accesses):
        if access.network and access.writes:
            received += access.size
        elif access.network:
            sent += access.size
        end = access.start + access.size
        if access.staged(staging):
            known = access.size
        else:
            known = 0 if access.writes else written.overlap(access.start, end)
            if access.writes:
                written.add(access.start, end)
        memory[True, access.writes] += share * known
        memory[False, access.writes] += access.size - share * known
    return Traffic(sent, received, memory[False, False], memory[False, True], memory[True, False], memory[True, True])


def _forwarded_most(accesses: Sequence[_Access], staging: Staging | None) -> int:
    """The most bytes that have been received into payload and are still to be sent on, in the order of entries."""
    received: dict[int, tuple[int, int]] = {}
    last: dict[int, int] = {}
    for place, access in enumerate(accesses):
        if not access.network or access.staged(staging):
            continue
        if access.writes:
            received[access.start] = (place, access.size)
        elif access.start in received:
            last[access.start] = place
    changes = [(place, size) for start, (place, size) in received.items() if start in last]
    changes += [(last[start], -received[start][1]) for start in last]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


class _Spans:
    """A set of bytes as disjoint spans in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def total(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def overlap(self, start: int, end: int) -> int:
        covered = 0
        for at in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[at] >= end:
                break
            covered += min(end, self._ends[at]) - max(start, self._starts[at])
        return covered


def shares(capacity: float, demands: Sequence[float]) -> list[float]:
    """Max-min fair shares of ``capacity``: who asks for less than an equal part gets it all, the others divide."""
    granted, left = [0.0] * len(demands), capacity
    waiting = sorted(range(len(demands)), key=lambda one: demands[one])
    for place, one in enumerate(waiting):
        granted[one] = min(demands[one], left / (len(waiting) - place))
        left -= granted[one]
    return granted


@dataclass(frozen=True)
class Ring:
    """Descriptors in one ring of a DMA engine: bytes to move in packets of a size, for whom."""

    name: str
    bytes: int
    packet: int


def round_robin(rings: Sequence[Ring], gbs: float) -> dict[str, float]:
    """When each ring of one engine of ``gbs`` is empty, us: one packet of each ring in turn.

    So a ring's share of the engine is in proportion to its packet size: smaller packets are a lower priority
    (Trainium's rule, docs/offload.md).
    """
    for ring in rings:
        if ring.packet <= 0 or ring.bytes < 0:
            raise ConfigError.of(f"{ring.name}.packet", ring.packet, "must be at least 1 byte, of at least 0 bytes")
    turns = [(0, place) for place, ring in enumerate(rings) if ring.bytes]
    heapq.heapify(turns)
    left, clock = [ring.bytes for ring in rings], 0
    done = {ring.name: 0.0 for ring in rings}
    while turns:
        turn, place = heapq.heappop(turns)
        moved = min(left[place], rings[place].packet)
        left[place], clock = left[place] - moved, clock + moved
        if left[place]:
            heapq.heappush(turns, (turn + 1, place))
        else:
            done[rings[place].name] = clock / gbs / 1e3
    return done
