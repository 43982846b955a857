"""`metaroce offload compile`, and collectives on engines through scenarios and the nccl-tests commands."""

import numpy as np
import pytest

from metaroce import Collective, Flows, Scenario, run
from metaroce.cli import main
from metaroce.errors import ConfigError
from metaroce.simulation import all_reduce


def said(capsys, *arguments):
    status = main(["offload", "compile", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_passes_are_shown_with_their_costs(capsys):
    status, out, _ = said(capsys, "all_reduce", "--ranks", "16", "--size", "64MiB")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith("work packets for mtia300: 16 ranks in racks of 16, 16 engines")
    assert len(lines) == 11
    assert all(" us (" in line for line in lines[3:])


def test_a_dump_of_one_rank(capsys):
    arguments = ["reduce_scatter", "--ranks", "4", "--size", "1KiB", "--engines", "1", "--algorithm", "ring"]
    status, out, _ = said(capsys, *arguments, "--rank", "2", "--dump", "--ready", "never", "--slots", "2")
    assert status == 0
    assert "rank 2 engine 0: packet 0, 9 entries" in out
    assert "rank 1 engine" not in out
    assert out.count("SUM") == 3


def test_racks_come_from_a_topology_or_from_the_hardware(capsys):
    assert "racks of 16+16+8" in said(capsys, "all_gather", "--topology", "mtia300-40", "--size", "1MiB")[1]
    assert "racks of 16+4" in said(capsys, "all_gather", "--ranks", "20", "--size", "1MiB")[1]


def test_a_matrix_from_a_file(capsys, tmp_path):
    (tmp_path / "m").write_text("0 64\n128 0\n")
    status, out, _ = said(capsys, "alltoallv", "--matrix", str(tmp_path / "m"), "--dump", "--rank", "0")
    assert status == 0
    assert "64B" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["all_reduce"], "--size = None: missing; all_reduce needs one"),
        (["alltoallv", "--size", "1M"], "--matrix = None: missing; alltoallv needs one"),
        (["broadcast", "--size", "1M"], "kind = 'broadcast': unknown"),
        (["all_reduce", "--size", "1M", "--ranks", "1"], "--ranks = 1: must be at least 2"),
        (["all_reduce", "--size", "1M", "--ranks", "41", "--topology", "mtia300-40"], "--ranks = 41: must be 2 .. 40"),
        (["all_reduce", "--size", "1M", "--engines", "0"], "engines = 0: must be"),
        (["all_reduce", "--size", "1M", "--engines", "17"], "engines = 17: must be 1 .. 16"),
        (["all_reduce", "--size", "1M", "--algorithm", "tree"], "algorithm = 'tree': must be"),
        (["all_reduce", "--size", "1M", "--hardware", "abacus"], "hardware = 'abacus': unknown"),
        (["all_reduce", "--size", "1M", "--rank", "16", "--dump"], "--rank = 16: must be 0 .. 15"),
        (["all_reduce", "--size", "1M", "-d", "int8"], "dtype = 'int8': the units of mtia300 sum"),
        (["all_reduce", "--size", "1M", "-d", "int4"], "dtype = 'int4': unknown; allowed: bfloat16"),
        (["alltoallv", "--matrix", "/none"], "--matrix = '/none': must be a readable file"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(capsys, arguments, line):
    status, out, err = said(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"metaroce: error: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "alltoall"])
@pytest.mark.parametrize("topology", ["multiplane-4x64", "mtia300-24"])
def test_a_collective_on_engines_is_exact_on_a_real_network(kind, topology):
    ranks = 18 if topology == "mtia300-24" else 6
    scenario = Scenario(
        topology=topology, ranks=ranks, workload=Collective(kind=kind, size="48KiB"), engine="mtia300", check=True
    )
    result = run(scenario)
    assert (result.status, result.wrong) == ("done", 0)
    assert result.engines["issued"].sum() == len(scenario.program().op)
    assert scenario.to_dict()["engine"] == "mtia300"


def test_tensors_go_through_engines_as_through_anything():
    tensors = [np.arange(100, dtype=np.float32) + rank for rank in range(5)]
    for algorithm in ("put", "ring", "direct"):
        out, _ = all_reduce(tensors, engine="mtia300", offload={"algorithm": algorithm})
        assert all((one == np.sum(tensors, axis=0)).all() for one in out)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"offload": {"engines": 3}}, "offload = .*: only with engine"),
        ({"engine": "abacus"}, "engine.hardware = 'abacus': unknown"),
        ({"engine": "mtia300", "fidelity": "flow"}, "fidelity = 'flow': must be packet with an engine"),
        ({"engine": "mtia300", "offload": {"engine": 3}}, "offload.key = 'engine': unknown"),
        (
            {"engine": "mtia300", "workload": Flows(writes=[(0, 1, 5)])},
            "engine = 'mtia300': runs collectives, not flows",
        ),
        ({"engine": "mtia300", "workload": Collective(kind="all_reduce", size=64, chunks=2)}, "workload.chunks = 2"),
    ],
)
def test_scenarios_that_engines_do_not_fit_are_refused(fields, line):
    with pytest.raises(ConfigError, match=line):
        Scenario(**{"workload": Collective(kind="all_reduce", size="64KiB"), "ranks": 4, **fields}).program()


def test_the_commands_of_nccl_tests_take_an_engine(capsys):
    assert main(["all_reduce_perf", "-b", "64K", "-e", "64K", "--ranks", "4", "--engine", "mtia300"]) == 0
    assert "engine mtia300" in capsys.readouterr().out
