"""Ring algorithms: all_reduce, reduce_scatter and all_gather, pipelined by chunks.

Rank r sends to r+1 and receives from r-1. A shard travels n-1 steps being summed (reduce-scatter) and n-1 steps being
copied (all-gather); chunk c of step s+1 depends on chunk c of step s only and uses stream c, so chunks overlap. Sums
have one fixed order: shard j of an all_reduce is ((x_j + x_{j+1}) + x_{j+2}) + ... + x_{j-1}, ranks modulo n, starting
at its own rank; block j of a reduce_scatter starts at rank j+1 and ends at rank j, where it stays. Patarasuk and Yuan,
JPDC 2009.
"""

from __future__ import annotations

import numpy as np

from .options import Options
from .pieces import Pieces, split
from .program import ALL_RANKS, Array, Builder, Entry, Op, Program, Ranges


def all_reduce(o: Options) -> Program:
    """In place: the buffer, then a scratch slot for every step. Else: input, then output, and no scratch.

    The all-gather RECVs write over ranges that reduce-scatter SENDs read, without a dependency between the two. That is
    safe because the value they bring was summed from that SEND's data at the next rank, so the data has been delivered.
    """
    n, steps, size = o.ranks, o.ranks - 1, o.count * o.element_bytes
    pieces = split(o.count, o.element_bytes, n, o.chunks)
    chunks = pieces.bytes.shape[1]
    rank, step = np.arange(n)[:, None], np.arange(steps)
    out = 0 if o.inplace else aligned(size)
    sum_at = out + pieces.offset[(rank - step - 1) % n]
    recv_at = _slots(aligned(size), pieces, rank - step - 1) if o.inplace else sum_at
    b = Builder(n, steps * chunks * 5)
    sums = _reduce(b, pieces, rank - step, recv_at, sum_at)
    sends, _ = _gather(b, pieces, rank - step, out, out + pieces.offset[(rank + 1) % n])
    b.depend(sends, sums[-1:])  # for every step: keeps a stream's SENDs in order even where sums take time
    ranks = np.arange(n)
    return b.program(
        dtype=o.dtype,
        memory_bytes=aligned(size) + (steps * aligned(pieces.slot) if o.inplace else size),
        fill=Ranges.of(ranks, 0, o.count, ranks, 0),
        expect=Ranges.of(ranks, out, o.count, ALL_RANKS, 0),
        size_bytes=size,
        count=o.count,
        input_offset=ranks * 0,
        output_offset=ranks * 0 + out,
    )


def reduce_scatter(o: Options) -> Program:
    """n blocks in, block r of the sum out: over the input's block r in place, else behind the scratch slots."""
    n, steps, block = o.ranks, o.ranks - 1, o.count * o.element_bytes
    pieces = split(o.count * n, o.element_bytes, n, o.chunks)
    chunks = pieces.bytes.shape[1]
    rank, step, ranks = np.arange(n)[:, None], np.arange(steps), np.arange(n)
    recv_at = _slots(aligned(n * block), pieces, rank - step - 2)
    end = aligned(n * block) + steps * aligned(block)
    out = ranks * block if o.inplace else np.full(n, end)
    sum_at = recv_at.copy()
    sum_at[:, -1] = out[:, None] + pieces.within[ranks]
    if not o.inplace:
        recv_at = sum_at  # the last step is received where it stays
    b = Builder(n, steps * chunks * 3)
    _reduce(b, pieces, rank - step - 1, recv_at, sum_at)
    return b.program(
        dtype=o.dtype,
        memory_bytes=end if o.inplace else end + block,
        fill=Ranges.of(ranks, 0, n * o.count, ranks, 0),
        expect=Ranges.of(ranks, out, o.count, ALL_RANKS, ranks * o.count),
        size_bytes=n * block,
        count=o.count,
        input_offset=ranks * 0,
        output_offset=out,
    )


def all_gather(o: Options) -> Program:
    """One block in, n blocks out; the input is the output's block r in place, else behind the output and copied."""
    n, steps, block = o.ranks, o.ranks - 1, o.count * o.element_bytes
    pieces = split(o.count * n, o.element_bytes, n, o.chunks)
    chunks = pieces.bytes.shape[1]
    rank, step, ranks = np.arange(n)[:, None], np.arange(steps), np.arange(n)
    source = ranks * block if o.inplace else np.full(n, aligned(n * block))
    b = Builder(n, steps * chunks * 2 + (not o.inplace))
    if not o.inplace:
        b.block(1, 1, Entry(Op.COPY, _column(ranks), 0, _column(ranks * block), _column(source), block))
    _gather(b, pieces, rank - step - 1, 0, (source[:, None] + pieces.within)[:, None])
    return b.program(
        dtype=o.dtype,
        memory_bytes=n * block if o.inplace else aligned(n * block) + block,
        fill=Ranges.of(ranks, source, o.count, ranks, 0),
        expect=Ranges.of(rank, ranks * block, o.count, ranks, 0),
        size_bytes=n * block,
        count=o.count,
        input_offset=source,
        output_offset=ranks * 0,
    )


def aligned(size: int) -> int:
    """Rounded up to 64 bytes, a cache line, so that areas never share one."""
    return -(-size // 64) * 64


def _reduce(b: Builder, pieces: Pieces, sent: Array, recv_at: Array, sum_at: Array) -> Array:
    """The summing steps: ``sent`` shards (n, steps) modulo n, places (n, steps, chunks); returns (steps, chunks) SUMs.

    A SUM adds the input to what came where the two places are one, else what came to the input, which is then its
    place.
    """
    (steps, chunks), n = sum_at.shape[1:], b.ranks
    rank, chunk = _column(np.arange(n)), np.arange(chunks)
    out, come = sent % n, (sent - 1) % n
    send_at = np.concatenate((pieces.offset[out[:, :1]], sum_at[:, :-1]), axis=1)
    addend = np.where(sum_at == recv_at, pieces.offset[come], recv_at)
    send, recv, add = b.block(
        steps,
        chunks,
        Entry(Op.SEND, (rank + 1) % n, chunk, send_at, 0, pieces.bytes[out]),
        Entry(Op.RECV, (rank - 1) % n, chunk, recv_at, 0, pieces.bytes[come]),
        Entry(Op.SUM, rank, chunk, sum_at, addend, pieces.bytes[come]),
    )
    b.depend(send[1:], add[:-1])
    b.depend(add, recv)
    b.depend(add[1:], add[:-1])  # so that a stream's SENDs become ready in order
    return add


def _gather(b: Builder, pieces: Pieces, received: Array, out: int, first_at: Array) -> tuple[Array, Array]:
    """The copying steps; ``received`` (n, steps) shards modulo n. Step 0 sends from ``first_at`` (n, 1, chunks)."""
    n, steps, chunks = b.ranks, received.shape[1], pieces.bytes.shape[1]
    rank, chunk = _column(np.arange(n)), np.arange(chunks)
    sent, come = (received + 1) % n, received % n
    recv_at = out + pieces.offset[come]
    send, recv = b.block(
        steps,
        chunks,
        Entry(
            Op.SEND, (rank + 1) % n, chunk, np.concatenate((first_at, recv_at[:, :-1]), axis=1), 0, pieces.bytes[sent]
        ),
        Entry(Op.RECV, (rank - 1) % n, chunk, recv_at, 0, pieces.bytes[come]),
    )
    b.depend(send[1:], recv[:-1])
    return send, recv


def _slots(start: int, pieces: Pieces, shard: Array) -> Array:
    """A place of its own for every step: scratch cannot be reused, for nothing holds a fast neighbour back."""
    step = np.arange(shard.shape[1])[:, None] * aligned(pieces.slot)
    return np.asarray(start + step + pieces.within[shard % len(pieces.offset)])


def _column(values: Array) -> Array:
    return values[:, None, None]
