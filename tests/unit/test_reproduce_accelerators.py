"""M1 to M8: quick forms hold; judges on rows made by hand, both ways; each cause that can be taken away."""

import json
import math
from dataclasses import replace

import pytest

pytest.importorskip("metaroce._core", reason="the compiled core is not built")

import metaroce as mr
from judging import rows, verdicts
from metaroce.errors import ConfigError
from metaroce.offload.models import ratio, step
from metaroce.reports import reproduce
from metaroce.reports.reproduce import (
    GROUPS,
    TARGETS,
    Reproducing,
    ahead,
    beside,
    onesided,
    rack,
    ratios,
    subject_of,
    tables,
    triggered,
)


@pytest.fixture(scope="module")
def quick():
    """Every target of M in its quick form."""
    return {outcome.target.name: outcome for outcome in Reproducing(["M"], quick=True).report("1.2.3").outcomes}


@pytest.mark.parametrize("name", GROUPS["M"])
def test_a_quick_form_holds(quick, name):
    failed = [check for check in quick[name].finding.checks if not check.passed]
    assert failed == []
    assert len(quick[name].finding.checks) >= 2


def test_m_stands_for_its_targets():
    assert GROUPS["M"] == [f"M{number}" for number in range(1, 9)]
    assert [target.name for target in Reproducing(["m"]).targets] == GROUPS["M"]


def test_a_report_of_m_names_its_sources_and_no_loss(quick):
    report = reproduce.Report("1.2.3", [1], True, list(quick.values()))
    head = tables.header(report)
    assert sum("10.1109/ISCA66397.2026.00085" in line for line in head) == 1
    assert not any("multiplane" in line or line.startswith("loss") for line in head)
    assert any("inputs are called inputs" in line for line in head)
    assert max(len(part) for part in tables.plain(report) if isinstance(part, str)) <= 120
    page = "\n".join(tables.markdown(report, "metaroce reproduce M --quick"))
    assert "arXiv 2608.00358" in page
    assert "| expression |" in page
    assert "| scenario |" in page


def test_a_document_of_m_is_json_with_the_expression_of_every_row(quick):
    report = reproduce.Report("1.2.3", [1], True, list(quick.values()))
    document = json.loads(json.dumps(tables.to_dict(report), allow_nan=False))
    assert document["failed"] == []
    texts = [row["scenario"] for t in document["targets"] for s in t["sheets"] for row in s["rows"]]
    assert len(texts) > 80
    assert all(text.startswith(("mr.", "list(mr.")) for text in texts)


def test_what_is_no_scenario_is_measured_as_it_is():
    text = "mr.offload.models.band.ratio({'AllToAll bytes': 8e9})"
    assert reproduce._measured((text, ratios.value, 1)) == {"value": subject_of(text, 1)}
    assert reproduce._measured(("{'seed': float(S)}", dict, 7)) == {"seed": 7.0}


def rack_rows(wide, narrow, units, issue, gaudi):
    curves = rows([("10+2", "all_reduce", "1GiB"), ("8+2", "all_reduce", "1GiB")], busbw=[wide, narrow])
    times = rows([("64 KiB", "0.1 us"), ("64 KiB", "1.1 us")], busbw=issue)
    other = rows([("all_reduce", "513", "packet run")], busbw=[gaudi])
    return [curves, rows([("16",)], busbw=[units]), times, other]


def test_m1_wants_ten_nics_in_the_band_and_eight_below_their_rate():
    assert verdicts(rack.judge_m1(rack_rows(940, 760, 2800, (950, 310), 500))) == [True] * 6
    assert verdicts(rack.judge_m1(rack_rows(880, 820, 2600, (310, 950), 480))) == [False] * 6
    wide = verdicts(rack.judge_m1(rack_rows(1001, 760, 2960, (300, 300), 540)))
    assert wide == [False, False, True, True, True, False]


def test_m1_judges_the_largest_size_only():
    sheets = rack_rows(940, 760, 2800, (950, 310), 500)
    small = rows([("10+2", "all_reduce", "1MiB")], busbw=[40])
    assert all(verdicts(rack.judge_m1([small + sheets[0], *sheets[1:]])))


def test_m2_wants_a_split_in_the_band_and_none_above_its_links():
    def judged(narrow, wide):
        return rack.judge_m2([rows([("8+2", "256MiB"), ("10+2", "256MiB")], busbw=[narrow, wide])])

    assert verdicts(judged(720, 870)) == [True, True]
    assert "10+2, 256MiB" in judged(720, 870).checks[0].statement
    assert verdicts(judged(700, 900)) == [False, True]
    assert verdicts(judged(850, 900)) == [True, False]
    curve = rack.judge_m2([rows([("10+2", "64MiB"), ("10+2", "256MiB")], busbw=[638, 1038])])
    assert "10+2: at 128 MiB" in curve.located


def one_sided(time, parts):
    """One PUT, and the rows of `PARTS` with what is left when each is taken away."""
    every = rows([("all_reduce", "8", "4 KiB", "a core posts")], time_us=[time])
    labels = [(by, name) for by, figures in onesided.PARTS.items() for name in ("-", *figures)]
    labels.append(("a core posts", "express doorbell"))
    return [every, rows(labels, time_us=parts)]


def test_m3_wants_the_band_and_each_part_once():
    good = [5.5, 5.05, 13.1, 9.5, 10.2, 12.0, 6.3]
    assert verdicts(onesided.judge_m3(one_sided(5.5, good))) == [True] * 4
    twice = [5.5, 4.6, 13.1, 13.1, 10.2, 12.0, 5.5]
    finding = onesided.judge_m3(one_sided(7.3, twice))
    assert verdicts(finding) == [False, False, False, True]
    assert finding.checks[1].failures == ("posters.post: 0.90 us", "control.event: 0.00 us")
    assert verdicts(onesided.judge_m3(one_sided(5.5, [5.5, 5.05, 5.4, 1.8, 2.5, 4.3, 6.3])))[3] is False


def isolation_sheets(on=0.002, off=0.012, run=0.002, gone=0.02, many=0.2, wave=0.5, free=0.0, ace=(3.5, 1.05)):
    closed = rows([("reduce_scatter", "h = 0.75"), ("reduce_scatter", "off chip")], loss=[on, off])
    programs = rows([("reduce_scatter", "256MiB")], loss=[run], off=[gone])
    labels = [("all_gather", "20", "512 tiles", "16"), ("all_gather", "20", "one wave", "16")]
    gpu = rows([*labels, ("all_gather", "0", "512 tiles", "16")], loss=[many, wave, free], units=[20, 20, 0])
    engine = rows([("ACE", "")], memory=[ace[0]], faster=[ace[1]])
    packets = rows([("4",), ("64",)], loss=[0.06, 0.5])
    drawn = rows([("0.75 to 1",), ("0",)], below=[0.9, 0.6])
    return [closed, programs, gpu, drawn, engine, packets]


def test_m4_wants_both_sides_and_both_causes():
    finding = beside.judge_m4(isolation_sheets())
    assert verdicts(finding) == [True] * 9
    assert "at most 0.20%" in finding.located
    assert "below 0.5 % in 90%, with staging off chip in 60%" in finding.located
    bad = beside.judge_m4(isolation_sheets(0.006, 0.004, 0.006, 0.004, 0.3, 0.3, 0.01, (2.0, 0.9)))
    assert verdicts(bad) == [False] * 8 + [True]
    assert "none held 1.0%" in bad.gives
    assert verdicts(beside.judge_m4(isolation_sheets(ace=(3.5, 1.5))))[7] is False


def ratio_sheets(p5, p95, link=3.0, packets=1.0):
    """The base with factors of `link` and ones; packet runs take `packets` times the formula's transfers."""
    base = {part: [1.0] for part in ratio.PARTS} | {"link rate": [link]}
    made = ratio.decompose().ratio
    base |= {"link rate": [link], "offload": [made / link]}
    parts = rows([("base",)], ratio=[made], identical=[1.1], **base)
    bands = rows([("same",)], p5=[p5], p95=[p95], p50=[4.0], below=[0.4])
    engines = ratio.sides().engine
    runs = []
    for kind in ("alltoall", "all_reduce", "all_gather"):
        cost = replace(engines, step_us=None).time(kind, 1e9, (16, 16, 8))
        runs += rows(
            [(kind, "1 GB")],
            time_us=[cost.fixed_us + packets * cost.link_us],
            fixed_us=[cost.fixed_us],
            bytes_in=[1e9],
        )
    return [parts, rows([("A",)], value=[made]), [], bands, runs]


def test_m5_fails_only_outside_the_band_and_where_its_parts_do_not_add_up():
    assert verdicts(ratios.judge_m5(ratio_sheets(2.9, 6.2))) == [True] * 4
    finding = ratios.judge_m5(ratio_sheets(4.0, 6.2))
    assert verdicts(finding) == [False, True, True, True]
    assert finding.checks[0].failures == ("4.00 to 6.20",)
    assert "3.9 lies outside of the band" in finding.located
    assert verdicts(ratios.judge_m5(ratio_sheets(2.9, 6.2, link=1.5))) == [True, True, False, True]
    assert verdicts(ratios.judge_m5(ratio_sheets(2.9, 6.2, packets=2.0))) == [True, True, True, False]
    broken = ratio_sheets(2.9, 6.2)
    broken[0][0].values["offload"] = [2.0]
    assert verdicts(ratios.judge_m5(broken))[1] is False


def triggered_sheets(exposed, later, run, slowed=40.0):
    labels = [("device", "0", "a tenth"), ("device", "92", "a tenth"), ("device", "200", "a tenth")]
    labels += [("host", "92", "a tenth"), ("device", "92", "all")]
    closed = rows(
        labels,
        wall_us=[123.0, 123.0, 123.0, 129.5, 123.0],
        exposed_us=[123.0, exposed, 0.0, exposed + later, 0.0],
        slowed_us=[0.0, 0.2, 0.2, 0.2, slowed],
    )
    return [closed, rows([("device", ""), ("host", "")], wall_us=[run, run + later])]


def test_m6_wants_the_rest_exposed_and_a_hosts_trigger_to_cost_its_control_path():
    assert verdicts(triggered.judge_m6(triggered_sheets(31, 6.5, 125))) == [True] * 5
    finding = triggered.judge_m6(triggered_sheets(60, 2.0, 150, 1.0))
    assert verdicts(finding) == [True] + [False] * 4
    assert "31 us exposed is not met" in finding.located
    assert verdicts(triggered.judge_m6(triggered_sheets(130, 6.5, 125)))[0] is False


def ahead_sheets(small, large, crossings=(4.0, 0.25), runs=(0.9, 1.3), rates=1.0):
    keys = {f"at {power}": [small if power < ahead.LARGE else large] * 2 for power in ahead.SIZES.values()}
    closed = rows([("all_reduce", "8"), ("all_reduce", "16")], crossover=list(crossings), **keys)
    drawn = rows([("all_reduce", "8")], p5=[1.0], p95=[math.inf])
    packets = rows([("all_reduce", "16KiB"), ("all_reduce", "16MiB")], ahead=list(runs))
    return [closed, drawn, packets, rows([("AllGather",)], passed=[rates], over=[rates])]


def test_m7_wants_both_signs():
    finding = ahead.judge_m7(ahead_sheets(0.6, 1.5))
    assert verdicts(finding) == [True] * 6
    assert "no size" in finding.gives
    assert finding.located.endswith("the latest crossover here is 4 MiB, over draws no size (p95)")
    assert verdicts(ahead.judge_m7(ahead_sheets(1.2, 0.9, (1.0, 2.0), (1.1, 0.9), 0.0))) == [False] * 6


def test_m8_wants_a_small_gain_and_a_step_that_gains_less_than_its_communication():
    def judged(few, gpu, alone=60.0):
        labels, rate = [], []
        for variant in ("plain", "prefetch"):
            for name, ranks, batch, value in (
                ("mtia300", "40", "6144", 100.0),
                ("mtia300", "24", "10240", few),
                ("h100", "40", "6144", gpu),
            ):
                labels.append((name, ranks, batch, variant, "0.45"))
                rate.append(value)
        return ratios.judge_m8([rows(labels, rate=rate, alone_ms=[20, 20, alone] * 2, exposed_ms=[5, 5, 30] * 2), []])

    assert verdicts(judged(102, 80)) == [True, True]
    assert verdicts(judged(106, 105)) == [False, False]
    assert verdicts(judged(99, 30)) == [False, False]


def test_sums_run_at_128_bytes_a_cycle_alone_and_96_together():
    one, all_ = (rack.near_memory(mr.offload.trials.sums(many, "256KiB", 8)) for many in (1, 16))
    assert one["each"] == pytest.approx(128, rel=0.01)
    assert all_["each"] == pytest.approx(96, rel=0.01)
    assert one["wall"] < one["busbw"]


def test_an_exchange_waits_for_its_word_and_a_host_pays_for_its_control_path():
    early, late, host = (
        rack.run_program(mr.offload.trials.exchange(1e6, 4, trigger, at)).time_us
        for trigger, at in (("device", 50.0), ("device", 80.0), ("host", 50.0))
    )
    assert late - early == pytest.approx(30.0, abs=0.5)
    assert 6.0 <= host - early <= 8.1
    with pytest.raises(ConfigError, match=r"trigger = 'timer': unknown; allowed: device, host"):
        mr.offload.trials.exchange(1e6, 4, "timer")


def test_a_figure_of_an_accelerator_can_be_changed_and_says_so():
    changed = mr.offload.hardware.load("mtia300").having("engines.issue", "1.1us")
    assert changed.engines.issue.value == 1_100_000
    assert changed.engines.issue.ours
    with pytest.raises(ConfigError, match=r"figure = 'engines\.speed': unknown; allowed: .*engines\.issue"):
        changed.having("engines.speed", 1)


def test_racks_of_a_comparison_hold_all_accelerators():
    with pytest.raises(ConfigError, match=r"racks = \[16, 16\]: must be 40"):
        ratio.sides(racks=(16, 16))
    assert step.DLRM_150B.batch == step.run(step.DLRM_150B, mr.offload.models.presets.cluster("mtia300", 40)).batch


def test_quick_and_full_forms_make_the_same_statements():
    for name in GROUPS["M"]:
        short, full = (TARGETS[name](form) for form in (True, False))
        assert len(short.sheets) == len(full.sheets)
        assert short.published == full.published
