"""A sweep over message sizes as nccl-tests makes it: which sizes, which are checked, and one row of each.

Both halves of a row are run. AllToAll and AllToAllV in place are timed, as out of place, and not checked, as in
nccl-tests: blocks would be overwritten while they still wait to be sent, so there is no right answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine import Collective
from ..errors import ConfigError
from ..result import Result
from ..scenario import Scenario
from .nccl import TYPE_NAMES, Half, Row

NEVER_CHECKED_IN_PLACE = ("alltoall", "alltoallv")
REDUCING = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True)
class Case:
    """One row to make: size and count as they will be printed, the two halves, and a remark where one is due."""

    size: int
    count: int
    out_of_place: Scenario
    in_place: Scenario
    remark: str = ""


def sizes(minimum: int, maximum: int, step: int, factor: int) -> list[int]:
    """Sizes from minimum to maximum, times `factor` if that is more than 1, else plus `step` bytes."""
    if minimum < 1:
        raise ConfigError.of("--minbytes", minimum, "must be at least 1")
    if maximum < minimum:
        raise ConfigError.of("--maxbytes", maximum, f"must be at least --minbytes = {minimum}")
    if factor < 1:
        raise ConfigError.of("--stepfactor", factor, "must be at least 1")
    if factor == 1 and step < 1:
        raise ConfigError.of("--stepbytes", step, "must be at least 1")
    found = [minimum]
    while (size := found[-1] * factor if factor > 1 else found[-1] + step) <= maximum:
        found.append(size)
    return found


def case(workload: Mapping[str, Any], check: bool, options: Mapping[str, Any]) -> Case:
    """Lower one size; `workload` are the arguments of `Collective`, `options` further ones of `Scenario`.

    Raises
    ------
    ConfigError
        For anything that cannot be run.
    """
    never = workload["kind"] in NEVER_CHECKED_IN_PLACE
    halves = [
        Scenario(workload=Collective(**workload, inplace=inplace), check=check and not (inplace and never), **options)
        for inplace in (False, True)
    ]
    programs = [scenario.program() for scenario in halves]
    size = programs[0].size_bytes
    notes = [half.check_note(program) for half, program in zip(halves, programs, strict=True) if half.check]
    refused = list(dict.fromkeys(note for note in notes if note))
    remark = f"size {size}: {'; in place '.join(refused)}" if refused else ""
    return Case(size, programs[0].count, halves[0], halves[1], remark)


def row(case: Case, results: Sequence[Result]) -> Row:
    """The row of the results of both halves, out of place first."""
    workload = case.in_place.workload
    assert isinstance(workload, Collective), "a sweep makes nothing else"
    return Row(
        size=case.size,
        count=case.count,
        type=TYPE_NAMES.get(workload.dtype, workload.dtype),
        redop="sum" if workload.kind in REDUCING else "none",
        out_of_place=_half(results[0]),
        in_place=_half(results[1]),
        iterations=case.in_place.iterations,
    )


def read_matrix(text: str, source: str) -> list[list[int]]:
    """A square matrix of byte counts from text: one line a row, blanks between; `source` names it in errors."""
    rows: list[list[int]] = []
    for line in text.splitlines():
        words = line.split()
        if bad := [word for word in words if not word.isdigit()]:
            raise ConfigError.of("--matrix", bad[0], f"in {source}: must be a whole number of bytes")
        if words:
            rows.append([int(word) for word in words])
    if not rows or {len(row) for row in rows} != {len(rows)}:
        widths = sorted({len(row) for row in rows})
        found = f"{len(rows)} rows of {' or '.join(map(str, widths)) or 0}"
        raise ConfigError.of("--matrix", source, f"has {found}; must be square, one row and one column a rank")
    return rows


def uniform_matrix(size: int, ranks: int) -> Sequence[Sequence[int]]:
    """Every pair exchanges the same, `size` bytes a rank in all, cells rounded down to 16 bytes as in nccl-tests."""
    cell = size // ranks // 16 * 16
    return [[cell] * ranks for _ in range(ranks)]


def _half(result: Result) -> Half:
    return Half(result.time_us, result.algbw_gbs, result.busbw_gbs, result.wrong)
