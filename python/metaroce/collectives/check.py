"""The symbolic check: a program is run on symbols before it is run on packets.

Memory is cut into cells along every boundary that any entry uses. A cell filled with elements of rank r from index i
holds the token hash(r, i), a pseudo-random 64-bit number; unfilled cells hold poison; SUM adds modulo 2^64. At the end
every expected cell must hold exactly its token, or the sum of all ranks' tokens: a contribution that is missing,
doubled or misplaced changes the sum, except with probability 2^-64. Also checked: the k-th SEND and RECV of a stream
carry the same bytes and are posted in a certain order, every entry can start (no deadlock), and accesses to the same
cell are ordered (`metaroce.collectives.race`). Everything works on whole levels of the dependency graph at once. After
MSCCL's symbolic run of chunk programs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import ProgramError
from ..units import ELEMENT_BYTES
from .order import Order, distinct, expand, order
from .program import ALL_RANKS, Array, Op, Program, Ranges, counts
from .race import Issue, check_races

MAX_ROUNDS = 16
"""Rounds of cutting cells along each other's boundaries; a sound program needs one or two. Ours."""


class Moves(NamedTuple):
    """What moves from memory to memory: keys (rank * memory_bytes + offset) and the entries that read and write."""

    source: Array
    target: Array
    bytes: Array
    reader: Array
    writer: Array
    adds: Array


class Slots(NamedTuple):
    """The moves cell by cell: one row copies or adds one whole cell to another."""

    source: Array
    target: Array
    move: Array


def verify(program: Program, issue: Issue | None = None) -> None:
    """Raise `ProgramError` naming the first thing that is wrong; return when the program does what it expects.

    ``issue`` is for programs which have an entry of its own for the issue of another (`metaroce.offload.proof`).
    """
    _check_columns(program)
    when = order(program, in_order=issue is not None)
    moves = _moves(program, when)
    fill, expect = _keys(program, program.fill), _keys(program, program.expect)
    cells = _cells(program, moves, fill, expect)
    slots = _slots(cells, moves)
    values = _run(program, when, moves, slots, _tokens(program, cells, fill))
    _compare(program, cells, expect, values)
    cell = np.concatenate((slots.source, slots.target))
    entry = np.concatenate((moves.reader[slots.move], moves.writer[slots.move]))
    check_races(program, when, cell, entry, writes=np.arange(len(cell)) >= len(slots.source), issue=issue)


def _check_columns(p: Program) -> None:
    entries, end = len(p.op), p.bytes + np.maximum(p.local, np.where(p.op == Op.WRITE, 0, p.remote))
    if p.dep_start[-1] != len(p.deps) or (counts(p.dep_start) < 0).any():
        raise ProgramError("dep_start does not enclose deps")
    rank = p.rank
    if len(p.deps) and (p.deps.max() >= entries or (rank[p.deps] != np.repeat(rank, counts(p.dep_start))).any()):
        raise ProgramError("an entry depends on an entry of another rank")
    moved = p.op != Op.NOOP
    if (p.peer >= p.ranks).any() or (end > p.memory_bytes).any() or (p.bytes[moved] == 0).any():
        raise ProgramError("an entry leaves its rank's memory, moves nothing or has no such peer")
    far = p.op == Op.WRITE
    if (p.remote[far] + p.bytes[far] > p.memory_bytes).any():
        raise ProgramError("a WRITE leaves its peer's memory")


def _moves(p: Program, when: Order) -> Moves:
    home = p.rank.astype(np.int64) * p.memory_bytes
    away = p.peer.astype(np.int64) * p.memory_bytes
    local, remote, size = (column.astype(np.int64) for column in (p.local, p.remote, p.bytes))
    own = np.flatnonzero((p.op == Op.COPY) | (p.op == Op.SUM))
    far = np.flatnonzero(p.op == Op.WRITE)
    send, recv = when.send, when.recv
    return Moves(
        np.concatenate((home[send] + local[send], home[far] + local[far], home[own] + remote[own])),
        np.concatenate((home[recv] + local[recv], away[far] + remote[far], home[own] + local[own])),
        size[np.concatenate((send, far, own))],
        np.concatenate((send, far, own)),
        np.concatenate((recv, far, own)),
        np.concatenate((np.zeros(len(send) + len(far), bool), p.op[own] == Op.SUM)),
    )


def _keys(p: Program, ranges: Ranges) -> tuple[Array, Array]:
    start = ranges.rank.astype(np.int64) * p.memory_bytes + ranges.offset.astype(np.int64)
    return start, start + ranges.count.astype(np.int64) * ELEMENT_BYTES[p.dtype]


def _cells(p: Program, moves: Moves, *ranges: tuple[Array, Array]) -> Array:
    """Sorted boundaries of all cells, closed under moves: a boundary inside a source is one inside its target too."""
    source, target, size = moves.source, moves.target, moves.bytes
    edges = [source, source + size, target, target + size, *(key for pair in ranges for key in pair)]
    cells = distinct(np.concatenate(edges))
    for _ in range(MAX_ROUNDS):
        added = [*_mirrored(cells, source, target, size), *_mirrored(cells, target, source, size)]
        grown = distinct(np.concatenate((cells, *added))) if added else cells
        if len(grown) == len(cells):
            return cells
        if len(grown) > 64 * len(p.op) + 1024:
            break
        cells = grown
    raise ProgramError("the ranges of the entries do not line up")


def _mirrored(cells: Array, source: Array, target: Array, size: Array) -> list[Array]:
    first, last = np.searchsorted(cells, source, "right"), np.searchsorted(cells, source + size, "left")
    if not (last > first).any():
        return []
    row, inner = expand(first, last)
    return [cells[inner] - source[row] + target[row]]


def _slots(cells: Array, moves: Moves) -> Slots:
    first, last = np.searchsorted(cells, moves.source), np.searchsorted(cells, moves.source + moves.bytes)
    row, source = expand(first, last)
    return Slots(source, source + (np.searchsorted(cells, moves.target) - first)[row], row)


def _tokens(p: Program, cells: Array, fill: tuple[Array, Array]) -> Array:
    """The cells' first values, uint64; every cell differs from all others."""
    values = _token(np.full(len(cells), ALL_RANKS, np.uint64), np.arange(len(cells), dtype=np.uint64))
    row, cell = expand(np.searchsorted(cells, fill[0]), np.searchsorted(cells, fill[1]))
    values[cell] = _token(p.fill.source[row].astype(np.uint64), _index(p, cells, fill, p.fill, row, cell))
    return values


def _index(p: Program, cells: Array, keys: tuple[Array, Array], ranges: Ranges, row: Array, cell: Array) -> Array:
    """Where each cell starts in its source's data, in bytes, so that a cell which cuts an element has a token too."""
    inside = cells[cell] - keys[0][row]
    return ranges.index[row] * np.uint64(ELEMENT_BYTES[p.dtype]) + inside.astype(np.uint64)


def _run(p: Program, when: Order, moves: Moves, slots: Slots, values: Array) -> Array:
    """Execute level by level: what a level reads is what the levels before it wrote."""
    read_at, write_at = when.level[moves.reader[slots.move]], when.level[moves.writer[slots.move]]
    by_read, by_write = np.argsort(read_at, kind="stable"), np.argsort(write_at, kind="stable")
    levels = np.arange(int(when.level.max()) + 2)
    reads, writes = (np.searchsorted(at[by], levels) for at, by in ((read_at, by_read), (write_at, by_write)))
    adds, carried = moves.adds[slots.move], np.zeros(len(slots.move), np.uint64)
    for level in range(len(levels) - 1):
        now = by_read[reads[level] : reads[level + 1]]
        carried[now] = values[slots.source[now]]
        now = by_write[writes[level] : writes[level + 1]]
        plain, summed = now[~adds[now]], now[adds[now]]
        values[slots.target[plain]] = carried[plain]
        np.add.at(values, slots.target[summed], carried[summed])
    return values


def _compare(p: Program, cells: Array, expect: tuple[Array, Array], values: Array) -> None:
    row, cell = expand(np.searchsorted(cells, expect[0]), np.searchsorted(cells, expect[1]))
    index = _index(p, cells, expect, p.expect, row, cell)
    source = p.expect.source[row].astype(np.uint64)
    wanted = _token(source, index)
    total = source == ALL_RANKS
    if total.any():
        unique, back = np.unique(index[total], return_inverse=True)
        sums = np.zeros(len(unique), np.uint64)
        for rank in range(p.ranks):
            sums += _token(np.full(len(unique), rank, np.uint64), unique)
        wanted[total] = sums[back]
    if (wrong := values[cell] != wanted).any():
        first = int(np.argmax(wrong))
        rank, offset = divmod(int(cells[cell[first]]), p.memory_bytes)
        raise ProgramError(f"{int(wrong.sum())} ranges end wrong; the first is at offset {offset} of rank {rank}")


def _token(rank: Array, index: Array) -> Array:
    """SplitMix64 of (rank, index), uint64."""
    z: Array = (
        index * np.uint64(0x9E3779B97F4A7C15) + rank * np.uint64(0xD1342543DE82EF95) + np.uint64(0x632BE59BD9B4E019)
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    return np.asarray(z ^ (z >> np.uint64(31)))
