"""What `reproduce` reads off curves and series, against curves and series made by hand; judges, documents, refusals."""

import json
import math

import numpy as np
import pytest

from judging import rows, verdicts
from metaroce.errors import ConfigError
from metaroce.reports import reproduce
from metaroce.reports.reproduce import (
    GROUPS,
    TARGETS,
    Outcome,
    Report,
    Reproducing,
    analysis,
    loss,
    subject_of,
    tables,
)
from metaroce.reports.reproduce.model import Check, Figure, Finding, Setup, Sheet, Target


def test_a_figure_is_located_between_the_points_around_it():
    assert analysis.crossings([1, 4], [0.8, 0.9], 0.85) == pytest.approx([2.0])  # half-way on the logarithmic axis
    assert analysis.crossings([4, 16, 64], [0.9, 0.7, 0.9], 0.8) == pytest.approx([8.0, 32.0])
    assert analysis.crossings([1, 2, 4], [0.5, 0.86, 0.9], 0.86) == [2]
    assert analysis.crossings([1, 2], [0.86, 0.9], 0.86) == [1]
    assert analysis.crossings([1, 2, 4], [0.5, 0.6, 0.7], 0.86) == []


def test_a_rate_is_settled_from_when_it_stays_within_the_tolerance():
    time = np.arange(8) * 10
    granted = np.array([0, 0, 800, 102, 90, 98, 104, 100])
    assert analysis.settled(time, granted, 100, 0.05) == (20, 50)
    assert analysis.settled(time, granted, 100, 0.2) == (20, 30)
    assert analysis.settled(time, granted, 100, 10) == (20, 20)
    assert analysis.settled(time[:5], granted[:5], 100, 0.05) == (20, math.inf)
    assert analysis.settled(time, np.zeros(8), 100, 0.05) is None


def test_round_trips_are_counted_as_long_as_they_were_measured():
    time, rtt = np.array([0, 10, 20, 30]), np.array([0, 5, 10, 20])
    assert analysis.round_trips(time, rtt, 10, 30) == pytest.approx(2 + 1)
    assert analysis.round_trips(time, rtt, 15, 25) == pytest.approx(1 + 0.5)
    assert analysis.round_trips(time, rtt, 0, 20) == pytest.approx(4)  # before the first measurement, the first
    assert analysis.round_trips(time, rtt, 10, 50) == pytest.approx(2 + 1 + 1)  # after the last, the last
    assert analysis.round_trips(time, rtt, 10, math.inf) == math.inf
    assert analysis.round_trips(time, np.zeros(4), 10, 10) == 0


def bins(*shares):
    """Planes 0 and 2 carry 100 a bin, plane 1 what is said."""
    return np.array([[100.0] * len(shares), shares, [100.0] * len(shares)])


def test_a_plane_is_back_when_it_keeps_its_share():
    assert analysis.back_in_share(bins(100, 0, 0, 50, 97, 103, 100), 1, 2, 7, 0.05) == 4
    assert analysis.back_in_share(bins(100, 0, 100, 50, 97, 103, 100), 1, 2, 7, 0.05) == 4
    assert analysis.back_in_share(bins(100, 0, 100, 100), 1, 2, 4, 0.05) == 2
    assert analysis.back_in_share(bins(100, 0, 50, 94), 1, 2, 4, 0.05) is None
    assert analysis.back_in_share(bins(100, 0, 98, 0), 1, 2, 3, 0.05) == 2  # nobody looks at the end


def test_data_is_recovered_when_the_last_message_sent_before_the_fault_is_placed():
    placed = np.array([[90, 95, 130, 140], [92, 150, 94, 200]])
    assert (
        analysis.recovered(placed, np.array([300, 250]), 100, 100.0) == 50
    )  # 3 and 2 messages, the half is not counted
    assert analysis.recovered(placed, np.array([200, 100]), 100, 100.0) == 0
    assert analysis.recovered(placed, np.array([0, 0]), 100, 100.0) == 0


def test_shares_are_as_uneven_as_the_furthest_from_their_mean():
    assert analysis.spread(np.array([99.0, 100.0, 101.0])) == pytest.approx(0.01)
    assert analysis.spread(np.zeros(3)) == math.inf


def curve(*kept):
    return rows([(loss,) for loss in ("0.5%", "1%", "2%", "5%", "10%")], kept=kept)


def test_a_graceful_curve_passes_and_a_cliff_does_not():
    graceful = curve(0.98, 0.95, 0.9, 0.75, 0.6)
    finding = loss.judge_r3([graceful, graceful])
    assert verdicts(finding) == [True, True, True]
    assert "all_reduce at 2.6% loss" in finding.located
    assert verdicts(loss.judge_r3([curve(0.98, 0.95, 0.5, 0.49, 0.45), graceful])) == [True, True, False]
    assert verdicts(loss.judge_r3([curve(0.98, 0.95, 0.7, 0.5, 0.39), graceful])) == [False, True, True]
    assert verdicts(loss.judge_r3([graceful, curve(0.7, 0.95, 0.9, 0.75, 0.6)])) == [True, False, True]


def points(own, best, lossfree):
    """Rows of R1 at one size: metaroce, two rivals; loss-free and at 1 %."""
    names = ("metaroce", *loss.ROCE)
    labels = [("4MiB", p, name) for p in ("0", "1%") for name in names]
    busbw = [*lossfree, lossfree[1], own, best, best / 2]
    return rows(labels, busbw=busbw, time_us=[1 / b for b in busbw])


def test_r1_judges_points_with_loss_against_the_better_setting_and_tells_the_others():
    ahead, behind = points(50, 40, (90, 95)), points(50, 60, (90, 80))
    finding = loss.judge_r1([ahead, ahead])
    assert verdicts(finding) == [True, True]
    assert "ahead at 0 of 2 points; behind in all_reduce 4MiB (90.00 to 95.00 GB/s)" in finding.located
    finding = loss.judge_r1([ahead, behind])
    assert verdicts(finding) == [False, False]
    assert finding.checks[0].failures == ("alltoall 4MiB, 1%, metaroce: 50.00 against 60.00 GB/s",)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", TARGETS)
def test_every_scenario_of_a_target_can_be_made_and_compiled_for_the_setup_it_states(name, quick):
    target = TARGETS[name](quick)
    texts = {text for sheet in target.sheets for setup in sheet.setups for text in (setup.scenario, setup.reference)}
    for text in sorted(texts - {""}):
        if not quick and ("range(" in text or not text.startswith("mr.Scenario")):
            continue  # millions of rows, or of draws
        made = subject_of(text, 3)
        assert not text.startswith("mr.Scenario") or made.seed == 3
    for sheet in target.sheets:
        assert all(len(setup.labels) == len(sheet.labels) for setup in sheet.setups)
        assert len({setup.labels for setup in sheet.setups}) == len(sheet.setups)


def test_a_scenario_that_several_rows_ask_for_runs_once_a_seed():
    keys = Reproducing(["R1", "r2", "R3"], seeds=2).keys
    assert len(set(keys)) == len(keys)
    assert {seed for *_, seed in keys} == {1, 2}
    assert len(keys) < sum(len(Reproducing([name], seeds=2).keys) for name in ("R1", "R2", "R3"))


def test_an_unknown_target_and_no_seeds_are_refused_in_one_line():
    allowed = ", ".join(sorted([*TARGETS, *GROUPS]))
    with pytest.raises(ConfigError, match=f"^target = 'X1': unknown; allowed: {allowed}$"):
        Reproducing(["R1", "x1"])
    with pytest.raises(ConfigError, match=r"^seeds = 0: must be at least 1$"):
        Reproducing(seeds=0)


def made(monkeypatch, busbw):
    """A report of one target of two rows over two seeds; `busbw` is what each run gives."""
    free, lossy = "mr.Scenario(loss='0', seed=S)", "mr.Scenario(loss='1%', seed=S)"

    def judge(sheets):
        kept = sheets[0][1].median("kept")
        return Finding(
            f"keeps {kept:.0%}", "nowhere", (Check("most is kept", () if kept > 0.5 else ("1%: too little",)),)
        )

    sheet = Sheet(
        "by loss",
        ("loss",),
        (Figure("busbw", "busbw", "GB/s"), Figure("kept", "of own", form="{:.1%}", bound="< ")),
        (Setup(("0",), free, reference=free), Setup(("1%",), lossy, reference=free, goal="86 %")),
    )
    monkeypatch.setitem(TARGETS, "R1", lambda quick: Target("R1", "more | at every point", "here", (sheet,), judge))
    monkeypatch.setattr(
        reproduce, "_measured", lambda key: {"busbw": busbw(key[0], key[2]), "stopped": 0.0, "at": math.inf}
    )
    return Reproducing(["R1"], seeds=2).report("1.2.3")


def test_values_are_medians_over_seeds_of_ratios_within_a_seed(monkeypatch):
    report = made(monkeypatch, lambda text, seed: 10.0 * seed if "'0'" in text else 8.0 * seed if seed == 1 else 12.0)
    [outcome] = report.outcomes
    assert outcome.sheets[0][1].values["kept"] == pytest.approx([0.8, 0.6])
    assert outcome.finding.gives == "keeps 70%"
    assert outcome.passed
    assert report.failed == []


def test_a_run_that_does_not_end_fails_the_shape_and_shows_a_bound(monkeypatch):
    made(monkeypatch, lambda text, seed: 10.0)
    monkeypatch.setattr(
        reproduce, "_measured", lambda key: {"busbw": 10.0, "at": 0.0, "stopped": float("1%" in key[0])}
    )
    report = Reproducing(["R1"], seeds=2).report("1.2.3")
    assert report.failed == ["R1"]
    assert report.outcomes[0].finding.checks[-1].failures == ("1%: 2 runs",)
    [table] = tables.sheets(report.outcomes[0])
    assert [row[-1] for row in table.rows] == ["100.0%", "< 100.0%"]


def test_the_document_has_the_documented_keys_and_null_for_what_never_happened(monkeypatch):
    report = made(monkeypatch, lambda text, seed: 10.0 if "'0'" in text else 4.0)
    document = json.loads(json.dumps(tables.to_dict(report), allow_nan=False))
    assert list(document) == "model version source rule seeds quick loss_definition failed targets".split()
    assert document["failed"] == ["R1"]
    assert document["model"].startswith("MetaRoCE-style model, independent")
    [target] = document["targets"]
    assert list(target) == "target published setup passed gives located shape sheets".split()
    assert target["shape"][0] == {"statement": "most is kept", "passed": False, "failures": ["1%: too little"]}
    row = target["sheets"][0]["rows"][1]
    assert list(row) == ["labels", "scenario", "reference", "values"]
    assert row["labels"] == {"loss": "1%"}
    assert row["values"]["kept"] == {"median": 0.4, "seeds": [0.4, 0.4]}
    assert row["values"]["at"] == {"median": None, "seeds": [None, None]}


def test_the_page_states_scenarios_ranges_goals_and_verdicts(monkeypatch):
    report = made(monkeypatch, lambda text, seed: 10.0 if "'0'" in text else 3.0 + seed)
    page = list(tables.markdown(report, "metaroce reproduce R1"))
    assert "| 1% | 4.50 (4.00 - 5.00) | 45.0% (40.0% - 50.0%) | 86 % | `mr.Scenario(loss='1%', seed=S)` |" in page
    assert "- **FAIL**: most is kept. Not: 1%: too little" in page
    [row] = [line for line in page if line.startswith("| R1 |")]
    assert row == "| R1 | more \\| at every point | keeps 45% | nowhere | FAIL |"
    assert any("Made by `metaroce reproduce R1`" in line for line in page)


def test_the_number_of_workers_changes_nothing(monkeypatch):
    made(monkeypatch, lambda text, seed: float(len(text) * seed))
    one, four = (tables.to_dict(Reproducing(["R1"], seeds=4).report("", workers=n)) for n in (1, 4))
    assert one == four


def test_a_report_without_failures_passes():
    outcome = Outcome(Target("R9", "", "", (), lambda _: None), [], Finding("", "", (Check("yes"),)))
    assert Report("", [1], False, [outcome]).failed == []
