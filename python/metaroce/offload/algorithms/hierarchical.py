"""Exchange inside racks, the least across: what n-1 peers would send across racks is first summed, or sent once.

reduce_scatter: for every block of another rack, one member of the own rack (its relay) sums what the rack has of it and
sends that across; for the own block each rank sums what its rack sends and what comes from the other racks' relays.
all_gather is the mirror: a block crosses once to a relay of each other rack, which spreads it. Slice e of block m is
relayed by member (m + e * step) mod S, so that the relays of a rack share the work. all_reduce is both, chunk by chunk
in one pipeline. With one rack this is the pairwise exchange (`direct`).

In its rack, a rank sends to the member d places on while the one d places back sends to it; all ranks keep to the same
times, and every entry needs only what has an earlier one, so nothing can deadlock.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...collectives import Array, Op
from ..call import Call
from ..table import ACROSS, ALL_BEFORE

TICK = 1 << 20
"""Between two units; what belongs to one unit is ordered inside it."""


class Rack(NamedTuple):
    """Members, counted in the group; the other racks in order of distance; how relays shift from lane to lane."""

    members: Array
    others: list[Array]
    step: int


def hierarchical(c: Call) -> None:
    """Racks are the domains of the ranks."""
    _run(c, c.domains)


def direct(c: Call) -> None:
    """All ranks are one rack."""
    _run(c, np.zeros(c.n, np.int64))


def _run(c: Call, domains: Array) -> None:
    members = [np.flatnonzero(domains == g) for g in np.unique(domains)]
    racks = [Rack(own, members[g + 1 :] + members[:g], max(1, len(own) // c.lanes)) for g, own in enumerate(members)]
    units = max((1 + sum(_rounds(r, o) for o in r.others)) * max(len(r.members) - 1, 1) for r in racks)
    # Of every chunk: what is summed inside racks, and behind that of the next chunk what comes from across.
    span = units + len(racks)
    made, end = np.full((c.n, c.lanes, c.node.chunks), -1), np.arange(c.node.chunks + 1)
    if "reduce_scatter" in c.node.phases:
        end = (end + 1) * span + units
        _copy_own(c, np.arange(c.node.chunks) * span * TICK - 1)
        for rack in racks:
            _reduce_in_rack(c, rack, span, end * TICK, made)
        for rack in racks:
            _reduce_across(c, rack, end * TICK, made)
    if "all_gather" in c.node.phases:
        begin = (end + len(racks)) * TICK - TICK // 2
        for rack in racks:
            _gather(c, rack, begin, made)
        if "reduce_scatter" not in c.node.phases:
            _copy_own(c, begin[:-1] + TICK // 2)


def _rounds(rack: Rack, other: Array) -> int:
    """How many blocks of another rack one member relays at most."""
    return -(-len(other) // len(rack.members))


def _relayed(rack: Rack, other: Array, turn: int, member: Array, lane: Array) -> tuple[Array, Array]:
    """The block of another rack which a member relays in its turn, and whether there is one."""
    m = (member - lane * rack.step) % len(rack.members) + turn * len(rack.members)
    return other[np.minimum(m, len(other) - 1)], m < len(other)


def _copy_own(c: Call, time: Array) -> None:
    if c.node.inplace:
        return
    rank, lane, chunk = np.ogrid[: c.n, : c.lanes, : c.node.chunks]
    at, size = (column[rank, lane * c.node.chunks + chunk] for column in c.pieces)
    common = {"rank": c.ranks[rank], "lane": c.lane0 + lane, "time": time[chunk]}
    c.table.add(Op.COPY, local=c.own_out[rank] + at, remote=c.own_in[rank] + at, bytes=size, **common)


def _reduce_in_rack(c: Call, rack: Rack, span: int, end: Array, made: Array) -> None:
    """Sums at relays and owners; relays send across. Writes the own blocks' last SUMs to ``made``."""
    size = len(rack.members)
    member, lane, chunk = np.ogrid[:size, : c.lanes, : c.node.chunks]
    place = 0
    # At once, or where nothing is sent before its receive is posted, not long before that is its turn.
    early = c.node.flight * TICK if c.node.ready == "every" else ALL_BEFORE
    for distance, other in enumerate(reversed(rack.others)):
        for turn in range(_rounds(rack, other)):

            def relayed(k: Array, e: Array, other: Array = other, turn: int = turn) -> tuple[Array, Array]:
                return _relayed(rack, other, turn, k, e)

            last = _sum_in_rack(c, rack, relayed, (chunk * span + place * (size - 1)) * TICK, False)
            block, is_one = relayed(member, lane)
            q = lane * c.node.chunks + chunk
            c.table.add(
                Op.SEND,
                rank=c.ranks[rack.members[member]],
                lane=c.lane0 + lane,
                stream=c.lane0 + lane,
                peer=c.ranks[block],
                time=end[chunk] + distance * TICK,
                early=early,
                after=last,
                local=c.blocks_at + c.pieces[0][block, q],
                bytes=np.where(is_one, c.pieces[1][block, q], 0),
            )
            place += 1

    def owned(k: Array, e: Array) -> tuple[Array, Array]:
        return rack.members[k], np.ones(np.broadcast_shapes(np.shape(k), np.shape(e)), bool)

    made[rack.members] = _sum_in_rack(c, rack, owned, (chunk * span + place * (size - 1)) * TICK, True)


def _sum_in_rack(c: Call, rack: Rack, piece: object, start: Array, own: bool) -> Array:
    """Each member sums one block of all members: the last SUMs [member, lane, chunk], -1 where it is alone."""
    size, chunks = len(rack.members), c.node.chunks
    member, lane, chunk, turn = np.ogrid[:size, : c.lanes, :chunks, : size - 1]
    if size == 1:
        return np.full((1, c.lanes, chunks), -1)
    # Lanes begin with different peers, so that nobody is everybody's next.
    d = (turn + lane) % (size - 1) + 1
    q, time = lane * chunks + chunk, start[..., None] + turn * TICK
    common = {"rank": c.ranks[rack.members[member]], "lane": c.lane0 + lane, "stream": c.lane0 + lane, "time": time}
    assert callable(piece)
    block, is_one = piece(member, lane)
    bytes_ = np.where(is_one, c.pieces[1][block, q], 0)
    at = c.pieces[0][block, q] + (c.own_out[block] if own else c.blocks_at)
    source = c.ranks[rack.members[(member - d) % size]]
    recv = c.table.add(Op.RECV, peer=source, bytes=bytes_, staged=1, **common)
    last = c.table.add(Op.SUM, local=at, bytes=bytes_, after=recv, **common)
    block, is_one = piece((member + d) % size, lane)
    c.table.add(
        Op.SEND,
        peer=c.ranks[rack.members[(member + d) % size]],
        local=c.blocks_at + c.pieces[0][block, q],
        bytes=np.where(is_one, c.pieces[1][block, q], 0),
        early=c.node.flight * TICK,
        **common,
    )
    return last[..., -1]


def _reduce_across(c: Call, rack: Rack, end: Array, made: Array) -> None:
    """What other racks' relays send is added to the own block."""
    own, chunks = rack.members, c.node.chunks
    member, lane, chunk = np.ogrid[: len(own), : c.lanes, :chunks]
    q = lane * chunks + chunk
    for place, other in enumerate(rack.others):
        step = max(1, len(other) // c.lanes)
        common = {
            "rank": c.ranks[own[member]],
            "lane": c.lane0 + lane,
            "stream": c.lane0 + lane,
            "time": end[chunk] + place * TICK,
            "bytes": c.pieces[1][own[member], q],
        }
        recv = c.table.add(Op.RECV, peer=c.ranks[other[(member + lane * step) % len(other)]], staged=ACROSS, **common)
        at = c.own_out[own[member]] + c.pieces[0][own[member], q]
        made[own] = c.table.add(Op.SUM, local=at, after=recv, **common)


def _gather(c: Call, rack: Rack, begin: Array, made: Array) -> None:
    """Own blocks go across and to the rack; what comes from across is spread."""
    own, size, chunks = rack.members, len(rack.members), c.node.chunks
    member, lane, chunk, d = np.ogrid[:size, : c.lanes, :chunks, 1:size]
    apart = 2 if "reduce_scatter" in c.node.phases else 1  # behind sums, ranks may be a chunk apart
    q, ahead = lane * chunks + chunk, apart * (begin[1] - begin[0])
    at, length = c.pieces
    source_at = c.own_out if "reduce_scatter" in c.node.phases else c.own_in
    # A stream apart: reduced blocks are sent ahead of their time, gathered ones are not.
    common = {"rank": c.ranks[own[member]], "lane": c.lane0 + lane, "stream": c.all_lanes + c.lane0 + lane}
    sent = {
        "local": source_at[own[member]] + at[own[member], q],
        "bytes": length[own[member], q],
        "after": made[own][..., None],
    }
    for place, other in enumerate(rack.others):
        step = max(1, len(other) // c.lanes)
        relay = c.ranks[other[(member + lane * step) % len(other)]]
        c.table.add(Op.SEND, peer=relay, time=begin[chunk] + place, **sent, **common)
    time = begin[chunk] + len(rack.others) + d
    c.table.add(Op.SEND, peer=c.ranks[own[(member + d) % size]], time=time, **sent, **common)
    back = own[(member - d) % size]
    c.table.add(
        Op.RECV,
        peer=c.ranks[back],
        local=c.gathered_at + at[back, q],
        bytes=length[back, q],
        time=time,
        early=ahead,
        **common,
    )
    first = len(rack.others) + size
    for place, other in enumerate(rack.others):
        for turn in range(_rounds(rack, other)):
            block, is_one = _relayed(rack, other, turn, member, lane)
            landed = {"local": c.gathered_at + at[block, q], "bytes": np.where(is_one, length[block, q], 0)}
            # Rack ``other`` has this one at its distance from the end.
            distance = len(rack.others) - 1 - place
            came = c.table.add(
                Op.RECV, peer=c.ranks[block], time=begin[chunk] + distance, early=ahead, **landed, **common
            )
            time = begin[chunk + 1] + first + d
            c.table.add(Op.SEND, peer=c.ranks[own[(member + d) % size]], time=time, after=came, **landed, **common)
            block, is_one = _relayed(rack, other, turn, (member - d) % size, lane)
            c.table.add(
                Op.RECV,
                peer=c.ranks[back],
                local=c.gathered_at + at[block, q],
                bytes=np.where(is_one, length[block, q], 0),
                time=time,
                early=ahead,
                **common,
            )
            first += size
