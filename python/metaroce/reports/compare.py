"""Collectives × transports × losses: which runs a comparison needs, and running them.

Every cell is timed without payload; each one that finishes is run once more with real payload and compared element by
element, at the same size where ranks × memory fits, otherwise at the largest halving of it that does. The loss-free
cell of a transport is the reference of its others and sets their limit: a run 50 times slower is stopped and reported
as a bound, never hidden. Results do not depend on the number of threads; only progress does.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from .. import simulation
from ..errors import SimulationStalled
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
        """False when a cell failed or any element was wrong. A bound is a result."""
        return all(cell.status != "failed" and not cell.wrong for cell in self.cells)

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
    """Runs jobs on a pool of threads (the core releases the GIL) and collects their cells.

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
        self._workers = workers or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._workers)
        self._payload = ThreadPoolExecutor(1)  # one thread: the core keeps a thread's memory for its next run
        self._on_done = on_done
        self._running: dict[Future[Result], Callable[[Future[Result]], None]] = {}
        self._to_time: deque[int] = deque()
        self._to_check: deque[int] = deque()
        self._checking = False
        self._cells: dict[int, Cell] = {}
        self._reference: dict[tuple[str, str, str], Result | None] = {}

    @staticmethod
    def runs(jobs: Sequence[Job]) -> int:
        """How many runs the jobs take at most: what a progress bar counts to."""
        return len(jobs) + sum(job.checked is not None for job in jobs)

    def cells(self) -> list[Cell]:
        """Run everything and return the cells in job order.

        Raises
        ------
        KeyboardInterrupt
            At once; runs that have begun go on in their threads until they end.
        """
        try:
            self._to_time.extend(index for index, job in enumerate(self._jobs) if job.loss == 0)
            self._start()
            while self._running:
                for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                    self._running.pop(future)(future)
                    self._on_done()
                self._start()
        finally:
            self._pool.shutdown(wait=False)
            self._payload.shutdown(wait=False)
        return [self._cells[index] for index in range(len(self._jobs))]

    def _start(self) -> None:
        """Fill the workers; checks first, since only one of them runs at a time."""
        while len(self._running) < self._workers:
            if self._to_check and not self._checking:
                self._check(self._to_check.popleft())
            elif self._to_time:
                self._time(self._to_time.popleft())
            else:
                return

    def _time(self, index: int) -> None:
        job = self._jobs[index]
        reference = self._reference.get(job.group)
        scenario = job.timed
        if reference is not None:
            scenario = scenario.replace(time_limit=BOUND_FACTOR * int(reference.time_ps))
        self._running[self._pool.submit(self._run, scenario)] = lambda future: self._timed(index, future)

    def _timed(self, index: int, future: Future[Result]) -> None:
        job = self._jobs[index]
        cell = _cell(job, future)
        if job.loss == 0:
            reference = future.result() if cell.status == "done" else None
            self._reference[job.group] = reference
            for other, candidate in enumerate(self._jobs):
                if candidate.group == job.group and candidate.loss != 0:
                    self._to_time.append(other)
        self._cells[index] = _against(cell, self._reference[job.group])
        if cell.status == "done" and job.checked is not None:
            self._to_check.append(index)
        elif job.checked is not None:
            self._on_done()  # a cell that did not finish is not checked

    def _check(self, index: int) -> None:
        checked = self._jobs[index].checked
        assert checked is not None, "only jobs with a checked scenario are queued"
        self._checking = True
        self._running[self._payload.submit(self._run, checked)] = lambda future: self._checked(index, future)

    def _checked(self, index: int, future: Future[Result]) -> None:
        self._checking = False
        cell = self._cells[index]
        try:
            result = future.result()
        except SimulationStalled as stalled:
            self._cells[index] = replace(cell, reason=f"the run with payload did not finish: {stalled}")
        else:
            self._cells[index] = replace(cell, wrong=result.wrong)


def _cell(job: Job, future: Future[Result]) -> Cell:
    seed = job.timed.seed
    named = Cell(job.collective, job.transport, job.profile, job.loss, seed, status="failed")
    try:
        result = future.result()
    except SimulationStalled as stalled:
        partial: Result | None = stalled.result
        if partial is None:
            return replace(named, reason=str(stalled))
        return replace(
            named,
            reason=str(stalled),
            retransmitted=partial.retransmitted,
            timeouts=partial.timeouts,
            digest=partial.digest,
            **_pauses(partial),
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
