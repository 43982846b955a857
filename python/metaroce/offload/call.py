"""One collective as its algorithm sees it: ranks, pieces, places in memory, and where to put rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..collectives import ALL_RANKS, Array, Ranges
from .ir import Node
from .table import Table


def aligned(size: int) -> int:
    """Rounded up to 64 bytes, a cache line."""
    return -(-size // 64) * 64


def even(count: int, parts: int) -> tuple[Array, Array]:
    """Starts and lengths of ``parts`` parts of ``count``, the larger ones first."""
    part = np.arange(parts, dtype=np.int64)
    whole, rest = divmod(count, parts)
    return part * whole + np.minimum(part, rest), whole + (part < rest)


@dataclass(frozen=True, eq=False)
class Call:
    """A node in memory from ``base``, its lanes from ``lane0`` of ``all_lanes``, scratch memory at ``scratch``.

    Ranks are counted inside its group; `ranks` gives their numbers in the program.
    """

    node: Node
    table: Table
    ranks: Array
    domains: Array
    base: int
    scratch: int
    lane0: int
    all_lanes: int

    @property
    def n(self) -> int:
        """Ranks of the group."""
        return len(self.ranks)

    @property
    def lanes(self) -> int:
        """Subgraphs a rank."""
        return self.node.lanes

    @property
    def lane(self) -> Array:
        """Numbers of its lanes in the program."""
        return self.lane0 + np.arange(self.lanes)

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.node.element_bytes

    @cached_property
    def pieces(self) -> tuple[Array, Array]:
        """Offsets and bytes [block, lane * chunks + chunk], from the start of the blocks."""
        node, n, parts = self.node, self.n, self.lanes * self.node.chunks
        if node.kind == "all_reduce":
            start, count = even(node.count, n)
            cut = [even(int(c), parts) for c in count]
            offset = node.first + start[:, None] + np.stack([c[0] for c in cut])
            return offset * self.size, np.stack([c[1] for c in cut]) * self.size
        start, count = even(node.count, parts)
        offset = np.arange(n)[:, None] * node.whole + node.first + start
        return offset * self.size, np.broadcast_to(count, offset.shape) * self.size

    @property
    def block(self) -> int:
        """Bytes of one rank's block, or of the whole vector of an all_reduce."""
        return int(self.node.whole) * self.size

    @property
    def blocks_at(self) -> int:
        """Where the n blocks lie, or the vector that goes in: what sums are collected in."""
        return self.base

    @cached_property
    def own_in(self) -> Array:
        """Where blocks would start for the input's own block to be block r of them."""
        if self.node.kind == "all_gather" and not self.node.inplace:
            return self.base + aligned(self.n * self.block) - np.arange(self.n) * self.block
        return np.full(self.n, self.base)

    @cached_property
    def own_out(self) -> Array:
        """Where blocks would start for the output's own block to be block r of them."""
        if self.node.inplace or self.node.kind == "all_gather":
            return np.full(self.n, self.base)
        if self.node.kind == "all_reduce":
            return np.full(self.n, self.base + aligned(self.block))
        return self.base + aligned(self.n * self.block) - np.arange(self.n) * self.block

    @cached_property
    def gathered_at(self) -> int:
        """Where all blocks lie in the end."""
        return int(self.own_out[0]) if self.node.kind == "all_reduce" else self.base

    @property
    def buffers(self) -> int:
        """Bytes of input and output."""
        return buffer_bytes(self.node, self.n)


def buffer_bytes(node: Node, n: int) -> int:
    """Input and output of a node's area, one behind the other or in one."""
    if node.matrix is not None:
        sent, got = (int(node.whole.sum(axis=axis, dtype=object).max()) * node.element_bytes for axis in (1, 0))
        return aligned(sent) + got
    block = int(node.whole) * node.element_bytes
    if node.kind == "all_reduce":
        return block if node.inplace else aligned(block) + block
    if node.kind == "alltoall":
        return aligned(n * block) + n * block
    return n * block if node.inplace else aligned(n * block) + block


def pairs(node: Node, n: int) -> tuple[Array, Array, Array]:
    """Of an exchange: offsets of block (i, j) in i's input and in j's output, and its bytes, [n, n]."""
    size = node.element_bytes
    whole = node.whole if node.matrix is not None else np.full((n, n), node.whole, np.int64)
    count = node.matrix if node.matrix is not None else np.full((n, n), node.count, np.int64)
    count = count if node.counts is None else node.counts
    before_out = np.cumsum(whole, axis=1) - whole + node.first
    before_in = np.cumsum(whole, axis=0) - whole + node.first
    output = aligned(int(whole.sum(axis=1).max() * size))
    return before_out * size, output + before_in * size, count * size


def payload(node: Node, ranks: Array, base: int) -> tuple[Ranges, Ranges, Array, Array]:
    """What a checked run fills in and expects of an area, and where input and output lie; ``node`` is a whole one."""
    n, size, count = len(ranks), node.element_bytes, node.whole
    call = Call(node, Table(), ranks, ranks, base, 0, 0, 0)
    row, col = np.arange(n)[:, None], np.arange(n)
    if node.kind in ("alltoall", "alltoallv"):
        whole = count if node.matrix is not None else np.full((n, n), count, np.int64)
        sent, got, _ = pairs(node.but(first=0), n)
        fill = Ranges.of(ranks, base, whole.sum(axis=1), ranks, 0)
        sure = whole if node.counts is None else node.counts
        expect = Ranges.of(ranks[None], base + got, sure, ranks[:, None], sent // size)
        return fill, expect, np.full(n, base), np.full(n, base + int(got[0, 0]))
    if node.kind == "all_reduce":
        fill = Ranges.of(ranks, base, count, ranks, 0)
        return fill, Ranges.of(ranks, call.own_out, count, ALL_RANKS, 0), call.own_in, call.own_out
    own = np.arange(n) * count * size
    if node.kind == "reduce_scatter":
        fill = Ranges.of(ranks, base, n * count, ranks, 0)
        expect = Ranges.of(ranks, call.own_out + own, count, ALL_RANKS, np.arange(n) * count)
        return fill, expect, call.own_in, call.own_out + own
    fill = Ranges.of(ranks, call.own_in + own, count, ranks, 0)
    expect = Ranges.of(ranks[row], base + col * count * size, count, ranks[col], 0)
    return fill, expect, call.own_in + own, np.full(n, base)
