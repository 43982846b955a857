"""Published results beside what the model gives: the sweep, where a published figure lies on it, the shape's verdict.

A shape passes or fails; a figure is only located. A figure measured on other machines under a loss nobody defined is
never reproduced, whatever the sweep contains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from typing import Any

from ... import simulation
from ...errors import ConfigError, SimulationStalled
from ...pool import Pool
from ...scenario import Scenario
from .ahead import m7
from .baselines import p3, p4
from .beside import m4
from .bystanders import p5, p6, p8
from .incast import r6
from .loss import r1, r2, r3
from .model import Check, Finding, Measure, Row, Setup, Sheets, Target, failures
from .onesided import m3
from .planes import r4, r5
from .rack import m1, m2
from .ratios import m5, m8
from .recovery import p10, p11, p12
from .triggered import m6

TARGETS: Mapping[str, Callable[[bool], Target]] = {
    "R1": r1,
    "R2": r2,
    "R3": r3,
    "R4": r4,
    "R5": r5,
    "R6": r6,
    "P3": p3,
    "P4": p4,
    "P5": p5,
    "P6": p6,
    "P8": p8,
    "P10": p10,
    "P11": p11,
    "P12": p12,
    "M1": m1,
    "M2": m2,
    "M3": m3,
    "M4": m4,
    "M5": m5,
    "M6": m6,
    "M7": m7,
    "M8": m8,
}
"""How to make each target; the argument asks for the quick form, smaller and coarser.

R: what Meta published of MetaRoCE. P: what others published of the transports beside it. M: what Meta published of MTIA
300 and its collective library.
"""
GROUPS: Mapping[str, Sequence[str]] = {letter: [name for name in TARGETS if name[0] == letter] for letter in "RPM"}
"""Names that stand for several targets."""
SEEDS = 3

Key = tuple[str, Measure, int]


@dataclass(frozen=True)
class Outcome:
    """A target with its rows, sheet by sheet, and what its judge found."""

    target: Target
    sheets: Sequence[Sequence[Row]]
    finding: Finding

    @property
    def passed(self) -> bool:
        """Whether every statement about the shape holds."""
        return all(check.passed for check in self.finding.checks)


@dataclass(frozen=True)
class Report:
    """All outcomes in the order asked for, with what defines them."""

    version: str
    seeds: Sequence[int]
    quick: bool
    outcomes: Sequence[Outcome]

    @property
    def failed(self) -> list[str]:
        """Names of the targets whose shape does not hold."""
        return [outcome.target.name for outcome in self.outcomes if not outcome.passed]


class Reproducing:
    """The runs that some targets need, and running them.

    Parameters
    ----------
    names
        Of `TARGETS` and `GROUPS`, in any case; none: all of them.
    seeds
        How many, from 1; at least 1. None: `SEEDS`, quick: 1.
    quick
        Smaller sizes and fewer points: the same statements in a few minutes.

    Raises
    ------
    ConfigError
        For a target that is none, or no seed.
    """

    def __init__(self, names: Sequence[str] = (), *, seeds: int | None = None, quick: bool = False) -> None:
        asked = [name.upper() for name in names] or list(TARGETS)
        wanted = list(dict.fromkeys(one for name in asked for one in GROUPS.get(name, (name,))))
        if unknown := [name for name in wanted if name not in TARGETS]:
            raise ConfigError.unknown("target", unknown[0], [*TARGETS, *GROUPS])
        count = (1 if quick else SEEDS) if seeds is None else seeds
        if count < 1:
            raise ConfigError.of("seeds", count, "must be at least 1")
        self.quick, self.seeds = quick, range(1, count + 1)
        self.targets = [TARGETS[name](quick) for name in wanted]
        setups = [setup for target in self.targets for sheet in target.sheets for setup in sheet.setups]
        pairs = dict.fromkeys((text, s.measure) for s in setups for text in (s.reference, s.scenario) if text)
        self.keys: list[Key] = [(*pair, seed) for pair in reversed(pairs) for seed in self.seeds]

    def report(self, version: str, *, on_done: Callable[[], None] = lambda: None, workers: int | None = None) -> Report:
        """Run everything, ``workers`` at a time (default: one a core), and judge.

        ``on_done`` is called in this thread after every one of `keys`.
        """
        measured: dict[Key, dict[str, float]] = {}
        with Pool(workers) as pool:
            futures = {pool.submit(_measured, key): key for key in self.keys}
            for future in as_completed(futures):
                measured[futures[future]] = future.result()
                on_done()
        outcomes = [self._outcome(target, measured) for target in self.targets]
        return Report(version, list(self.seeds), self.quick, outcomes)

    def _outcome(self, target: Target, measured: Mapping[Key, dict[str, float]]) -> Outcome:
        sheets = [[self._row(setup, measured) for setup in sheet.setups] for sheet in target.sheets]
        finding = target.judge(sheets)
        return Outcome(target, sheets, replace(finding, checks=(*finding.checks, *_ended(sheets))))

    def _row(self, setup: Setup, measured: Mapping[Key, dict[str, float]]) -> Row:
        each = [measured[setup.scenario, setup.measure, seed] for seed in self.seeds]
        values = {name: [run[name] for run in each] for name in each[0]}
        if setup.reference:
            values["reference"] = [measured[setup.reference, setup.measure, seed]["busbw"] for seed in self.seeds]
            values["kept"] = [
                own / (setup.times * reference)
                for own, reference in zip(values["busbw"], values["reference"], strict=True)
            ]
        return Row(setup, values)


def subject_of(text: str, seed: int) -> Any:
    """What a table's text stands for: a scenario, or any value of a model."""
    import metaroce

    return eval(text, {"mr": metaroce, "S": seed})  # text of this package: a table cannot state anything else


def _measured(key: Key) -> dict[str, float]:
    text, measure, seed = key
    subject = subject_of(text, seed)
    if not isinstance(subject, Scenario):
        return measure(subject)
    try:
        return measure(simulation.run(subject))
    except SimulationStalled as stalled:
        return measure(stalled.result)


def _ended(sheets: Sheets) -> list[Check]:
    """What no figure of metaroce is worth without."""
    rivals = ("'rocev2", "'mrc'")
    own = [
        row
        for rows in sheets
        for row in rows
        if "stopped" in row.values and not any(name in row.setup.scenario for name in rivals)
    ]
    stopped = failures(
        own, lambda row: not sum(row.values["stopped"]), lambda row: f"{sum(row.values['stopped']):.0f} runs"
    )
    return [Check("every run of metaroce ends by itself, none stalls", stopped)] if own else []


def number(value: float) -> float | None:
    """A value for a document: null for what never happened."""
    return value if math.isfinite(value) else None
