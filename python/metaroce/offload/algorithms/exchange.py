"""Every pair of ranks by its own messages: alltoall and alltoallv.

Rank r sends to r+1, r+2, ...; pairs in different domains come first, since they share the slower network. Large blocks
are cut into parts, and these go to lanes by longest processing time, at each rank by what it sends and apart from that
by what it receives. All receives are posted before the first send. With sizes that are known only when entries are
issued, all of this is decided by what there is room for, and entries of blocks that turn out empty do nothing. Across
racks this is the least that can be sent.
"""

from __future__ import annotations

import numpy as np

from ...collectives import Array, Op
from ..call import Call, pairs
from ..table import ALL_BEFORE, PATCHED


def exchange(c: Call) -> None:
    """Rows of alltoall and alltoallv."""
    n, most = c.n, c.node.chunks
    rank, d, part = np.ogrid[:n, 1:n, :most]
    to, come = (rank + d) % n, (rank - d) % n
    time = (d + n * (c.domains[rank] == c.domains[to])) * most + part
    back = (d + n * (c.domains[rank] == c.domains[come])) * most + part
    sent_at, got_at, size = pairs(c.node, n)
    room = size if c.node.counts is None or c.node.matrix is None else c.node.matrix * c.size
    start, length = parts(size, c.size, room // max(c.node.part, 1), most)
    weight = parts(room, c.size, room // max(c.node.part, 1), most)[1]
    common = {"rank": c.ranks[rank], "stream": c.lane0 + part}
    for op, peer, place, when, early in (
        (Op.RECV, come, got_at[come, rank] + start[come, rank, part], back, ALL_BEFORE),
        (Op.SEND, to, sent_at[rank, to] + start[rank, to, part], time, 0),
    ):
        pair = (rank, to, part) if op == Op.SEND else (come, rank, part)
        lane = balance(weight[pair].reshape(n, -1), c.lanes).reshape(weight[pair].shape)
        c.table.add(
            op,
            peer=c.ranks[peer],
            lane=c.lane0 + lane,
            local=c.base + place,
            bytes=length[pair],
            time=when,
            early=early,
            always=PATCHED if c.node.counts is not None else 0,
            **common,
        )
    copy_own(c, 3 * n * most)


def copy_own(c: Call, time: int) -> None:
    """The block for oneself, cut over lanes."""
    own, (sent_at, got_at, size) = np.arange(c.n), pairs(c.node, c.n)
    start, length = parts(size[own, own][:, None], c.size, size[own, own][:, None] // max(c.node.part, 1), c.lanes)
    c.table.add(
        Op.COPY,
        rank=c.ranks[:, None],
        lane=c.lane,
        time=time,
        local=c.base + got_at[own, own][:, None] + start[:, 0],
        remote=c.base + sent_at[own, own][:, None] + start[:, 0],
        bytes=length[:, 0],
    )


def parts(size: Array, element: int, many: Array, most: int) -> tuple[Array, Array]:
    """Starts and lengths [..., part] of blocks cut into ``many`` parts of whole elements, 1 .. ``most``."""
    count = size // element
    many = np.clip(many, 1, most)[..., None]
    part = np.arange(most)
    whole, rest = count[..., None] // many, count[..., None] % many
    length = np.where(part < many, whole + (part < rest), 0)
    return (part * whole + np.minimum(part, rest)) * element, length * element


def balance(weight: Array, lanes: int) -> Array:
    """A lane for each item of each row: the largest first, each to the lane that has least."""
    rows = np.arange(len(weight))
    lane, load = np.zeros(weight.shape, np.int64), np.zeros((len(weight), lanes), np.int64)
    for item in np.argsort(-weight, axis=1, kind="stable").T:
        to = np.argmin(load, axis=1)
        lane[rows, item] = to
        load[rows, to] += weight[rows, item]
    return lane
