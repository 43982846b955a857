import time

import numpy as np
import pytest

from metaroce import ConfigError, collectives
from metaroce.collectives import ALL_RANKS, Op, count_of
from metaroce.collectives.pieces import split

RING = ("all_reduce", "reduce_scatter", "all_gather")


def compiled(kind, ranks=4, count=1 << 14, **options):
    return collectives.compile(kind, ranks, count=count, **options)


def test_columns_have_the_types_of_the_crossing():
    types = {name: column.dtype.name for name, column in compiled("all_reduce").columns().items()}
    assert types == {
        **dict.fromkeys(("rank_start", "peer", "stream", "dep_start", "deps"), "uint32"),
        **dict.fromkeys(("local", "remote", "bytes"), "uint64"),
        "op": "uint8",
    }
    assert all(column.flags.c_contiguous for column in compiled("alltoall").columns().values())


@pytest.mark.parametrize(
    ("kind", "moved"), [("all_reduce", 2 * 3 / 4), ("reduce_scatter", 3 / 4), ("all_gather", 3 / 4)]
)
@pytest.mark.parametrize("inplace", [True, False])
def test_a_ring_sends_the_bytes_of_its_bound(kind, moved, inplace):
    program = compiled(kind, inplace=inplace)
    sent = np.bincount(program.rank, program.bytes * (program.op == Op.SEND))
    assert sent.tolist() == [program.size_bytes * moved] * 4


def test_a_ring_talks_to_its_neighbours_only():
    program = compiled("all_reduce", ranks=5)
    for op, step in ((Op.SEND, 1), (Op.RECV, -1)):
        assert set(((program.peer - program.rank.astype(int)) % 5)[program.op == op]) == {step % 5}


def test_a_chunk_depends_on_its_own_chunk_only():
    program = compiled("all_reduce", chunks=4)
    entry = np.repeat(np.arange(len(program.op)), np.diff(program.dep_start.astype(int)))
    assert (program.stream[entry] == program.stream[program.deps]).all()


@pytest.mark.parametrize(("shard_bytes", "chunks"), [(4, 1), (4096, 1), (8191, 1), (8192, 2), (1 << 20, 8)])
def test_chunks_do_not_fall_below_a_packet(shard_bytes, chunks):
    assert split(shard_bytes, 1, 1, None).bytes.shape == (1, chunks)


@pytest.mark.parametrize(("elements", "shards", "chunks"), [(1, 4, 3), (7, 3, 2), (1000, 7, 8), (64, 8, 8)])
def test_pieces_cover_everything_once_and_differ_by_one_element(elements, shards, chunks):
    pieces = split(elements, 4, shards, chunks)
    assert pieces.offset.ravel().tolist() == np.cumsum([0, *pieces.bytes.ravel()])[:-1].tolist()
    assert pieces.bytes.sum() == 4 * elements
    shard = pieces.bytes.sum(axis=1)
    assert shard.max() - shard.min() <= 4


def test_pieces_that_are_empty_move_nothing():
    program = compiled("all_reduce", ranks=8, count=3)
    assert (program.bytes[program.op == Op.NOOP] == 0).all()
    assert (program.op == Op.SEND).sum() == 3 * 7 * 2


def test_alltoall_starts_with_the_next_rank_so_no_receiver_is_first_for_all():
    program = compiled("alltoall", ranks=5)
    first = [int(program.peer[(program.rank == r) & (program.op == Op.SEND)][0]) for r in range(5)]
    assert first == [1, 2, 3, 4, 0]


def test_alltoall_can_be_held_to_some_peers_at_a_time():
    program = compiled("alltoall", ranks=8, peers_at_a_time=3)
    assert len(program.deps) == 8 * (7 - 3)
    assert (program.op[program.deps] == Op.SEND).all()


def test_alltoallv_moves_the_matrix():
    matrix = [[0, 8, 0], [4, 0, 16], [0, 0, 4]]
    program = collectives.compile("alltoallv", 3, matrix=matrix)
    sent = np.zeros((3, 3), int)
    for i in np.flatnonzero((program.op == Op.SEND) | (program.op == Op.COPY)):
        sent[program.rank[i], program.peer[i]] += int(program.bytes[i])
    assert sent.tolist() == matrix
    assert program.size_bytes == 20


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[4, 4]], "1 x 2"),
        ([[4, 4], [4]], "square"),
        ([1, 2], "square"),
        (None, "square"),
        ([[4, -4], [4, 4]], r"matrix\[0\]\[1\] = -4"),
        ([[4, 4], [5, 4]], r"matrix\[1\]\[0\] = 5: must be a multiple of 4"),
        ([[4, 4], [4.5, 4]], r"matrix\[1\]\[0\] = 4.5"),
        ([[0, 0], [0, 0]], "above 0"),
        ([[4, "x"], [4, 4]], "whole byte counts"),
        ([[4, 1 << 70], [4, 4]], "whole byte counts"),
    ],
)
def test_a_bad_matrix_is_refused(matrix, message):
    with pytest.raises(ConfigError, match=message):
        collectives.compile("alltoallv", 2, matrix=matrix)


def test_a_matrix_must_fit_the_ranks():
    with pytest.raises(ConfigError, match="3 ranks"):
        collectives.compile("alltoallv", 3, matrix=[[4, 4], [4, 4]])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "allreduce"}, "kind = 'allreduce': unknown; allowed: all_gather"),
        ({"dtype": "half"}, "dtype = 'half': unknown; allowed: bfloat16, float16"),
        ({"ranks": 1}, "ranks = 1: must be at least 2"),
        ({"count": 0}, "count = 0"),
        ({"count": None, "size": 0}, "size = 0: must be at least 4 bytes"),
        ({"chunks": 0}, "chunks = 0"),
        ({"chunks": 70000}, r"chunks = 70000: must be 1 \.\. 65536"),
    ],
)
def test_what_cannot_be_compiled_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        collectives.compile(**{"kind": "all_reduce", "ranks": 4, "count": 8, **fields})


@pytest.mark.parametrize(
    ("kind", "size", "dtype", "ranks", "count"),
    [
        ("all_reduce", 1000, "float32", 8, 250),
        ("all_reduce", 1003, "float32", 8, 250),
        ("all_gather", 1000, "float32", 8, 28),
        ("reduce_scatter", 64 << 20, "bfloat16", 64, 1 << 19),
        ("alltoall", 1000, "int8", 3, 320),
    ],
)
def test_counts_round_as_in_nccl_tests(kind, size, dtype, ranks, count):
    assert count_of(kind, size, dtype, ranks) == count


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "alltoall"])
def test_the_printed_size_is_what_is_moved(kind):
    program = collectives.compile(kind, 8, 1000)
    assert (program.count, program.size_bytes) == (28, 28 * 8 * 4)


@pytest.mark.parametrize("kind", RING)
def test_in_place_and_out_of_place_state_where_tensors_lie(kind):
    for inplace in (True, False):
        program = compiled(kind, inplace=inplace)
        block = program.count * 4
        given = program.fill.count.astype(int) * 4
        same = [kind == "reduce_scatter" and r * block for r in range(4)]
        if kind == "all_gather":
            same = [-r * block for r in range(4)]
        assert program.fill.offset.tolist() == program.input_offset.tolist()
        assert ((program.output_offset.astype(int) - program.input_offset).tolist() == same) == inplace
        assert (program.input_offset + given <= program.memory_bytes).all()


def test_expectations_of_all_reduce_are_sums_over_all_ranks():
    expect = compiled("all_reduce").expect
    assert set(expect.source.tolist()) == {ALL_RANKS}
    assert expect.count.tolist() == [1 << 14] * 4


def test_the_reference_ring_compiles_and_checks_fast():
    start = time.perf_counter()
    program = collectives.compile("all_reduce", 64, 64 << 20, verified=False)
    built = time.perf_counter() - start
    assert len(program.op) == 161_280
    assert built < 1.0  # about 0.02 s; the bar leaves room for a busy machine


def test_a_thousand_ranks_exchange_compiles_in_seconds():
    start = time.perf_counter()
    program = collectives.compile("alltoall", 1024, 64 << 20, verified=False)
    assert len(program.op) == 1024 * (2 * 1023 + 1)
    assert time.perf_counter() - start < 5.0
