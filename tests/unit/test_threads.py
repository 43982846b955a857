"""One run on several threads, on the real core: the same result, refused where it is not to be had, and cores not taken
twice."""

import json
import threading

import pytest

import metaroce as mr
from metaroce import simulation
from metaroce.cli import main

pytest.importorskip("metaroce._core", reason="the compiled core is not built")

two_cores = pytest.mark.skipif(simulation.cores() < 2, reason="a thread needs a core")


def scenario(**fields):
    return mr.Scenario(**{"workload": mr.Collective(kind="all_reduce", size="1MiB"), **fields})


def told(result):
    columns = (result.wqe_done_ps, result.wqe_placed_ps)
    return result.to_dict(), result.plane_bins, [None if column is None else column.tolist() for column in columns]


@two_cores
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"loss": "1%", "seed": 3},
        {
            "faults": (
                {"at": "20us", "target": "plane", "id": 1},
                {"at": "60us", "target": "plane", "id": 1, "up": True},
            )
        },
        {"workload": mr.Collective(kind="alltoall", size="1MiB"), "transport": "rocev2-adaptive", "loss": "0.1%"},
        {"time_limit": "30us", "record_wqes": True, "record_bin": "10us"},
    ],
    ids=["plain", "loss", "fault", "rocev2", "stopped"],
)
def test_a_run_on_two_threads_gives_the_result_of_one(fields):
    one, two = (mr.run(scenario(threads=threads, **fields)) for threads in (1, 2))
    assert told(two) == told(one)


def test_threads_are_not_part_of_what_a_scenario_tells():
    one, two = scenario(), scenario(threads=2)
    assert one.to_dict() == two.to_dict()
    program = one.program()
    assert "threads" not in one.spec(program)
    assert two.spec(program) == {**one.spec(program), "threads": 2}


@two_cores
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"iterations": 2}, "more than one iteration"),
        ({"warmup": 1}, "more than one iteration"),
        ({"record_paths": "10us"}, "telemetry (record_paths)"),
        ({"topology": "single-plane-64"}, "1 to 1: planes are divided"),
        ({"threads": 5}, "planes are divided, and a thread needs a core"),
        ({"topology": mr.topology.load("multiplane-4x64").replace(explicit_queues=True)}, "explicit queues"),
        ({"topology": mr.topology.load("multiplane-4x64").replace(balance="spray")}, "a balance other than ecmp"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(fields, why):
    with pytest.raises(mr.ConfigError) as refused:
        mr.run(scenario(**{"threads": 2, **fields}))
    message = str(refused.value)
    assert message.startswith("threads: ")
    assert why in message
    assert "\n" not in message


def test_a_checked_scenario_on_several_threads_is_refused_when_it_is_made():
    with pytest.raises(mr.ConfigError, match=r"^check = True: must be off \(-c 0\) with threads = 2"):
        scenario(check=True, threads=2)


@pytest.mark.parametrize("threads", [0, -1, 1.5, 2**32])
def test_a_number_of_threads_that_is_none_is_refused(threads):
    with pytest.raises(mr.ConfigError, match="threads"):
        scenario(threads=threads)


@two_cores
def test_tensors_are_payload_and_not_divided():
    import numpy as np

    tensors = [np.ones(64, np.float32)] * 64
    with pytest.raises(mr.ConfigError, match="threads: 2 is not allowed; allowed: 1 with payload"):
        mr.all_reduce(tensors, threads=2)


@two_cores
def test_the_command_tells_the_same_on_two_threads(capsys, tmp_path):
    told = []
    for threads in ("1", "2"):
        path = tmp_path / threads
        command = ["all_reduce_perf", "-b", "1M", "-e", "1M", "-c", "0", "--loss", "1%", "--threads", threads]
        assert main([*command, "-J", str(path)]) == 0
        document = json.loads(path.read_text())
        told.append((document["results"], document["metaroce"]))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "2"], "check = True: must be off (-c 0) with threads = 2"),
        (["--threads", "0", "-c", "0"], "threads = 0"),
        (["--threads", "two"], "--threads = 'two': must be an integer"),
    ],
)
def test_the_command_refuses_in_one_line(capsys, arguments, message):
    assert main(["all_reduce_perf", "-b", "1M", "-e", "1M", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


@two_cores
def test_many_runs_some_on_two_threads_are_those_of_one_thread():
    given = [scenario(seed=seed, loss="1%", threads=threads) for seed in (1, 2, 3) for threads in (1, 2)]
    results = [result.digest for result in mr.run_many(given, 4)]
    assert results[::2] == results[1::2]
    assert len(set(results)) == 3


def test_runs_at_once_take_no_more_threads_than_there_are_cores(monkeypatch):
    monkeypatch.setattr(simulation, "cores", lambda: 4)
    order = []

    def take(threads):
        with simulation._claim(threads):
            order.append(threads)

    with simulation._claim(3):
        take(1)  # fits beside
        waiting = threading.Thread(target=take, args=(2,))
        waiting.start()
        waiting.join(0.05)
        order.append(0)
    waiting.join()
    assert order == [1, 0, 2]
    take(9)  # alone: the core refuses it


def test_runs_on_one_thread_each_do_not_wait_for_cores(monkeypatch):
    monkeypatch.setattr(simulation, "cores", lambda: 1)
    with simulation._claim(1), simulation._claim(1):
        pass
