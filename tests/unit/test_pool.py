"""Independent runs on all cores: order, errors, Ctrl-C, and the first iteration's payload; on the real core."""

import threading
import time

import pytest

import metaroce as mr
from metaroce import simulation
from metaroce.pool import Pool

SMALL = mr.topology.LeafSpine(
    planes=2, leaves=2, spines=2, hosts_per_leaf=4, link={"rate": "200Gbps", "delay": "600ns", "queue": "1MiB"}
)


def scenario(**fields):
    return mr.Scenario(
        **{"topology": SMALL, "workload": mr.Collective(kind="all_reduce", size="256KiB"), "loss": "1%", **fields}
    )


def stalling(seed):
    down = tuple({"at": "1us", "target": "plane", "id": plane} for plane in (0, 1))
    return scenario(faults=down, seed=seed)


def wait_for_threads(before):
    begun = time.monotonic()
    while threading.active_count() > before:  # bounded by the run's own poll, or the test never ends
        assert time.monotonic() - begun < 60, "a run went on"
        threading.Event().wait(0.01)


def plain(result):
    return result.to_dict()


@pytest.mark.parametrize("workers", [1, 2, 5, None])
def test_many_runs_are_the_same_as_one_after_the_other(workers):
    kinds = ("all_reduce", "alltoall", "all_gather")
    given = [
        scenario(workload=mr.Collective(kind=kind, size="256KiB"), seed=seed, check=seed > 1)
        for seed in (1, 2, 3)
        for kind in kinds
    ]
    serial = [plain(mr.run(each)) for each in given]
    assert [plain(result) for result in mr.run_many(given, workers)] == serial
    assert len({result["digest"] for result in serial}) == len(given)


def test_estimates_are_the_same_side_by_side_and_end_with_the_others():
    given = [scenario(fidelity=fidelity, seed=seed) for seed in (1, 2) for fidelity in ("flow", "packet")]
    assert [plain(result) for result in mr.run_many(given, 2)] == [plain(mr.run(each)) for each in given]
    endless = scenario(fidelity="flow", iterations=10**6)
    before = threading.active_count()
    with pytest.raises(mr.ConfigError):
        mr.run_many([scenario(transport={"kind": "metaroce", "mtu": 1}), endless, endless], 2)
    wait_for_threads(before)


def test_the_first_error_in_the_given_order_is_raised_whatever_ends_first():
    long = stalling(1).replace(workload=mr.Collective(kind="all_reduce", size="4MiB"))
    with pytest.raises(mr.SimulationStalled) as one:
        mr.run(long)
    for workers in (1, 4):
        with pytest.raises(mr.SimulationStalled) as many:
            mr.run_many([scenario(), long, stalling(2), stalling(3)], workers)
        assert str(many.value) == str(one.value)


def test_an_error_ends_what_still_runs():
    endless = scenario(workload=mr.Collective(kind="all_reduce", size="256MiB"), iterations=1000)
    before = threading.active_count()
    with pytest.raises(mr.ConfigError):
        mr.run_many([scenario(transport={"kind": "metaroce", "mtu": 1}), endless, endless], 2)
    wait_for_threads(before)


def test_threads_that_are_none_are_refused():
    with pytest.raises(mr.ConfigError, match="workers = 0"):
        mr.run_many([scenario()], workers=0)


def test_results_wait_for_a_slow_taker_only_so_far():
    made = []
    with Pool(2) as pool:
        taken = pool.map(lambda k: made.append(k) or k, range(100))
        assert next(taken) == 0
        assert len(made) <= 5
        assert list(taken) == list(range(1, 100))


def test_no_runs_are_no_results():
    assert mr.run_many([]) == []


@pytest.mark.parametrize(("iterations", "warmup"), [(1, 0), (3, 0), (2, 2)])
def test_payload_of_the_first_iteration_changes_nothing_of_any(iterations, warmup):
    times = {"iterations": iterations, "warmup": warmup, "seed": 9}
    timed, checked = mr.run(scenario(**times)), mr.run(scenario(**times, check=True))
    assert (checked.wrong, checked.checked) == (0, 8 * 65536)
    assert (checked.digest, checked.iteration_us) == (timed.digest, timed.iteration_us)


@pytest.mark.parametrize("iterations", [1, 3])
def test_a_flipped_byte_of_the_first_iteration_is_found(iterations):
    assert mr.run(scenario(check=True, iterations=iterations, flip_byte_at=100)).wrong > 0


def test_payload_of_all_runs_stays_within_half_of_the_machine_or_goes_alone(monkeypatch):
    monkeypatch.setattr(simulation, "_machine_bytes", lambda: 20)
    order = []

    def take(size):
        with simulation._room(size):
            order.append(size)

    with simulation._room(5):
        take(5)  # both fit
        waiting = threading.Thread(target=take, args=(100,))
        waiting.start()
        waiting.join(0.05)
        order.append(0)
    waiting.join()
    assert order == [5, 0, 100]
