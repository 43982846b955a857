"""The nccl-tests table and JSON, against lines written in nccl-tests' own form."""

import pytest

from metaroce.reports import nccl
from metaroce.reports.nccl import Half, Row, Run, Totals

RUN = Run(
    program="all_reduce_perf",
    version="0.1.0",
    ranks=2,
    min_bytes=1024,
    max_bytes=4096,
    step=2,
    step_is_factor=True,
    warmup_iters=0,
    iters=1,
    check=1,
    hosts=["host5", "host63"],
    notes=["topology single-plane-64"],
)
ROW = Row(
    size=33554432,
    count=8388608,
    type="float",
    redop="sum",
    out_of_place=Half(1404.25, 48.725, 95.929, 0),
    in_place=Half(27211.04, 1.2331, 2.4277, None),
    iterations=1,
)


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.0, 7, "   0.00"),
        (9.999, 7, "  10.00"),
        (1404.25, 7, "1404.25"),
        (27211.04, 7, "27211.0"),
        (139876.5, 7, " 139876"),  # half to even, as printf does
        (1113456.2, 7, "1113456"),
        (12345678.0, 7, "1.2e+07"),
        (95.929, 6, " 95.93"),
        (999.5, 6, "999.50"),
        (1000.0, 6, "1000.0"),
        (12345.6, 6, " 12346"),
        (1234567.0, 6, " 1e+06"),
    ],
)
def test_a_number_takes_the_most_decimals_that_fit(value, width, text):
    assert nccl.number(value, width) == text
    assert len(text) == width


def test_the_header_is_that_of_nccl_tests():
    assert list(nccl.header()) == [
        "#",
        "#                                                              out-of-place                       in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
    ]


def test_a_row_has_the_widths_of_nccl_tests():
    assert nccl.line(ROW) == (
        "    33554432       8388608     float     sum      -1  1404.25   48.73   95.93       0  27211.0    1.23    2.43     N/A"
    )


def test_the_header_stands_over_the_row():
    names = list(nccl.header())[2].rstrip()
    assert len(names) == len(nccl.line(ROW))


def test_the_prologue_states_the_run_and_one_line_a_rank():
    text = list(nccl.prologue(RUN))
    assert text[1] == "# Collective test starting: all_reduce_perf"
    assert text[2] == (
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 0 iters: 1 agg iters: 1 "
        "validation: 1 graph: 0 unalign: 0"
    )
    assert "# topology single-plane-64" in text
    assert "#  Rank  1 Group  0 Pid      0 on     host63 device  0 [0000:00:00] emulated" in text


def test_the_epilogue_counts_wrong_elements_and_averages_both_halves():
    assert list(nccl.epilogue(Totals.of([ROW]), "all_reduce_perf"))[:2] == [
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 49.1784 ",
    ]
    assert list(nccl.epilogue(Totals(3, 10.0, floor_gbs=12.0), "x"))[:2] == [
        "# Out of bounds values : 3 FAILED",
        "# Avg bus bandwidth    : 10 FAILED",
    ]


@pytest.mark.parametrize(("floor", "enough"), [(None, True), (50.0, True), (54.6, True), (54.7, False)])
def test_the_bandwidth_floor_is_missed_below_nine_tenths(floor, enough):
    assert Totals.of([ROW], floor).fast_enough is enough


def test_the_json_has_the_keys_of_nccl_tests():
    document = nccl.to_json(RUN, [ROW], Totals.of([ROW]), args=["metaroce"], times=("a", "b"))
    assert [key for key in document if key != "metaroce"] == (
        "version start_time args env nccl_version config results out_of_bounds average_bus_bandwidth errors end_time"
    ).split()
    assert (
        list(document["results"][0])
        == ("size count type redop root out_of_place in_place actual_iterations experiment_name").split()
    )
    assert document["results"][0]["out_of_place"] == {
        "time": 1404.25,
        "alg_bw": 48.725,
        "bus_bw": 95.929,
        "nwrong": 0.0,
    }
    assert document["results"][0]["in_place"]["nwrong"] is None
    assert document["average_bus_bandwidth"]["okay"] == "unchecked"
    assert document["config"]["step_factor"] == 2
    assert len(document["config"]["devices"]) == 2
