import pytest

from metaroce import metrics


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 1.75),
        ("reduce_scatter", 0.875),
        ("all_gather", 0.875),
        ("alltoall", 0.875),
        ("alltoallv", 0.875),
        ("incast", 1),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(kind, factor):
    assert metrics.bus_factor(kind, 8) == factor


def test_a_byte_a_nanosecond_is_one_gb_a_second():
    assert metrics.algbw(1000, 1_000_000) == 1.0
    assert metrics.busbw("all_reduce", 8, 1000, 1_000_000) == 1.75


def test_no_time_is_no_bandwidth():
    assert metrics.algbw(1000, 0) == 0.0


def test_jain_is_1_for_equal_shares_and_1_over_n_for_one():
    assert metrics.jain([3, 3, 3]) == 1.0
    assert metrics.jain([1, 0, 0, 0]) == 0.25
    assert metrics.jain([0, 0]) == 1.0
