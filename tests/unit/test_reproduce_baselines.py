"""P3 to P12: judges on rows made by hand, both ways; what is read off runs, against runs too small to be in doubt."""

import math
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("metaroce._core", reason="the compiled core is not built")

import metaroce as mr
from judging import rows, verdicts
from metaroce.metrics import jain
from metaroce.reports.reproduce import (
    GROUPS,
    TARGETS,
    Outcome,
    Report,
    Reproducing,
    baselines,
    bystanders,
    recovery,
    tables,
)
from metaroce.reports.reproduce.model import Check, Finding, Target


def test_r_and_p_stand_for_their_targets_and_none_for_all():
    assert [target.name for target in Reproducing(["P"]).targets] == GROUPS["P"]
    assert GROUPS["P"] == "P3 P4 P5 P6 P8 P10 P11 P12".split()
    assert [target.name for target in Reproducing(["p8", "r", "R2"]).targets] == ["P8", *GROUPS["R"]]
    assert [target.name for target in Reproducing().targets] == list(TARGETS)


def test_p3_adds_runs_of_mrc_alone_to_those_of_r1():
    more = set(Reproducing(["R1", "P3"], seeds=1).keys) - set(Reproducing(["R1"], seeds=1).keys)
    assert more
    assert all("transport='mrc'" in text for text, *_ in more)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", GROUPS["P"])
def test_a_target_names_its_source_and_how_it_is_known(name, quick):
    published = TARGETS[name](quick).published
    assert any(source in published for source in ("arXiv", "SIGCOMM", "ICCCN", "RoSR"))
    assert "second-hand" in published or "abstract" in published


def losses(little, steep, roce, curve):
    """The grid of P3 at one size, and the curve of mrc."""
    grid = [("64MiB", "0.1%", "mrc"), ("64MiB", "1%", "mrc"), ("64MiB", "1%", "metaroce")]
    grid += [("64MiB", "1%", name) for name in baselines.ROCE]
    kept = [little, steep, 0.9, roce, roce / 2]
    return [rows(grid, kept=kept), rows([("0.1%",), ("1%",), ("10%",)], kept=curve)]


def test_p3_wants_little_at_a_tenth_of_a_percent_and_much_at_one():
    finding = baselines.judge_p3(losses(0.95, 0.35, 0.05, [0.95, 0.5, 0.1]))
    assert verdicts(finding) == [True, True, True]
    assert "at 2.6% loss" in finding.located
    finding = baselines.judge_p3(losses(0.85, 0.6, 0.2, [0.95, 0.9, 0.8]))
    assert verdicts(finding) == [False, False, False]
    assert finding.located.endswith("not on it")
    assert finding.checks[1].failures == ("64MiB, 1%, mrc: keeps 60.0%",)


def queue_pairs(one, eight, sixteen, mrc):
    labels = [(name, str(qps), "random") for name in baselines.CONTROL for qps in (1, 8, 16)]
    lines = [one, eight, sixteen] * len(baselines.CONTROL)
    packed = [(name, "1", "packed") for name in baselines.CONTROL]
    roce = rows([*labels, *packed], of_line=[*lines, 0.99, 0.98], busbw=[100 * x for x in (*lines, 0.99, 0.98)])
    sprayed = rows(
        [("mrc, 256 entropies", "1", place) for place in baselines.PLACES], of_line=[mrc, 1], busbw=[100 * mrc, 100]
    )
    return [sprayed, roce]


def test_p4_wants_half_with_one_qp_no_gain_past_eight_and_spraying_ahead():
    finding = baselines.judge_p4(queue_pairs(0.45, 0.7, 0.75, 0.95))
    assert verdicts(finding) == [True, True, True]
    assert "half of the line rate is met with 2 QPs" in finding.located
    finding = baselines.judge_p4(queue_pairs(0.15, 0.25, 0.4, 0.3))
    assert verdicts(finding) == [False, False, False]
    assert "rocev2, DCQCN, 16, random: 1.60 of 8 QPs" in finding.checks[1].failures
    assert "no number of QPs" in finding.located


def victims(path, dcqcn, pfc, fair=1.0):
    names = [("mrc", ""), ("metaroce", "")]
    names += [(f"RoCEv2, {name}", qps) for name in ("DCQCN and PFC", "PFC alone") for qps in ("1", "8")]
    kept = [path, path, *dcqcn, *pfc]
    return [rows(names, kept=kept, gbps=[400 * x for x in kept], jain=[fair] * 6)]


def test_p5_wants_the_published_order():
    assert verdicts(bystanders.judge_p5(victims(0.99, (0.75, 0.25), (0.2, 0.1)))) == [True] * 5
    finding = bystanders.judge_p5(victims(0.99, (1.0, 0.4), (0.2, 0.1)))
    assert verdicts(finding) == [True, True, False, True, True]
    assert finding.checks[2].failures == ("RoCEv2, DCQCN and PFC, 1: keeps 100.0%",)
    assert "here +0% with 1 QP, -60% with 8" in finding.located
    assert verdicts(bystanders.judge_p5(victims(0.9, (0.5, 0.6), (0.3, 0.1), 0.9))) == [
        False,
        False,
        True,
        False,
        False,
    ]


def lost(link, single, port):
    labels = [
        (name, planes, what, avoided)
        for name in ("mrc", "metaroce")
        for planes, what, avoided in (
            ("8", bystanders.LINK, "endpoints"),
            ("1", bystanders.LINK, "endpoints"),
            ("8", bystanders.PORT, "endpoints"),
            ("8", bystanders.LINK, "switches"),
        )
    ]
    return [rows(labels, kept=[1 - x for x in (link, single, port, link)] * 2)]


def test_p6_wants_a_link_to_cost_its_share():
    assert verdicts(bystanders.judge_p6(lost(0.004, 0.03, 0.125))) == [True] * 4
    assert verdicts(bystanders.judge_p6(lost(0.08, 0.06, 0.3))) == [False] * 4
    assert "mrc: 8.00%" in bystanders.judge_p6(lost(0.08, 0.06, 0.3)).checks[0].failures


def tree(sprayed, hashed, incast):
    names = [("mrc",), ("metaroce",), ("a",), ("b",)]
    return [rows(names, together=[sprayed, sprayed, hashed, hashed]), rows(names, of_line=[incast, incast, 0.4, 0.4])]


def test_p8_wants_spraying_to_fill_the_tree_and_one_route_not():
    finding = bystanders.judge_p8(tree(0.92, 0.4, 0.97))
    assert verdicts(finding) == [True, True, True]
    assert "mrc +0.0%" in finding.located
    assert verdicts(bystanders.judge_p8(tree(0.8, 0.7, 0.9))) == [False, False, False]


def goodput(fixed, adaptive, repeat):
    """The share of the line rate at 1 and 2 %."""
    labels = [(name, loss) for name in recovery.LONE for loss in ("1%", "2%")]
    return [rows(labels, of_line=[*fixed, *adaptive, *repeat])]


def test_p10_wants_go_back_n_gone_beyond_one_percent_with_each_timer():
    finding = recovery.judge_p10(goodput((0.05, 0.01), (0.3, 0.05), (0.7, 0.5)))
    assert verdicts(finding) == [True, True, True]
    assert "selective repeat at 1.41%" in finding.located
    assert verdicts(recovery.judge_p10(goodput((0.05, 0.01), (0.7, 0.3), (0.4, 0.3)))) == [True, False, False]


def factors(fixed, adaptive, fct):
    return [
        rows([(name,) for name in recovery.LONE], busbw=[12 / fixed, 12 / adaptive, 12]),
        rows([("64KiB", name) for name in recovery.LONE], fct_mean_us=[fct * 20, fct * 10, 10]),
    ]


def test_p11_locates_the_published_factors_between_the_timers():
    finding = recovery.judge_p11(factors(50, 6, 3))
    assert verdicts(finding) == [True, True, True]
    assert "13.5 lies between those of the two timers (6.0 to 50.0)" in finding.located
    assert "3 to 6 lies between" in finding.located
    finding = recovery.judge_p11(factors(50, 3, 1.5))
    assert verdicts(finding) == [True, False, False]
    assert "13.5 is not on it" in recovery.judge_p11(factors(9, 6, 3)).located


def irn(permuted, mixed):
    labels = [(work, "none", side) for work in ("permutation", "mixed, 70 % load") for side in ("IRN", "RoCE")]
    return [rows(labels, fct_mean_us=[100, 100 * permuted, 100, 100 * mixed])]


def test_p12_tells_the_published_load_from_ours():
    finding = recovery.judge_p12(irn(1.2, 1.5))
    assert verdicts(finding) == [True, True]
    assert "6 to 83 % holds 2 of 2" in finding.located
    finding = recovery.judge_p12(irn(0.9, 3))
    assert verdicts(finding) == [True, False]
    assert finding.checks[1].failures == ("permutation, none -10%",)
    assert "holds 0 of 2" in finding.located
    assert verdicts(recovery.judge_p12(irn(1.2, 0.9))) == [False, True]


LINK = {"rate": "100Gbps", "delay": "1us", "queue": "1MiB"}
PAIR = mr.topology.LeafSpine(planes=1, leaves=1, spines=1, hosts_per_leaf=2, link=LINK)


def test_completion_times_count_from_the_start_of_each_message():
    gap = recovery.GAP_US * 1_000_000
    lone = {"kind": "rocev2-sr", **recovery.ALONE}
    one, many = (
        mr.run(mr.Scenario(topology=PAIR, workload=mr.Flows(writes=writes), transport=lone, record_wqes=True))
        for writes in ([(0, 1, 65536)], [(0, 1, 65536, i * gap) for i in range(5)])
    )
    alone = recovery.together(one)["fct_mean_us"]
    told = recovery.apart(many)
    assert told["fct_mean_us"] == pytest.approx(alone, rel=0.01)
    assert told["fct_p99_us"] == pytest.approx(alone, rel=0.01)
    assert 65536 * 8 / 100e3 < alone < 20


def test_the_mix_offers_seventy_percent_of_the_rate_and_never_writes_to_itself():
    writes = eval(recovery._mixed(40), {"mr": mr}).writes
    assert len(writes) == recovery.HOSTS * 40
    assert all(source != target for source, target, *_ in writes)
    assert len({start for *_, start in writes}) == len(writes)
    assert all(a[3] < b[3] for a, b in pairwise(writes) if a[0] == b[0])
    load = sum(size for _, _, size, _ in writes) * 8 / (recovery.HOSTS * 40 * recovery.EVERY_US * 1e-6) / 100e9
    assert load == pytest.approx(0.7, abs=0.03)


def test_a_victim_has_a_rate_and_the_others_a_fairness():
    fabric = mr.topology.LeafSpine(planes=1, leaves=1, spines=1, hosts_per_leaf=10, link=LINK)
    writes = [(0, 8, 1 << 20), (1, 8, 1 << 20), (7, 9, 4 << 20, "50us")]
    result = mr.run(
        mr.Scenario(topology=fabric, workload=mr.Flows(writes=writes), placement="packed", record_wqes=True)
    )
    told = bystanders.victim(result)
    assert 85 < told["gbps"] < 100
    assert told["busbw"] == pytest.approx(told["gbps"] / 8)
    assert told["jain"] == pytest.approx(jain(1 / result.wqe_done_ps[:2].astype(float)))


def test_steady_rates_are_those_of_the_ports():
    fabric = mr.topology.LeafSpine(planes=2, leaves=1, spines=1, hosts_per_leaf=4, link=LINK)
    writes = [(i, (i + 2) % 4, 4 << 20) for i in range(4)]
    recorded = {"record_wqes": True, "record_bin": "10us"}
    scenario = mr.Scenario(topology=fabric, workload=mr.Flows(writes=writes), placement="packed", **recorded)
    result = mr.run(scenario)
    line = result.payload_line_rate_bps / 8e9
    assert bystanders.steady(result)["busbw"] == pytest.approx(line, rel=0.03)
    told = bystanders.use(result)
    assert told["mean"] == pytest.approx(1, abs=0.05)
    assert told["together"] == pytest.approx(1, abs=0.1)
    half = mr.run(scenario.replace(faults=[{"at": "0us", "target": "plane", "id": 1}]))
    assert bystanders.steady(half)["busbw"] == pytest.approx(line / 2, rel=0.03)


def test_a_small_target_runs_and_tells_its_source():
    report = Reproducing(["P5"], quick=True).report("1.2.3")
    [outcome] = report.outcomes
    assert [row.setup.labels for row in outcome.sheets[0]][:2] == [("mrc", ""), ("metaroce", "")]
    assert all(math.isfinite(row.median("kept")) for row in outcome.sheets[0])
    assert outcome.finding.checks[-1].statement.startswith("every run of metaroce ends")
    page = "\n".join(tables.markdown(report, "metaroce reproduce P5 --quick"))
    assert "Published: P: named with each" in page
    assert "Meta, MetaRoCE" not in page
    assert max(len(part) for part in tables.plain(report) if isinstance(part, str)) <= 120


def test_a_report_names_the_sources_of_what_it_shows():
    found = [
        Outcome(Target(name, "", "", (), lambda _: None), [], Finding("", "", (Check("yes"),)))
        for name in ("R1", "P3", "M4")
    ]
    assert len([line for line in tables.header(Report("", [1], False, found)) if line.startswith("published")]) == 3
    assert tables.to_dict(Report("", [1], False, found[:1]))["source"].startswith("R: Meta, MetaRoCE")


def test_no_check_of_metaroce_where_it_does_not_run(monkeypatch):
    from metaroce.reports import reproduce

    monkeypatch.setattr(
        reproduce,
        "_measured",
        lambda key: dict.fromkeys(("busbw", "of_line", "resent", "timeouts", "time_us", "stopped"), 0.5),
    )
    [outcome] = Reproducing(["P10"], quick=True).report("").outcomes
    assert not any("metaroce" in check.statement for check in outcome.finding.checks)
    assert np.isfinite([row.median("of_line") for row in outcome.sheets[0]]).all()
