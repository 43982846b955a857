"""Work-queue programs as columns: the form that the engine runs.

A program is per-rank arrays of work-queue entries (collectives use SEND, RECV, WRITE, COPY, SUM and NOOP), all ranks
concatenated, with explicit dependencies between entries of one rank. The k-th SEND on (source, destination, stream)
lands in the k-th RECV on (destination, source, stream); a RECV completes after all earlier ones of its stream. Entries
that would move nothing become NOOPs and keep their dependencies, so an algorithm needs no special cases for empty
pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Operand = Any  # an integer or an array which broadcasts to (ranks, steps, chunks)

ALL_RANKS = 2**32 - 1
"""`Expect.source` of an element that is the sum over all ranks."""


class Op(IntEnum):
    """What an entry does; the numbers are those of the core."""

    SEND = 0
    RECV = 1
    WRITE = 2
    COPY = 3
    SUM = 4
    NOOP = 5
    WRITE_IMM = 6
    READ = 7
    COMPARE_SWAP = 8
    FETCH_ADD = 9
    FLUSH = 10
    WAIT = 11
    SET = 12


@dataclass(frozen=True, eq=False)
class Ranges:
    """Ranges of memory with the values they hold: element i of range k is v(source[k], index[k] + i).

    In a fill ``source`` is the rank itself; in an expectation it is a rank or `ALL_RANKS`. Offsets are bytes, counts
    elements.
    """

    rank: Array
    offset: Array
    count: Array
    source: Array
    index: Array

    @classmethod
    def of(cls, rank: Operand, offset: Operand, count: Operand, source: Operand, index: Operand) -> Ranges:
        """Broadcast to columns and drop empty ranges."""
        rows = [np.ravel(a) for a in np.broadcast_arrays(rank, offset, count, source, index)]
        kept = rows[2] > 0
        types = (np.uint32, np.uint64, np.uint64, np.uint32, np.uint64)
        return cls(*(row[kept].astype(t) for row, t in zip(rows, types, strict=True)))


@dataclass(frozen=True, eq=False)
class Program:
    """Columns over all entries W of all ranks n; sizes and offsets are bytes, dependencies are global entry indices.

    ``rank_start`` u32[n+1], ``op`` u8[W], ``peer`` ``stream`` u32[W], ``local`` ``remote`` ``bytes`` u64[W],
    ``dep_start`` u32[W+1], ``deps`` u32[D], ``start_ps`` u64[W] or None. ``fill`` and ``expect`` state what a checked
    run writes before and must find after. ``size_bytes`` and ``count`` are what nccl-tests prints for it. A tensor of
    ``input_bytes[r]`` goes in at ``input_offset[r]`` and out likewise. A program for message engines has their
    subgraphs in ``extra``, columns as in ``_core.pyi``, no dependencies, and what its engines cost in ``offload``.
    """

    dtype: str
    memory_bytes: int
    rank_start: Array
    op: Array
    peer: Array
    stream: Array
    local: Array
    remote: Array
    bytes: Array
    dep_start: Array
    deps: Array
    fill: Ranges
    expect: Ranges
    size_bytes: int
    count: int
    start_ps: Array | None = None
    input_offset: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    output_offset: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    extra: dict[str, Array] = field(default_factory=dict)
    offload: dict[str, Any] | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks n."""
        return len(self.rank_start) - 1

    @property
    def rank(self) -> Array:
        """The rank of every entry, u32[W]."""
        return np.repeat(np.arange(self.ranks, dtype=np.uint32), counts(self.rank_start))

    def columns(self) -> dict[str, Array]:
        """The program's columns as they cross to the core, without payload."""
        names = ("rank_start", "op", "peer", "stream", "local", "remote", "bytes", "dep_start", "deps")
        columns = {name: getattr(self, name) for name in names} | self.extra
        return columns if self.start_ps is None else {**columns, "start_ps": self.start_ps}

    def payload_columns(self) -> dict[str, Array]:
        """What a checked run fills in and expects."""
        fill, expect = self.fill, self.expect
        return {
            "fill_rank": fill.rank,
            "fill_offset": fill.offset,
            "fill_count": fill.count,
            "fill_index": fill.index,
            "expect_rank": expect.rank,
            "expect_offset": expect.offset,
            "expect_count": expect.count,
            "expect_from": expect.source,
            "expect_index": expect.index,
        }


class Entry(NamedTuple):
    """One kind of entry of a block; every operand broadcasts to (ranks, steps, chunks)."""

    op: Op
    peer: Operand
    stream: Operand
    local: Operand
    remote: Operand
    bytes: Operand


class Builder:
    """Fills the columns block by block; all ranks have the same shape, so dependencies are stated once for rank 0."""

    def __init__(self, ranks: int, entries: int) -> None:
        self.ranks, self.entries = ranks, entries
        self._used = 0
        self._edges: list[tuple[Array, Array]] = []
        shape = (ranks, entries)
        self.op = np.full(shape, Op.NOOP, np.uint8)
        self.peer, self.stream = np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)
        self.local, self.remote, self.bytes = (np.zeros(shape, np.uint64) for _ in range(3))

    def block(self, steps: int, chunks: int, *kinds: Entry) -> list[Array]:
        """Append steps x chunks groups of ``kinds``; returns per kind the indices (steps, chunks) within a rank."""
        first, size = self._used, steps * chunks * len(kinds)
        self._used += size
        for k, entry in enumerate(kinds):
            for name, operand in entry._asdict().items():
                column = getattr(self, name)[:, first : first + size]
                column.reshape(self.ranks, steps, chunks, len(kinds))[..., k] = operand
        index = first + np.arange(size, dtype=np.int64).reshape(steps, chunks, len(kinds))
        return [index[..., k] for k in range(len(kinds))]

    def depend(self, entries: Array, on: Array) -> None:
        """Each entry starts after the one at its place in ``on`` (broadcast) is complete."""
        on, entries = np.broadcast_arrays(on, entries)
        self._edges.append((entries.ravel(), on.ravel()))

    def program(self, **rest: Any) -> Program:
        """The finished columns."""
        ranks, entries = self.ranks, self.entries
        assert self._used == entries, "a compiler states the number of its entries"
        base = np.arange(ranks + 1, dtype=np.uint32) * np.uint32(entries)
        nothing = self.bytes == 0
        self.op[nothing] = Op.NOOP
        for column in (self.stream, self.local, self.remote):
            column[nothing] = 0
        own = np.broadcast_to(np.arange(ranks, dtype=np.uint32)[:, None], self.peer.shape)
        np.copyto(self.peer, own, where=nothing)
        dep_start, deps = _tile(self._edges, ranks, entries)
        return Program(
            rank_start=base,
            op=self.op.ravel(),
            peer=self.peer.ravel(),
            stream=self.stream.ravel(),
            local=self.local.ravel(),
            remote=self.remote.ravel(),
            bytes=self.bytes.ravel(),
            dep_start=dep_start,
            deps=deps,
            **rest,
        )


def counts(starts: Array) -> Array:
    """Lengths of the runs that ``starts`` (one more than runs) bounds, int64."""
    return np.asarray(starts[1:].astype(np.int64) - starts[:-1].astype(np.int64))


def _tile(edges: Sequence[tuple[Array, Array]], ranks: int, entries: int) -> tuple[Array, Array]:
    empty = np.zeros(0, np.int64)
    entry = np.concatenate([e for e, _ in edges] or [empty])
    on = np.concatenate([d for _, d in edges] or [empty])[np.argsort(entry, kind="stable")].astype(np.uint32)
    own = np.bincount(entry, minlength=entries)
    starts = (np.cumsum(own) - own).astype(np.uint32)
    rank = np.arange(ranks, dtype=np.uint32)[:, None]
    dep_start = np.empty(ranks * entries + 1, np.uint32)
    dep_start[:-1] = (starts + rank * np.uint32(len(on))).ravel()
    dep_start[-1] = ranks * len(on)
    return dep_start, (on + rank * np.uint32(entries)).ravel()
