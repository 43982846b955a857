import pytest

from metaroce import ConfigError
from metaroce.units import format_rate, format_size, format_time, parse_probability, parse_rate, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096), ("4096", 4096), ("1K", 1024), ("64M", 64 << 20), ("64MiB", 64 << 20), ("1.5KiB", 1536),
        ("12.5KiB", 12800), ("1KB", 1000), ("64MB", 64_000_000), ("2G", 2 << 30), ("2 GiB", 2 << 30), ("0", 0), (8.0, 8),
    ],
)  # fmt: skip
def test_sizes_follow_nccl_tests(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", -1, "1.5", "1X", None, True, 1.5, "nan", float("inf"), [1], "9e9", 2**63]
)
def test_a_bad_size_is_one_line_with_its_value(text):
    with pytest.raises(ConfigError) as error:
        parse_size(text, "bytes")
    assert str(error.value).startswith("bytes = ")
    assert "\n" not in str(error.value)


def test_times_are_picoseconds():
    assert [parse_time(t) for t in ("600ns", "1.5us", "10 ms", "1s", "7ps", 7)] == [
        600_000,
        1_500_000,
        10**10,
        10**12,
        7,
        7,
    ]


def test_a_fraction_of_a_picosecond_is_refused():
    with pytest.raises(ConfigError):
        parse_time("0.0005ns")


def test_rates_are_powers_of_1000():
    assert [parse_rate(r) for r in ("200Gbps", "200G", "1.6Tbps", "400Gbit/s", 10)] == [2 * 10**11] * 2 + [
        16 * 10**11,
        4 * 10**11,
        10,
    ]


def test_probabilities_are_numbers_or_percent():
    assert [parse_probability(p) for p in (0, 0.01, "1%", "0.1%", "0.25")] == [0.0, 0.01, 0.01, 0.001, 0.25]


@pytest.mark.parametrize("value", [1, 1.0, -0.1, "100%", "x", None, float("nan"), True, "%"])
def test_probabilities_outside_0_1_are_refused(value):
    with pytest.raises(ConfigError, match=r"in \[0, 1\)"):
        parse_probability(value)


def test_formats_are_exact_and_short():
    assert [format_size(s) for s in (64 << 20, 1000, 3 << 30, 0)] == ["64MiB", "1000B", "3GiB", "0B"]
    assert [format_time(t) for t in (7, 1_500, 2_000_000)] == ["7ps", "1.5ns", "2us"]
    assert format_rate(200 * 10**9) == "200Gbps"


@pytest.mark.parametrize("size", [1, 1023, 1024, 10**6, 5 << 40])
def test_a_formatted_size_parses_back(size):
    assert parse_size(format_size(size)) == size
