"""The nccl-tests commands: one row a size, out of place and in place, each half really run.

A simulated iteration without loss repeats exactly, so one iteration without warm-up is the default here (nccl-tests: 20
and 1). Rows are printed as they come; a size that stalls leaves a `#` line, the sweep goes on, the exit status is 1.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..errors import ConfigError, SimulationStalled
from ..units import parse_size
from .options import IgnoredOptions, PerfOptions, ScenarioOptions, TransportOptions, dtype_name, faults
from .telemetry import Telemetry

if TYPE_CHECKING:
    from ..reports.nccl import Row, Run
    from ..reports.sweep import Case
    from ..result import Result
    from ..scenario import Scenario

_PERF, _SCENARIO, _TRANSPORT, _IGNORED = PerfOptions(), ScenarioOptions(), TransportOptions(), IgnoredOptions()
_MATRIX_VARIABLE = "NCCL_TESTS_ALLTOALLV_MATRIX_FILE"
_FLOOR_VARIABLE = "NCCL_TESTS_MIN_BW"


def all_reduce_perf(
    perf: PerfOptions = _PERF,
    scenario: ScenarioOptions = _SCENARIO,
    transport: TransportOptions = _TRANSPORT,
    ignored: IgnoredOptions = _IGNORED,
) -> int:
    """AllReduce (ring) in the manner of nccl-tests."""
    return _Sweep("all_reduce", perf, scenario, transport, ignored).run()


def reduce_scatter_perf(
    perf: PerfOptions = _PERF,
    scenario: ScenarioOptions = _SCENARIO,
    transport: TransportOptions = _TRANSPORT,
    ignored: IgnoredOptions = _IGNORED,
) -> int:
    """ReduceScatter (ring) in the manner of nccl-tests."""
    return _Sweep("reduce_scatter", perf, scenario, transport, ignored).run()


def all_gather_perf(
    perf: PerfOptions = _PERF,
    scenario: ScenarioOptions = _SCENARIO,
    transport: TransportOptions = _TRANSPORT,
    ignored: IgnoredOptions = _IGNORED,
) -> int:
    """AllGather (ring) in the manner of nccl-tests."""
    return _Sweep("all_gather", perf, scenario, transport, ignored).run()


def alltoall_perf(
    perf: PerfOptions = _PERF,
    scenario: ScenarioOptions = _SCENARIO,
    transport: TransportOptions = _TRANSPORT,
    ignored: IgnoredOptions = _IGNORED,
) -> int:
    """AllToAll (direct) in the manner of nccl-tests; in place it is timed and never checked, as there."""
    return _Sweep("alltoall", perf, scenario, transport, ignored).run()


def alltoallv_perf(
    perf: PerfOptions = _PERF,
    scenario: ScenarioOptions = _SCENARIO,
    transport: TransportOptions = _TRANSPORT,
    ignored: IgnoredOptions = _IGNORED,
    *,
    matrix: Annotated[
        str | None,
        Parameter(
            help="File with a square matrix of bytes, row i column j = rank i to rank j.", env_var=_MATRIX_VARIABLE
        ),
    ] = None,
) -> int:
    """AllToAllV (direct) in the manner of nccl-tests; without a matrix all pairs exchange the same number of bytes."""
    return _Sweep("alltoallv", perf, scenario, transport, ignored, _matrix(matrix) if matrix else None).run()


@dataclass
class _Sweep:
    """One command: its options, then what accumulates while the rows are made."""

    collective: str
    perf: PerfOptions
    scenario: ScenarioOptions
    transport: TransportOptions
    ignored: IgnoredOptions
    matrix: list[list[int]] | None = None
    rows: list[Row] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    digests: list[tuple[str, str]] = field(default_factory=list)
    telemetry: Telemetry | None = None
    pauses: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    """Of a lossless class: by size, the pauses of both halves."""

    def run(self) -> int:
        """Print the table; returns the exit status."""
        from ..pool import Pool
        from ..reports import nccl

        self.ignored.report()
        if self.perf.op != "sum":
            raise ConfigError.of("--op", self.perf.op, "must be sum")
        begun, floor, cases = _now(), _floor(), self._cases()
        about = self._about(cases)
        self.telemetry = Telemetry.of(self.perf.telemetry, several=len(cases) > 1)
        target = _JsonFile(self.perf.json) if self.perf.json else None
        for text in nccl.prologue(about):
            print(text)
        with Pool(self.perf.workers) as pool:
            halves = [half for case in cases for half in (case.out_of_place, case.in_place)]
            made = pool.map(self._half, halves)
            for case in cases:
                self._row(case, [next(made), next(made)])
        totals = nccl.Totals.of(self.rows, floor)
        for text in nccl.epilogue(totals, about.program):
            print(text)
        if target:
            extra: dict[str, Any] = {"scenario": list(about.notes), "digests": self.digests}
            extra |= {"pauses": self.pauses} if self.pauses else {}
            document = nccl.to_json(
                about, self.rows, totals, args=sys.argv, times=(begun, _now()), errors=self.errors, extra=extra
            )
            target.write(document)
        return 1 if totals.wrong or not totals.fast_enough or self.errors else 0

    def _cases(self) -> list[Case]:
        """All rows, refused now if any cannot run; sizes too small to give every rank an element are left out."""
        from ..reports.sweep import case

        found: list[Case] = []
        refused: ConfigError | None = None
        for size in self._sizes():
            try:
                workload = self._workload(size)
                found.append(case(workload, self._check() > 0, self._options()))
            except ConfigError as error:
                if error.field not in ("size", "matrix") or self.matrix:
                    raise
                refused = error
        if not found and refused:
            raise refused
        return found

    def _sizes(self) -> list[int]:
        from ..reports.sweep import sizes

        if self.matrix:
            return [0]
        smallest = parse_size(self.perf.minbytes, "--minbytes")
        largest = (
            max(smallest, parse_size("32M"))
            if self.perf.maxbytes is None
            else parse_size(self.perf.maxbytes, "--maxbytes")
        )
        return sizes(smallest, largest, parse_size(self.perf.stepbytes, "--stepbytes"), self.perf.stepfactor)

    def _workload(self, size: int) -> dict[str, Any]:
        from ..reports.sweep import uniform_matrix

        workload: dict[str, Any] = {"kind": self.collective, "dtype": dtype_name(self.perf.datatype)}
        if self.collective != "alltoallv":
            return workload | {"size": size}
        return workload | {"matrix": self.matrix or uniform_matrix(size, self._ranks())}

    def _options(self) -> dict[str, Any]:
        return {
            **self.scenario.scenario(),
            "ranks": len(self.matrix) if self.matrix and self.scenario.ranks is None else self.scenario.ranks,
            "transport": self.transport.transport,
            "loss": {"probability": self.transport.loss, **self.scenario.loss_options()},
            "faults": faults(self.transport.fault),
            "fidelity": self.transport.fidelity,
            "iterations": self.perf.iters,
            "warmup": self.perf.warmup_iters,
            "threads": self.perf.threads,
            **({"engine": self.perf.engine} if self.perf.engine else {}),
            **({"check_memory": self.scenario.check_memory} if self.scenario.check_memory else {}),
        }

    def _check(self) -> int:
        """A fluid has no elements to compare."""
        return self.perf.check if self.transport.fidelity == "packet" else 0

    def _ranks(self) -> int:
        from .. import topology

        return self.scenario.ranks or topology.load(self.scenario.topology).accelerators

    def _about(self, cases: list[Case]) -> Run:
        from .. import __version__
        from ..flow import NOTE
        from ..reports import nccl
        from ..reports.plan import loss_definition
        from ..reports.topology import headline

        first, perf = cases[0].in_place, self.perf
        return nccl.Run(
            program=f"{self.collective}_perf",
            version=__version__,
            ranks=first.rank_count,
            min_bytes=cases[0].size,
            max_bytes=cases[-1].size,
            step=perf.stepfactor if perf.stepfactor > 1 else parse_size(perf.stepbytes),
            step_is_factor=perf.stepfactor > 1,
            warmup_iters=perf.warmup_iters,
            iters=perf.iters,
            check=self._check(),
            hosts=[f"host{host}" for host in first.hosts_of_ranks()],
            notes=[
                f"topology {headline(first.topology)}",
                f"transport {self.transport.transport}, placement {first.placed}, seed {first.seed}",
                f"loss {self.transport.loss}: {loss_definition(self.scenario.loss_options())}",
                *(f"fault {text}" for text in self.transport.fault),
                *([f"engine {self.perf.engine}"] if self.perf.engine else []),
                *([f"fidelity flow: {NOTE}"] if self.transport.fidelity == "flow" else []),
            ],
        )

    def _half(self, scenario: Scenario) -> Result | SimulationStalled:
        from .. import simulation

        try:
            return simulation.run(self.telemetry.recorded(scenario) if self.telemetry else scenario)
        except SimulationStalled as stalled:
            return stalled

    def _row(self, case: Case, made: Sequence[Result | SimulationStalled]) -> None:
        from ..reports import nccl, sweep

        if case.remark:
            print(f"# {case.remark}")
        halves = [half for half in made if not isinstance(half, SimulationStalled)]
        if self.telemetry:
            for half in halves:
                self.telemetry.write(half)
        if stalled := [half for half in made if isinstance(half, SimulationStalled)]:
            self.errors.append(f"size {case.size}: {stalled[0]}")
            print(f"# {self.errors[-1]}", flush=True)
            return
        row = sweep.row(case, halves)
        self.rows.append(row)
        self.digests.append((halves[0].digest, halves[1].digest))
        print(nccl.line(row), flush=True)
        if any(half.pauses for half in halves):
            self.pauses[str(case.size)] = [half.pauses for half in halves]
            text = ", ".join(
                f"{sum(port['count'] for port in half.pauses)} ({half.paused_us:.1f} us of all ports)"
                for half in halves
            )
            print(f"# pauses out of place, in place: {text}", flush=True)


class _JsonFile:
    """The file of `-J`, made before the sweep so that a bad path is refused at once; a taken name gets a number."""

    def __init__(self, name: str) -> None:
        if Path(name).is_dir():
            raise ConfigError.of("--json", name, "must be a file, is a directory")
        for path in (Path(name), *(Path(f"{name}.{number}") for number in range(1000))):
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError.of("--json", name, f"must be a file that can be made: {error.strerror}") from None
            self.path = path
            print(f"# Writing JSON output to {path}")
            return
        raise ConfigError.of(
            "--json", name, "must be a file that does not exist yet, or have fewer than 1000 successors"
        )

    def write(self, document: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(document) + "\n")


def _matrix(name: str) -> list[list[int]]:
    from ..reports.sweep import read_matrix

    try:
        return read_matrix(Path(name).read_text(), name)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError.of("--matrix", name, f"must be a readable file: {reason}") from None


def _floor() -> float | None:
    text = os.environ.get(_FLOOR_VARIABLE, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise ConfigError.of(_FLOOR_VARIABLE, text, "must be a number of GB/s") from None


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
