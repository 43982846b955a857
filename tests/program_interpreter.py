"""A second, slow interpreter of programs: one entry at a time in a random order, on real NumPy memory.

It shares nothing with the compiled engine or with the symbolic check but the written semantics: the k-th SEND of a stream
lands in its k-th RECV, a RECV completes in the order of its stream, and a SEND reads its memory as late as it may.
"""

import random

import numpy as np

from metaroce.collectives import ALL_RANKS, Op


def bfloat16_add(a, b):
    """Sum of two uint16 arrays of bfloat16: float32 addition, rounded to nearest even."""
    total = (a.astype(np.uint32) << 16).view(np.float32) + (b.astype(np.uint32) << 16).view(np.float32)
    bits = total.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def add(dtype, a, b):
    if dtype == "bfloat16":
        return bfloat16_add(a.view(np.uint16), b.view(np.uint16)).view(np.uint8)
    return (a.view(dtype) + b.view(dtype)).view(np.uint8)


def interpret(program, memory, seed):
    """Run to the end on `memory` (uint8 [n, memory_bytes], changed in place); raises when the program gets stuck."""
    draw = random.Random(seed)
    rank = program.rank.tolist()
    starts = program.dep_start.tolist()
    waits = [set(program.deps[starts[i] : starts[i + 1]].tolist()) for i in range(len(rank))]
    waiting = {i for i in range(len(rank)) if program.op[i] != Op.RECV}
    receives, flight = {}, {}
    for i in np.flatnonzero(program.op == Op.RECV):
        receives.setdefault((int(program.peer[i]), rank[i], int(program.stream[i])), []).append(int(i))
    done = set()

    def piece(r, offset, size):
        return memory[r, int(offset) : int(offset) + int(size)]

    while len(done) < len(rank):
        ready = [i for i in sorted(waiting) if waits[i] <= done]
        deliverable = [key for key, queue in flight.items() if queue]
        assert ready or deliverable, f"stuck with {len(rank) - len(done)} entries left, seed {seed}"
        if ready and (not deliverable or draw.random() < 0.5):
            i = ready[0] if draw.random() < 0.3 else draw.choice(ready)
            # Ready SENDs of one stream are posted in program order.
            if program.op[i] == Op.SEND:
                same = [j for j in ready if program.op[j] == Op.SEND and rank[j] == rank[i]]
                i = next(
                    j for j in same if (program.peer[j], program.stream[j]) == (program.peer[i], program.stream[i])
                )
            waiting.discard(i)
            step(program, piece, rank, flight, done, i)
        else:
            key = draw.choice(deliverable)
            i, target = flight[key].pop(0), receives[key].pop(0)
            assert program.bytes[i] == program.bytes[target]
            piece(key[1], program.local[target], program.bytes[i])[:] = piece(
                key[0], program.local[i], program.bytes[i]
            )
            done |= {i, target}


def step(program, piece, rank, flight, done, i):
    op, size = program.op[i], program.bytes[i]
    if op == Op.SEND:
        flight.setdefault((rank[i], int(program.peer[i]), int(program.stream[i])), []).append(i)
        return
    if op == Op.WRITE:
        piece(program.peer[i], program.remote[i], size)[:] = piece(rank[i], program.local[i], size)
    elif op != Op.NOOP:
        target, source = piece(rank[i], program.local[i], size), piece(rank[i], program.remote[i], size)
        target[:] = source if op == Op.COPY else add(program.dtype, target, source)
    done.add(i)


def patterned(program, value):
    """Memory filled as the program wants; `value(rank, index array)` gives the elements."""
    memory = np.full((program.ranks, program.memory_bytes), 0xEE, np.uint8)
    fill = program.fill
    for rank, offset, count, _, index in zip(fill.rank, fill.offset, fill.count, fill.source, fill.index, strict=True):
        data = value(int(rank), int(index) + np.arange(int(count))).view(np.uint8)
        memory[rank, int(offset) : int(offset) + len(data)] = data
    return memory


def wrong_ranges(program, memory, value):
    """Expected ranges that `memory` does not hold; sums are taken in the order of ranks, so values must add exactly."""
    wrong = 0
    expect = program.expect
    for row in zip(expect.rank, expect.offset, expect.count, expect.source, expect.index, strict=True):
        rank, offset, count, source, index = (int(x) for x in row)
        sources = range(program.ranks) if source == ALL_RANKS else [source]
        parts = [value(r, index + np.arange(count)).view(np.uint8) for r in sources]
        total = parts[0]
        for part in parts[1:]:
            total = add(program.dtype, total, part)
        wrong += not np.array_equal(memory[rank, offset : offset + len(total)], total)
    return wrong
