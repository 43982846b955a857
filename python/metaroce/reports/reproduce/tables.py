"""A report as text: one summary table and the sheets behind it, for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from ..plan import loss_definition
from ..render import Column, Table
from . import Outcome, Report, number
from .model import Figure, Row, Sheet

MODEL = "MetaRoCE-style model, independent, not affiliated with Meta"
SOURCE = "Meta, MetaRoCE: A New RDMA Transport Built for AI-Scale Ethernet, engineering article of 2026-08-24"
RULE = "A shape passes or fails; a published figure is only located on the curve and never counts as reproduced."
OTHERS = (
    "named with each; second-hand: read in a text that quotes it; abstract: no more of it was read; nothing of it was "
    "measured here"
)
ACCELERATORS = (
    "Meta, engineering article of 2026-08-24; MTIA 300, ISCA 2026, doi 10.1109/ISCA66397.2026.00085; HCCL, arXiv "
    "2608.00358; the papers read through public summaries"
)
_SOURCES = {"R": SOURCE, "P": OTHERS, "M": ACCELERATORS}
_ON_PLANES = (
    "multiplane-4x64 (64 hosts, 4 planes x 200 Gbit/s, 8 leaves and 8 spines a plane), unless a row says otherwise"
)
_ON_RACKS = (
    "M: racks of 16 MTIA 300, 8 NICs of 800 Gbit/s up and 2 out, or as a row says; no loss; figures of accelerators "
    "and their sources: metaroce offload hardware"
)
_CHECKS = "M: rows are those of the table of checks in docs/offload.md; inputs are called inputs and prove nothing"


def header(report: Report) -> list[str]:
    """What defines the report, a line each."""
    quick = ", quick form: smaller sizes, fewer points" if report.quick else ""
    return [
        f"metaroce {report.version} reproduce: {MODEL}{quick}",
        *(f"published  {line}" for line in _sources(report)),
        f"seeds      {', '.join(map(str, report.seeds))}; medians, with the range in brackets",
        *([f"fabric     {_ON_PLANES}"] if set(_groups(report)) != {"M"} else []),
        *([f"fabric     {_ON_RACKS}"] if "M" in _groups(report) else []),
        *([f"loss       {_lost()}"] if set(_groups(report)) != {"M"} else []),
        f"rule       {RULE}",
        *([f"           {_CHECKS}"] if "M" in _groups(report) else []),
    ]


def _groups(report: Report) -> list[str]:
    """R, P, M, as far as they are in it."""
    return list(dict.fromkeys(outcome.target.name[0] for outcome in report.outcomes))


def _lost() -> str:
    return f"{loss_definition({})}, unless a row says otherwise"


def summary(report: Report) -> Table:
    """One row a target: published, what the model gives, where the figure lies, the verdict on the shape."""
    columns = [
        Column("", right=False),
        Column("published", right=False, width=30),
        Column("this model gives", right=False, width=36),
        Column("where the published figure lies", right=False, width=34),
        Column("shape", right=False),
    ]
    rows = [
        [o.target.name, o.target.published, o.finding.gives, o.finding.located, _verdict(o.passed)]
        for o in report.outcomes
    ]
    return Table(columns, rows, styles=["" if o.passed else "red" for o in report.outcomes])


def checks(outcome: Outcome) -> Table:
    """The statements about a shape, and where they do not hold."""
    rows = [[_verdict(check.passed), check.statement + _failures(check.failures)] for check in outcome.finding.checks]
    columns = [Column("shape", right=False), Column("statement (thresholds: ours)", right=False, width=106)]
    return Table(columns, rows, styles=["" if check.passed else "red" for check in outcome.finding.checks])


def sheets(outcome: Outcome) -> Iterator[Table]:
    """The sheets of a target, medians over the seeds."""
    for sheet, rows in zip(outcome.target.sheets, outcome.sheets, strict=True):
        columns = [Column(name, right=False) for name in sheet.labels]
        columns += [Column(figure.heading, figure.unit) for figure in sheet.figures]
        texts = [[*row.setup.labels, *(_median(row, figure) for figure in sheet.figures)] for row in rows]
        yield Table(columns, texts, title=sheet.title)


def plain(report: Report) -> Iterator[str | Table]:
    """Lines and tables in order, for `metaroce.reports.render`."""
    yield from (line for text in header(report) for line in _wrapped(text, " " * 11))
    yield ""
    yield summary(report)
    for outcome in report.outcomes:
        yield ""
        yield from _wrapped(f"{outcome.target.name}: {outcome.target.setup}", " " * 4)
        yield checks(outcome)
        for table in sheets(outcome):
            yield ""
            yield table


def markdown(report: Report, command: str) -> Iterator[str]:
    """The page, line by line; each row with its scenario as Python text, where S is the seed."""
    quick = " Quick form: smaller sizes, fewer points." if report.quick else ""
    yield from (
        "# Results",
        "",
        f"{MODEL}; metaroce {report.version}. Made by `{command}`.{quick}",
        "",
        *(f"Published: {line}." for line in _sources(report)),
        f"{RULE} Thresholds of shapes are ours.",
        "",
        f"Medians of seeds {', '.join(map(str, report.seeds))}, the range in brackets; S in a scenario is the seed.",
        *([f"Fabric: {_ON_PLANES}; one rank a host, random placement."] if set(_groups(report)) != {"M"} else []),
        *([f"{_ON_RACKS}.", f"{_CHECKS}."] if "M" in _groups(report) else []),
        *([f"Loss: {_lost()}."] if set(_groups(report)) != {"M"} else []),
        "Line rate is that of payload, all ports of a host together.",
        "`<` and `>`: a run that was stopped, a bound.",
        "",
        *_grid(summary(report)),
    )
    for outcome in report.outcomes:
        target = outcome.target
        yield from ("", f"## {target.name}", "", f"Published: {target.published}.", "", f"Here: {target.setup}.", "")
        yield from (f"- **{_verdict(c.passed)}**: {c.statement}{_failures(c.failures)}" for c in outcome.finding.checks)
        yield f"- Located: {outcome.finding.located}."
        for sheet, rows in zip(target.sheets, outcome.sheets, strict=True):
            yield from ("", f"### {sheet.title}", "", *_grid(_full(sheet, rows)))


def to_dict(report: Report) -> dict[str, Any]:
    """The document that `--json` prints; what never happened is null."""
    return {
        "model": MODEL,
        "version": report.version,
        "source": "; ".join(_sources(report)),
        "rule": RULE,
        "seeds": list(report.seeds),
        "quick": report.quick,
        "loss_definition": loss_definition({}),
        "failed": report.failed,
        "targets": [_target(outcome) for outcome in report.outcomes],
    }


def _sources(report: Report) -> list[str]:
    """Of R, Meta's article alone; those of P are as many as targets; of M three, two of them second-hand."""
    return [f"{name}: {_SOURCES[name]}" for name in _groups(report)]


def _target(outcome: Outcome) -> dict[str, Any]:
    finding = outcome.finding
    return {
        "target": outcome.target.name,
        "published": outcome.target.published,
        "setup": outcome.target.setup,
        "passed": outcome.passed,
        "gives": finding.gives,
        "located": finding.located,
        "shape": [{"statement": c.statement, "passed": c.passed, "failures": list(c.failures)} for c in finding.checks],
        "sheets": [
            {"title": sheet.title, "rows": [_row(sheet, row) for row in rows]}
            for sheet, rows in zip(outcome.target.sheets, outcome.sheets, strict=True)
        ],
    }


def _row(sheet: Sheet, row: Row) -> dict[str, Any]:
    return {
        "labels": dict(zip(sheet.labels, row.setup.labels, strict=True)),
        "scenario": row.setup.scenario,
        "reference": row.setup.reference or None,
        "values": {
            name: {"median": number(row.median(name)), "seeds": [number(value) for value in values]}
            for name, values in row.values.items()
        },
    }


def _full(sheet: Sheet, rows: Sequence[Row]) -> Table:
    """A sheet with ranges, goals where there are any, and scenarios."""
    goals = any(row.setup.goal for row in rows)
    heads = [*sheet.labels, *(f"{f.heading} {f.unit}".strip() for f in sheet.figures)]
    texts = [
        [
            *row.setup.labels,
            *(_ranged(row, figure) for figure in sheet.figures),
            *([row.setup.goal] if goals else []),
            f"`{row.setup.scenario}`",
        ]
        for row in rows
    ]
    runs = any("mr.Scenario" in row.setup.scenario for row in rows)
    said = "scenario" if runs else "expression"
    return Table([Column(head) for head in (*heads, *(["wanted (ours)"] if goals else []), said)], texts)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 120, subsequent_indent=indent)


def _grid(table: Table) -> Iterator[str]:
    yield _line([column.name for column in table.columns])
    yield _line(["---"] * len(table.columns))
    yield from (_line(row) for row in table.rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _median(row: Row, figure: Figure) -> str:
    bound = figure.bound if any(row.values.get("stopped", ())) else ""
    return bound + _text(row.median(figure.key), figure)


def _ranged(row: Row, figure: Figure) -> str:
    values = row.values[figure.key]
    middle = _median(row, figure)
    least, most = (_text(value, figure) for value in (min(values), max(values)))
    return middle if least == most else f"{middle} ({least} - {most})"


def _text(value: float, figure: Figure) -> str:
    return figure.form.format(value) if math.isfinite(value) else "never"


def _failures(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    more = f"; and {len(texts) - 6} more" if len(texts) > 6 else ""
    return ". Not: " + "; ".join(texts[:6]) + more


def _verdict(passed: bool) -> str:
    return "pass" if passed else "FAIL"
