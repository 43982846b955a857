"""Time series of connections and paths: what Python reads, derives and writes, and the command's flag."""

import csv
from dataclasses import replace

import numpy as np
import pytest

import metaroce as mr
from metaroce.cli import main
from metaroce.reports import telemetry
from metaroce.result import PATH_STATES

pytest.importorskip("metaroce._core", reason="the compiled core is not built")

SMALL = mr.topology.LeafSpine(
    planes=2, leaves=2, spines=2, hosts_per_leaf=4, link={"rate": "200Gbps", "delay": "600ns", "queue": "1MiB"}
)


def run(**fields):
    workload = mr.Collective(kind="all_reduce", size="1MiB")
    return mr.run(mr.Scenario(**{"topology": SMALL, "workload": workload, "record_paths": "5us", **fields}))


def test_columns_have_equal_lengths_and_the_documented_types():
    result = run(loss="1%")
    for table in (result.connections, result.paths):
        assert len({column.shape for column in table.values()}) == 1
        assert table["time_ps"][-1] == result.time_ps
        assert {name: table[name].dtype.str for name in ("time_ps", "src", "dst")} == {
            "time_ps": "<u8", "src": "<u4", "dst": "<u4",
        }  # fmt: skip
    types = {"path": "<u2", "plane": "|u1", "state": "|u1", "window_bytes": "<u4", "ecn_permille": "<u2", "sent": "<u8"}
    assert {name: result.paths[name].dtype.str for name in types} == types
    assert set(result.paths["plane"]) == {0, 1}
    assert set(result.paths["state"]) <= set(range(len(PATH_STATES)))


def test_rates_between_samples_add_up_to_the_bytes_acknowledged():
    result = run(loss="1%", seed=4)
    columns = result.connections
    own = (columns["src"] == 3) & (columns["dst"] == 4)
    spans = np.diff(columns["time_ps"][own].astype(np.int64))
    moved = (columns["rate_bps"][own][1:] * spans / 8e12).sum()
    assert columns["rate_bps"][own][0] == 0
    assert columns["acked_bytes"][own][-1] > 0
    assert moved == pytest.approx(columns["acked_bytes"][own][-1], rel=1e-6)
    assert columns["rate_bps"].max() <= 2 * result.payload_line_rate_bps


def test_a_run_that_was_not_recorded_has_no_tables_and_cannot_be_written(tmp_path):
    result = run(record_paths=None)
    assert (result.connections, result.paths) == (None, None)
    with pytest.raises(mr.ConfigError, match="record_paths"):
        telemetry.write(result, tmp_path / "x.npz")


def test_a_checked_run_of_several_iterations_keeps_the_series_of_the_timed_ones():
    result = run(check=True, iterations=2)
    assert result.wrong == 0
    assert (
        result.paths["sent"][result.paths["time_ps"] == result.paths["time_ps"][-1]].sum()
        == (result.counters["data_packets_sent"])
    )


def test_only_what_the_given_ranks_send_is_recorded():
    result = run(record_paths_ranks=[5])
    assert set(result.connections["src"]) == set(result.paths["src"]) == {5}
    with pytest.raises(mr.ConfigError, match=r"record_paths_ranks\[0\]: 8 .* below 8"):
        run(record_paths_ranks=[8])


def test_rocev2_shows_its_queue_pairs():
    result = run(transport="rocev2-adaptive", loss="1%")
    end = result.paths["time_ps"] == result.paths["time_ps"][-1]
    assert result.paths["sent"][end].sum() == result.counters["data_packets_sent"]
    assert result.paths["lost_tail"][end].sum() == result.counters["timeouts"]
    assert not result.connections["hint_bps"].any()


def test_mrc_shows_its_entropy_values_under_one_window():
    result = run(transport="mrc", loss="1%")
    end = result.paths["time_ps"] == result.paths["time_ps"][-1]
    assert result.paths["sent"][end].sum() == result.counters["data_packets_sent"]
    lost = result.counters["gap_detections"] + result.counters["timer_detections"]
    assert result.paths["lost_gap"][end].sum() + result.paths["lost_tail"][end].sum() == lost > 0
    assert (result.connections["window_bytes"] >= 4096).all()
    assert not result.paths["window_bytes"].any()
    assert len(set(result.paths["path"])) == 160


def test_a_run_without_traffic_has_tables_without_rows():
    result = run(record_paths_ranks=[])
    assert all(len(column) == 0 for table in (result.connections, result.paths) for column in table.values())


def test_npz_holds_every_column_and_is_the_same_each_time(tmp_path):
    result = run(loss="1%")
    [one], [two] = telemetry.write(result, tmp_path / "a.npz"), telemetry.write(result, str(tmp_path / "b.npz"))
    assert one.read_bytes() == two.read_bytes()
    with np.load(one) as arrays:
        assert sorted(arrays) == sorted(
            [f"connections_{name}" for name in result.connections] + [f"paths_{name}" for name in result.paths]
        )
        assert np.array_equal(arrays["paths_sent"], result.paths["sent"])


def test_csv_holds_both_tables_with_states_by_name(tmp_path):
    faults = [{"at": "5us", "target": "plane", "id": 1}]
    result = run(faults=faults)
    files = telemetry.write(result, tmp_path / "run.csv")
    assert [file.name for file in files] == ["run.connections.csv", "run.paths.csv"]
    connections, paths = ([*csv.DictReader(file.read_text().splitlines())] for file in files)
    assert [int(row["window_bytes"]) for row in connections] == result.connections["window_bytes"].tolist()
    assert [row["state"] for row in paths] == [PATH_STATES[state] for state in result.paths["state"]]
    assert "down" in {row["state"] for row in paths}


@pytest.mark.parametrize(
    ("name", "told"), [("x.parquet", "must end in .npz or .csv"), ("nowhere/x.csv", "must be in a directory")]
)
def test_a_file_that_cannot_be_is_refused_in_one_line(tmp_path, name, told):
    with pytest.raises(mr.ConfigError, match=told) as error:
        telemetry.write(replace(run(), paths=None), tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_command_writes_a_file_for_each_size(tmp_path, capsys):
    command = ["all_reduce_perf", "-b", "64K", "-e", "128K", "-f", "2", "--ranks", "4"]
    assert main(command) == 0
    plain = capsys.readouterr().out
    assert main([*command, "--telemetry", f"{tmp_path}/t.npz:2us"]) == 0
    recorded = capsys.readouterr().out
    rows = [[line for line in out.splitlines() if not line.startswith("#")] for out in (plain, recorded)]
    assert rows[0] == rows[1]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.131072.npz", "t.65536.npz"]
    with np.load(tmp_path / "t.65536.npz") as arrays:
        assert set(np.diff(np.unique(arrays["paths_time_ps"]))[:-1]) <= {2_000_000}


def test_a_command_with_one_size_writes_the_file_it_was_told(tmp_path):
    assert main(["alltoall_perf", "-b", "64K", "-e", "64K", "--ranks", "4", "--telemetry", f"{tmp_path}/t.csv"]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.connections.csv", "t.paths.csv"]
