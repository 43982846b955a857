"""What the commands print and write, with a stand-in for the simulator."""

import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from metaroce import metrics, simulation
from metaroce.cli import main
from metaroce.errors import SimulationStalled


class FakeSimulator:
    """Answers with a time proportional to the size, and remembers what it was asked."""

    def __init__(self):
        self.scenarios = []
        self.wrong = 0
        self.stalls_at = None

    def __call__(self, scenario):
        self.scenarios.append(scenario)
        program = scenario.program()
        ranks, size, kind = scenario.rank_count, program.size_bytes, scenario.workload.name
        time_ps = 1_000_000 + size * 100
        note = scenario.check_note(program) if scenario.check else None
        checked = scenario.check and note is None
        result = SimpleNamespace(
            pauses=[], counters={},
            status="done", time_ps=float(time_ps), time_us=time_ps / 1e6, algbw_gbs=metrics.algbw(size, time_ps),
            busbw_gbs=metrics.busbw(kind, ranks, size, time_ps), of_line_rate=0.5, retransmitted=0.0, timeouts=0,
            wrong=self.wrong if checked else None, digest=f"{len(self.scenarios):016x}", check_note=note,
        )  # fmt: skip
        if self.stalls_at == size:
            flow = {"src": 0, "dst": 1, "stream": 0, "bytes_left": 7, "reason": "no live path"}
            raise SimulationStalled([flow], time_ps, result)
        return result


@pytest.fixture
def simulator(monkeypatch):
    fake = FakeSimulator()
    monkeypatch.setattr(simulation, "run", fake)
    return fake


def rows(text):
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_a_sweep_prints_one_row_a_size_and_runs_both_halves(capsys, simulator):
    assert main(["all_reduce_perf", "-b", "1M", "-e", "4M", "-f", "2", "-n20", "-w5", "--ranks", "4"]) == 0
    out = capsys.readouterr().out
    assert [row[:5] for row in rows(out)] == [
        ["1048576", "262144", "float", "sum", "-1"],
        ["2097152", "524288", "float", "sum", "-1"],
        ["4194304", "1048576", "float", "sum", "-1"],
    ]
    assert [s.workload.inplace for s in simulator.scenarios[:2]] == [False, True]
    assert simulator.scenarios[0].iterations == 20
    assert simulator.scenarios[0].warmup == 5
    assert "warmup iters: 5 iters: 20 agg iters: 1 validation: 1" in out
    assert "# Out of bounds values : 0 OK" in out
    assert out.count("#  Rank ") == 4


def test_the_header_states_topology_transport_loss_and_seed(capsys, simulator):
    arguments = ["--loss", "1%", "--transport", "rocev2-67ms", "--topology", "single-plane-64", "--seed", "7"]
    assert main(["all_gather_perf", "-b", "1M", "-e", "1M", *arguments]) == 0
    out = capsys.readouterr().out
    for part in ("single-plane-64: 64 hosts", "rocev2-67ms", "loss 1%: ", "once a packet, end to end", "seed 7"):
        assert part in out


def test_alltoall_in_place_is_run_and_not_checked(capsys, simulator):
    assert main(["alltoall_perf", "-b", "1M", "-e", "1M", "--ranks", "4"]) == 0
    [row] = rows(capsys.readouterr().out)
    assert row[3] == "none"
    assert (row[8], row[12]) == ("0", "N/A")
    assert [s.check for s in simulator.scenarios] == [True, False]


def test_what_does_not_fit_the_memory_is_not_checked_and_says_so(capsys, simulator):
    assert main(["all_reduce_perf", "-b", "1M", "-e", "1M", "--ranks", "4", "--check-memory", "1MiB"]) == 0
    out = capsys.readouterr().out
    [row] = rows(out)
    assert (row[8], row[12]) == ("N/A", "N/A")
    assert "# size 1048576: not checked" in out


def test_check_zero_turns_checking_off(capsys, simulator):
    assert main(["reduce_scatter_perf", "-b", "1M", "-e", "1M", "-c", "0"]) == 0
    [row] = rows(capsys.readouterr().out)
    assert (row[8], row[12]) == ("N/A", "N/A")


def test_a_wrong_element_is_status_one(capsys, simulator):
    simulator.wrong = 3
    assert main(["all_reduce_perf", "-b", "1M", "-e", "1M"]) == 1
    assert "# Out of bounds values : 6 FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(("floor", "status"), [("1", 0), ("1000", 1)])
def test_a_missed_bandwidth_floor_is_status_one(capsys, simulator, monkeypatch, floor, status):
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", floor)
    assert main(["all_reduce_perf", "-b", "1M", "-e", "1M"]) == status
    assert ("OK" if status == 0 else "FAILED") in capsys.readouterr().out.split("Avg bus bandwidth")[1]


def test_a_stall_leaves_a_line_and_the_sweep_goes_on(capsys, simulator):
    simulator.stalls_at = 2 << 20
    assert main(["all_reduce_perf", "-b", "1M", "-e", "4M", "-f", "2"]) == 1
    out = capsys.readouterr().out
    assert [row[0] for row in rows(out)] == ["1048576", "4194304"]
    assert "# size 2097152: stalled" in out
    assert "no live path" in out


def test_sizes_too_small_for_the_ranks_are_left_out_of_a_sweep(capsys, simulator):
    assert main(["alltoall_perf", "-b", "8", "-e", "4K", "-f", "2", "--ranks", "64"]) == 0
    assert [row[0] for row in rows(capsys.readouterr().out)] == ["1024", "2048", "4096"]


def test_the_json_file_is_written_and_never_over_another(capsys, simulator, tmp_path):
    path = tmp_path / "out.json"
    for _ in range(2):
        assert main(["all_reduce_perf", "-b", "1M", "-e", "1M", "-J", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["results"][0]["size"] == 1 << 20
    assert document["results"][0]["in_place"]["nwrong"] == 0.0
    assert document["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert document["metaroce"]["digests"]
    assert (tmp_path / "out.json.0").exists()


def test_flags_without_meaning_are_named_on_stderr(capsys, simulator):
    assert main(["all_reduce_perf", "-b", "1M", "-e", "1M", "-g", "8", "-G", "1", "-z1"]) == 0
    assert "ignored: --ngpus --blocking --cudagraph" in capsys.readouterr().err


def test_faults_reach_the_scenario(capsys, simulator):
    faults = ["--fault", "100us,plane,1", "--fault", "1ms,plane,1,up", "--fault", "2us,link,host3,p0.leaf0"]
    assert main(["all_reduce_perf", "-b", "1M", "-e", "1M", *faults]) == 0
    first, second, third = simulator.scenarios[0].faults
    assert (first.at, first.target, first.id, first.up) == (100_000_000, "plane", 1, False)
    assert second.up
    assert (third.a, third.b) == ("host3", "p0.leaf0")


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_a_matrix_sets_ranks_and_bytes(capsys, simulator, monkeypatch, tmp_path, way):
    path = tmp_path / "matrix.txt"
    path.write_text("0 16 32\n16 0 48\n64 16 0\n")
    monkeypatch.setenv("NCCL_TESTS_ALLTOALLV_MATRIX_FILE", str(path) if way == "environment" else "")
    assert main(["alltoallv_perf", *(["--matrix", str(path)] if way == "flag" else [])]) == 0
    [row] = rows(capsys.readouterr().out)
    assert simulator.scenarios[0].rank_count == 3
    assert row[0] == "80"  # the most that any rank sends or receives


def test_compare_prints_every_cell_and_writes_json_and_picture(capsys, simulator, tmp_path):
    arguments = ["all_reduce", "alltoall", "-b", "1M", "--loss", "0", "1%", "--transport", "metaroce", "rocev2-67ms"]
    assert main(["compare", *arguments, "--ranks", "8", "--out", str(tmp_path / "new" / "out")]) == 0
    out, err = capsys.readouterr()
    assert out.count("metaroce   default") == 4
    assert out.count("rocev2     67ms") == 4
    for part in ("multiplane-4x64: 64 hosts", "once a packet", "seed 1", "MetaRoCE-style model, independent", "1MiB"):
        assert part in out
    assert "16 runs" in err
    document = json.loads((tmp_path / "new" / "out" / "compare.json").read_text())
    assert len(document["cells"]) == 8
    assert {cell["wrong"] for cell in document["cells"]} == {0}
    assert (tmp_path / "new" / "out" / "compare.svg").read_text().startswith("<?xml")


def test_compare_checks_at_the_largest_size_that_fits_and_says_which(capsys, simulator):
    arguments = ["all_reduce", "-b", "1M", "--loss", "0", "--transport", "metaroce", "--ranks", "4"]
    assert main(["compare", *arguments, "--check-memory", "2MiB"]) == 0
    assert "all_reduce 256KiB" in capsys.readouterr().out
    assert sorted((s.check, s.workload.size) for s in simulator.scenarios) == [(False, 1 << 20), (True, 1 << 18)]


def test_compare_without_loss_zero_still_relates_to_it(capsys, simulator):
    arguments = ["all_reduce", "-b", "1M", "--loss", "1%", "--transport", "metaroce", "--ranks", "4", "--json"]
    assert main(["compare", *arguments]) == 0
    [cell] = json.loads(capsys.readouterr().out)["cells"]
    assert cell["loss"] == 0.01
    assert cell["of_lossfree"] == 1.0


def test_interruption_is_status_130(capsys, monkeypatch):
    def interrupt(scenario):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "run", interrupt)
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert main(["all_reduce_perf", "-b", "1M", "-e", "1M"]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)  # the command leaves it ignored, for its process ends there
    assert capsys.readouterr().err == "metaroce: interrupted\n"


def test_topologies_are_listed_shown_and_checked(capsys):
    assert main(["topo", "list"]) == 0
    assert "multiplane-4x64" in capsys.readouterr().out
    assert main(["topo", "show", "multiplane-4x64"]) == 0
    out = capsys.readouterr().out
    for part in ("hosts", "8 a plane, radix 8 down + 8 up", "200Gbps", "base round trip", "bandwidth-delay product"):
        assert part in out
    assert main(["topo", "check", "fat-tree-64"]) == 0
    assert capsys.readouterr().out.endswith(": ok\n")


def test_a_topology_graph_is_node_link_json(capsys):
    networkx = pytest.importorskip("networkx")
    assert main(["topo", "show", "single-plane-64", "--json"]) == 0
    graph = networkx.node_link_graph(json.loads(capsys.readouterr().out), edges="edges")
    assert graph.number_of_nodes() == 64 + 16
    assert networkx.is_connected(graph)


def test_help_does_not_wait_for_numerics():
    code = "import sys; from metaroce.cli import main; main(['--help']); sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
