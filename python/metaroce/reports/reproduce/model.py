"""What a target is made of: setups to run, what is measured in each, and who judges the shape of it all.

A setup states what it is about as Python text over `mr`, the package, and S, the seed, and that text is what is
measured: a table cannot state anything else. Where the text is a `Scenario`, it is run and its `Result` measured; any
other value, as what a model of `metaroce.offload.models` gives, is measured as it is. The same text with the same
measure is made once, however many targets ask for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ...result import Result

Measure = Callable[[Any], dict[str, float]]
"""Figures of a run's `Result`, or of whatever else the text of a setup is."""
MIB = 1 << 20


def scenario(workload: str, **fields: object) -> str:
    """The text of a scenario; a `Raw` value is Python text already."""
    given = {"workload": Raw(workload), **fields, "seed": Raw("S")}
    return f"mr.Scenario({', '.join(f'{name}={value!r}' for name, value in given.items())})"


class Raw(str):
    """Text that stands for itself in a scenario."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def standard(result: Result) -> dict[str, float]:
    """Bandwidths, time and repairs of any run; of an AllToAll whose entries were recorded, completion times.

    ``fct_…_us`` count from the start of the run, where all messages of the direct AllToAll start;
    a message that did not end in a run that was stopped never ends.
    """
    values = {
        "busbw": result.busbw_gbs,
        "of_line": result.of_line_rate,
        "time_us": result.time_us,
        "resent": result.retransmitted,
        "timeouts": float(result.timeouts),
        "stopped": float(result.status != "done"),
    }
    if result.wqe_placed_ps is not None and result.collective == "alltoall":
        placed = result.wqe_placed_ps[result.wqe_placed_ps < 1 << 63].astype(float)  # others are no messages, or open
        ended = np.append(placed, [math.inf] * (result.ranks * (result.ranks - 1) - len(placed)))
        values["fct_mean_us"] = float(ended.mean()) / 1e6
        for name, share in (("fct_p50_us", 50), ("fct_p99_us", 99)):
            values[name] = float(np.percentile(ended, share, method="inverted_cdf")) / 1e6
    return values


@dataclass(frozen=True)
class Setup:
    """One row of a sheet; ``kept`` is its busbw over ``times`` that of the scenario ``reference``."""

    labels: tuple[str, ...]
    scenario: str
    measure: Measure = standard
    reference: str = ""
    times: float = 1.0
    goal: str = ""
    """What this project wants of the row (*ours*); stated, not part of the shape."""


@dataclass(frozen=True)
class Figure:
    """A column of measured values; ``bound`` is what a run that was stopped shows before it."""

    key: str
    heading: str
    unit: str = ""
    form: str = "{:.2f}"
    bound: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table: label columns, measured columns, setups."""

    title: str
    labels: tuple[str, ...]
    figures: tuple[Figure, ...]
    setups: tuple[Setup, ...]


@dataclass(frozen=True)
class Row:
    """A setup with what was measured, one value a seed."""

    setup: Setup
    values: Mapping[str, Sequence[float]]

    def median(self, key: str) -> float:
        """The median over the seeds; infinite for what never happened."""
        return median(self.values[key])

    @property
    def name(self) -> str:
        """The labels in one line."""
        return ", ".join(self.setup.labels)


@dataclass(frozen=True)
class Check:
    """A statement about the shape, and where it does not hold (empty: it does)."""

    statement: str
    failures: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the statement holds."""
        return not self.failures


@dataclass(frozen=True)
class Finding:
    """What the model gives, in a sentence or two, where a published figure lies in it, and the checks of its shape."""

    gives: str
    located: str
    checks: tuple[Check, ...]


Sheets = Sequence[Sequence[Row]]


@dataclass(frozen=True)
class Target:
    """One published result: what was published, on what it is tried here, and who judges."""

    name: str
    published: str
    setup: str
    sheets: tuple[Sheet, ...]
    judge: Callable[[Sheets], Finding]


def failures(rows: Sequence[Row], holds: Callable[[Row], bool], told: Callable[[Row], str]) -> tuple[str, ...]:
    """``told`` of the rows for which ``holds`` is not true, named by their labels."""
    return tuple(f"{row.name}: {told(row)}" for row in rows if not holds(row))
