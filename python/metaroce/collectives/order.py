"""The order of a program: which SEND meets which RECV, and the levels of the dependency graph.

An edge means *not before*: a dependency, a SEND before its RECV completes, a RECV before the next one of its stream.
The level of an entry is the longest way to it; entries that no level reaches wait for each other for ever.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import ProgramError
from .program import Array, Op, Program, counts


class Order(NamedTuple):
    """``send[k]`` meets ``recv[k]``, ``place[k]``-th of its stream; edges; the level of every entry."""

    send: Array
    recv: Array
    place: Array
    edge_from: Array
    edge_to: Array
    level: Array


def order(p: Program, in_order: bool = False) -> Order:
    """Match and sort; raises `ProgramError` on unequal messages, an uncertain order of SENDs, or a deadlock.

    ``in_order``: SENDs of a stream are posted in order whatever they depend on.
    """
    send, recv, stream = _match(p)
    entry = np.repeat(np.arange(len(p.op)), counts(p.dep_start))
    same = np.flatnonzero(stream[1:] == stream[:-1])
    edge_from = np.concatenate((p.deps.astype(np.int64), send, recv[same]))
    edge_to = np.concatenate((entry, recv, recv[same + 1]))
    first = (
        np.flatnonzero(np.concatenate(([True], stream[1:] != stream[:-1]))) if len(stream) else np.zeros(0, np.int64)
    )
    place = np.arange(len(send)) - np.repeat(first, np.diff(np.append(first, len(send))))
    when = Order(send, recv, place, edge_from, edge_to, levels(len(p.op), edge_from, edge_to))
    if not in_order:
        _check_send_order(p, when, send[same], send[same + 1])
    return when


def expand(first: Array, last: Array) -> tuple[Array, Array]:
    """All integers of all ranges first[k] .. last[k]-1, with the k of each."""
    many = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(many)), many)
    return row, np.arange(len(row)) + np.repeat(first - (np.cumsum(many) - many), many)


def distinct(values: Array) -> Array:
    """Sorted without repeats; `numpy.unique` hashes, which is ten times slower on millions of nearly distinct keys."""
    values = np.sort(values)
    kept: Array = values[np.concatenate((np.ones(min(len(values), 1), bool), values[1:] != values[:-1]))]
    return kept


def levels(entries: int, edge_from: Array, edge_to: Array) -> Array:
    """The longest way from a start to each entry, in edges; raises `ProgramError` when some are never reached."""
    by = np.argsort(edge_from, kind="stable")
    edge_to = edge_to[by]
    start = np.searchsorted(edge_from[by], np.arange(entries + 1))
    waits = np.bincount(edge_to, minlength=entries)
    level = np.full(entries, -1, np.int32)
    front, depth = np.flatnonzero(waits == 0), 0
    while len(front):
        level[front] = depth
        _, edges = expand(start[front], start[front + 1])
        reached = edge_to[edges]
        np.subtract.at(waits, reached, 1)
        front = distinct(reached[waits[reached] == 0])
        depth += 1
    if (stuck := level < 0).any():
        raise ProgramError(
            f"deadlock: {int(stuck.sum())} entries can never start, the first is {int(np.argmax(stuck))}"
        )
    return level


def _match(p: Program) -> tuple[Array, Array, Array]:
    """SENDs and RECVs sorted by (source, destination, stream) and position, and the key of each."""
    rank, peer, stream = (column.astype(np.int64) for column in (p.rank, p.peer, p.stream))
    send, recv = np.flatnonzero(p.op == Op.SEND), np.flatnonzero(p.op == Op.RECV)
    if (stream >= 65536).any():
        raise ProgramError("a stream is above 65535")
    send_key = ((rank[send] * p.ranks + peer[send]) << 16) | stream[send]
    recv_key = ((peer[recv] * p.ranks + rank[recv]) << 16) | stream[recv]
    by_send, by_recv = np.argsort(send_key, kind="stable"), np.argsort(recv_key, kind="stable")
    send, recv, send_key, recv_key = send[by_send], recv[by_recv], send_key[by_send], recv_key[by_recv]
    if len(send) != len(recv) or (send_key != recv_key).any():
        raise ProgramError(f"{len(send)} SENDs and {len(recv)} RECVs do not pair up")
    if (differs := p.bytes[send] != p.bytes[recv]).any():
        k = int(np.argmax(differs))
        raise ProgramError(f"SEND {int(send[k])} and RECV {int(recv[k])} differ in bytes")
    return send, recv, send_key


def _check_send_order(p: Program, when: Order, one: Array, next_one: Array) -> None:
    """A SEND must become ready no earlier than the one before it in its stream.

    That is so when each dependency of the first is one of the second's, or comes before one of them.
    """
    start = p.dep_start.astype(np.int64)
    pair, dep = expand(start[one], start[one + 1])
    option, late = expand(start[next_one[pair]], start[next_one[pair] + 1])
    met = np.zeros(len(pair), bool)
    earlier, later = p.deps[dep[option]].astype(np.int64), p.deps[late].astype(np.int64)
    met[option[(earlier == later) | adjacent(p, when, earlier, later)]] = True
    open_ = ~met[option]
    met[option[open_][reaches(when, earlier[open_], later[open_])]] = True
    if not met.all():
        k = int(pair[np.argmin(met)])
        raise ProgramError(
            f"SENDs {int(one[k])} and {int(next_one[k])} share a stream and may be posted in either order"
        )


def adjacent(p: Program, when: Order, earlier: Array, later: Array) -> Array:
    """Whether an edge leads from each entry to the other."""
    if not len(earlier):
        return np.zeros(0, bool)
    entries = np.int64(len(p.op))
    known = np.sort(when.edge_from * entries + when.edge_to)
    step = earlier * entries + later
    return np.asarray(known[np.minimum(np.searchsorted(known, step), len(known) - 1)] == step)


def reaches(when: Order, earlier: Array, later: Array) -> Array:
    """Whether a way leads from each entry to the other: a search backwards, for the few pairs that have no edge."""
    found = np.zeros(len(earlier), bool)
    if not len(earlier):
        return found
    entries = np.int64(len(when.level))
    by = np.argsort(when.edge_to, kind="stable")
    edge_from = when.edge_from[by]
    start = np.searchsorted(when.edge_to[by], np.arange(entries + 1))
    pair, node = np.arange(len(earlier)), later
    while len(pair):
        row, edges = expand(start[node], start[node + 1])
        pair, node = pair[row], edge_from[edges]
        found[pair[node == earlier[pair]]] = True
        going = ~found[pair] & (when.level[node] > when.level[earlier[pair]])
        pair, node = np.divmod(distinct(pair[going] * entries + node[going]), entries)
    return found
