"""Recursive halving and doubling, for powers of two: log2(n) steps, for sizes between one shot and rings.

Halving: in each step a rank keeps the half of its range of blocks that it is in, sends the other half to the rank which
keeps that, and adds what comes to its own. Doubling is the mirror. Every step has scratch memory of its own, so nothing
is ever overwritten. An all_reduce is sliced by lanes first, which makes each step one message.
"""

from __future__ import annotations

import numpy as np

from ...collectives import Array, Op
from ..call import Call, even
from ..table import ALL_BEFORE
from .ring import copy_own


def recursive(c: Call) -> None:
    """Rows of all_reduce, reduce_scatter and all_gather over 2^k ranks."""
    none = np.full((c.n, c.lanes, 1), -1)
    made = _halve(c) if "reduce_scatter" in c.node.phases else none
    if "all_gather" in c.node.phases:
        copied = copy_own(c, 0) if "reduce_scatter" not in c.node.phases else None
        _double(c, made, none if copied is None else copied)


def scratch(c: Call) -> int:
    """n-1 blocks a lane."""
    return c.lanes * (c.n - 1) * _largest(c) if "reduce_scatter" in c.node.phases else 0


def _blocks(c: Call) -> tuple[Array, Array]:
    """Offsets and bytes [lane, block]; of an all_reduce lane by lane, so that neighbours touch."""
    if c.node.kind != "all_reduce":
        return c.pieces[0].T, c.pieces[1].T
    start, count = even(c.node.count, c.lanes)
    cut = [even(int(many), c.n) for many in count]
    offset = (c.node.first + start[:, None] + np.stack([s for s, _ in cut])) * c.size
    return offset, np.stack([many for _, many in cut]) * c.size


def _largest(c: Call) -> int:
    return int(_blocks(c)[1].max())


def _messages(c: Call, low: Array, many: int) -> tuple[Array, Array]:
    """Offsets and bytes [rank, lane, message] of blocks ``low`` [rank] .. low + many."""
    (offset, size), lane = _blocks(c), np.arange(c.lanes)[:, None]
    block = low[:, None, None] + np.arange(many)
    at, length = offset[lane, block], size[lane, block]
    return (at[..., :1], length.sum(axis=2, keepdims=True)) if c.node.kind == "all_reduce" else (at, length)


def _halve(c: Call) -> Array:
    """The last SUMs [rank, lane, 1]."""
    n, rank = c.n, np.arange(c.n)
    lane = np.arange(c.lanes)[None, :, None]
    before, kept_before, many, used = np.full((n, c.lanes, 1), -1), rank * 0, n // 2, 0
    while many:
        mate = rank ^ many
        kept, sent = rank & ~(many - 1), mate & ~(many - 1)
        (out_at, out_size), (in_at, in_size) = _messages(c, sent, many), _messages(c, kept, many)
        messages = out_at.shape[2]
        after = before
        if before.shape[2] > 1:
            after = np.take_along_axis(before, (sent - kept_before)[:, None, None] + np.arange(messages), axis=2)
        common = {"rank": c.ranks[:, None, None], "lane": c.lane0 + lane, "stream": c.lane0 + lane}
        common |= {"time": used + np.arange(messages), "peer": c.ranks[mate][:, None, None]}
        slot = c.scratch + (lane * (n - 1) + used + np.arange(messages)) * _largest(c)
        stays = many == 1 and not c.node.inplace
        final, acc = c.own_out[:, None, None] + in_at, c.blocks_at + in_at
        came = c.table.add(Op.RECV, local=final if stays else slot, bytes=in_size, early=ALL_BEFORE, **common)
        c.table.add(Op.SEND, local=c.blocks_at + out_at, bytes=out_size, after=after, turn=1, **common)
        before = c.table.add(
            Op.SUM, local=final if stays else acc, remote=acc if stays else slot, bytes=in_size, after=came, **common
        )
        kept_before, used, many = kept, used + many, many // 2
    return before


def _double(c: Call, made: Array, copied: Array) -> None:
    """``made``: what the first sends wait for; ``copied``: what sends of the own block wait for later."""
    n, rank = c.n, np.arange(c.n)
    lane = np.arange(c.lanes)[None, :, None]
    many = 1
    while many < n:
        mate = rank ^ many
        held, new = rank & ~(many - 1), mate & ~(many - 1)
        (out_at, out_size), (in_at, in_size) = _messages(c, held, many), _messages(c, new, many)
        own = c.own_out if "reduce_scatter" in c.node.phases else c.own_in
        place = own[:, None, None] if many == 1 else c.gathered_at
        common = {"rank": c.ranks[:, None, None], "lane": c.lane0 + lane, "stream": c.lane0 + lane}
        common |= {"time": 2 * n + many + np.arange(out_at.shape[2]), "peer": c.ranks[mate][:, None, None]}
        is_own = (held[:, None, None] + np.arange(out_at.shape[2]) == rank[:, None, None]) & (many > 1) & (copied >= 0)
        after = np.where(is_own, copied, made)
        c.table.add(Op.SEND, local=place + out_at, bytes=out_size, after=after, **common)
        came = c.table.add(Op.RECV, local=c.gathered_at + in_at, bytes=in_size, early=ALL_BEFORE, **common)
        made, many = came[..., -1:], many * 2
