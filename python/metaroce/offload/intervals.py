"""Disjoint intervals of all ranks' memory: places are rank * memory_bytes + offset."""

from __future__ import annotations

import numpy as np

from ..collectives import Array, Program, Ranges
from ..collectives.order import expand
from ..errors import ProgramError
from ..units import ELEMENT_BYTES


def merged(start: Array, end: Array) -> tuple[Array, Array]:
    """The union of intervals, sorted and disjoint."""
    if not len(start):
        return start, end
    by = np.argsort(start, kind="stable")
    start, reach = start[by], np.maximum.accumulate(end[by])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    return start[first], reach[np.concatenate((np.flatnonzero(first)[1:] - 1, [len(start) - 1]))]


def places(p: Program, ranges: Ranges) -> tuple[Array, Array]:
    """Where ranges start and end."""
    start = ranges.rank.astype(np.int64) * p.memory_bytes + ranges.offset.astype(np.int64)
    return start, start + ranges.count.astype(np.int64) * ELEMENT_BYTES[p.dtype]


def inside(p: Program, ranges: Ranges, start: Array, end: Array) -> Ranges:
    """The parts of ranges that lie in disjoint intervals."""
    size, (first, last) = ELEMENT_BYTES[p.dtype], places(p, ranges)
    row, of = expand(np.searchsorted(end, first, "right"), np.searchsorted(start, last, "left"))
    low, high = np.maximum(first[row], start[of]), np.minimum(last[row], end[of])
    skipped = (low - first[row]) // size
    return Ranges.of(
        ranges.rank[row],
        ranges.offset[row].astype(np.int64) + skipped * size,
        (high - low) // size,
        ranges.source[row],
        ranges.index[row].astype(np.int64) + skipped,
    )


def outside(p: Program, ranges: Ranges, start: Array, end: Array) -> Ranges:
    """The parts of ranges that lie between disjoint intervals."""
    top = np.iinfo(np.int64).max
    return inside(p, ranges, np.concatenate(([-1], end)), np.concatenate((start, [top])))


def check_untouched(p: Program, start: Array, end: Array) -> None:
    """Raise `ProgramError` where something is expected that nobody writes, and that was not there before."""
    rest = outside(p, p.expect, start, end)
    if not len(rest.rank):
        return
    (low, high), (first, last) = places(p, rest), places(p, p.fill)
    by = np.argsort(first, kind="stable")
    of = np.searchsorted(first[by], low, "right") - 1
    held = by[np.maximum(of, 0)] if len(by) else np.zeros(len(low), np.int64)
    good = np.zeros(len(low), bool)
    if len(by):
        index = p.fill.index[held].astype(np.int64) + (low - first[held]) // ELEMENT_BYTES[p.dtype]
        good = (of >= 0) & (last[held] >= high) & (p.fill.source[held] == rest.source) & (index == rest.index)
    if not good.all():
        k = int(np.argmin(good))
        raise ProgramError(
            f"nothing writes what is expected at offset {int(rest.offset[k])} of rank {int(rest.rank[k])}"
        )
