"""The works of benches/engine.py are those of the published measurements, counted without running them; and what the
check of instruction counts says."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

import metaroce as mr
from metaroce.collectives import Op

ROOT = Path(__file__).parents[2]
BENCHES = ROOT / "benches"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHES))
    return importlib.import_module


def links_between(tree, a, b):
    """Links on the way between two arrays of hosts of a fat tree."""
    tor = tree.hosts_per_tor
    pod = tor * tree.tors_per_pod
    return np.where(a // tor == b // tor, 2, np.where(a // pod == b // pod, 4, 6))


@pytest.mark.parametrize("name", ["P128-100", "RING64-400", "A2A64-400", "P1024-100"])
def test_data_link_hops_without_loss_are_the_published_ones(bench, name):
    make, published = bench("engine").WORKS[name]
    scenario = make()
    program = scenario.program()
    sends = np.isin(program.op, (Op.SEND, Op.WRITE))
    packets = -(-program.bytes[sends].astype(np.int64) // 4096)
    hops = links_between(scenario.topology, program.rank[sends].astype(int), program.peer[sends].astype(int))
    assert int((packets * hops).sum()) == published


def test_a_work_is_as_fast_as_its_fastest_run(bench):
    def found(seconds):
        counters = {"link_hops": 1200, "data_link_hops": 1_802_196, "events": 1500}
        return {"counters": counters, "seconds": seconds, "peak_rss_mib": seconds}

    row = bench("engine")._row("P128-100", [found(4.0), found(2.0), found(3.0)], 1200)
    fastest, middle = row["link_hops_per_s"], row["median_link_hops_per_s"]
    assert (fastest, middle, row["ratio"], row["peak_rss_mib"]) == (600, 400, 0.5, 4.0)


def test_the_ratio_of_payload_is_of_the_same_run(bench, monkeypatch):
    payload = bench("payload")
    monkeypatch.setitem(payload.WORKS, "small", lambda: mr.Collective(kind="all_reduce", size="64KiB"))
    found = payload._ratios("small", pairs=2)
    assert found["range"][0] <= found["ratio"] <= found["range"][1]
    assert 0 < found["timing_s"][0] <= found["timing_s"][1]


@pytest.mark.parametrize("hosts", [16, 64, 128, 256])
def test_trees_of_the_scale_bench_have_the_hosts_in_their_names(bench, hosts):
    assert bench("scale").tree(hosts).fabric.hosts == hosts


def test_rows_of_the_scale_bench_have_the_connections_in_their_names(bench):
    program = bench("scale").ROWS["connections/10240"]().program()
    pairs = np.unique(np.sort(np.column_stack([program.rank, program.peer]), axis=1), axis=0)
    assert len(pairs) == 10_240


def run(instructions, setup=1000, link_hops=10):
    return {"run": {"link_hops": link_hops, "setup_instructions": setup, "run_instructions": instructions}}


@pytest.mark.parametrize(("found", "fails", "notes"), [(10_300, 0, 0), (10_301, 1, 0), (9_700, 0, 0), (9_699, 0, 1)])
def test_a_count_three_percent_above_the_baseline_fails_and_one_as_far_below_is_told(bench, found, fails, notes):
    worse, told = bench("instructions").compared(run(found), run(10_000))
    assert (len(worse), len(told)) == (fails, notes)


def test_a_count_that_is_too_high_is_named_with_its_baseline(bench):
    worse, _ = bench("instructions").compared(run(12_000), run(10_000))
    assert worse == ["run: run_instructions = 12,000: +20.0% against the baseline of 10,000; allowed: +3%"]


def test_set_up_is_compared_too_and_other_work_is_told(bench):
    worse, told = bench("instructions").compared(run(10_000, setup=1100, link_hops=11), run(10_000))
    assert [line.split(" =")[0] for line in worse + told] == ["run: setup_instructions", "run: link_hops"]


def test_a_run_that_the_baseline_lacks_fails(bench):
    assert bench("instructions").compared(run(10_000), {})[0] == ["run: not in baseline.json: remake it with --update"]


def test_the_baseline_has_exactly_the_fixed_runs():
    source = (ROOT / "rust/driver/benches/fixed_runs.rs").read_text()
    names = re.findall(r'^    \("([a-z0-9-]+)", ', source, re.MULTILINE)
    assert names
    assert list(json.loads((BENCHES / "baseline.json").read_text())["runs"]) == names
