"""Direct exchange: alltoall and alltoallv, every pair of ranks by one message.

Rank r sends to r+1, r+2, ... and expects from r-1, r-2, ..., so that no receiver is everybody's first. All messages are
posted at once, or ``peers_at_a_time`` of them, each next one when one is acknowledged. The own part is a COPY. Never in
place: a receive could overtake the send of the same block.
"""

from __future__ import annotations

import numpy as np

from .options import Options
from .program import Array, Builder, Entry, Op, Program, Ranges
from .ring import aligned


def alltoall(o: Options) -> Program:
    """n blocks of ``count`` in, n blocks out: block r of rank j goes to block j of rank r."""
    return _exchange(o, np.full((o.ranks, o.ranks), o.count, np.int64), o.count)


def alltoallv(o: Options) -> Program:
    """``matrix[i, j]`` elements from i to j, each rank's blocks in order of their peer, input and output packed."""
    assert o.matrix is not None
    return _exchange(o, o.matrix, int(max(o.matrix.sum(axis=0).max(), o.matrix.sum(axis=1).max())))


def _exchange(o: Options, matrix: Array, count: int) -> Program:
    n, size = o.ranks, o.element_bytes
    before_out = np.cumsum(matrix, axis=1) - matrix  # elements of row i before its block for j
    before_in = np.cumsum(matrix, axis=0) - matrix  # elements of column j before its block from i
    output = aligned(int(matrix.sum(axis=1).max()) * size)
    ranks, rank, turn = np.arange(n), np.arange(n)[:, None], np.arange(1, n)
    to, come = (rank + turn) % n, (rank - turn) % n
    b = Builder(n, 2 * (n - 1) + 1)
    own_in, own_out = before_out[ranks, ranks] * size, output + before_in[ranks, ranks] * size
    own_bytes = matrix[ranks, ranks] * size
    b.block(1, 1, Entry(Op.COPY, *(a[:, None, None] for a in (ranks, ranks * 0, own_out, own_in, own_bytes))))
    sends, _ = b.block(
        n - 1,
        1,
        Entry(Op.SEND, *_cells(to, 0, before_out[rank, to] * size, 0, matrix[rank, to] * size)),
        Entry(Op.RECV, *_cells(come, 0, output + before_in[come, rank] * size, 0, matrix[come, rank] * size)),
    )
    if 0 < o.peers_at_a_time < n - 1:
        b.depend(sends[o.peers_at_a_time :], sends[: -o.peers_at_a_time])
    return b.program(
        dtype=o.dtype,
        memory_bytes=output + int(matrix.sum(axis=0).max()) * size,
        fill=Ranges.of(ranks, 0, matrix.sum(axis=1), ranks, 0),
        expect=Ranges.of(rank, output + before_in.T * size, matrix.T, ranks, before_out.T),
        size_bytes=(n * count if o.matrix is None else count) * size,
        count=count,
        input_offset=ranks * 0,
        output_offset=ranks * 0 + output,
    )


def _cells(*operands: Array | int) -> list[Array | int]:
    return [a[:, :, None] if isinstance(a, np.ndarray) else a for a in operands]
