"""Races: two accesses to one cell, one of them a write, that nothing orders.

A read by a SEND is over when its message has been received; a RECV may write as soon as its SEND has started. Most
pairs are one or two dependencies apart. The rest are decided by vector clocks: for every entry, how many messages of
each stream are known to have been received before it starts. Where no dependency crosses stream numbers, as in a ring,
the clocks count one stream number at a time, which keeps them narrow; where they would still be too wide
(`MAX_CLOCKS`), the undecided pairs are passed over. WRITEs are passed over too: their peers order them by other means.

Where entries stand for the issue of others (`Issue`), a RECV may not write before it is issued, and a few pairs of one
rank may be many entries apart, which a search decides.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..errors import ProgramError
from .order import Order, adjacent, distinct, expand, reaches
from .program import Array, Op, Program

MAX_CLOCKS = 32 << 20
"""Clock readings kept at once, 2 bytes each. Ours."""

_FEW = 4
"""Edges into an entry that are taken one after another for all entries at once."""


class Issue(NamedTuple):
    """Entries that stand for the issue of others.

    ``executes[e]``: what e issues, or e itself. ``posted[e]``: the issue that a RECV needs to be written, else -1.
    """

    executes: Array
    posted: Array


def check_races(p: Program, when: Order, cell: Array, entry: Array, writes: Array, issue: Issue | None = None) -> None:
    """Raise `ProgramError` on an unordered pair; access k is by ``entry[k]`` to ``cell[k]``."""
    before, after = _conflicts(when, cell, entry, writes)
    checked = (before != after) & (p.op[before] != Op.WRITE) & (p.op[after] != Op.WRITE)
    before, after = before[checked], after[checked]
    starts = np.arange(len(p.op))
    starts[when.recv] = when.send  # what a RECV writes can arrive as soon as its SEND has started
    start = starts[after]
    known = (p.op[before] != Op.SEND) & (before == start)  # a SUM writes where the same entry read
    open_ = ~(known | adjacent(p, when, before, start) | _two_apart(p, when, before, start))
    before, after, start = before[open_], after[open_], start[open_]
    if issue is not None and len(before):
        posted = np.where(issue.posted[after] >= 0, issue.posted[after], start)
        open_ = ~(adjacent(p, when, before, posted) | _two_apart(p, when, before, posted))
        before, after, start = before[open_], after[open_], start[open_]
    if not len(before):
        return
    clocks = _Clocks(p, when, issue)
    if clocks.too_wide:
        return
    bad = ~clocks.ordered(before, start)
    if issue is not None and bad.any():
        before, after, start = before[bad], after[bad], start[bad]
        bad = ~reaches(when, before, np.where(issue.posted[after] >= 0, issue.posted[after], start))
    if bad.any():
        k = int(np.argmax(bad))
        names = [f"{Op(int(p.op[e])).name} {int(e)} of rank {int(p.rank[e])}" for e in (before[k], after[k])]
        raise ProgramError(f"race: {names[0]} and {names[1]} use the same memory in no certain order")


def _conflicts(when: Order, cell: Array, entry: Array, writes: Array) -> tuple[Array, Array]:
    """Pairs (earlier, later): each access with the last write before it and the next write after it in its cell."""
    order = np.lexsort((writes, when.level[entry], cell))
    cell, entry, writes = cell[order], entry[order], writes[order]
    at = np.arange(len(cell))
    first = np.searchsorted(cell, cell)  # where each cell's accesses begin
    last = np.maximum.accumulate(np.where(writes, at, -1))
    last = np.concatenate(([-1], last[:-1]))
    coming = np.minimum.accumulate(np.where(writes, at, len(cell))[::-1])[::-1]
    coming = np.append(coming[1:], len(cell))
    end = np.searchsorted(cell, cell, "right")
    has_last, has_next = last >= first, coming < end
    before = np.concatenate((entry[last[has_last]], entry[at[has_next]]))
    after = np.concatenate((entry[at[has_last]], entry[coming[has_next]]))
    pairs = distinct(before.astype(np.int64) * len(when.level) + after)
    return np.divmod(pairs, len(when.level))


def _two_apart(p: Program, when: Order, before: Array, after: Array) -> Array:
    """Whether a dependency of ``after`` has an edge from ``before``."""
    start = p.dep_start.astype(np.int64)
    pair, dep = expand(start[after], start[after + 1])
    found = np.zeros(len(before), bool)
    found[pair[adjacent(p, when, before[pair], p.deps[dep].astype(np.int64))]] = True
    return found


class _Clocks:
    """Vector clocks: ``clock[e, g]`` messages of stream g are received before entry e starts (RECV: ends)."""

    def __init__(self, p: Program, when: Order, issue: Issue | None) -> None:
        self.p, self.when = p, when
        self.executes = np.arange(len(p.op)) if issue is None else issue.executes
        rank, peer, stream = (column.astype(np.int64) for column in (p.rank, p.peer, p.stream))
        apart = bool((stream[when.edge_from] == stream[when.edge_to]).all())
        key = rank[when.recv] * p.ranks + peer[when.recv]
        if not apart:
            key = key << 16 | stream[when.recv]
        names, number = np.unique(key, return_inverse=True)
        self.stream = stream if apart else np.zeros(len(stream), np.int64)
        self.too_wide = len(names) * len(p.op) > MAX_CLOCKS
        self.group = np.full(len(p.op), -1)
        self.place = np.zeros(len(p.op), np.int64)
        for ends in (when.send, when.recv):
            self.group[ends], self.place[ends] = number, when.place + 1
        self.clock = np.zeros((0, 0), np.uint16) if self.too_wide else self._run(len(names))

    def ordered(self, before: Array, start: Array) -> Array:
        """Whether ``before`` is over when ``start`` starts: it, or a SEND that waits for it, was received."""
        message = self.group[before] >= 0
        by = np.argsort(self.when.edge_from, kind="stable")
        edge_from, edge_to = self.when.edge_from[by], self.when.edge_to[by]
        first, last = np.searchsorted(edge_from, before), np.searchsorted(edge_from, before, "right")
        pair, edges = expand(np.where(message, 0, first), np.where(message, 0, last))
        run = self.executes[edge_to[edges]]
        sent = self.p.op[run] == Op.SEND
        pair, witness = pair[sent], run[sent]
        own = np.flatnonzero(message)
        pair, witness = np.concatenate((pair, own)), np.concatenate((witness, before[own]))
        target = start[pair]
        seen = self.clock[target, self.group[witness]] >= self.place[witness]
        seen &= self.stream[target] == self.stream[witness]
        found = np.zeros(len(before), bool)
        found[pair[seen]] = True
        return found

    def _run(self, width: int) -> Array:
        clock = np.zeros((len(self.p.op), width), np.uint16)
        at = self.when.level[self.when.edge_to].astype(np.int64)
        by = np.lexsort((self.when.edge_to, at))
        edge_from, edge_to = self.when.edge_from[by], self.when.edge_to[by]
        bounds = np.searchsorted(at[by], np.arange(int(self.when.level.max()) + 2))
        for first, last in pairwise(bounds[1:]):
            targets, segments, many = np.unique(edge_to[first:last], return_index=True, return_counts=True)
            few = many <= _FEW
            clock[targets[~few]] = [
                clock[edge_from[first + k : first + k + m]].max(axis=0)
                for k, m in zip(segments[~few].tolist(), many[~few].tolist(), strict=True)
            ] or clock[:0]
            clock[targets[few]] = clock[edge_from[first + segments[few]]]
            for k in range(1, _FEW):
                more = few & (many > k)
                clock[targets[more]] = np.maximum(clock[targets[more]], clock[edge_from[first + segments[more] + k]])
            received = targets[self.p.op[targets] == Op.RECV]
            clock[received, self.group[received]] = self.place[received]
        return clock
