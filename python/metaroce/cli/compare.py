"""`metaroce compare`: the main job. Cells run on all cores; tables come when all are done, in the order asked for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..errors import ConfigError
from .options import ScenarioOptions
from .progress import progress

if TYPE_CHECKING:
    from ..reports.compare import Comparison

_SCENARIO = ScenarioOptions()
_Several = Parameter(consume_multiple=True, negative=(), show_default=" ".join)


def compare(
    *collectives: Annotated[
        str, Parameter(help="all_reduce reduce_scatter all_gather alltoall [default: all_reduce alltoall]")
    ],
    size: Annotated[str, Parameter(name=["--size", "-b"], help="Bytes a rank, as nccl-tests counts them.")] = "64MiB",
    datatype: Annotated[str, Parameter(name=["--datatype", "-d"], help="float double bfloat16 int32 int8.")] = "float",
    loss: Annotated[tuple[str, ...], _Several, Parameter(help="Probabilities, as 0.01 or 1%.")] = (
        "0",
        "0.1%",
        "1%",
        "10%",
    ),
    transport: Annotated[
        tuple[str, ...], _Several, Parameter(help="metaroce mrc rocev2-adaptive rocev2-67ms; rocev2 is the last two.")
    ] = ("metaroce", "rocev2"),
    scenario: ScenarioOptions = _SCENARIO,
    out: Annotated[str | None, Parameter(help="Directory for compare.json and compare.svg.")] = None,
    as_json: Annotated[
        bool, Parameter(name="--json", negative=(), help="Print compare.json instead of tables.")
    ] = False,
) -> int:
    """Run collectives at several losses over several transports and print them side by side."""
    from .. import __version__
    from ..reports.compare import Comparing, Comparison
    from ..reports.plan import COLLECTIVES, Plan
    from .options import dtype_name

    plan = Plan(
        collectives=collectives or COLLECTIVES,
        size=size,
        dtype=dtype_name(datatype),
        losses=loss,
        transports=transport,
        loss_options=scenario.loss_options(),
        check_memory=scenario.check_memory,
        options=scenario.scenario(),
    )
    jobs = plan.jobs()
    folder = _folder(out) if out else None
    workers = os.cpu_count() or 1
    with progress(Comparing.runs(jobs), "comparing") as advance:
        cells = Comparing(jobs, workers=workers, on_done=advance).cells()
    shown = [cell for cell, job in zip(cells, jobs, strict=True) if job.shown]
    result = Comparison(plan.scenario_dict(jobs), __version__, shown)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        _print(result, plan.header(jobs, __version__))
    if folder:
        _write(result, folder)
    return 0 if result.all_right else 1


def _print(result: Comparison, header: list[str]) -> None:
    from ..reports import compare_table, render

    for text in header:
        print(text)
    for table in compare_table.tables(result.cells):
        print()
        render.show(table, sys.stdout)
    print()
    for text in (*compare_table.notes(result.cells), f"digest {result.digest}"):
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
