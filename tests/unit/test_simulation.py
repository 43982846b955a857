"""What crosses to the core and what is made of its answer, with a core that only records."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import metaroce as mr

SMALL = mr.topology.LeafSpine(
    planes=2, leaves=2, spines=2, hosts_per_leaf=4, link={"rate": "200Gbps", "delay": "600ns", "queue": "1MiB"}
)


class FakeCore:
    """Answers every call as a run of 1000 us; `answer` overrides parts of it."""

    class ConfigError(ValueError):
        pass

    def __init__(self):
        self.calls, self.answer = [], {}

    def simulate(self, spec, columns):
        spec = json.loads(spec)
        self.calls.append((spec, columns))
        runs = spec["iterations"]
        return {
            "status": "done",
            "time_ps": runs * 10**9,
            "iteration_start_ps": [k * 10**9 for k in range(runs)],
            "iteration_end_ps": [(k + 1) * 10**9 for k in range(runs)],
            "digest": "0123456789abcdef",
            "version": "0",
            "wrong": 0 if "fill_rank" in columns else None,
            "checked": 8 if "fill_rank" in columns else 0,
            "resolved": "{}",
            "counters": {"data_packets_sent": 200, "retransmitted_packets": 3, "timeouts": 2},
            "plane_bytes": [1, 2],
            "plane_bins": [],
            "stalled_flows": [],
            "wqe_done_ps": b"",
            "wqe_placed_ps": b"",
            "payload_line_rate_bps": 400 * 10**9,
            "memory": columns["memory"].tobytes() if "memory" in columns else None,
            **self.answer,
        }


@pytest.fixture
def core(monkeypatch):
    fake = FakeCore()
    module = SimpleNamespace(simulate=fake.simulate, ConfigError=FakeCore.ConfigError)
    monkeypatch.setitem(sys.modules, "metaroce._core", module)
    monkeypatch.setattr(mr, "_core", module, raising=False)
    return fake


def scenario(**fields):
    return mr.Scenario(**{"topology": SMALL, "workload": mr.Collective(kind="all_reduce", size="1MiB"), **fields})


def test_bandwidths_follow_from_size_and_time(core):
    result = mr.run(scenario())
    assert (result.time_us, result.iteration_us) == (1000.0, [1000.0])
    assert result.algbw_gbs == pytest.approx((1 << 20) / 1e6)
    assert result.busbw_gbs == pytest.approx(result.algbw_gbs * 2 * 7 / 8)
    assert result.of_line_rate == pytest.approx(result.busbw_gbs / 50)
    assert (result.retransmitted, result.timeouts, result.wrong) == (0.015, 2, None)


def test_a_timing_run_moves_no_bytes(core):
    mr.run(scenario())
    [(spec, columns)] = core.calls
    assert "payload" not in spec
    assert not any(name.startswith(("fill", "expect", "memory")) for name in columns)


def test_a_checked_run_of_one_iteration_is_one_call(core):
    result = mr.run(scenario(check=True))
    [(spec, columns)] = core.calls
    assert spec["payload"] == {"dtype": "float32"}
    assert columns["expect_from"].tolist() == [2**32 - 1] * 8
    assert (result.wrong, result.checked, result.check_note) == (0, 8, None)


def test_many_iterations_cross_once_with_payload(core):
    result = mr.run(scenario(check=True, iterations=20, warmup=1))
    [(spec, _)] = core.calls
    assert (spec["iterations"], spec["warmup"], "payload" in spec) == (20, 1, True)
    assert (len(result.iteration_us), result.wrong) == (20, 0)


def test_a_check_that_does_not_fit_is_left_out_and_says_why(core):
    result = mr.run(scenario(check=True, check_memory="1MiB"))
    assert result.wrong is None
    assert "check memory is 1 MiB" in result.check_note


def test_a_run_at_its_limit_has_the_time_so_far(core):
    core.answer = {"status": "bound", "time_ps": 6 * 10**6, "iteration_start_ps": [], "iteration_end_ps": []}
    result = mr.run(scenario(time_limit="6us"))
    assert (result.status, result.time_us, result.iteration_us) == ("bound", 6.0, [])
    assert mr.run(scenario(time_limit="6us", warmup=2)).time_us == 2.0


def test_a_stall_is_an_error_with_flows_time_and_result(core):
    flow = {"src": 0, "dst": 1, "stream": 0, "bytes_left": 100, "reason": "no path"}
    core.answer = {"status": "stalled", "stalled_flows": [flow], "time_ps": 7}
    with pytest.raises(mr.SimulationStalled, match="rank 0 -> rank 1 stream 0: 100 bytes left, no path") as error:
        mr.run(scenario())
    assert (error.value.flows, error.value.time_ps, error.value.result.status) == ([flow], 7, "stalled")


def test_a_refusal_of_the_core_is_a_config_error(core, monkeypatch):
    def refuse(spec, columns):
        raise FakeCore.ConfigError("transport.windw = 3: unknown;\nallowed: window")

    monkeypatch.setattr(sys.modules["metaroce._core"], "simulate", refuse)
    with pytest.raises(mr.ConfigError, match=r"transport\.windw = 3: unknown; allowed: window"):
        mr.run(scenario(transport={"kind": "metaroce", "windw": 3}))


def test_arrays_of_entries_come_back_as_numpy(core):
    core.answer = {"wqe_done_ps": np.arange(3, dtype=np.uint64).tobytes(), "wqe_placed_ps": b""}
    result = mr.run(scenario(record_wqes=True))
    assert result.wqe_done_ps.tolist() == [0, 1, 2]
    assert result.wqe_placed_ps is None


def test_a_result_prints_as_json_and_html(core):
    result = mr.run(scenario())
    assert json.loads(json.dumps(result.to_dict()))["busbw_gbs"] == result.busbw_gbs
    assert "0123456789abcdef" in result._repr_html_()


def test_both_entry_points_send_the_same_program(core):
    data = [np.full((1 << 18,), rank, np.float32) for rank in range(8)]
    mr.run(scenario(loss="1%", seed=3))
    mr.all_reduce(data, topology=SMALL, loss="1%", seed=3)
    (spec, columns), (other_spec, other) = core.calls
    assert other_spec.pop("payload") == {"dtype": "float32"}
    assert spec == other_spec
    assert all(np.array_equal(columns[name], other[name]) for name in columns)


def test_tensors_lie_in_memory_where_the_program_wants_them(core):
    data = [np.arange(6, dtype=np.int32).reshape(2, 3) + 10 * rank for rank in range(2)]
    outs, _ = mr.all_gather(data, topology=SMALL)
    memory = core.calls[0][1]["memory"].reshape(2, -1)
    program = mr.collectives.compile("all_gather", 2, count=6, dtype="int32")
    for rank in range(2):
        at = int(program.input_offset[rank])
        assert memory[rank, at : at + 24].tobytes() == data[rank].tobytes()
    assert [out.shape for out in outs] == [(4, 3), (4, 3)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mr.all_reduce([np.zeros(3)]), "tensors = 1: must be at least 2"),
        (lambda: mr.all_reduce([np.zeros(3), np.zeros(4)]), r"tensors\[1\]"),
        (lambda: mr.all_reduce([np.zeros(3, np.int64)] * 2), "dtype = 'int64': allowed: float32"),
        (lambda: mr.all_reduce([np.zeros(3, np.uint16)] * 2), "dtype = 'uint16'"),
        (lambda: mr.all_reduce([np.zeros(3, np.float32)] * 2, dtype="bfloat16"), "dtype = "),
        (lambda: mr.all_reduce([np.zeros(0)] * 2), "at least one element"),
        (lambda: mr.reduce_scatter([np.zeros(3)] * 2), "multiple of the 2 ranks"),
        (lambda: mr.alltoall([np.float32(3)] * 2), "multiple of the 2 ranks"),
        (lambda: mr.all_reduce([np.zeros(3)] * 9, topology=SMALL), "ranks = 9: must be 2 .. 8"),
        (lambda: mr.all_reduce([np.zeros(3)] * 2, topology=SMALL, iterations=3), "iterations"),
        (lambda: mr.all_reduce([np.zeros(3)] * 2, topology=SMALL, lss=3), "'lss': unknown"),
    ],
)
def test_bad_tensors_are_refused_in_one_line(call, message):
    with pytest.raises(mr.ConfigError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_every_plane_has_as_many_bins():
    writes = [(0, 1, 4096), (0, 1, "1MiB", 50_000_000)]
    scenario = mr.Scenario(workload=mr.Flows(writes=writes), ranks=2, record_bin="1us")
    bins = mr.run(scenario).plane_bins
    assert len({len(plane) for plane in bins}) == 1
    assert sum(map(sum, bins)) == 4096 + 2**20
