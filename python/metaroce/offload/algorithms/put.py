"""One shot for small messages: every rank writes what each peer needs straight into that peer's memory.

Posted by cores of the accelerator (posters), or by message engines where there are none. A WRITE_IMM ends a receive
without bytes, which tells that its data is there. Sums take ranks in order, so all ranks get the same bits.
"""

from __future__ import annotations

import numpy as np

from ...collectives import Array, Op
from ..call import Call, aligned, even, pairs
from ..table import ALL_BEFORE, Flow
from .exchange import copy_own


def put(c: Call) -> None:
    """Rows of any collective."""
    kind = c.node.kind
    if kind in ("alltoall", "alltoallv"):
        sent_at, got_at, size = pairs(c.node, c.n)
        _to_all(c, c.base + sent_at, c.base + got_at, size)
        copy_own(c, 2)
    elif kind == "all_gather":
        _gather(c)
    else:
        _reduce(c)


def scratch(c: Call) -> int:
    """A slot for each rank of what is summed."""
    return c.n * _slot(c) if c.node.kind in ("all_reduce", "reduce_scatter") else 0


def _slot(c: Call) -> int:
    return aligned((c.node.first + c.node.count) * c.size)


def _to_all(c: Call, from_: Array, to_: Array, size: Array) -> None:
    """Blocks [source, target] from and to places; peers take turns on lanes."""
    rank, d = np.ogrid[: c.n, 1 : c.n]
    to, come = (rank + d) % c.n, (rank - d) % c.n
    common = {"rank": c.ranks[rank], "lane": c.lane0 + (d - 1) % c.lanes, "stream": c.lane0}
    got, early = size[come, rank], 0 if c.node.ready == "behind" else ALL_BEFORE
    c.table.add(
        Op.RECV, peer=c.ranks[come], time=d, early=early, always=(got > 0) | (c.node.counts is not None), **common
    )
    c.table.add(
        Op.WRITE_IMM,
        peer=c.ranks[to],
        local=from_[rank, to],
        remote=to_[rank, to],
        bytes=size[rank, to],
        always=c.node.counts is not None,
        time=0,
        **common,
    )


def _gather(c: Call) -> None:
    rank = np.arange(c.n)
    at = c.pieces[0][:, 0]
    target = np.broadcast_to((c.base + at)[:, None], (c.n, c.n))
    source = np.broadcast_to((c.own_in + at)[:, None], (c.n, c.n))
    size = np.broadcast_to(c.pieces[1].sum(axis=1)[:, None], (c.n, c.n))
    _to_all(c, source, target, size)
    if not c.node.inplace:
        common = {"rank": c.ranks, "lane": c.lane0, "time": 2}
        c.table.add(Op.COPY, local=c.base + at, remote=source[rank, rank], bytes=size[rank, rank], **common)


def _reduce(c: Call) -> None:
    """Slice by slice: lane e receives slice e of every rank's vector, or block for this rank, and sums.

    Receives may be posted behind the writes where they are posted before the first of these can land.
    """
    n, node = c.n, c.node
    rank, lane, other = np.ogrid[:n, : c.lanes, :n]
    start, count = even(node.count, c.lanes)
    begin, size = (node.first + start)[lane] * c.size, count[lane] * c.size
    block = np.arange(n) * (c.block if node.kind == "reduce_scatter" else 0)
    at, slots = c.base + begin, c.scratch + begin
    far = (rank != other) & (size > 0)
    common = {"rank": c.ranks[rank], "lane": c.lane0 + lane, "stream": c.lane0 + lane, "peer": c.ranks[other]}
    early = 0 if c.node.ready == "behind" else ALL_BEFORE
    recv = c.table.add(Op.RECV, time=(rank - other) % n, early=early, always=far, **common)
    c.table.add(
        Op.WRITE_IMM,
        local=at + block[other],
        remote=slots + rank * _slot(c),
        bytes=far * size,
        time=(other - rank) % n - n,
        **common,
    )
    # In place the vector is still being read, so the sum is made in the own slot.
    moves, adds = node.inplace and node.kind == "all_reduce", node.inplace and node.kind == "reduce_scatter"
    final = c.own_out[rank] + block[rank] + begin
    total = slots + rank * _slot(c) if moves else final
    source = np.where(rank == other, at + block[rank], slots + other * _slot(c))
    rows = {
        "local": np.broadcast_to(total, far.shape),
        "remote": source,
        "bytes": np.where((rank == other) & adds, 0, size),
        "after": np.where(far, recv, -1),
        "time": np.broadcast_to(n + other, far.shape),
    }
    who = {"rank": c.ranks[rank], "lane": c.lane0 + lane}
    c.table.add(Op.SUM if adds else Op.COPY, **who, **{name: column[..., :1] for name, column in rows.items()})
    c.table.add(Op.SUM, **who, **{name: column[..., 1:] for name, column in rows.items()})
    if moves:
        own = {name: np.asarray(column)[..., 0] for name, column in who.items()}
        read = {"local": final[..., 0], "remote": total[..., 0], "bytes": size[..., 0]}
        c.table.add(Op.COPY, time=2 * n, flow=int(Flow.TX_SYNC), **own, **read)
