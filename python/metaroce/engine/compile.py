"""Plain transfers as programs: a list of Writes between ranks, without dependencies.

Each Write has a place of its own in the source's memory and in the target's, so a checked run can tell them apart.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..collectives.program import Array, Op, Program, Ranges
from ..errors import ConfigError


def writes_program(writes: npt.ArrayLike, ranks: int) -> Program:
    """One WRITE a row of ``writes`` int[k, 4]: source, target, bytes, start_ps; raises `ConfigError` for a bad row.

    Sources lie at the bottom of memory, targets above the largest source area, both packed in order of the rows.
    """
    rows = np.asarray(writes, np.int64).reshape(-1, 4)
    _check(rows, ranks)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    source, target, size, start = rows.T
    sent, got = (np.bincount(ends, size, ranks).astype(np.int64) for ends in (source, target))
    area, k = int(sent.max()), len(rows)
    at, to = _packed(source, size), area + _packed(target, size)
    counts = np.bincount(source, minlength=ranks)
    return Program(
        dtype="int8",
        memory_bytes=area + int(got.max()),
        rank_start=np.concatenate(([0], np.cumsum(counts))).astype(np.uint32),
        op=np.full(k, Op.WRITE, np.uint8),
        peer=target.astype(np.uint32),
        stream=np.zeros(k, np.uint32),
        local=at.astype(np.uint64),
        remote=to.astype(np.uint64),
        bytes=size.astype(np.uint64),
        dep_start=np.zeros(k + 1, np.uint32),
        deps=np.zeros(0, np.uint32),
        fill=Ranges.of(np.arange(ranks), 0, sent, np.arange(ranks), 0),
        expect=Ranges.of(target, to, size, source, at),
        size_bytes=int(max(sent.max(), got.max())),
        count=int(max(sent.max(), got.max())),
        start_ps=start.astype(np.uint64) if start.any() else None,
    )


def tiled(program: Program, times: int) -> Program:
    """``program`` side by side ``times`` times, each over the next ranks; without what a checked run compares."""
    one, entries = np.arange(times, dtype=np.uint32)[:, None], len(program.op)
    nothing = Ranges.of(0, 0, 0, 0, 0)

    def shifted(column: Array, by: int) -> Array:
        return np.ravel(column + one * np.uint32(by))

    def ends(starts: Array, by: int) -> Array:
        return np.append(shifted(starts[:-1], by), np.uint32(times * by))

    return replace(
        program,
        rank_start=ends(program.rank_start, entries),
        peer=shifted(program.peer, program.ranks),
        dep_start=ends(program.dep_start, len(program.deps)),
        deps=shifted(program.deps, entries),
        op=np.tile(program.op, times),
        stream=np.tile(program.stream, times),
        local=np.tile(program.local, times),
        remote=np.tile(program.remote, times),
        bytes=np.tile(program.bytes, times),
        fill=nothing,
        expect=nothing,
        input_offset=np.tile(program.input_offset, times),
        output_offset=np.tile(program.output_offset, times),
    )


def _check(rows: npt.NDArray[np.int64], ranks: int) -> None:
    if not len(rows):
        raise ConfigError.of("writes", [], "must have at least one row (source, target, bytes[, start_ps])")
    bad = (rows[:, :2] < 0) | (rows[:, :2] >= ranks)
    for wrong, allowed in (
        (bad.any(axis=1), f"source and target must be ranks 0 .. {ranks - 1}"),
        (rows[:, 0] == rows[:, 1], "source and target must differ"),
        (rows[:, 2] < 1, "bytes must be at least 1"),
        (rows[:, 3] < 0, "start_ps must be at least 0"),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ConfigError.of(f"writes[{row}]", tuple(rows[row].tolist()), allowed)


def _packed(owner: npt.NDArray[np.int64], size: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Offsets that lay the ranges of each owner one after another, in order."""
    by = np.argsort(owner, kind="stable")
    before = np.cumsum(size[by]) - size[by]
    first = np.searchsorted(owner[by], owner[by])
    offset = np.empty_like(size)
    offset[by] = before - before[first]
    return offset
