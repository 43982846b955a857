"""Proof of a program for message engines: what its flow fields promise, shown to `metaroce.collectives.verify`.

Every entry becomes two, its issue and its execution. Issues of a subgraph follow each other; an issue waits for the
executions that its flow fields name, a WAIT for its SET; near-memory operations of a subgraph run one after another,
since an engine has one unit. The rest is the symbolic check of any program: pairing, deadlock, values, races. A receive
cannot be written before it is posted, a WRITE_IMM can; messages without bytes get a byte of their own.

Subgraphs which exchange no messages are checked apart, since each is as large as a whole program of one engine, after
it is shown that none writes what another uses. Parts that differ in sizes only are checked once: a part whose every
move is one cell is told by the order of its cells, and what was proved is remembered.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import numpy as np

from ..collectives import Array, Op, Program, verify
from ..collectives.order import Order, distinct, expand, levels, order, reaches
from ..collectives.program import counts
from ..collectives.race import Issue
from ..errors import ProgramError
from .intervals import check_untouched, inside, merged
from .shape import canonical, digest
from .table import Flow

_proved: set[bytes] = set()


class Edges(NamedTuple):
    """The issue of ``to`` waits for the execution of ``on``; ``kind`` says by which field."""

    to: Array
    on: Array
    kind: Array


KINDS = ("wqe_sync", "fence", "sync", "rx_sync", "tx_sync", "wait")


def prove(program: Program, announced: Literal["never", "first", "every"] = "never") -> None:
    """Raise `ProgramError` naming what is wrong and where; return when the program does what it expects.

    ``announced``: whether the first message of each stream, or every message with bytes, is to be sent only when its
    receive is known to be posted.
    """
    _check(program)
    partner = _pairs(program)
    edges = waits(program)
    uses = _uses(program)
    parts = _parts(program, partner)
    if (edges.kind == KINDS.index("wait")).any():
        _deadlock(program, partner, edges)
    if parts.max(initial=0) > 0:
        parts = _joined(uses, parts[_subgraph(program)])[parts]
    part_of = parts[_subgraph(program)]
    for part in range(int(parts.max(initial=-1)) + 1):
        entries = np.flatnonzero(part_of == part)
        one, issue = _expanded(program, entries, partner, edges, uses.of(part_of == part))
        one = canonical(one, np.repeat(_subgraph(program)[entries], 2)) or one
        key = digest(one, issue) + announced.encode()
        if key in _proved:
            continue
        try:
            verify(one, issue)
            if announced != "never":
                _check_announced(one, program.bytes[entries] > 0, announced == "first")
        except ProgramError as error:
            raise ProgramError(f"{_plain(str(error))} ({_where(program, entries)})") from None
        _proved.add(key)
    check_untouched(program, *merged(uses.start[uses.writes], uses.end[uses.writes]))


class Uses(NamedTuple):
    """All uses of memory: by which entry, from where to where, whether they write."""

    entry: Array
    start: Array
    end: Array
    writes: Array

    def of(self, entries: Array) -> Uses:
        """Those by some entries, given as a mask."""
        kept = entries[self.entry]
        return Uses(*(column[kept] for column in self))


def waits(p: Program) -> Edges:
    """All dependencies of issues on executions that flow fields and words state, in one subgraph or between two."""
    flow, sync = p.extra["flow"].astype(np.int64), p.extra["wqe_sync"].astype(np.int64)
    entry = np.arange(len(p.op))
    found = [(entry[sync > 0], entry[sync > 0] - sync[sync > 0], 0)]
    start = p.extra["subgraph_start"].astype(np.int64)
    subgraph = _subgraph(p)
    first, last = start[subgraph], start[subgraph + 1]
    fences = np.flatnonzero((flow & Flow.FENCE > 0) & (entry + 1 < last))
    found.append((fences + 1, fences, 1))
    sends = np.isin(p.op, (Op.SEND, Op.WRITE, Op.WRITE_IMM))
    for kind, (bit, those) in enumerate(
        ((Flow.SYNC, np.ones(len(entry), bool)), (Flow.RX_SYNC, p.op == Op.RECV), (Flow.TX_SYNC, sends)), start=2
    ):
        who = np.flatnonzero(flow & bit > 0)
        row, on = expand(first[who], who)
        kept = those[on]
        found.append((who[row[kept]], on[kept], kind))
    found.append((*_words(p), 5))
    return Edges(
        np.concatenate([to for to, _, _ in found]),
        np.concatenate([on for _, on, _ in found]),
        np.concatenate([np.full(len(to), kind) for to, _, kind in found]),
    )


def implied(p: Program, to: Array, on: Array) -> Array:
    """Whether each execution of ``on`` is over when ``to`` of the same subgraph issues, by what else is stated.

    For a receive it is enough that it is over when its message is sent.
    """
    partner = _pairs(p)
    edge_from, edge_to = _graph(p, partner, waits(p))
    when = Order(*(np.zeros(0, np.int64),) * 3, edge_from, edge_to, levels(2 * len(p.op), edge_from, edge_to))
    sent = np.where(p.op[to] == Op.RECV, partner[to], to)
    return reaches(when, 2 * on + 1, 2 * to) | reaches(when, 2 * on + 1, 2 * sent)


def _check_announced(one: Program, has_bytes: Array, first: bool) -> None:
    """Of an expanded part: the issue of each RECV comes before that of its SEND."""
    when = order(one, in_order=True)
    wanted = has_bytes[when.send // 2] & ((when.place == 0) | (not first))
    send, recv = when.send[wanted], when.recv[wanted]
    late = ~reaches(when, recv - 1, send - 1)
    if late.any():
        rank, peer = (int(column[send[late]][0]) for column in (one.rank, one.peer))
        raise ProgramError(f"a message of rank {rank} to {peer} may come before its receive is posted")


def _subgraph(p: Program) -> Array:
    return np.repeat(np.arange(len(p.extra["subgraph_start"]) - 1), counts(p.extra["subgraph_start"]))


def _where(p: Program, entries: Array) -> str:
    engines = np.unique(p.extra["subgraph_engine"][_subgraph(p)[entries]])
    ranks = np.unique(p.rank[entries])
    return f"engines {engines.tolist()} of ranks {int(ranks[0])} .. {int(ranks[-1])}"


def _plain(error: str) -> str:
    """What the check says of entries of a part is of no use outside: they have other numbers there."""
    return re.sub(r" \d+(?= of rank)|(?<=the first is) \d+", "", error)


def _at(p: Program, entry: int) -> str:
    """An entry in words."""
    subgraph = int(_subgraph(p)[entry])
    place = entry - int(p.extra["subgraph_start"][subgraph])
    engine = int(p.extra["subgraph_engine"][subgraph])
    return f"{Op(int(p.op[entry])).name} {place} of subgraph {subgraph} (rank {int(p.rank[entry])}, engine {engine})"


def _check(p: Program) -> None:
    start, entries = p.extra["subgraph_start"].astype(np.int64), len(p.op)
    if start[0] != 0 or start[-1] != entries or (np.diff(start) < 1).any():
        raise ProgramError("subgraphs do not cover all entries in order")
    rank = p.rank
    if (rank[start[:-1]] != rank[start[1:] - 1]).any():
        raise ProgramError("a subgraph lies in two ranks")
    if len(p.deps):
        raise ProgramError("an entry has dependencies beside its flow fields")
    place = np.arange(entries) - start[_subgraph(p)]
    late = p.extra["wqe_sync"] > place
    allowed = np.isin(p.op, (Op.SEND, Op.RECV, Op.WRITE, Op.COPY, Op.SUM, Op.NOOP, Op.WRITE_IMM, Op.WAIT, Op.SET))
    for wrong, text in ((late, "waits for an entry before its subgraph"), (~allowed, "no engine runs this")):
        if wrong.any():
            raise ProgramError(f"{_at(p, int(np.argmax(wrong)))}: {text}")


def _pairs(p: Program) -> Array:
    """The other end of every message, -1 for what is none."""
    sends = np.isin(p.op, (Op.SEND, Op.WRITE_IMM))
    send, recv = np.flatnonzero(sends), np.flatnonzero(p.op == Op.RECV)
    rank, peer, stream = (column.astype(np.int64) for column in (p.rank, p.peer, p.stream))
    send_key = (rank[send] * p.ranks + peer[send]) << 16 | stream[send]
    recv_key = (peer[recv] * p.ranks + rank[recv]) << 16 | stream[recv]
    by_send, by_recv = np.argsort(send_key, kind="stable"), np.argsort(recv_key, kind="stable")
    send, recv = send[by_send], recv[by_recv]
    if len(send) != len(recv) or (send_key[by_send] != recv_key[by_recv]).any():
        raise ProgramError(f"{len(send)} SENDs and {len(recv)} RECVs do not pair up")
    wanted = np.where(p.op[send] == Op.SEND, p.bytes[send], 0)
    if (differs := wanted != p.bytes[recv]).any():
        k = int(np.argmax(differs))
        raise ProgramError(f"{_at(p, int(send[k]))} and {_at(p, int(recv[k]))} differ in bytes")
    subgraph = _subgraph(p)
    for ends, key in ((send, send_key[by_send]), (recv, recv_key[by_recv])):
        split = (key[1:] == key[:-1]) & (subgraph[ends[1:]] != subgraph[ends[:-1]])
        if split.any():
            raise ProgramError(f"{_at(p, int(ends[1:][split][0]))} shares its stream with another subgraph")
    partner = np.full(len(p.op), -1)
    partner[send], partner[recv] = recv, send
    return partner


def _words(p: Program) -> tuple[Array, Array]:
    """WAITs with the SETs that they wait for; words set from outside are no edge."""
    waiting, setting = np.flatnonzero(p.op == Op.WAIT), np.flatnonzero(p.op == Op.SET)
    if not len(waiting):
        return waiting, waiting
    outside = {name: p.extra.get(f"set_{name}", np.zeros(0, np.int64)) for name in ("rank", "word", "value")}
    values: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for entry in setting.tolist():
        values.setdefault((int(p.rank[entry]), int(p.local[entry])), []).append((int(p.remote[entry]), entry))
    for rank, word, value in zip(*(outside[k].tolist() for k in ("rank", "word", "value")), strict=True):
        values.setdefault((rank, word), []).append((value, -1))
    on = []
    for entry in waiting.tolist():
        wanted, how = int(p.remote[entry]), int(p.extra["imm"][entry])
        met = [
            who for value, who in values.get((int(p.rank[entry]), int(p.local[entry])), []) if _met(value, how, wanted)
        ]
        if len(met) != 1 or _met(0, how, wanted):
            count = "from the start" if _met(0, how, wanted) else f"by {len(met)} SETs, not one"
            raise ProgramError(f"{_at(p, entry)} is satisfied {count}")
        on.append(met[0])
    by = np.array(on)
    return waiting[by >= 0], by[by >= 0]


def _met(value: int, how: int, wanted: int) -> bool:
    return (value >= wanted, value == wanted, value > wanted)[how]


def _deadlock(p: Program, partner: Array, edges: Edges) -> None:
    """All subgraphs together, words included."""
    try:
        levels(2 * len(p.op), *_graph(p, partner, edges))
    except ProgramError as error:
        at = int(str(error).rsplit(" ", 1)[1]) // 2
        raise ProgramError(f"deadlock: {_at(p, at)} can never start") from None


def _graph(p: Program, partner: Array, edges: Edges) -> tuple[Array, Array]:
    """Edges among all issues (even) and executions (odd)."""
    entry, same = np.arange(len(p.op)), _subgraph(p)
    follows = np.flatnonzero(same[1:] == same[:-1]) + 1
    receives = np.flatnonzero(p.op == Op.RECV)
    key = (p.rank[receives].astype(np.int64) * p.ranks + p.peer[receives]) << 16 | p.stream[receives]
    by = np.argsort(key, kind="stable")
    receives, key = receives[by], key[by]
    later = np.flatnonzero(key[1:] == key[:-1]) + 1
    units = np.flatnonzero(np.isin(p.op, (Op.COPY, Op.SUM)))
    next_one = np.flatnonzero(same[units[1:]] == same[units[:-1]]) + 1
    pairs = (
        (entry * 2, entry * 2 + 1),
        (follows * 2 - 2, follows * 2),
        (edges.on * 2 + 1, edges.to * 2),
        (partner[receives] * 2 + 1, receives * 2 + 1),
        (receives[later - 1] * 2 + 1, receives[later] * 2 + 1),
        (units[next_one - 1] * 2 + 1, units[next_one] * 2 + 1),
    )
    return np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])


def _parts(p: Program, partner: Array) -> Array:
    """The part of every subgraph: those that exchange messages are in one."""
    subgraph = _subgraph(p)
    sends = np.flatnonzero((partner >= 0) & (p.op != Op.RECV))
    return _connected(len(p.extra["subgraph_start"]) - 1, subgraph[sends], subgraph[partner[sends]])


def _connected(nodes: int, one: Array, other: Array) -> Array:
    pairs = np.unique(one.astype(np.int64) * nodes + other)
    parent = list(range(nodes))

    def root(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for a, b in zip(*(k.tolist() for k in np.divmod(pairs, max(nodes, 1))), strict=True):
        parent[root(a)] = root(b)
    return np.unique([root(x) for x in range(nodes)], return_inverse=True)[1]


def _uses(p: Program) -> Uses:
    home, away = (c.astype(np.int64) * p.memory_bytes for c in (p.rank, p.peer))
    local, remote, size = (c.astype(np.int64) for c in (p.local, p.remote, p.bytes))
    own = np.isin(p.op, (Op.COPY, Op.SUM))
    far = np.isin(p.op, (Op.WRITE, Op.WRITE_IMM))
    uses = [
        (np.flatnonzero(far | (p.op == Op.SEND)), home + local, False),
        (np.flatnonzero(own), home + remote, False),
        (np.flatnonzero(own | (p.op == Op.RECV)), home + local, True),
        (np.flatnonzero(far), away + remote, True),
    ]
    entry = np.concatenate([who for who, _, _ in uses])
    start = np.concatenate([at[who] for who, at, _ in uses])
    writes = np.concatenate([np.full(len(who), w) for who, _, w in uses])
    kept = size[entry] > 0
    return Uses(entry[kept], start[kept], (start + size[entry])[kept], writes[kept])


def _joined(uses: Uses, part_of: Array) -> Array:
    """Parts are one where one writes what the other uses: then words order them, or nothing does."""
    part, far = part_of[uses.entry], np.int64(uses.end.max(initial=0) + 1)
    many = int(part_of.max()) + 1
    spans = []
    for those in (np.ones(len(part), bool), uses.writes):
        start, end = merged((part * far + uses.start)[those], (part * far + uses.end)[those])
        spans.append((start // far, start % far, end - start + start % far))
    cells = distinct(np.concatenate([edge for _, *ends in spans for edge in ends]))
    (row, cell), (_, written) = (expand(*(np.searchsorted(cells, edge) for edge in ends)) for _, *ends in spans)
    shared = np.isin(cell, written)
    cell, owner = cell[shared], spans[0][0][row[shared]]
    by = np.argsort(cell, kind="stable")
    cell, owner = cell[by], owner[by]
    return _connected(many, owner, owner[np.searchsorted(cell, cell)])


def _expanded(p: Program, entries: Array, partner: Array, edges: Edges, uses: Uses) -> tuple[Program, Issue]:
    """A part as a plain program; it fills what it uses and is expected to make what it writes."""
    number = np.full(len(p.op), -1)
    number[entries] = np.arange(len(entries))
    many = len(entries)
    mate = np.where(partner[entries] >= 0, number[partner[entries]], -1)
    op, peer = p.op[entries].copy(), p.peer[entries].copy()
    local, remote, size = (c[entries].copy() for c in (p.local, p.remote, p.bytes))
    put = np.flatnonzero(op == Op.WRITE_IMM)
    local[mate[put]], size[mate[put]] = remote[put], size[put]
    op[put] = Op.SEND
    empty = np.flatnonzero((op == Op.SEND) & (size == 0))
    for ends, side in ((empty, 0), (mate[empty], 1)):
        local[ends] = p.memory_bytes + 2 * np.arange(len(empty)) + side
        size[ends] = 1
    quiet = np.isin(op, (Op.WAIT, Op.SET, Op.NOOP))
    op[quiet], size[quiet] = Op.NOOP, 0
    rank, subgraph = p.rank[entries], _subgraph(p)[entries]
    deps = _dependencies(op, subgraph, number, edges)
    by = np.argsort(deps[0], kind="stable")
    noop = np.full(many, Op.NOOP, np.uint8)
    zero = np.zeros(many, np.uint64)
    stream = _streams(p, entries)
    posted = np.full(2 * many, -1)
    receives = np.flatnonzero(op == Op.RECV)
    receives = receives[~np.isin(receives, mate[put])]
    posted[2 * receives + 1] = 2 * receives
    one = Program(
        dtype=p.dtype,
        memory_bytes=p.memory_bytes + 2 * len(empty) + 1,
        rank_start=(2 * np.searchsorted(rank, np.arange(p.ranks + 1))).astype(np.uint32),
        op=_zipped(noop, op),
        peer=_zipped(rank.astype(np.uint32), np.where(quiet, rank, peer).astype(np.uint32)),
        stream=_zipped(stream, stream),
        local=_zipped(zero, np.where(quiet, 0, local)),
        remote=_zipped(zero, np.where(np.isin(op, (Op.COPY, Op.SUM, Op.WRITE)), remote, 0)),
        bytes=_zipped(zero, size),
        dep_start=np.searchsorted(deps[0][by], np.arange(2 * many + 1)).astype(np.uint32),
        deps=deps[1][by].astype(np.uint32),
        fill=inside(p, p.fill, *merged(uses.start, uses.end)),
        expect=inside(p, p.expect, *merged(uses.start[uses.writes], uses.end[uses.writes])),
        size_bytes=p.size_bytes,
        count=p.count,
    )
    return one, Issue(np.arange(2 * many) | 1, posted)


def _zipped(one: Array, other: Array) -> Array:
    return np.ravel(np.stack((one, other.astype(one.dtype)), axis=1))


def _dependencies(op: Array, subgraph: Array, number: Array, edges: Edges) -> tuple[Array, Array]:
    """Who waits for whom among issues (even) and executions (odd) of a part."""
    entry = np.arange(len(op))
    follows = np.flatnonzero(subgraph[1:] == subgraph[:-1]) + 1
    inside = (number[edges.to] >= 0) & (number[edges.on] >= 0)
    to, on = number[edges.to[inside]], number[edges.on[inside]]
    units = np.flatnonzero(np.isin(op, (Op.COPY, Op.SUM)))
    same = np.flatnonzero(subgraph[units[1:]] == subgraph[units[:-1]])
    pairs = (
        (entry * 2 + 1, entry * 2),
        (follows * 2, follows * 2 - 2),
        (to * 2, on * 2 + 1),
        (units[same + 1] * 2 + 1, units[same] * 2 + 1),
    )
    return np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])


def _streams(p: Program, entries: Array) -> Array:
    """The stream of every entry; of those that are no message, the next one of their subgraph that is."""
    stream = p.stream[entries].copy()
    message = np.isin(p.op[entries], (Op.SEND, Op.RECV, Op.WRITE_IMM))
    place = np.where(message, np.arange(len(entries)), len(entries) - 1)
    nearest = np.minimum.accumulate(place[::-1])[::-1]
    return np.asarray(stream[nearest])
