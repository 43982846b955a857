import numpy as np
import pytest

from metaroce import Collective, ConfigError, Flows, Incast, Permutation
from metaroce.collectives import Op, verify
from metaroce.engine import draws


def refusal(make):
    with pytest.raises(ConfigError) as error:
        make()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_draws_never_change():
    """Placement is part of a seed's meaning: these numbers may not move between versions."""
    assert draws.permutation(8, 1, "placement") == [6, 5, 3, 2, 0, 1, 7, 4]
    assert next(draws.stream(0, "")) == 0xE220A8397B1DCDAF  # SplitMix64's published first output of state 0


@pytest.mark.parametrize("count", [2, 3, 10, 64])
def test_a_permutation_has_everything_once_and_a_derangement_moves_everything(count):
    for seed in range(20):
        assert sorted(draws.permutation(count, seed, "x")) == list(range(count))
        moved = draws.derangement(count, seed, "x")
        assert sorted(moved) == list(range(count))
        assert all(k != place for place, k in enumerate(moved))


def test_all_permutations_are_equally_likely():
    counts = {}
    for seed in range(2400):
        key = tuple(draws.permutation(4, seed, "uniform"))
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 24
    assert sum((n - 100) ** 2 / 100 for n in counts.values()) < 49.7  # chi-square, 23 degrees of freedom, p = 0.001


def test_purposes_draw_apart():
    assert draws.permutation(64, 1, "placement") != draws.permutation(64, 1, "permutation 0")


def test_writes_have_places_of_their_own():
    program = Flows(writes=[(0, 1, "1KiB"), (3, 1, 5, "1us"), (0, 2, 7), (0, 1, 3)]).program(4, seed=1)
    verify(program)
    assert program.op.tolist() == [Op.WRITE] * 4
    assert program.rank.tolist() == [0, 0, 0, 3]
    assert program.local.tolist() == [0, 1024, 1031, 0]
    assert program.remote.tolist() == [1034, 1034, 1034 + 1024, 1034 + 1027]
    assert program.start_ps.tolist() == [0, 0, 0, 10**6]
    assert program.size_bytes == 1034
    assert program.memory_bytes == 1034 + 1032


def test_no_start_times_are_left_out():
    assert "start_ps" not in Permutation(bytes=10).program(4, 1).columns()


def test_a_permutation_depends_on_the_seed_only():
    one, same, other = (Permutation(bytes=10).program(16, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.peer, same.peer)
    assert not np.array_equal(one.peer, other.peer)
    verify(one)


def test_an_incast_ends_at_rank_0():
    program = Incast(senders=5, bytes="1KB").program(8, 1)
    verify(program)
    assert program.rank.tolist() == [1, 2, 3, 4, 5]
    assert set(program.peer.tolist()) == {0}
    assert program.size_bytes == 5000


@pytest.mark.parametrize(
    ("writes", "message"),
    [
        ([], "at least one row"),
        ([(0, 4, 1)], r"writes\[0\] = \(0, 4, 1, 0\): source and target must be ranks 0 .. 3"),
        ([(0, 1, 1), (2, 2, 1)], r"writes[1] = (2, 2, 1, 0): source and target must differ"),
        ([(0, 1, 0)], "bytes must be at least 1"),
        ([(0, 1)], "writes.0 = (0, 1): must be (source, target, bytes)"),
        ([(0, 1, "x")], "writes.0.bytes = 'x'"),
        ([(0.5, 1, 1)], "must be ranks, whole numbers"),
        ([(-1, 1, 1)], "must be ranks 0 .. 3"),
    ],
)
def test_bad_writes_are_refused(writes, message):
    assert message.replace("\\", "") in refusal(lambda: Flows(writes=writes).program(4, 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"kind": "sum"},
            "kind = 'sum': unknown; allowed: all_gather, all_reduce, alltoall, alltoallv, reduce_scatter",
        ),
        ({"dtype": "float8"}, "dtype = 'float8': unknown; allowed: bfloat16, float16, float32, float64, int32, int8"),
        ({"size": 0}, "size = 0: must be above 0"),
        ({"size": "64XB"}, "size = '64XB'"),
        ({"size": None}, "takes exactly one of: size, count"),
        ({"count": 5}, "takes exactly one of: size, count"),
        ({"matrix": [[4]]}, "takes exactly one of: size, count"),
        ({"kind": "alltoallv"}, "takes exactly one of: matrix"),
        ({"kind": "alltoallv", "size": None, "matrix": [[4, 4]]}, "matrix = '1 x 2': must be square"),
        ({"chunks": 0}, "chunks = 0"),
        ({"sizes": 1}, "key = 'sizes': unknown"),
    ],
)
def test_a_bad_collective_is_refused(fields, message):
    assert message in refusal(lambda: Collective(**{"kind": "all_reduce", "size": "1MiB", **fields}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Permutation(bytes=0), "bytes = 0"),
        (lambda: Incast(senders=0, bytes=1), "senders = 0"),
        (lambda: Incast(senders=4, bytes=1).program(4, 1), "senders = 4: must be below the 4 ranks"),
    ],
)
def test_other_bad_workloads_are_refused(make, message):
    assert message in refusal(make)


def test_alltoallv_takes_its_ranks_from_the_matrix():
    workload = Collective(kind="alltoallv", matrix=np.full((3, 3), 16))
    assert workload.default_ranks(64) == 3
    assert workload.program(3, 1).size_bytes == 48
