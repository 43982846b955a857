"""Every program that compiles passes the symbolic check and gives the right numbers in any order that its dependencies allow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaroce import Flows, collectives
from metaroce.collectives import ALGORITHMS, verify
from metaroce.units import ELEMENT_BYTES
from program_interpreter import interpret, patterned, wrong_ranges

KINDS = st.sampled_from([kind for kind in ALGORITHMS if kind != "alltoallv"])
OPTIONS = {
    "kind": KINDS,
    "dtype": st.sampled_from(sorted(ELEMENT_BYTES)),
    "chunks": st.none() | st.integers(1, 9),
    "inplace": st.booleans(),
    "peers_at_a_time": st.integers(0, 5),
}


def values(dtype):
    """Small integers in any dtype: sums over a dozen ranks are exact whatever their order."""

    def value(rank, index):
        small = (np.asarray(index) * 7 + rank * 13) % 9
        if dtype == "bfloat16":
            return (small.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return small.astype(dtype)

    return value


def compiled(kind, ranks, count, **options):
    program = collectives.compile(kind, ranks, count=count, verified=False, **options)
    verify(program)
    return program


@settings(max_examples=150)
@given(ranks=st.integers(2, 40), count=st.integers(1, 300) | st.integers(1, 20_000), **OPTIONS)
def test_every_collective_passes_the_symbolic_check(ranks, count, **options):
    program = compiled(ranks=ranks, count=count, **options)
    assert program.ranks == ranks
    assert program.memory_bytes >= int(program.fill.count.max()) * ELEMENT_BYTES[options["dtype"]]


@settings(max_examples=60)
@given(ranks=st.integers(2, 6), count=st.integers(1, 40), seed=st.integers(0, 2**32), **OPTIONS)
def test_every_collective_is_right_in_any_order_of_events(ranks, count, seed, **options):
    program = compiled(ranks=ranks, count=count, **options)
    memory = patterned(program, values(options["dtype"]))
    interpret(program, memory, seed)
    assert wrong_ranges(program, memory, values(options["dtype"])) == 0


@st.composite
def matrices(draw, largest):
    n = draw(st.integers(2, largest))
    cells = st.lists(st.integers(0, 6) | st.just(0), min_size=n * n, max_size=n * n).filter(any)
    return np.array(draw(cells)).reshape(n, n) * 4


@settings(max_examples=60)
@given(matrix=matrices(12))
def test_every_matrix_passes_the_symbolic_check(matrix):
    program = collectives.compile("alltoallv", len(matrix), matrix=matrix, verified=False)
    verify(program)
    assert program.size_bytes == max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())


@settings(max_examples=30)
@given(matrix=matrices(5), seed=st.integers(0, 2**32))
def test_every_matrix_is_right_in_any_order_of_events(matrix, seed):
    program = collectives.compile("alltoallv", len(matrix), matrix=matrix, verified=False)
    memory = patterned(program, values("float32"))
    interpret(program, memory, seed)
    assert wrong_ranges(program, memory, values("float32")) == 0


@settings(max_examples=40)
@given(
    writes=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 50)).filter(lambda w: w[0] != w[1]),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 2**32),
)
def test_every_list_of_writes_is_right(writes, seed):
    program = Flows(writes=writes).program(5, 1)
    verify(program)
    memory = patterned(program, values("int8"))
    interpret(program, memory, seed)
    assert wrong_ranges(program, memory, values("int8")) == 0


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8"])
def test_all_reduce_sums_in_the_documented_order(dtype, inplace):
    """Values whose sum depends on the order: shard j is ((x_j + x_{j+1}) + ...) + x_{j-1}, bit for bit."""
    ranks, count = 5, 23
    draw = np.random.default_rng(3)
    data = [draw.standard_normal(count) * 10.0 ** draw.integers(-3, 4, count) for _ in range(ranks)]
    if dtype == "bfloat16":
        inputs = [(d.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for d in data]
    else:
        inputs = [d.astype(dtype) for d in data]
    program = collectives.compile("all_reduce", ranks, count=count, dtype=dtype, inplace=inplace)
    memory = patterned(program, lambda rank, index: inputs[rank][index])
    interpret(program, memory, seed=1)
    wanted = ring_sum(inputs, dtype)
    for rank in range(ranks):
        at = int(program.output_offset[rank])
        assert memory[rank, at : at + wanted.nbytes].tobytes() == wanted.tobytes()


def ring_sum(inputs, dtype):
    """The documented order, written from its description."""
    from program_interpreter import add

    n, count = len(inputs), len(inputs[0])
    shards = np.array_split(np.arange(count), n)
    out = inputs[0].copy()
    for j, shard in enumerate(shards):
        total = inputs[j][shard].view(np.uint8)
        for step in range(1, n):
            total = add(dtype, total, inputs[(j + step) % n][shard].view(np.uint8))
        out[shard] = total.view(out.dtype)
    return out
