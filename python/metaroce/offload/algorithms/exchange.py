"""Every pair of ranks by its own messages: alltoall and alltoallv.

Rank r sends to r+1, r+2, ...; pairs in different domains come first, since they share the slower network. Large blocks
are cut into parts. Parts go to lanes by longest processing time, at each rank by what it sends and apart from that by
what it receives. All receives are posted before the first send. Across racks this is the least that can be sent.
"""

from __future__ import annotations

import numpy as np

from ...collectives import Array, Op
from ..call import Call, pairs
from ..table import ALL_BEFORE


def exchange(c: Call) -> None:
    """Rows of alltoall and alltoallv."""
    n, most = c.n, c.node.chunks
    rank, d, part = np.ogrid[:n, 1:n, :most]
    to, come = (rank + d) % n, (rank - d) % n
    time = (d + n * (c.domains[rank] == c.domains[to])) * most + part
    back = (d + n * (c.domains[rank] == c.domains[come])) * most + part
    sent_at, got_at, size = pairs(c.node, n)
    start, length = parts(size, c.size, c.node.part, most)
    common = {"rank": c.ranks[rank], "stream": c.lane0 + part}
    for op, peer, place, when, early in (
        (Op.RECV, come, got_at[come, rank] + start[come, rank, part], back, ALL_BEFORE),
        (Op.SEND, to, sent_at[rank, to] + start[rank, to, part], time, 0),
    ):
        bytes_ = length[rank, to, part] if op == Op.SEND else length[come, rank, part]
        lane = balance(bytes_.reshape(n, -1), c.lanes).reshape(bytes_.shape)
        c.table.add(
            op,
            peer=c.ranks[peer],
            lane=c.lane0 + lane,
            local=c.base + place,
            bytes=bytes_,
            time=when,
            early=early,
            **common,
        )
    copy_own(c, 3 * n * most)


def copy_own(c: Call, time: int) -> None:
    """The block for oneself, cut over lanes."""
    own, (sent_at, got_at, size) = np.arange(c.n), pairs(c.node, c.n)
    start, length = parts(size[own, own][:, None], c.size, c.node.part, c.lanes)
    c.table.add(
        Op.COPY,
        rank=c.ranks[:, None],
        lane=c.lane,
        time=time,
        local=c.base + got_at[own, own][:, None] + start[:, 0],
        remote=c.base + sent_at[own, own][:, None] + start[:, 0],
        bytes=length[:, 0],
    )


def parts(size: Array, element: int, least: int, most: int) -> tuple[Array, Array]:
    """Starts and lengths [..., part] of blocks cut into whole elements: at most ``most`` parts of ``least`` bytes."""
    count = size // element
    many = np.clip(size // max(least, 1), 1, most)[..., None]
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
