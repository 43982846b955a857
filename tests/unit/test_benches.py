"""The works of benches/engine.py are those of the published measurements, counted without running them."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import metaroce as mr
from metaroce.collectives import Op

BENCHES = Path(__file__).parents[2] / "benches"


def load(name):
    spec = importlib.util.spec_from_file_location(f"{name}_bench", BENCHES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks up a model's module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def works():
    return load("engine").WORKS


def links_between(tree, a, b):
    """Links on the way between two arrays of hosts of a fat tree."""
    tor = tree.hosts_per_tor
    pod = tor * tree.tors_per_pod
    return np.where(a // tor == b // tor, 2, np.where(a // pod == b // pod, 4, 6))


@pytest.mark.parametrize("name", ["P128-100", "RING64-400", "A2A64-400", "P1024-100"])
def test_data_link_hops_without_loss_are_the_published_ones(works, name):
    make, published = works[name]
    scenario = make()
    program = scenario.program()
    sends = np.isin(program.op, (Op.SEND, Op.WRITE))
    packets = -(-program.bytes[sends].astype(np.int64) // 4096)
    hops = links_between(scenario.topology, program.rank[sends].astype(int), program.peer[sends].astype(int))
    assert int((packets * hops).sum()) == published


def test_the_ratio_of_payload_is_of_the_same_run(monkeypatch):
    bench = load("payload")
    monkeypatch.setitem(bench.WORKS, "small", lambda: mr.Collective(kind="all_reduce", size="64KiB"))
    found = bench._ratios("small", pairs=2)
    assert found["range"][0] <= found["ratio"] <= found["range"][1]
    assert 0 < found["timing_s"][0] <= found["timing_s"][1]
