"""`metaroce reproduce`: published results beside what the model gives; it also keeps docs/results.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..errors import ConfigError
from .options import Whole
from .progress import progress

if TYPE_CHECKING:
    from ..reports.reproduce import Report

_SUFFIXES = (".md", ".json")
_Switch = Parameter(negative=())


def reproduce(
    *targets: Annotated[
        str, Parameter(help="R1 .. R6, P3 P4 P5 P6 P8 P10 P11 P12, M1 .. M8; R, P or M: all of those. [default: all]")
    ],
    seeds: Annotated[
        Whole | None, Parameter(help="Seeds 1 .. N; figures are medians over them. [default: 3; quick: 1]")
    ] = None,
    quick: Annotated[
        bool, _Switch, Parameter(help="Smaller sizes and fewer points: the same in a few minutes.")
    ] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), help="Print one JSON document.")] = False,
    markdown: Annotated[bool, _Switch, Parameter(help="Print Markdown, every row with its scenario.")] = False,
    out: Annotated[str | None, Parameter(help="Also write a file, Markdown (.md) or JSON (.json).")] = None,
) -> int:
    """Try each published result on the model: the sweep, where its figure lies, pass or fail of the shape.

    R is what Meta published of MetaRoCE, P what others published of the transports beside it, M what Meta published of
    MTIA 300 and its collectives on message engines.
    """
    from .. import __version__
    from ..reports.reproduce import Reproducing

    if as_json and markdown:
        raise ConfigError.of("--json", "with --markdown", "at most one of --json, --markdown")
    work = Reproducing(targets, seeds=seeds, quick=quick)
    file = _file(out) if out else None
    with progress(len(work.keys), "reproducing") as advance:
        report = work.report(str(__version__), on_done=advance)
    command = " ".join(
        ["metaroce reproduce", *targets, *([f"--seeds {seeds}"] if seeds else []), *(["--quick"] if quick else [])]
    )
    if file:
        file.write_text(_document(report, command, file.suffix) + "\n")
        print(f"wrote {file}", file=sys.stderr)
    if as_json or markdown:
        print(_document(report, command, ".json" if as_json else ".md"))
    else:
        _print(report)
    if report.failed:
        print(f"metaroce: shape fails: {', '.join(report.failed)}", file=sys.stderr)
    return 1 if report.failed else 0


def _document(report: Report, command: str, suffix: str) -> str:
    from ..reports.reproduce import tables

    if suffix == ".json":
        return json.dumps(tables.to_dict(report), indent=1)
    return "\n".join(tables.markdown(report, command))


def _print(report: Report) -> None:
    from ..reports import render
    from ..reports.reproduce import tables

    for part in tables.plain(report):
        if isinstance(part, str):
            print(part)
        else:
            render.show(part, sys.stdout)


def _file(name: str) -> Path:
    """The file, looked at now: a run of minutes must not end in a refusal."""
    path = Path(name)
    if path.suffix not in _SUFFIXES:
        raise ConfigError.of("--out", name, f"must end in {' or '.join(_SUFFIXES)}")
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError.of("--out", name, f"must be a file that can be written: {error.strerror}") from None
    return path
