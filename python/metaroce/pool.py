"""Independent runs on all cores: threads, since a run is one call of the core, which releases the interpreter's lock.

Results are those of one run after the other, in their order, whatever the number of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from . import simulation
from .errors import ConfigError
from .result import Result
from .scenario import Scenario

Given = TypeVar("Given")
Made = TypeVar("Made")


def run_many(scenarios: Iterable[Scenario], workers: int | None = None) -> list[Result]:
    """`run` each scenario, ``workers`` at a time (default: one a core), and return the results in the given order.

    The same results as ``[run(scenario) for scenario in scenarios]``, and the same error: that of the first scenario
    that has one. What is running then, or at Ctrl-C, is ended at once. Payload of checked runs takes half of the
    machine's memory at most, or one run's; others wait. So do runs on several ``threads``, and others beside them, till
    cores are free.
    """
    with Pool(workers) as pool:
        return list(pool.map(simulation.run, scenarios))


class Pool:
    """Threads for runs; a context, whose end by an exception ends what still runs.

    Parameters
    ----------
    workers
        How many runs at a time; default one a core.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ConfigError.of("workers", workers, "must be at least 1")
        self.workers = workers or simulation.cores()
        self._stop = simulation.stop()
        self._threads = ThreadPoolExecutor(self.workers, initializer=simulation.obey, initargs=(self._stop,))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop.set()
        self._threads.shutdown(wait=kind is None, cancel_futures=True)

    def submit(self, make: Callable[[Given], Made], given: Given) -> Future[Made]:
        """Start one as soon as a thread is free."""
        return self._threads.submit(make, given)

    def map(self, make: Callable[[Given], Made], given: Iterable[Given]) -> Iterator[Made]:
        """Make all, and yield them in order as they are ready; at most as many as there are threads wait to be taken.

        Raises
        ------
        Exception
            What the first that fails has raised, when it is its turn.
        """
        ahead: deque[Future[Made]] = deque()
        for each in given:
            if len(ahead) == 2 * self.workers:
                yield ahead.popleft().result()
            ahead.append(self.submit(make, each))
        while ahead:
            yield ahead.popleft().result()
