"""Rings, pipelined: chunk c of step s is unit s * chunks + c, and each subgraph carries one slice of every block.

In step s rank r sends block r-1-s and receives block r-2-s, so that block j is summed last at rank j: each receive goes
to a staging slot and is added to the input, which is consumed. Gathering, rank r sends block r-s and receives r-1-s
where it stays. Receives are posted as far ahead as there are slots; no more units are under way.
"""

from __future__ import annotations

import numpy as np

from ...collectives import Array, Op
from ..call import Call
from ..table import EARLIEST


def ring(c: Call) -> None:
    """Rows of reduce_scatter, all_gather or, in one pipeline, all_reduce."""
    made, start = _ready(c), 0
    if "reduce_scatter" in c.node.phases:
        made, start = _reduce(c, made), (c.n - 1) * c.node.chunks
    if "all_gather" in c.node.phases:
        _gather(c, made, start)


def _axes(c: Call) -> tuple[Array, Array, Array, Array]:
    n, chunks = c.n, c.node.chunks
    rank, lane, step, chunk = np.ogrid[:n, : c.lanes, : n - 1, :chunks]
    return rank, lane, step, chunk


def _ready(c: Call) -> Array:
    """The first send waits for the next rank's word that its receives are posted."""
    none = np.full((c.n, c.lanes, 1), -1)
    if c.node.ready != "first":
        return none
    rank, lane = np.ogrid[: c.n, : c.lanes]
    common = {"rank": c.ranks[rank], "lane": c.lane0 + lane, "stream": c.all_lanes + c.lane0 + lane, "always": 1}
    heard = c.table.add(Op.RECV, time=EARLIEST - 1, peer=c.ranks[(rank + 1) % c.n], **common)
    # Behind the receives that it speaks of, before the first send.
    c.table.add(Op.WRITE_IMM, time=-c.node.flight, turn=3, peer=c.ranks[(rank - 1) % c.n], **common)
    return heard[:, :, None]


def _reduce(c: Call, ready: Array) -> Array:
    """Returns the SUMs of the last step [rank, lane, chunk]."""
    n, chunks = c.n, c.node.chunks
    rank, lane, step, chunk = _axes(c)
    q, time = lane * chunks + chunk, step * chunks + chunk
    offset, size = c.pieces
    out, come = (rank - 1 - step) % n, (rank - 2 - step) % n
    common = {"rank": c.ranks[rank], "lane": c.lane0 + lane, "stream": c.lane0 + lane, "time": time}
    # Out of place the last receive goes where it stays, and the input is added to it.
    stays = (step == n - 2) & (not c.node.inplace)
    acc, final = c.blocks_at + offset[come, q], c.own_out[rank] + offset[come, q]
    recv = c.table.add(
        Op.RECV,
        peer=c.ranks[(rank - 1) % n],
        local=final,
        bytes=size[come, q],
        staged=~stays,
        early=c.node.slots - 1,
        **common,
    )
    add = c.table.add(Op.SUM, local=np.where(stays, final, acc), remote=acc, bytes=size[come, q], after=recv, **common)
    after = np.concatenate((np.broadcast_to(ready[:, :, None], (n, c.lanes, 1, chunks)), add[:, :, :-1]), axis=2)
    c.table.add(
        Op.SEND,
        peer=c.ranks[(rank + 1) % n],
        local=c.blocks_at + offset[out, q],
        bytes=size[out, q],
        after=after,
        early=c.node.flight,
        **common,
    )
    return add[:, :, -1]


def _gather(c: Call, made: Array, start: int) -> None:
    n, chunks = c.n, c.node.chunks
    rank, lane, step, chunk = _axes(c)
    q, time = lane * chunks + chunk, start + step * chunks + chunk
    offset, size = c.pieces
    out, come = (rank - step) % n, (rank - 1 - step) % n
    common = {"rank": c.ranks[rank], "lane": c.lane0 + lane, "stream": c.lane0 + lane}
    recv = c.table.add(
        Op.RECV,
        peer=c.ranks[(rank - 1) % n],
        local=c.gathered_at + offset[come, q],
        bytes=size[come, q],
        time=time,
        early=c.node.flight + c.node.slots,
        **common,
    )
    after = np.concatenate((np.broadcast_to(made[:, :, None], (n, c.lanes, 1, chunks)), recv[:, :, :-1]), axis=2)
    own = c.own_out[rank] if start else c.own_in[rank]
    c.table.add(
        Op.SEND,
        peer=c.ranks[(rank + 1) % n],
        local=np.where(step == 0, own, c.gathered_at) + offset[out, q],
        bytes=size[out, q],
        after=after,
        early=c.node.flight,
        time=time,
        **common,
    )
    if not start:
        copy_own(c, time=chunks)


def copy_own(c: Call, time: int) -> Array | None:
    """The own block from input to output, where they are two: slice by slice, ids [rank, lane, chunk]."""
    if c.node.inplace:
        return None
    rank, lane, chunk = np.ogrid[: c.n, : c.lanes, : c.node.chunks]
    q = lane * c.node.chunks + chunk
    at = c.pieces[0][rank, q]
    return c.table.add(
        Op.COPY,
        rank=c.ranks[rank],
        lane=c.lane0 + lane,
        time=time,
        local=c.own_out[rank] + at,
        remote=c.own_in[rank] + at,
        bytes=c.pieces[1][rank, q],
    )
