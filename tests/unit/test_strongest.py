"""The search for the strongest RoCEv2: what it tries, when it stops, what it finds; with a stand-in for the simulator."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from metaroce.cli import main
from metaroce.config import TRANSPORTS, TransportChoice
from metaroce.errors import ConfigError, SimulationStalled
from metaroce.reports import strongest
from metaroce.reports.strongest import AXES, BUDGET, FINALISTS, Strongest, Task, named


@dataclass(frozen=True)
class FakeScenario:
    size: int
    transport: Any = None
    time_limit: int | None = None

    def replace(self, **changes):
        return replace(self, **changes)


def task(loss=0.01, size=4, small=1, collective="all_reduce"):
    full = FakeScenario(size)
    return Task(collective, loss, full if small == size else FakeScenario(small), full)


class Fake:
    """Takes `time(overrides, fabric)` µs times the size, and remembers what it was asked."""

    def __init__(self, time):
        self.time = time
        self.asked = []

    def __call__(self, scenario):
        self.asked.append(scenario)
        time_us = float(self.time(scenario.transport.overrides, scenario.transport.fabric) * scenario.size)
        if scenario.time_limit is not None and time_us * 1e6 > scenario.time_limit:
            return SimpleNamespace(status="bound", time_us=scenario.time_limit / 1e6, plane_bytes=[100])
        return SimpleNamespace(status="done", time_us=time_us, plane_bytes=[100])


def separable(overrides, fabric):
    """Every setting has its own best value."""
    return 1_000 + sum(
        [
            0 if overrides.get("timeout_exponent") == 6 else 50,
            0 if fabric.get("balance") == "pinned" else 200,
            0 if overrides.get("qps") == 16 else 30,
            0 if overrides.get("window_percent") == 100 else 20,
            0 if overrides.get("dcqcn") == "off" else 10,
        ]
    )


def test_the_best_of_every_setting_is_found_and_named():
    [found] = Strongest(run=Fake(separable)).find([task()])
    assert found.name == "go-back-N, timer 262 us, pinned routes, 16 QPs, window 100%, no DCQCN"
    assert found.choice.overrides.items() >= {"qps": 16, "timer": "fixed", "dcqcn": "off"}.items()
    assert found.choice.fabric == {"balance": "pinned"}
    assert found.choice.profile == "strongest"
    assert found.outcome.time_us == 4 * 1_000


def test_every_value_of_every_setting_is_tried_within_the_usual_budget():
    fake = Fake(separable)
    [found] = Strongest(run=fake).find([task()])
    tried = [s.transport for s in fake.asked]
    for values in AXES.values():
        for value in values:
            assert any(
                value.transport.items() <= t.overrides.items() and value.fabric.items() <= t.fabric.items()
                for t in tried
            ), value
    assert found.screened < BUDGET


def test_what_is_found_is_never_weaker_than_a_transport_with_a_name():
    def time(overrides, fabric):
        # Only the named one leaves the window unset.
        return 10 if overrides == TRANSPORTS["rocev2-67ms"].overrides else 100

    for small in (1, 4):
        [found] = Strongest(run=Fake(time)).find([task(small=small)])
        assert (found.name, found.outcome.time_us) == ("rocev2-67ms", 40.0)


def test_a_budget_bounds_the_screening_and_the_finals_are_few():
    for budget in (1, 2, 7, 30):
        fake = Fake(separable)
        searching = Strongest(run=fake, budget=budget)
        [found] = searching.find([task()])
        screening = [s for s in fake.asked if s.size == 1]
        assert len(screening) == found.screened <= budget
        assert len(fake.asked) - len(screening) == len(found.finals) <= FINALISTS + len(named())
        assert len(fake.asked) <= searching.runs([task()])
    with pytest.raises(ConfigError, match="--budget = 0"):
        Strongest(budget=0)


def test_runs_are_stopped_when_they_are_slower_than_the_best_so_far():
    fake = Fake(separable)
    Strongest(run=fake, workers=1).find([task()])
    limits = [s.time_limit for s in fake.asked if s.size == 1]
    assert limits[0] is None
    known = [limit for limit in limits if limit is not None]
    assert len(known) >= len(limits) - 3, "all but the first of each recovery"
    assert known == sorted(known, reverse=True)
    assert known[-1] == 1_000 * 10**6


def test_a_lossy_search_begins_at_a_multiple_of_the_loss_free_time_whatever_the_order():
    fake = Fake(separable)
    found = Strongest(run=fake).find([task(loss=0.01), task(loss=0.0)])
    assert [f.task.loss for f in found] == [0.01, 0.0]
    assert {s.time_limit for s in fake.asked} >= {50 * 1_000 * 10**6}


def test_the_number_of_threads_changes_nothing():
    one, four = (
        [f.to_dict() for f in Strongest(run=Fake(separable), workers=n).find([task(loss=0.0), task()])] for n in (1, 4)
    )
    assert one == four


def test_what_the_fabric_refuses_is_left_out_and_counted():
    def run(scenario):
        if scenario.transport.fabric.get("balance") == "pinned":
            raise ConfigError("fabric.links.queue_bytes: too small")
        return Fake(separable)(scenario)

    [found] = Strongest(run=run).find([task()])
    assert found.refused > 0
    assert "pinned" not in found.name
    assert f"{found.refused} candidates refused" in list(strongest.notes([found], 80))[-1]


def test_what_stalls_is_the_weakest_and_other_errors_are_not_swallowed():
    def run(scenario):
        if scenario.transport.overrides.get("timeout_exponent") != 14:
            raise SimulationStalled([], 5, None)
        return Fake(separable)(scenario)

    [found] = Strongest(run=run).find([task()])
    assert "timer 67 ms" in found.name
    assert found.outcome.status == "done"
    with pytest.raises(ZeroDivisionError):
        Strongest(run=lambda scenario: 1 // 0).find([task()])


def test_nothing_that_finishes_gives_what_delivered_most():
    def run(scenario):
        more = scenario.transport.overrides.get("qps") == 4
        return SimpleNamespace(status="bound", time_us=10.0, plane_bytes=[200 if more else 100])

    [found] = Strongest(run=run).find([task(small=4)])
    assert found.outcome.status == "bound"
    assert "4 QPs" in found.name


def test_recoveries_come_and_go_with_the_transports_that_have_them(monkeypatch):
    for name in ("rocev2-sr", "rocev2-pfc"):
        monkeypatch.delitem(TRANSPORTS, name, raising=False)
    assert strongest.grid()["recovery"] == ["go-back-N"]
    monkeypatch.setitem(TRANSPORTS, "rocev2-sr", TransportChoice("rocev2", "sr", {"recovery": "sr"}))
    monkeypatch.setitem(TRANSPORTS, "rocev2-pfc", TransportChoice("rocev2", "pfc", {}, {"lossless": True}))

    def lossless(overrides, fabric):
        return separable(overrides, fabric) - 500 * fabric.get("lossless", False)

    fake = Fake(lossless)
    [found] = Strongest(run=fake).find([task()])
    assert found.name.startswith("go-back-N, lossless class, timer 262 us, pinned routes")
    assert found.choice.fabric == {"lossless": True, "balance": "pinned"}
    # The others are tuned all the same: which recovery wins may hang on any setting.
    selective = [s.transport.overrides for s in fake.asked if s.transport.overrides.get("recovery") == "sr"]
    assert any(overrides["qps"] == 16 for overrides in selective if "qps" in overrides)
    # It has timers of its own.
    assert {o["rto_low_ps"] for o in selective if "rto_low_ps" in o} == {25 * 10**6, 50 * 10**6, 100 * 10**6}
    assert not any("timer" in overrides for overrides in selective)
    assert "timer of selective repeat" in strongest.grid()
    assert found.screened <= BUDGET


def test_a_small_workload_is_searched_as_it_is():
    fake = Fake(separable)
    searching = Strongest(run=fake)
    [found] = searching.find([task(size=1, small=1)])
    assert list(found.finals) == []
    assert {s.size for s in fake.asked} == {1}
    assert len(fake.asked) <= searching.runs([task(size=1, small=1)])


def test_compare_shows_the_strongest_with_its_settings(capsys):
    pytest.importorskip("metaroce._core", reason="the compiled core is not built")
    command = [
        "compare",
        "alltoall",
        "-b",
        "256KiB",
        "--ranks",
        "8",
        "--loss",
        "1%",
        "--transport",
        "metaroce",
        "rocev2",
    ]
    search = ["--baseline", "strongest", "--budget", "9"]
    assert main([*command, *search, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    baseline = document["baseline"]
    assert (baseline["budget"], baseline["screened_at"]) == (9, {"alltoall": "256KiB"})
    assert [s["loss"] for s in baseline["searches"]] == [0.0, 0.01]
    cells = {cell["profile"]: cell for cell in document["cells"]}
    assert list(cells) == ["default", "adaptive", "67ms", "strongest"]
    assert cells["strongest"]["time_us"] <= min(cells[p]["time_us"] for p in ("adaptive", "67ms"))
    assert cells["strongest"]["wrong"] == 0
    assert main([*command, *search]) == 0
    out = capsys.readouterr().out
    assert f"strongest RoCEv2, alltoall at loss 1%: {baseline['searches'][1]['settings']}" in out
    runs = sum(s["screening_runs"] for s in baseline["searches"])
    assert f"searched by {runs} screening runs, at most 9 a cell" in out


def test_options_of_the_search_mean_something_or_are_refused(capsys):
    for arguments, told in [
        (["--budget", "9"], "--budget = 9: only with --baseline strongest"),
        (["--baseline", "strongest", "--budget", "0"], "--budget = 0: must be at least 1"),
        (["--baseline", "weakest"], "--baseline = 'weakest'"),
    ]:
        assert main(["compare", "alltoall", *arguments]) == 2
        assert told in capsys.readouterr().err
