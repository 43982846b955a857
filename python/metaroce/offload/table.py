"""Rows of work-queue entries that have no order yet, and their lowering to the columns of a program.

A row says when it comes (``time``, then ``turn``: receives 0, near-memory compute 2, sends 4), what it waits for
(``after``, another row) and how much earlier it may be posted (``early``). Lowering drops rows that move nothing, gives
receives that are reduced later (``staged``) a slot, posts them ahead as far as slots allow, sorts each subgraph, and
turns ``after`` into ``wqe_sync``.

Columns of a program for message engines, beside those of `metaroce.collectives.program`: ``flow`` u8[W], ``wqe_sync``
u32[W], ``imm`` u32[W], ``subgraph_start`` u32[S+1], ``subgraph_engine`` ``subgraph_packet`` u32[S],
``subgraph_priority`` u8[S], ``subgraph_release_ps`` u64[S].
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np

from ..collectives import Array, Op
from ..errors import ProgramError
from .credits import with_credits

EARLIEST = -(1 << 60)
"""A time before all others."""
ALL_BEFORE = 1 << 61
"""``early`` of what may be posted before everything else."""


PATCHED = 2
"""``always`` of a transfer whose size is known only when it is issued: without bytes it stays, and does nothing."""


ACROSS = 2
"""``staged`` of what comes from other racks, which has slots of its own."""


class Flow(IntFlag):
    """Flow-control bits of an entry."""

    FENCE = 1
    SYNC = 2
    RX_SYNC = 4
    TX_SYNC = 8
    FUSED = 16


@dataclass(frozen=True)
class Lane:
    """One subgraph on every rank: its engine, packet, and staging slots at ``staging`` in memory.

    ``credits``: every receive is announced to its sender. ``across``: slots for what comes from other racks.
    """

    engine: int
    packet: int
    priority: int = 0
    release: int = 0
    credits: bool = False
    slots: int = 2
    across: int = 0
    slot_bytes: int = 0
    staging: int = 0


_COLUMNS = ("op rank lane time turn early after peer stream local remote bytes flow imm staged always").split()


class Table:
    """Collects rows; every operand broadcasts to a common shape, and `add` returns the rows' numbers in it."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Array]] = []
        self._size = 0

    def add(self, op: Op, *, rank: Any, lane: Any, time: Any, **operands: Any) -> Array:
        """Append rows; ``after`` is a row or -1."""
        given = {"turn": _TURN[op], "after": -1, **operands, "rank": rank, "lane": lane, "time": time}
        shape = np.broadcast_shapes(*(np.shape(value) for value in given.values()))
        part = {name: np.broadcast_to(np.asarray(given.get(name, 0)), shape).ravel() for name in _COLUMNS}
        part["op"] = np.full(part["rank"].shape, int(op))
        ids = np.arange(self._size, self._size + len(part["op"])).reshape(shape)
        self._size += ids.size
        self._parts.append(part)
        return ids

    def columns(self) -> dict[str, Array]:
        """All rows as int64 columns."""
        return {name: np.concatenate([part[name] for part in self._parts]).astype(np.int64) for name in _COLUMNS}


_TURN = {Op.RECV: 0, Op.WAIT: 0, Op.COPY: 2, Op.SUM: 2, Op.SEND: 4, Op.WRITE: 4, Op.WRITE_IMM: 4, Op.SET: 6}


def lower(table: Table, ranks: int, lanes: list[Lane]) -> dict[str, Array]:
    """The columns of a program, ``rank_start`` and what only message engines have included."""
    rows = _without_empty(table.columns())
    rows["op"] = np.where((rows["always"] == PATCHED) & (rows["bytes"] == 0), int(Op.NOOP), rows["op"])
    group = rows["rank"] * len(lanes) + rows["lane"]
    _stage(rows, group, lanes)
    _place_sends(rows)
    credited = np.array([lane.credits for lane in lanes])[rows["lane"]]
    if credited.any():
        rows = with_credits(rows, credited, 2 * len(lanes), EARLIEST - 1)
        group = rows["rank"] * len(lanes) + rows["lane"]
    order = _order(rows, group)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    sync = np.where(rows["after"] >= 0, place - place[rows["after"]], 0)
    wrong = (rows["after"] >= 0) & ((sync < 1) | (group[rows["after"]] != group))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ProgramError(f"{Op(int(rows['op'][row])).name} of rank {rows['rank'][row]} waits for a later entry")
    rows = {name: column[order] for name, column in rows.items()}
    return _columns(rows, sync[order], group[order], ranks, lanes)


def _without_empty(rows: dict[str, Array]) -> dict[str, Array]:
    """Rows that move something or are there for themselves; who waited for another waits for what that waited for."""
    kept = (rows["bytes"] > 0) | (rows["always"] > 0)
    if kept.all():
        return rows
    after = rows["after"]
    while (gone := (after >= 0) & ~kept[after]).any():
        after = np.where(gone, after[after], after)
    number = np.cumsum(kept) - 1
    rows["after"] = np.where(after >= 0, number[after], -1)
    return {name: column[kept] for name, column in rows.items()}


def _stage(rows: dict[str, Array], group: Array, lanes: list[Lane]) -> None:
    """Decides slots, and in ``posted`` when receives are posted, or when other rows come.

    Slots are taken in turn, each kind by itself; one is posted again when its reader is done: that holds peers back.
    """
    receives = np.flatnonzero(rows["op"] == Op.RECV)
    rows["posted"] = rows["time"].copy()
    rows["posted"][receives] = np.maximum(rows["time"][receives] - rows["early"][receives], EARLIEST)
    who = receives[rows["staged"][receives] > 0]
    if len(who):
        across = rows["staged"][who] == ACROSS
        ring = group[who] * 2 + across
        by = np.lexsort((rows["time"][who], ring))
        who, ring, across = who[by], ring[by], across[by]
        of = [
            np.array([getattr(x, n) for x in lanes])[rows["lane"][who]]
            for n in ("slots", "across", "slot_bytes", "staging")
        ]
        slots, base = np.where(across, of[1], of[0]), of[3] + across * of[0] * of[2]
        place = np.arange(len(who))
        index = place - np.searchsorted(ring, ring)
        rows["local"][who] = base + index % slots * of[2]
        reader = np.full(len(group), -1)
        sums = np.flatnonzero((rows["op"] == Op.SUM) & (rows["after"] >= 0))
        reader[rows["after"][sums]] = sums
        if (reader[who] < 0).any():
            raise ProgramError("a staged RECV has no SUM that reads it")
        rows["remote"][reader[who]] = rows["local"][who]
        rows["after"][who] = np.where(index >= slots, reader[who[np.maximum(place - slots, 0)]], -1)
        ahead = rows["time"][who[np.maximum(place - slots + 1, 0)]]
        rows["posted"][who] = np.where(index >= slots - 1, ahead, EARLIEST)
    # Receives of one stream are posted in the order in which they come.
    stream = (group << 16 | rows["stream"])[receives] * (1 + int(rows["peer"].max(initial=0))) + rows["peer"][receives]
    by = np.lexsort((rows["time"][receives], stream))
    start = np.searchsorted(stream[by], stream[by])
    rows["posted"][receives[by]] = _running_maximum(rows["posted"][receives[by]], start)


def _running_maximum(values: Array, start: Array) -> Array:
    """The maximum so far in each run; ``start`` is where each element's run begins."""
    by = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[by] = np.arange(len(values))
    top = np.maximum.accumulate(rank + start * len(values)) - start * len(values)
    return np.asarray(values[by][top])


def _place_sends(rows: dict[str, Array]) -> None:
    """A send comes as early as it may, but not before what it waits for."""
    sends = np.flatnonzero(np.isin(rows["op"], (Op.SEND, Op.WRITE, Op.WRITE_IMM)))
    after = rows["after"][sends]
    least = np.where(after >= 0, rows["posted"][after], EARLIEST)
    rows["posted"][sends] = np.maximum(rows["time"][sends] - rows["early"][sends], least)


def _order(rows: dict[str, Array], group: Array) -> Array:
    """Rows sorted by subgraph and time."""
    return np.asarray(np.lexsort((rows["time"], rows["turn"], rows["posted"], group)))


def _columns(rows: dict[str, Array], sync: Array, group: Array, ranks: int, lanes: list[Lane]) -> dict[str, Array]:
    entries = len(group)
    first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1]))) if entries else np.zeros(0, np.int64)
    lane = [lanes[k] for k in rows["lane"][first]]
    own = np.isin(rows["op"], (Op.COPY, Op.SUM, Op.NOOP, Op.WAIT, Op.SET))
    types = {"op": np.uint8, "flow": np.uint8, "peer": np.uint32, "stream": np.uint32, "imm": np.uint32}
    columns = {name: rows[name].astype(kind) for name, kind in types.items()}
    columns |= {name: rows[name].astype(np.uint64) for name in ("local", "remote", "bytes")}
    columns["peer"] = np.where(own, rows["rank"], rows["peer"]).astype(np.uint32)
    return columns | {
        "rank_start": np.searchsorted(rows["rank"], np.arange(ranks + 1)).astype(np.uint32),
        "wqe_sync": sync.astype(np.uint32),
        "subgraph_start": np.append(first, entries).astype(np.uint32),
        "subgraph_engine": np.array([x.engine for x in lane], np.uint32),
        "subgraph_packet": np.array([x.packet for x in lane], np.uint32),
        "subgraph_priority": np.array([x.priority for x in lane], np.uint8),
        "subgraph_release_ps": np.array([x.release for x in lane], np.uint64),
    }
