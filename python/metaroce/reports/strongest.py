"""The strongest RoCEv2 for one workload, one loss and one fabric: a bounded search over what its users can set.

A baseline is worth what its settings are worth, so they are searched rather than believed. Every way of recovery that
there is (go-back-N, selective repeat, a lossless class) is tuned by itself, one setting after the other; the best of
them goes through all settings once more. This screening is done at a quarter of the size, on the seed of the table, and
pruned: from its second round on a run is stopped once it is slower than the best so far, and a search ends when it has
used up its budget. The best few then run in full against every RoCEv2 that has a name, so that what is found is never
weaker than one of those. Results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import simulation
from ..config import TRANSPORTS, TransportChoice
from ..errors import ConfigError, SimulationStalled
from ..pool import Pool
from ..result import Result
from ..scenario import Scenario
from ..units import format_size
from .compare import BOUND_FACTOR, Run

KIND, PROFILE = "rocev2", "strongest"
BUDGET = 80
"""Screening runs of a search at most (*ours*): what two passes over the whole grid take."""
FINALISTS = 3
"""How many of the screened run in full (*ours*)."""
SCREEN_SHARE, SCREEN_LEAST = 4, 1 << 20
"""Screening is done at one in so many bytes, if that leaves so many (*ours*)."""


class Value(NamedTuple):
    """One value of a setting: how it is called, and what it changes of the transport and of the switches."""

    label: str
    transport: dict[str, Any]
    fabric: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


RECOVERIES: Mapping[str, str] = {
    "go-back-N": "rocev2-adaptive",
    "selective repeat": "rocev2-sr",
    "go-back-N, lossless class": "rocev2-pfc",
}
"""Ways of recovery, and the named transports that have them; those without a transport are left out."""

AXES: Mapping[str, tuple[Value, ...]] = {
    "timer": (
        Value("adaptive timer", {"timer": "adaptive"}),
        Value("timer 67 ms", {"timer": "fixed", "timeout_exponent": 14}),
        Value("timer 1 ms", {"timer": "fixed", "timeout_exponent": 8}),
        Value("timer 262 us", {"timer": "fixed", "timeout_exponent": 6}),
        Value("timer 66 us", {"timer": "fixed", "timeout_exponent": 4}),
        Value("timer 33 us", {"timer": "fixed", "timeout_exponent": 3}),
    ),
    "balance": (
        Value("fabric as it is", {}),
        Value("flowlets", {}, {"balance": "flowlet"}),
        Value("least-queue spraying", {}, {"balance": "spray-least"}),
        Value("pinned routes", {}, {"balance": "pinned"}),
    ),
    "qps": (
        Value("8 QPs a plane", {"qps_per_plane": 8}),
        Value("1 QP", {"qps": 1}),
        Value("4 QPs", {"qps": 4}),
        Value("8 QPs", {"qps": 8}),
        Value("16 QPs", {"qps": 16}),
        Value("32 QPs", {"qps": 32}),
    ),
    "window": (
        Value("window 25%", {"window_percent": 25}),
        Value("window 50%", {"window_percent": 50}),
        Value("window 100%", {"window_percent": 100}),
        Value("window 200%", {"window_percent": 200}),
        Value("no window", {"window_percent": 0}),
    ),
    "dcqcn": (
        Value("DCQCN of NICs", {"dcqcn": "nic"}),
        Value("DCQCN of the paper", {"dcqcn": "paper"}),
        Value("no DCQCN", {"dcqcn": "off"}),
    ),
}
"""What is searched, in this order; the first value of each is where a search begins. Windows are of a QP and in percent
of its port's bandwidth-delay product. The shortest timers are below what users of NICs report (2 ms); the verbs allow
them. E-ECMP is no axis: ports are hashed, and hashing the QP too adds nothing."""


TIMERS: Mapping[str, tuple[Value, ...]] = {
    "selective repeat": tuple(
        Value(f"timers {low} and {high} us", {"rto_low_ps": low * 10**6, "rto_high_ps": high * 10**6})
        for low, high in ((100, 320), (50, 160), (25, 80))
    ),
}
"""Timers of those that have their own: few packets in flight, and more. The first are IRN's."""


def axes(recovery: str) -> list[tuple[Value, ...]]:
    """What is searched of a way of recovery."""
    return [TIMERS.get(recovery, values) if axis == "timer" else values for axis, values in AXES.items()]


@dataclass(frozen=True)
class Settings:
    """One point of the grid; without values, the one where a search begins."""

    recovery: str
    values: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        if not self.values:
            object.__setattr__(self, "values", tuple(values[0] for values in axes(self.recovery)))

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return ", ".join((self.recovery, *(value.label for value in self.values)))

    def changed(self, axis: int) -> list[Settings]:
        """All values of one setting, the others kept."""
        own = self.values
        return [Settings(self.recovery, (*own[:axis], v, *own[axis + 1 :])) for v in axes(self.recovery)[axis]]

    def choice(self) -> TransportChoice:
        """The transport."""
        base = TRANSPORTS[RECOVERIES[self.recovery]]
        overrides, fabric = dict(base.overrides), dict(base.fabric)
        for value in self.values:
            overrides |= value.transport
            fabric |= value.fabric
        return TransportChoice(base.kind, PROFILE, overrides, fabric)


@dataclass(frozen=True)
class Outcome:
    """What became of a run: `done`, `bound` (slower than its limit), `failed` or `refused` (not on this fabric)."""

    status: str
    time_us: float | None = None
    rate: float = 0.0
    """Bytes delivered per microsecond."""

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is stronger: by time if done, else by what was delivered."""
        order = ("done", "bound", "failed", "refused").index(self.status)
        return (order, self.time_us or 0.0) if self.status == "done" else (order, -self.rate)


@dataclass(frozen=True)
class Task:
    """A search to make: one collective at one loss, to screen and in full (the same where it is small)."""

    collective: str
    loss: float
    screened: Scenario
    full: Scenario

    @classmethod
    def of(cls, full: Scenario) -> Task:
        """From the scenario of a cell; its transport does not matter."""
        workload: Any = full.workload
        size = full.program().size_bytes // SCREEN_SHARE
        small = full.replace(workload=workload.replace(size=size)) if size >= SCREEN_LEAST else full
        return cls(workload.name, full.loss.probability, small, full)


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    task: Task
    name: str
    """The settings in words, or the name of the transport in `TRANSPORTS`."""
    choice: TransportChoice
    outcome: Outcome
    screened: int
    """Screening runs made."""
    finals: Sequence[tuple[str, Outcome]] = ()
    """Runs in full, in the order of running."""
    refused: int = 0
    """Candidates that the fabric refused, as a queue without room for headroom; they are not in the other numbers."""

    def to_dict(self) -> dict[str, Any]:
        """As in `compare.json`."""
        return {
            "collective": self.task.collective,
            "loss": self.task.loss,
            "settings": self.name,
            "transport": self.choice.spec(),
            "fabric": self.choice.fabric,
            "screening_runs": self.screened,
            "refused": self.refused,
            "finals": [{"settings": name, "status": o.status, "time_us": o.time_us} for name, o in self.finals],
        }


@dataclass
class Strongest:
    """Searches, one task after the other, on a pool of threads.

    Parameters
    ----------
    budget
        Screening runs of a task at most.
    run
        What runs a scenario.
    workers
        How many runs at a time; default one a core.
    on_done
        Called after every finished run.
    """

    budget: int = BUDGET
    run: Run | None = None
    workers: int | None = None
    on_done: Callable[[], None] = field(default=lambda: None)
    _lossfree: dict[str, float] = field(default_factory=dict)
    """Best loss-free time of each collective when screened, us."""

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ConfigError.of("--budget", self.budget, "must be at least 1")

    def runs(self, tasks: Sequence[Task]) -> int:
        """How many runs the tasks take at most."""
        finals = sum(task.screened is not task.full for task in tasks) * FINALISTS
        return finals + (self.budget + len(named())) * len(tasks)

    def find(self, tasks: Iterable[Task]) -> list[Found]:
        """Make all searches; those without loss first, since their times bound the others."""
        given = list(tasks)
        found = {id(task): self._search(task) for task in sorted(given, key=lambda task: task.loss)}
        return [found[id(task)] for task in given]

    def _search(self, task: Task) -> Found:
        race = _Race(self, task.screened, self.budget, self._limit(task))
        if task.screened is task.full:
            race.enter(list(named().items()), free=True)
        leaders = [Settings(recovery) for recovery in recoveries()]
        race.enter(_entries(leaders))
        for axis in range(len(AXES)):
            race.enter(_entries(value for leader in leaders for value in leader.changed(axis)))
            leaders = [min(_of(race, leader.recovery), key=race.rank) for leader in leaders]
        best = min(leaders, key=race.rank)
        for axis in range(len(AXES)):
            race.enter(_entries(best.changed(axis)))
            best = min(_of(race, best.recovery), key=race.rank)
        order = sorted(race.seen, key=race.rank)
        if task.loss == 0 and (time := race.seen[order[0]][1].time_us) is not None:
            self._lossfree[task.collective] = time
        if task.screened is task.full:
            return _found(task, race)
        finals = _Race(self, task.full, FINALISTS, self._limit(task, SCREEN_SHARE))
        finals.enter([(entry, race.seen[entry][0]) for entry in order[:FINALISTS]])
        finals.enter(list(named().items()), free=True)
        return _found(task, race, finals)

    def _limit(self, task: Task, times: int = 1) -> float | None:
        lossfree = self._lossfree.get(task.collective)
        return times * BOUND_FACTOR * lossfree if task.loss and lossfree else None


class _Race:
    """Runs of one scenario over many transports, each stopped when it is slower than the best of the rounds before."""

    def __init__(self, owner: Strongest, scenario: Scenario, budget: int, limit_us: float | None) -> None:
        self._owner, self._scenario, self._left, self._limit = owner, scenario, budget, limit_us
        self.seen: dict[Any, tuple[TransportChoice, Outcome]] = {}
        self.made = self.refused = 0

    def enter(self, entries: Sequence[tuple[Any, TransportChoice]], free: bool = False) -> None:
        """Run those not seen yet, as far as the budget goes; `free` ones cost nothing of it."""
        new = list({entry: choice for entry, choice in entries if entry not in self.seen}.items())
        chosen = new if free else new[: self._left]
        self._left -= 0 if free else len(chosen)
        with Pool(self._owner.workers) as pool:
            outcomes = pool.map(lambda pair: self._one(pair[1]), chosen)
            for (entry, choice), outcome in zip(chosen, outcomes, strict=True):
                self.seen[entry] = (choice, outcome)
                self.refused += outcome.status == "refused"
                self.made += outcome.status != "refused"
                self._owner.on_done()
        best = [o.time_us for _, o in self.seen.values() if o.status == "done" and o.time_us is not None]
        self._limit = min(best, default=self._limit)

    def rank(self, entry: Any) -> tuple[float, float]:
        """How strong an entry is; one that the budget left out is the weakest."""
        return self.seen[entry][1].rank if entry in self.seen else (9.0, 0.0)

    def _one(self, choice: TransportChoice) -> Outcome:
        limit = None if self._limit is None else max(1, int(self._limit * 1e6))
        try:
            result: Result = (self._owner.run or simulation.run)(
                self._scenario.replace(transport=choice, time_limit=limit)
            )
        except SimulationStalled as stalled:
            partial: Result | None = stalled.result
            delivered = sum(partial.plane_bytes) / partial.time_us if partial and partial.time_us else 0.0
            return Outcome("failed", None, delivered)
        except ConfigError:
            return Outcome("refused")
        return Outcome(result.status, result.time_us, sum(result.plane_bytes) / max(result.time_us, 1e-6))


def recoveries() -> list[str]:
    """The ways of recovery that there are."""
    return [label for label, name in RECOVERIES.items() if name in TRANSPORTS]


def named() -> dict[str, TransportChoice]:
    """Every RoCEv2 that has a name."""
    return {name: choice for name, choice in TRANSPORTS.items() if choice.kind == KIND}


def grid() -> dict[str, list[str]]:
    """The labels of all that is searched."""
    own = {f"timer of {recovery}": values for recovery, values in TIMERS.items() if recovery in recoveries()}
    labels = {axis: [value.label for value in values] for axis, values in {**AXES, **own}.items()}
    return {"recovery": recoveries(), **labels}


def document(searching: Strongest, found: Sequence[Found]) -> dict[str, Any]:
    """The `baseline` of `compare.json`."""
    sizes = {f.task.collective: format_size(f.task.screened.program().size_bytes) for f in found}
    return {
        "name": PROFILE,
        "budget": searching.budget,
        "screened_at": sizes,
        "grid": grid(),
        "searches": [f.to_dict() for f in found],
    }


def notes(found: Sequence[Found], budget: int) -> Iterable[str]:
    """A line a search, and the runs of all of them."""
    for f in found:
        loss = f"{f.task.loss * 100:.6g}%" if f.task.loss else "0"
        yield f"strongest RoCEv2, {f.task.collective} at loss {loss}: {f.name}"
    screened, finals = sum(f.screened for f in found), sum(len(f.finals) for f in found)
    refused = sum(f.refused for f in found)
    out = f", {refused} candidates refused by the fabric" if refused else ""
    yield f"searched by {screened} screening runs, at most {budget} a cell, and {finals} in full{out}"


def _found(task: Task, screening: _Race, finals: _Race | None = None) -> Found:
    last = finals or screening
    name = min(last.seen, key=last.rank)
    choice, outcome = last.seen[name]
    shown = [(str(entry), o) for entry, (_, o) in finals.seen.items()] if finals else []
    refused = screening.refused + (finals.refused if finals else 0)
    return Found(task, str(name), choice._replace(profile=PROFILE), outcome, screening.made, shown, refused)


def _entries(settings: Iterable[Settings]) -> list[tuple[Any, TransportChoice]]:
    return [(setting, setting.choice()) for setting in settings]


def _of(race: _Race, recovery: str) -> list[Settings]:
    own = [entry for entry in race.seen if isinstance(entry, Settings) and entry.recovery == recovery]
    return own or [Settings(recovery)]
