"""Two in-order queues, compute and communication: who runs beside whom, how slowly, and what stays exposed.

Rates depend on what runs at once and are constant between two events, so times are exact. A collective's fixed part
(launch, control path) takes nothing of the accelerator and is not slowed; its transfer part is both. A kernel whose
grid is cut into waves is slowed for the part of it that is shared (an approximation: a real wave is not divided).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...errors import ConfigError
from .comm import CommModel, Cost
from .kernels import Device, Kernel, Slowdown, slowdown

COMPUTE, COMMUNICATION = "compute", "communication"


@dataclass(frozen=True)
class Task:
    """A kernel or a collective, in the order of its queue, after the tasks it names."""

    name: str
    work: Kernel | Cost
    after: tuple[str, ...] = ()

    @property
    def queue(self) -> str:
        """Which queue it is in."""
        return COMPUTE if isinstance(self.work, Kernel) else COMMUNICATION

    @property
    def alone_us(self) -> float:
        """Its time with nothing beside it."""
        return self.work.alone_us if isinstance(self.work, Kernel) else self.work.time_us


@dataclass(frozen=True)
class Interval:
    """A stretch of time, us, in which a task ran at a rate (1: as alone)."""

    task: str
    queue: str
    start_us: float
    end_us: float
    rate: float


@dataclass(frozen=True)
class Timeline:
    """What ran when; intervals in the order of their ends."""

    tasks: Sequence[Task]
    intervals: Sequence[Interval]
    start_us: dict[str, float]
    finish_us: dict[str, float]

    @property
    def total_us(self) -> float:
        """The end of the last task."""
        return max(self.finish_us.values(), default=0.0)

    def exposed(self, start_us: float = 0.0, end_us: float = math.inf) -> list[tuple[float, float]]:
        """Spans in which communication runs and compute does not, between two times."""
        busy = [one for one in self.intervals if one.start_us < end_us and one.end_us > start_us]
        marks = sorted({min(max(at, start_us), end_us) for one in busy for at in (one.start_us, one.end_us)})
        spans: list[tuple[float, float]] = []
        for low, high in pairwise(marks):
            running = {one.queue for one in busy if one.start_us <= low and one.end_us >= high}
            if running != {COMMUNICATION}:
                continue
            if spans and spans[-1][1] == low:
                low = spans.pop()[0]
            spans.append((low, high))
        return spans

    def exposed_us(self, start_us: float = 0.0, end_us: float = math.inf) -> float:
        """How long they are together."""
        return sum(high - low for low, high in self.exposed(start_us, end_us))

    def stretch(self, queue: str, names: Sequence[str] = ()) -> float:
        """Time of the tasks of a queue (or those named) over their time alone, without waiting."""
        own = {task.name: task for task in self.tasks if task.queue == queue and (not names or task.name in names)}
        ran = sum(one.end_us - one.start_us for one in self.intervals if one.task in own)
        alone = sum(task.alone_us for task in own.values())
        return ran / alone if alone else 1.0


@dataclass
class _Running:
    task: Task
    fixed_us: float
    left_us: float
    began_us: float
    rate: float = 1.0

    def until(self) -> float:
        """Time to its next event at the present rate."""
        return self.fixed_us if self.fixed_us > 0 else self.left_us / self.rate

    def advance(self, time_us: float, at_event: bool) -> None:
        if self.fixed_us > 0:
            self.fixed_us = 0.0 if at_event else self.fixed_us - time_us
        else:
            self.left_us = 0.0 if at_event else self.left_us - time_us * self.rate


@dataclass
class _State:
    now: float = 0.0
    heads: dict[str, int] = field(default_factory=lambda: {COMPUTE: 0, COMMUNICATION: 0})
    running: dict[str, _Running] = field(default_factory=dict)
    start: dict[str, float] = field(default_factory=dict)
    finish: dict[str, float] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)


def simulate(tasks: Sequence[Task], device: Device, comm: CommModel) -> Timeline:
    """Run the queues to their end.

    Raises
    ------
    ConfigError
        For a name given twice, a time that is none, a task that waits for one that does not exist, or queues that
        wait for each other.
    """
    _check(tasks)
    queues = {name: [task for task in tasks if task.queue == name] for name in (COMPUTE, COMMUNICATION)}
    state = _State()
    while True:
        _start(state, queues)
        if len(state.finish) == len(tasks):
            break
        if not state.running:
            blocked = next(task for task in tasks if task.name not in state.finish)
            waits = [name for name in blocked.after if name not in state.finish]
            raise ConfigError.of("tasks", blocked.name, f"waits for {waits or 'its queue'}, which waits for it")
        _rates(state, device, comm)
        step = min(run.until() for run in state.running.values())
        _advance(state, step)
    return Timeline(tasks, state.intervals, state.start, state.finish)


def _check(tasks: Sequence[Task]) -> None:
    names = {task.name for task in tasks}
    for place, task in enumerate(tasks):
        if any(other.name == task.name for other in tasks[:place]):
            raise ConfigError.of("tasks", task.name, "must be named once")
        if not 0 <= task.alone_us < math.inf:
            raise ConfigError.of(f"{task.name}.alone_us", task.alone_us, "must be at least 0 and finite")
        for name in task.after:
            if name not in names:
                raise ConfigError.unknown(f"{task.name}.after", name, names)


def _start(state: _State, queues: dict[str, list[Task]]) -> None:
    """Start heads that wait for nothing; tasks that take no time end at once and may free others."""
    changed = True
    while changed:
        changed = False
        for queue, tasks in queues.items():
            place = state.heads[queue]
            if queue in state.running or place == len(tasks):
                continue
            task = tasks[place]
            if any(name not in state.finish for name in task.after):
                continue
            state.heads[queue], state.start[task.name], changed = place + 1, state.now, True
            if task.alone_us <= 0:
                state.finish[task.name] = state.now
                continue
            fixed = 0.0 if isinstance(task.work, Kernel) else task.work.fixed_us
            state.running[queue] = _Running(task, fixed, task.alone_us - fixed, state.now)


def _rates(state: _State, device: Device, comm: CommModel) -> None:
    compute, moving = state.running.get(COMPUTE), state.running.get(COMMUNICATION)
    both = Slowdown()
    if moving is not None and moving.fixed_us <= 0 and isinstance(moving.task.work, Cost):
        kernel = compute.task.work if compute is not None and isinstance(compute.task.work, Kernel) else None
        both = slowdown(device, kernel, comm.load(moving.task.work))
    for run, factor in ((compute, both.kernel), (moving, both.collective)):
        if run is not None and run.rate != 1 / factor:
            _cut(state, run)
            run.rate = 1 / factor


def _cut(state: _State, run: _Running) -> None:
    if state.now > run.began_us:
        state.intervals.append(Interval(run.task.name, run.task.queue, run.began_us, state.now, run.rate))
    run.began_us = state.now


def _advance(state: _State, step: float) -> None:
    events = {queue for queue, run in state.running.items() if run.until() <= step}
    state.now += step
    for queue, run in list(state.running.items()):
        run.advance(step, queue in events)
        if run.fixed_us <= 0 and run.left_us <= 1e-9:
            _cut(state, run)
            state.finish[run.task.name] = state.now
            del state.running[queue]
