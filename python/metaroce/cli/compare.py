"""`metaroce compare`: the main job. Cells run on all cores; tables come when all are done, in the order asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import ConfigError
from .options import ScenarioOptions, Workers, whole
from .progress import progress

if TYPE_CHECKING:
    from ..reports.compare import Comparison
    from ..reports.plan import Plan
    from ..reports.strongest import Found

_SCENARIO = ScenarioOptions()
_TRANSPORTS = (
    "Names that `metaroce profile list` shows; rocev2 is rocev2-adaptive and rocev2-67ms. "
    "[default: metaroce mrc rocev2-sr rocev2-pfc rocev2-adaptive rocev2-67ms]"
)
_Several = Parameter(consume_multiple=True, negative=(), show_default=" ".join)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BaselineOptions:
    """Whether a baseline is searched beside those that are named."""

    baseline: Annotated[
        Literal["strongest"] | None,
        Parameter(help="strongest: for each cell, also search RoCEv2's settings on the same seed for the best."),
    ] = None
    budget: Annotated[
        int | None, Parameter(converter=whole, help="Screening runs of such a search at most. [default: 80]")
    ] = None

    def of(self, plan: Plan) -> _Search | None:
        """The search; refused now if it cannot be made."""
        if self.baseline is None and self.budget is not None:
            raise ConfigError.of("--budget", self.budget, "only with --baseline strongest")
        return _Search(plan, self.budget) if self.baseline else None


_BASELINE = BaselineOptions()


def compare(
    *collectives: Annotated[
        str, Parameter(help="all_reduce reduce_scatter all_gather alltoall [default: all_reduce alltoall]")
    ],
    size: Annotated[str, Parameter(name=["--size", "-b"], help="Bytes a rank, as nccl-tests counts them.")] = "64MiB",
    datatype: Annotated[
        str, Parameter(name=["--datatype", "-d"], help="float double half bfloat16 int32 int8.")
    ] = "float",
    loss: Annotated[tuple[str, ...], _Several, Parameter(help="Probabilities, as 0.01 or 1%.")] = (
        "0",
        "0.1%",
        "1%",
        "10%",
    ),
    transport: Annotated[
        tuple[str, ...],
        _Several,
        Parameter(help=_TRANSPORTS, show_default=False),
    ] = (),
    search: BaselineOptions = _BASELINE,
    scenario: ScenarioOptions = _SCENARIO,
    workers: Workers = None,
    out: Annotated[str | None, Parameter(help="Directory for compare.json and compare.svg.")] = None,
    as_json: Annotated[
        bool, Parameter(name="--json", negative=(), help="Print compare.json instead of tables.")
    ] = False,
) -> int:
    """Run collectives at several losses over several transports and print them side by side."""
    from .. import __version__
    from ..reports.compare import Comparing, Comparison
    from ..reports.plan import CHECK_MEMORY, COLLECTIVES, DEFAULT, Plan
    from .options import dtype_name

    plan = Plan(
        collectives=collectives or COLLECTIVES,
        size=size,
        dtype=dtype_name(datatype),
        losses=loss,
        transports=transport or DEFAULT,
        loss_options=scenario.loss_options(),
        check_memory=scenario.check_memory or CHECK_MEMORY,
        options=scenario.scenario(),
    )
    jobs = plan.jobs()
    searching = search.of(plan)
    folder = _folder(out) if out else None
    if searching:
        jobs += plan.baseline_jobs(searching.make(workers))
    with progress(Comparing.runs(jobs), "comparing", workers) as advance:
        cells = Comparing(jobs, workers=workers, on_done=advance).cells()
    shown = [cell for cell, job in zip(cells, jobs, strict=True) if job.shown]
    result = Comparison(plan.scenario_dict(jobs), __version__, shown, searching.document() if searching else None)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        _print(result, plan.header(jobs, __version__), searching.notes() if searching else ())
    if folder:
        _write(result, folder)
    return 0 if result.all_right else 1


class _Search:
    """The search for the strongest baseline, its progress, and what is said of it."""

    def __init__(self, plan: Plan, budget: int | None) -> None:
        from ..reports.strongest import BUDGET, Strongest

        self._search = Strongest(budget=BUDGET if budget is None else budget)
        self._tasks = plan.tasks()
        self._found: list[Found] = []

    def make(self, workers: int | None) -> list[Found]:
        self._search.workers = workers
        with progress(self._search.runs(self._tasks), "searching", workers) as advance:
            self._search.on_done = advance
            self._found = self._search.find(self._tasks)
        return self._found

    def document(self) -> dict[str, Any]:
        from ..reports.strongest import document

        return document(self._search, self._found)

    def notes(self) -> Iterator[str]:
        from ..reports.strongest import notes

        yield from notes(self._found, self._search.budget)


def _print(result: Comparison, header: list[str], found: Iterable[str]) -> None:
    from ..reports import compare_table, render

    for text in header:
        print(text)
    for table in compare_table.tables(result.cells):
        print()
        render.show(table, sys.stdout)
    print()
    for text in (*compare_table.notes(result.cells), *found, f"digest {result.digest}"):
        print(text)


def _folder(out: str) -> Path:
    """The directory, made now: a run of a minute must not end in a refusal."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError.of("--out", out, f"must be a directory that can be made: {error.strerror}") from None
    return folder


def _write(result: Comparison, folder: Path) -> None:
    from ..reports.plot import write_svg

    (folder / "compare.json").write_text(json.dumps(result.to_dict(), indent=2) + "\n")
    write_svg(result, folder / "compare.svg")
    print(f"wrote {folder / 'compare.json'} and {folder / 'compare.svg'}", file=sys.stderr)
