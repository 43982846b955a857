"""The commands on the real core: the same numbers by every way in, bounds shown, dead fabrics named."""

import json

import pytest

import metaroce as mr
from metaroce.cli import main
from metaroce.reports.compare import Comparing, Comparison
from metaroce.reports.plan import Plan
from metaroce.reports.topology import DEFAULT_ECMP, headline

pytest.importorskip("metaroce._core", reason="the compiled core is not built")


def cells(capsys, *arguments):
    assert main(["compare", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_compare_verifies_every_finished_cell_and_marks_the_others(capsys):
    names = ("--transport", "metaroce", "mrc", "rocev2")
    document = cells(capsys, "alltoall", "-b", "256KiB", "--loss", "0", "1%", "--ranks", "16", *names)
    assert [cell["status"] for cell in document["cells"][:2]] == ["done", "done"]
    for cell in document["cells"]:
        assert (cell["wrong"], cell["status"]) in ((0, "done"), (None, "bound"))
        assert cell["of_lossfree"] is not None
        assert cell["of_lossfree"] >= 0.02 * (1 - 1e-12)
    bound = [cell for cell in document["cells"] if cell["status"] == "bound"]
    assert {cell["profile"] for cell in bound} >= {"67ms"}


def test_a_cell_is_the_run_that_python_makes(capsys):
    [cell] = cells(capsys, "all_reduce", "-b", "1MiB", "--loss", "1%", "--transport", "metaroce", "--seed", "7")[
        "cells"
    ]
    scenario = mr.Scenario(workload=mr.Collective(kind="all_reduce", size="1MiB"), loss="1%", seed=7, check=True)
    result = mr.run(scenario)
    assert (cell["time_us"], cell["timeouts"], cell["wrong"]) == (result.time_us, result.timeouts, result.wrong)


def test_the_number_of_threads_does_not_change_the_digest():
    plan = Plan(collectives=["all_reduce"], size="512KiB", losses=["0", "1%"], options={"ranks": 8})
    digests = {Comparison({}, "", Comparing(plan.jobs(), workers=workers).cells()).digest for workers in (1, 2, 4)}
    assert len(digests) == 1


def test_all_links_dead_for_good_is_status_one_and_names_flows(capsys):
    faults = [argument for plane in range(4) for argument in ("--fault", f"5us,plane,{plane}")]
    assert main(["all_reduce_perf", "-b", "1M", "-e", "1M", "--ranks", "4", *faults]) == 1
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if "stalled" in line]
    assert line.startswith("# size 1048576: stalled at ")
    assert "rank 0 -> rank 1 stream" in line


@pytest.mark.parametrize("dtype", ["float", "double", "half", "bfloat16", "int32", "int8"])
def test_every_type_is_right_under_loss(capsys, dtype):
    command = ["reduce_scatter_perf", "-b", "64K", "-e", "64K", "--ranks", "8", "--loss", "5%", "-d", dtype]
    assert main(command) == 0
    assert "# Out of bounds values : 0 OK" in capsys.readouterr().out


def test_the_header_names_the_ecmp_hash_that_the_core_uses():
    from metaroce import _core

    assert json.loads(_core.defaults())["fabric"]["ecmp"] == DEFAULT_ECMP
    fabric = mr.topology.load("multiplane-4x64")
    assert headline(fabric).endswith(f"ECMP {DEFAULT_ECMP}")
    assert headline(fabric.replace(ecmp="mixed")).endswith("ECMP mixed")
