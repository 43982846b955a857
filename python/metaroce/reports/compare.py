"""Collectives × transports × losses: which runs a comparison needs, and running them.

Every cell is timed without payload; each one that finishes is run once more with real payload and compared element by
element, at the same size where ranks × memory fits, otherwise at the largest halving of it that does. The loss-free
cell of a transport is the reference of its others and sets their limit: a run 50 times slower is stopped and reported
as a bound, never hidden. Results do not depend on the number of threads; only progress does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from hashlib import sha256
from heapq import heappop, heappush
from time import monotonic
from typing import Any, NamedTuple

from .. import simulation
from ..errors import SimulationStalled
from ..pool import Pool
from ..result import Result
from ..scenario import Scenario

BOUND_FACTOR = 50
"""A cell is stopped at this multiple of its transport's loss-free time (*ours*)."""

Run = Callable[[Scenario], Result]


@dataclass(frozen=True)
class Job:
    """One cell to run: the timed scenario without limit, the scenario with payload, and how the table names them."""

    collective: str
    transport: str
    profile: str
    loss: float
    timed: Scenario
    checked: Scenario | None
    """None where even the smallest size does not fit the memory for checks."""
    shown: bool = True
    """False for a loss-free reference nobody asked to see."""

    @property
    def group(self) -> tuple[str, str, str]:
        """Cells that share a loss-free reference."""
        return (self.collective, self.transport, self.profile)


@dataclass(frozen=True)
class Cell:
    """One finished cell. Times in µs, bandwidths in GB/s (1e9), fractions in 0–1; None where there is no value.

    `status` is `done`, `bound` (stopped at `BOUND_FACTOR`: `time_us` is a lower bound, bandwidths are upper bounds) or
    `failed` (`reason` says why). `wrong` is None where no element was compared.
    """

    collective: str
    transport: str
    profile: str
    loss: float
    seed: int
    status: str
    time_us: float | None = None
    algbw_gbs: float | None = None
    busbw_gbs: float | None = None
    of_lossfree: float | None = None
    of_line_rate: float | None = None
    retransmitted: float | None = None
    timeouts: int | None = None
    wrong: int | None = None
    pauses: int | None = None
    """Pauses of all ports and their time in all; of a lossless class alone."""
    paused_us: float | None = None
    dropped: int | None = None
    """What the lossless class lost all the same."""
    reason: str | None = field(default=None, compare=False)
    digest: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The cell as `compare.json` has it."""
        names = (
            "collective transport profile loss seed status time_us algbw_gbs busbw_gbs "
            "of_lossfree of_line_rate retransmitted timeouts wrong"
        )
        of_lossless = () if self.pauses is None else ("pauses", "paused_us", "dropped")
        return {name: getattr(self, name) for name in (*names.split(), *of_lossless)}


@dataclass(frozen=True)
class Comparison:
    """All cells in the order they were asked for, with what defines them."""

    scenario: Mapping[str, Any]
    version: str
    cells: Sequence[Cell]
    baseline: Mapping[str, Any] | None = None
    """How the strongest baseline was found, if one was searched."""

    @property
    def digest(self) -> str:
        """16 hex digits over the digests of all timed runs and their `wrong`; equal means equal to the last bit."""
        text = "\n".join(
            f"{cell.collective} {cell.transport} {cell.profile} {cell.loss!r} {cell.status} {cell.digest} {cell.wrong}"
            for cell in self.cells
        )
        return sha256(text.encode()).hexdigest()[:16]

    @property
    def all_right(self) -> bool:
        """False when any element was wrong, or a cell failed without loss.

        A bound is a result, and so is a transport that gives up under loss: its row and a note say so.
        """
        return all(not cell.wrong and (cell.status != "failed" or cell.loss > 0) for cell in self.cells)

    def to_dict(self) -> dict[str, Any]:
        """The document `compare.json`."""
        return {
            "scenario": dict(self.scenario),
            "version": self.version,
            "digest": self.digest,
            **({"baseline": dict(self.baseline)} if self.baseline else {}),
            "cells": [cell.to_dict() for cell in self.cells],
        }


class Comparing:
    """Runs jobs on a pool of threads and collects their cells.

    Parameters
    ----------
    jobs
        In the order of the result; each group needs one job with loss 0.
    run
        What runs a scenario; `metaroce.run` unless a test says otherwise.
    workers
        How many runs at a time; default one a core. At most one of them has payload, so that `check_memory` bounds
        the whole.
    on_done
        Called in the calling thread after every finished run.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        run: Run | None = None,
        workers: int | None = None,
        on_done: Callable[[], None] = lambda: None,
    ) -> None:
        self._jobs = jobs
        self._run = run or simulation.run
        self._pool = Pool(workers)
        self._on_done = on_done
        self._running: dict[Future[_Ran], Callable[[_Ran], None]] = {}
        self._to_refer: deque[int] = deque()
        self._to_time: list[tuple[float, int]] = []
        self._to_check: deque[int] = deque()
        self._checking = False
        self._cells: dict[int, Cell] = {}
        self._reference: dict[tuple[str, str, str], Result | None] = {}

    @staticmethod
    def runs(jobs: Sequence[Job]) -> int:
        """How many runs the jobs take at most: what a progress bar counts to."""
        return len(jobs) + sum(job.checked is not None for job in jobs)

    def cells(self) -> list[Cell]:
        """Run everything and return the cells in job order; ends what runs at an error, and at Ctrl-C."""
        with self._pool:
            self._to_refer.extend(index for index, job in enumerate(self._jobs) if job.loss == 0)
            self._start()
            while self._running:
                for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                    self._running.pop(future)(future.result())
                    self._on_done()
                self._start()
        return [self._cells[index] for index in range(len(self._jobs))]

    def _start(self) -> None:
        """Fill the workers.

        Checks first, since only one of them runs at a time; then what the others wait for; then what takes longest, so
        that little is left to do when the first worker has nothing more.
        """
        while len(self._running) < self._pool.workers:
            if self._to_check and not self._checking:
                self._check(self._to_check.popleft())
            elif self._to_refer:
                self._time(self._to_refer.popleft())
            elif self._to_time:
                self._time(heappop(self._to_time)[1])
            else:
                return

    def _submit(self, scenario: Scenario, then: Callable[[_Ran], None]) -> None:
        self._running[self._pool.submit(lambda given: _ran(self._run, given), scenario)] = then

    def _time(self, index: int) -> None:
        job = self._jobs[index]
        reference = self._reference.get(job.group)
        scenario = job.timed
        if reference is not None:
            scenario = scenario.replace(time_limit=BOUND_FACTOR * int(reference.time_ps))
        self._submit(scenario, lambda ran: self._timed(index, ran))

    def _timed(self, index: int, ran: _Ran) -> None:
        job = self._jobs[index]
        cell = _cell(job, ran)
        if job.loss == 0:
            self._reference[job.group] = ran.result if cell.status == "done" else None
            for other, candidate in enumerate(self._jobs):
                if candidate.group == job.group and candidate.loss != 0:
                    # Loss makes a run longer, by its resends alone.
                    heappush(self._to_time, (-ran.seconds * (1 + candidate.loss), other))
        self._cells[index] = _against(cell, self._reference[job.group])
        if cell.status == "done" and job.checked is not None:
            self._to_check.append(index)
        elif job.checked is not None:
            self._on_done()  # a cell that did not finish is not checked

    def _check(self, index: int) -> None:
        checked = self._jobs[index].checked
        assert checked is not None, "only jobs with a checked scenario are queued"
        self._checking = True
        self._submit(checked, lambda ran: self._checked(index, ran))

    def _checked(self, index: int, ran: _Ran) -> None:
        self._checking = False
        cell = self._cells[index]
        if ran.stalled:
            self._cells[index] = replace(cell, reason=f"the run with payload did not finish: {ran.stalled}")
        else:
            self._cells[index] = replace(cell, wrong=ran.result.wrong)


class _Ran(NamedTuple):
    """What became of a run, and how long it took on the clock: so much decides what is run next, and nothing else."""

    result: Result
    stalled: SimulationStalled | None
    seconds: float


def _ran(run: Run, scenario: Scenario) -> _Ran:
    begun = monotonic()
    try:
        return _Ran(run(scenario), None, monotonic() - begun)
    except SimulationStalled as stalled:
        return _Ran(stalled.result, stalled, monotonic() - begun)


def _cell(job: Job, ran: _Ran) -> Cell:
    named = Cell(job.collective, job.transport, job.profile, job.loss, job.timed.seed, status="failed")
    result = ran.result
    if ran.stalled:
        return replace(
            named,
            reason=str(ran.stalled),
            retransmitted=result.retransmitted,
            timeouts=result.timeouts,
            digest=result.digest,
            **_pauses(result),
        )
    return replace(
        named,
        status=result.status,
        time_us=result.time_us,
        algbw_gbs=result.algbw_gbs,
        busbw_gbs=result.busbw_gbs,
        of_line_rate=result.of_line_rate,
        retransmitted=result.retransmitted,
        timeouts=result.timeouts,
        digest=result.digest,
        **_pauses(result),
    )


def _pauses(result: Result) -> dict[str, Any]:
    if "pauses_sent" not in result.counters:
        return {}
    dropped = result.counters["dropped_headroom"] + result.counters["dropped_watchdog"]
    return {"pauses": sum(port["count"] for port in result.pauses), "paused_us": result.paused_us, "dropped": dropped}


def _against(cell: Cell, reference: Result | None) -> Cell:
    """The cell with its share of its own transport's loss-free bandwidth."""
    if cell.busbw_gbs is None or reference is None or not reference.busbw_gbs:
        return cell
    return replace(cell, of_lossfree=cell.busbw_gbs / reference.busbw_gbs)
