"""The comparison's schedule, bounds, failures and documents, with a stand-in for the simulator."""

import io
import json
import re
import threading
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from metaroce.errors import SimulationStalled
from metaroce.reports import compare_table, render
from metaroce.reports.compare import BOUND_FACTOR, Cell, Comparing, Comparison, Job
from metaroce.reports.plot import positions, write_svg


@dataclass(frozen=True)
class FakeScenario:
    name: str
    loss: float
    seed: int = 1
    time_limit: int | None = None
    check: bool = False

    def replace(self, **changes):
        return replace(self, **changes)


def result(time_ps, status="done", wrong=None, digest="d"):
    busbw = 10e6 / time_ps
    return SimpleNamespace(
        status=status, time_ps=time_ps, time_us=time_ps / 1e6, algbw_gbs=busbw / 2, busbw_gbs=busbw, of_line_rate=busbw / 10,
        retransmitted=0.01, timeouts=3, wrong=wrong, digest=digest, counters={},
    )  # fmt: skip


def jobs(losses=(0.0, 0.01), transports=("metaroce", "rocev2"), **changes):
    return [
        Job("all_reduce", t, "default", loss, FakeScenario(t, loss), FakeScenario(t, loss, check=True), **changes)
        for t in transports
        for loss in losses
    ]


def simulate(scenario):
    """metaroce loses a little with loss, rocev2 a hundredfold."""
    if scenario.check:
        return result(1, wrong=0)
    time_ps = 1_000_000 if scenario.loss == 0 else 1_200_000 if scenario.name == "metaroce" else 100_000_000
    if scenario.time_limit and time_ps > scenario.time_limit:
        return result(scenario.time_limit, status="bound")
    return result(time_ps)


def test_lossy_cells_are_limited_by_their_own_loss_free_time_and_shown_as_bounds():
    cells = Comparing(jobs(), run=simulate).cells()
    assert [cell.status for cell in cells] == ["done", "done", "done", "bound"]
    assert cells[3].time_us == BOUND_FACTOR * 1.0
    assert cells[3].of_lossfree == pytest.approx(1 / BOUND_FACTOR)
    assert cells[1].of_lossfree == pytest.approx(1 / 1.2)
    texts = compare_table.row(cells[3])
    assert texts[3] == "> 50.0"
    assert texts[5].startswith("< ")
    assert texts[-1] == "N/A"


def test_only_finished_cells_are_checked():
    checked = []

    def run(scenario):
        if scenario.check:
            checked.append((scenario.name, scenario.loss))
        return simulate(scenario)

    cells = Comparing(jobs(), run=run).cells()
    assert sorted(checked) == [("metaroce", 0.0), ("metaroce", 0.01), ("rocev2", 0.0)]
    assert [cell.wrong for cell in cells] == [0, 0, 0, None]


def test_a_stalled_cell_is_shown_with_its_reason():
    def run(scenario):
        if scenario.loss:
            flow = {"src": 3, "dst": 4, "stream": 0, "bytes_left": 8, "reason": "retry count exceeded"}
            raise SimulationStalled([flow], 5_000_000, result(5_000_000, status="stalled"))
        return simulate(scenario)

    cells = Comparing(jobs(), run=run).cells()
    assert [cell.status for cell in cells] == ["done", "failed", "done", "failed"]
    assert cells[1].busbw_gbs is None
    assert cells[1].timeouts == 3
    # Under loss that is what the transport does; without, something is wrong.
    assert Comparison({}, "0.1.0", cells).all_right
    lossfree = [replace(cell, loss=0.0) for cell in cells]
    assert not Comparison({}, "0.1.0", lossfree).all_right
    assert "rank 3 -> rank 4" in next(compare_table.notes(cells))


def test_a_wrong_element_makes_the_comparison_fail():
    cells = Comparing(jobs(), run=lambda s: result(1_000_000, wrong=2 if s.check else None)).cells()
    assert {cell.wrong for cell in cells} == {2}
    assert not Comparison({}, "0.1.0", cells).all_right


def test_the_number_of_threads_changes_nothing():
    many = jobs(losses=(0.0, 0.001, 0.01, 0.1))
    one, four = (Comparing(many, run=simulate, workers=n).cells() for n in (1, 4))
    assert Comparison({}, "", one).to_dict() == Comparison({}, "", four).to_dict()


def test_one_run_at_a_time_has_payload():
    lock, now, most = threading.Lock(), [0], [0]

    def run(scenario):
        if scenario.check:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            threading.Event().wait(0.01)
            with lock:
                now[0] -= 1
        return simulate(scenario)

    Comparing(jobs(losses=(0.0, 0.001, 0.01)), run=run, workers=4).cells()
    assert most[0] == 1


def test_progress_counts_every_run_that_was_announced():
    done = []
    many = jobs()
    Comparing(many, run=simulate, on_done=lambda: done.append(1)).cells()
    assert len(done) == Comparing.runs(many)


def test_an_error_in_a_run_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        Comparing(jobs(), run=lambda scenario: 1 // 0).cells()


def test_the_document_has_the_documented_keys():
    comparison = Comparison({"topology": "t"}, "0.1.0", Comparing(jobs(), run=simulate).cells())
    document = json.loads(json.dumps(comparison.to_dict()))
    assert list(document) == ["scenario", "version", "digest", "cells"]
    assert (
        list(document["cells"][0])
        == (
            "collective transport profile loss seed status time_us algbw_gbs busbw_gbs of_lossfree of_line_rate "
            "retransmitted timeouts wrong"
        ).split()
    )
    assert len(document["digest"]) == 16


def test_the_digest_follows_every_cells_digest():
    cells = Comparing(jobs(), run=simulate).cells()
    other = [replace(cells[0], digest="e"), *cells[1:]]
    assert Comparison({}, "", cells).digest != Comparison({}, "", other).digest


def test_a_table_is_aligned_text_in_a_pipe():
    [table] = compare_table.tables(Comparing(jobs(), run=simulate).cells())
    stream = io.StringIO()
    render.show(table, stream)
    title, *lines = stream.getvalue().splitlines()
    assert title == "all_reduce"
    assert len(lines) == 2 + 4
    assert len({len(text) for text in lines if text.endswith(("0", "N/A", "#wrong"))}) == 1


def test_the_picture_is_the_same_bytes_and_marks_the_published_point(tmp_path):
    cells = [
        Cell("all_reduce", "metaroce", "default", 0.0, 1, "done", 1.0, 50.0, 100.0, 1.0, 0.97, 0.0, 0, 0),
        Cell("all_reduce", "metaroce", "default", 0.01, 1, "done", 1.1, 45.0, 90.0, 0.9, 0.9, 0.01, 0, 0),
        Cell("all_reduce", "rocev2", "67ms", 0.0, 1, "done", 2.0, 25.0, 50.0, 1.0, 0.5, 0.0, 0, 0),
        Cell("all_reduce", "rocev2", "67ms", 0.01, 1, "bound", 100.0, 0.5, 1.0, 0.02, 0.01, 0.0, 0),
        Cell("alltoall", "rocev2", "67ms", 0.01, 1, "failed"),
    ]
    scenario = {"topology": "t", "ranks": 4, "size": "1MiB", "seed": 1}
    for name in ("a.svg", "b.svg"):
        write_svg(Comparison(scenario, "0.1.0", cells), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "published" in (tmp_path / "a.svg").read_text()


def test_the_published_point_is_named_above_the_axis_where_it_is_low(tmp_path):
    cells = [
        Cell("all_reduce", "metaroce", "default", 0.0, 1, "done", 1.0, 2.5, 5.0, 1.0, 0.05, 0.0, 0, 0),
        Cell("all_reduce", "metaroce", "default", 0.01, 1, "done", 1.1, 2.3, 4.6, 0.9, 0.046, 0.01, 0, 0),
    ]
    write_svg(Comparison({"topology": "t", "ranks": 4, "size": "1KiB", "seed": 1}, "0.1.0", cells), tmp_path / "a.svg")
    picture = (tmp_path / "a.svg").read_text()
    name, tick = (
        float(re.findall(f"<!-- {text} -->.*?translate\\([0-9.]+ ([0-9.]+)\\)", picture, re.DOTALL)[0])
        for text in ("≈ 86 %", "1%")
    )
    assert tick - name > 15  # points from baseline to baseline: a tick and its label


def test_loss_zero_stands_left_of_the_smallest_loss():
    assert positions([0.0, 0.001, 0.1]) == {0.0: -4.0, 0.001: -3.0, 0.1: -1.0}
    assert positions([0.0]) == {0.0: 0.0}
