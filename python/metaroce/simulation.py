"""Running a scenario: the one place that calls the core.

`run` takes a scenario; `all_reduce` and its kin take tensors and give them back reduced, through the same scenario, the
same program and the same call, so both ways meet the same packets at the same times. Many runs at once: `pool`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import flow
from .collectives import Array, Program
from .engine import Collective
from .errors import ConfigError, SimulationDeadlocked, SimulationStalled
from .result import Result
from .scenario import Scenario
from .units import ELEMENT_BYTES, parse_time


def run(scenario: Scenario) -> Result:
    """Run to the end; raises `ConfigError` for what the core refuses, `SimulationStalled` when nothing can move.

    A checked run moves payload in its first iteration, warm-up included, and compares it at the end of that; the rest
    are timed without, since payload changes nothing that happens. With flow fidelity times are estimates
    (`metaroce.flow`), and there is no payload.
    """
    program = scenario.program()
    if scenario.fidelity == "flow":
        return _result(scenario, program, _estimate(scenario, program))
    note = scenario.check_note(program) if scenario.check else None
    payload = program.payload_columns() if scenario.check and note is None else None
    return replace(_result(scenario, program, _simulate(scenario, program, payload)), check_note=note)


def all_reduce(tensors: Sequence[Array], *, dtype: str | None = None, **scenario: Any) -> tuple[list[Array], Result]:
    """Sum n equal arrays, one a rank; every rank gets the sum. ``scenario`` are fields of `Scenario` but the workload.

    The order of the sums is fixed: `metaroce.collectives.ring`. dtypes float32, float64, float16, int32, int8, and
    uint16 arrays with ``dtype="bfloat16"``. Each input may have any shape.
    """
    given = _Tensors("all_reduce", tensors, dtype)
    return given.run(given.elements, given.elements, given.shape, scenario)


def reduce_scatter(
    tensors: Sequence[Array], *, dtype: str | None = None, **scenario: Any
) -> tuple[list[Array], Result]:
    """Sum n equal arrays and give rank r the r-th of n parts, cut along the first axis; else as `all_reduce`."""
    given = _Tensors("reduce_scatter", tensors, dtype)
    part = given.cut()
    return given.run(given.elements // given.ranks, given.elements // given.ranks, part, scenario)


def all_gather(tensors: Sequence[Array], *, dtype: str | None = None, **scenario: Any) -> tuple[list[Array], Result]:
    """Every rank gets the n equal arrays, joined along the first axis in order of ranks; else as `all_reduce`."""
    given = _Tensors("all_gather", tensors, dtype)
    joined = (given.ranks * given.shape[0], *given.shape[1:]) if given.shape else (given.ranks,)
    return given.run(given.elements, given.elements * given.ranks, joined, scenario)


def alltoall(tensors: Sequence[Array], *, dtype: str | None = None, **scenario: Any) -> tuple[list[Array], Result]:
    """Part r of rank j's array, cut along the first axis, becomes part j of rank r's result; else as `all_reduce`."""
    given = _Tensors("alltoall", tensors, dtype)
    given.cut()
    return given.run(given.elements // given.ranks, given.elements, given.shape, scenario)


class _Tensors:
    """Equal arrays of one dtype, one a rank, on their way through a collective."""

    def __init__(self, kind: str, tensors: Sequence[Array], dtype: str | None) -> None:
        arrays = [np.asarray(tensor) for tensor in tensors]
        if len(arrays) < 2:
            raise ConfigError.of("tensors", len(arrays), "must be at least 2, one a rank")
        self.kind, self.ranks, self.first = kind, len(arrays), arrays[0]
        self.shape, self.elements = self.first.shape, self.first.size
        for k, array in enumerate(arrays):
            if (array.shape, array.dtype) != (self.shape, self.first.dtype):
                raise ConfigError(
                    f"tensors[{k}] = {array.dtype}{array.shape}: must be {self.first.dtype}{self.shape} as the first"
                )
        stored = self.first.dtype.name
        self.dtype = dtype or stored
        wanted = "uint16" if self.dtype == "bfloat16" else self.dtype
        if self.dtype not in ELEMENT_BYTES or stored != wanted:
            names = ", ".join(ELEMENT_BYTES) + ' (uint16 arrays with dtype="bfloat16")'
            raise ConfigError.of(
                "dtype", self.dtype if dtype is None else f"{dtype} of {stored} arrays", f"allowed: {names}"
            )
        if self.elements == 0:
            raise ConfigError.of("tensors", self.shape, "must have at least one element")
        self.arrays = [np.ascontiguousarray(array) for array in arrays]

    def cut(self) -> tuple[int, ...]:
        """The shape of one of n parts."""
        if not self.shape or self.shape[0] % self.ranks:
            raise ConfigError.of("tensors", self.shape, f"first axis must be a multiple of the {self.ranks} ranks")
        return (self.shape[0] // self.ranks, *self.shape[1:])

    def run(
        self, count: int, out_elements: int, out_shape: tuple[int, ...], fields: dict[str, Any]
    ) -> tuple[list[Array], Result]:
        """Place the arrays in the ranks' memory, run, and read the results."""
        workload = Collective(kind=self.kind, dtype=self.dtype, count=count)
        scenario = Scenario(**{"ranks": self.ranks, **fields, "workload": workload})
        if scenario.fidelity != "packet":
            raise ConfigError.of("fidelity", scenario.fidelity, "must be packet: tensors are moved")
        if scenario.rank_count != self.ranks or scenario.iterations + scenario.warmup != 1:
            raise ConfigError("ranks, iterations, warmup: are set by the tensors, one rank each, one iteration")
        program = scenario.program()
        memory = np.zeros((self.ranks, program.memory_bytes), np.uint8)
        for rank, array in enumerate(self.arrays):
            offset = int(program.input_offset[rank])
            memory[rank, offset : offset + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        raw = _simulate(scenario, program, {"memory": memory.ravel()})
        result = _result(scenario, program, raw)
        if result.status != "done":
            raise ConfigError.of(
                "time_limit", scenario.time_limit, f"too short: the run was stopped at {result.time_us:.1f} us"
            )
        final = np.frombuffer(raw["memory"], np.uint8).reshape(memory.shape)
        size = out_elements * self.first.dtype.itemsize
        starts = [int(offset) for offset in program.output_offset]
        outs = [
            final[r, at : at + size].view(self.first.dtype).reshape(out_shape).copy() for r, at in enumerate(starts)
        ]
        return outs, result


def run_on(memory: Array | None, scenario: Scenario, program: Program, **spec: Any) -> dict[str, Any]:
    """Run a program on the ranks' memory, u8[ranks * memory_bytes]; the core's answer as it is (``_core.pyi``).

    None: no payload is moved, only time passes. ``spec`` replaces keys of the specification.
    """
    if scenario.fidelity != "packet":
        raise ConfigError.of("fidelity", scenario.fidelity, "must be packet: memory is moved")
    return _simulate(scenario, program, None if memory is None else {"memory": memory}, spec)


@dataclass(frozen=True, eq=False)
class Rehearsals:
    """What rehearsals found, one value a seed."""

    seeds: Array
    status: list[str]
    """``done``, ``stalled`` (nothing was left that could happen) or ``failed`` (a message did not fit its receive)."""
    wrong: Array
    """Elements that are not as expected."""
    checked: Array
    """Elements compared."""
    rnr: Array
    """Messages that came before their receive was posted."""
    early_bytes: Array
    """Bytes of these: announcements have none."""
    time_ps: Array
    reason: list[str]
    """What did not go on; empty when all is done."""

    @property
    def exact(self) -> bool:
        """Whether all of them ended with nothing wrong."""
        return not self.wrong.any() and all(status == "done" for status in self.status)


def rehearse(
    program: Program,
    seeds: Iterable[int],
    least: int | str = "100ns",
    most: int | str = "20us",
    unit: int | str | None = None,
) -> Rehearsals:
    """Run a program for message engines on a network of random delays, once with each seed, and check the results.

    Each message, and each acknowledgement, takes its own time from ``least`` to ``most`` (picoseconds, or text with a
    unit), mostly short, now and then long; those of one stream stay in order. A COPY or SUM takes up to ``unit`` longer
    than it needs, None: up to ``most``. Half of a message is read when it leaves and the other half when it lands,
    so that entries which do not wait for what they need give wrong elements under some seed. No fabric, no transport.
    """
    from . import _core

    if program.offload is None:
        raise ConfigError.of("program.offload", None, "must be the engines that run the program")
    numbers = np.array(list(seeds), np.uint64)
    delays = {"least_ps": parse_time(least, "least"), "most_ps": parse_time(most, "most")}
    spec = {"memory_bytes": program.memory_bytes, "dtype": program.dtype, "offload": program.offload, **delays}
    if unit is not None:
        spec["unit_ps"] = parse_time(unit, "unit")
    columns = program.columns() | program.payload_columns()
    try:
        with _room(program.ranks * program.memory_bytes):
            raw = _core.rehearse(json.dumps(spec), columns, numbers.tolist(), *_thread.stop)
    except _core.ConfigError as error:
        raise ConfigError(str(error)) from None
    numeric = {name: np.array(raw[name], np.uint64) for name in ("wrong", "checked", "rnr", "early_bytes", "time_ps")}
    return Rehearsals(seeds=numbers, status=raw["status"], reason=raw["reason"], **numeric)


def profiles() -> dict[str, list[dict[str, Any]]]:
    """Every setting and constant of the core with its default, unit, source and range; rows as in ``_core.pyi``."""
    from . import _core

    loaded: dict[str, list[dict[str, Any]]] = json.loads(_core.profiles())
    return loaded


def _result(scenario: Scenario, program: Program, raw: dict[str, Any]) -> Result:
    result = Result.of(scenario, program, raw)
    if result.status in ("stalled", "deadlock"):
        raise stall(result, int(raw["time_ps"]), result.stalled_flows)
    return result


def stall(result: Result, time_ps: int, flows: list[dict[str, Any]]) -> SimulationStalled:
    """What to raise for a run that cannot end."""
    kind = SimulationDeadlocked if result.status == "deadlock" else SimulationStalled
    return kind(flows, time_ps, result)


def _simulate(
    scenario: Scenario, program: Program, payload: dict[str, Array] | None, changes: dict[str, Any] | None = None
) -> dict[str, Any]:
    from . import _core  # here, so that reading and checking scenarios needs no compiled core

    spec, columns = scenario.spec(program) | (changes or {}), program.columns()
    room = 0
    if payload is not None:
        spec["payload"] = {"dtype": program.dtype}
        columns |= payload
        room = program.ranks * program.memory_bytes
    try:
        with _room(room), _claim(scenario.threads):
            return _core.simulate(json.dumps(spec), columns, *_thread.stop)
    except _core.ConfigError as error:
        raise ConfigError(str(error)) from None


def _estimate(scenario: Scenario, program: Program) -> dict[str, Any]:
    from . import _core

    fabric = scenario.topology.fabric
    columns = program.columns() | flow.columns(fabric, scenario.hosts_of_ranks())
    try:
        raw = _core.estimate(
            json.dumps(flow.spec(scenario, program.memory_bytes)), fabric.hosts, columns, *_thread.stop
        )
    except _core.ConfigError as error:
        raise ConfigError(str(error)) from None
    return {"wrong": None, "checked": 0, "plane_bytes": [], "plane_bins": [], **raw}


def stop() -> Any:
    """Something to `set` that ends the runs of the threads that `obey` it."""
    from . import _core

    return _core.Stop()


def obey(stop: Any) -> None:
    """From now on the runs of this thread, which is not the main one, raise KeyboardInterrupt once ``stop`` is set."""
    _thread.stop = (stop,)


class _Thread(threading.local):
    stop: tuple[Any, ...] = ()


_thread = _Thread()


class _Shares:
    """What runs at once take of something that the machine has: each waits till it fits beside the others."""

    def __init__(self) -> None:
        self._taken: list[int] = []
        self._changed = threading.Condition()

    @contextmanager
    def take(self, share: int, fits: Callable[[list[int]], bool]) -> Iterator[None]:
        """Hold ``share`` as soon as there is no other, or ``fits`` says yes to the others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or fits(self._taken))
            self._taken.append(share)
        try:
            yield
        finally:
            with self._changed:
                self._taken.remove(share)
                self._changed.notify_all()


_payload, _cores = _Shares(), _Shares()


def _room(size: int) -> AbstractContextManager[None]:
    """Wait till all payload at once is within half of the machine's memory, or there is none but this."""
    return _payload.take(size, lambda others: sum(others) + size <= _machine_bytes() // 2) if size else nullcontext()


def _claim(threads: int) -> AbstractContextManager[None]:
    """Wait till a run on several threads has as many cores for itself, or till those that run leave one free."""
    # Runs of one thread each are as many as the caller wants.
    return _cores.take(threads, lambda others: max(threads, *others) == 1 or sum(others) + threads <= cores())


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
