"""What makes two programs one for a symbolic check: the same entries on cells in the same order, whatever their sizes.

Where every place in memory is always used as a whole, a check depends on which places are the same and which elements
they hold, not on how large they are: the canonical form has cells of one byte. A staging slot that holds messages of
several sizes counts as one place when each read takes exactly what the write before it in its subgraph brought; that
these come in this order is then for the check to show. Programs of one canonical form are checked once.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from ..collectives import Array, Op, Program, Ranges
from ..collectives.order import distinct, expand
from ..collectives.race import Issue
from ..units import ELEMENT_BYTES
from .intervals import places


def digest(p: Program, issue: Issue) -> bytes:
    """Equal for equal programs."""
    ranges = [getattr(r, n) for r in (p.fill, p.expect) for n in ("rank", "offset", "count", "source", "index")]
    scalars = np.array([p.memory_bytes, ELEMENT_BYTES[p.dtype]])
    columns = [p.rank_start, p.op, p.peer, p.stream, p.local, p.remote, p.bytes, p.dep_start, p.deps, issue.posted]
    total = hashlib.blake2b(digest_size=16)
    for column in (*columns, *ranges, scalars):
        total.update(f"{column.dtype} {len(column)}\n".encode())
        total.update(np.ascontiguousarray(column).tobytes())
    return total.digest()


def canonical(p: Program, subgraph: Array) -> Program | None:
    """``p`` with cells of one byte, or None where places overlap in part; ``subgraph`` is that of each entry."""
    home, size = p.rank.astype(np.int64) * p.memory_bytes, p.bytes.astype(np.int64)
    entry = np.arange(len(p.op))
    own, moving = np.isin(p.op, (Op.COPY, Op.SUM)), p.op != Op.NOOP
    if (p.op == Op.WRITE).any():
        return None
    who = np.concatenate((entry[moving], entry[own]))
    start = np.concatenate(
        (home[moving] + p.local[moving].astype(np.int64), home[own] + p.remote[own].astype(np.int64))
    )
    reads = np.concatenate((p.op[moving] == Op.SEND, np.ones(int(own.sum()), bool)))
    cells = distinct(start)
    cell, length = np.searchsorted(cells, start), size[who]
    largest = np.zeros(len(cells), np.int64)
    np.maximum.at(largest, cell, length)
    smallest = largest.copy()
    np.minimum.at(smallest, cell, length)
    if (cells[:-1] + largest[:-1] > cells[1:]).any():
        return None
    slots = smallest != largest
    if not _whole(slots[cell], cell, who, reads, length, subgraph):
        return None
    filled, expected = (_in_cells(p, r, cells, largest, slots) for r in (p.fill, p.expect))
    if filled is None or expected is None:
        return None
    ranges = (filled, expected)
    rank = cells // p.memory_bytes
    first = np.searchsorted(rank, np.arange(p.ranks))
    number = np.arange(len(cells)) - first[rank]
    local, remote = np.zeros(len(p.op), np.uint64), np.zeros(len(p.op), np.uint64)
    local[moving], remote[own] = number[cell[: int(moving.sum())]], number[cell[int(moving.sum()) :]]
    every = distinct(np.concatenate([names for _, _, names in ranges]))
    fill, expect = (
        Ranges.of(rank[of], number[of], 1, source, np.searchsorted(every, names)) for of, source, names in ranges
    )
    return replace(
        p,
        dtype="int8",
        memory_bytes=int(number.max(initial=0)) + 1,
        stream=np.unique(p.stream, return_inverse=True)[1].astype(np.uint32),
        local=local,
        remote=remote,
        bytes=moving.astype(np.uint64),
        fill=fill,
        expect=expect,
        size_bytes=0,
        count=0,
    )


def _whole(slotted: Array, cell: Array, who: Array, reads: Array, length: Array, subgraph: Array) -> bool:
    """Whether in each place of several sizes a read takes what the write before it brought."""
    cell, who, reads, length = cell[slotted], who[slotted], reads[slotted], length[slotted]
    if not len(cell):
        return True
    by = np.lexsort((~reads, who, cell))
    cell, who, reads, length = cell[by], who[by], reads[by], length[by]
    first = np.concatenate(([True], cell[1:] != cell[:-1]))
    other = np.concatenate(([False], subgraph[who[1:]] != subgraph[who[:-1]])) & ~first
    last = np.maximum.accumulate(np.where(~reads, np.arange(len(cell)), 0))
    return not (first & reads).any() and not other.any() and bool((length[last] == length).all())


def _in_cells(
    p: Program, ranges: Ranges, cells: Array, largest: Array, slots: Array
) -> tuple[Array, Array, Array] | None:
    """Cells of ranges, their sources and a name of their first element; None where a cell is cut or is a slot."""
    start, end = places(p, ranges)
    row, of = expand(np.searchsorted(cells + largest, start, "right"), np.searchsorted(cells, end))
    if (cells[of] < start[row]).any() or (cells[of] + largest[of] > end[row]).any() or slots[of].any():
        return None
    index = ranges.index[row].astype(np.int64) * ELEMENT_BYTES[p.dtype] + cells[of] - start[row]
    # What holds the same elements has the same size too.
    return of, ranges.source[row], index * (int(largest.max(initial=0)) + 1) + largest[of]
