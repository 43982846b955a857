"""Collectives: algorithms as short functions from options to a program, each checked on symbols before it runs.

`ALGORITHMS` maps a kind to its function; to add one, write one file and one line here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..units import ELEMENT_BYTES
from . import direct, ring
from .check import verify
from .options import Options, count_of
from .program import ALL_RANKS, Array, Op, Program, Ranges

ALGORITHMS: dict[str, Callable[[Options], Program]] = {
    "all_reduce": ring.all_reduce,
    "reduce_scatter": ring.reduce_scatter,
    "all_gather": ring.all_gather,
    "alltoall": direct.alltoall,
    "alltoallv": direct.alltoallv,
}

MAX_CHUNKS = 65536
"""A chunk has a stream of its own, and a connection has this many."""

__all__ = [
    "ALGORITHMS",
    "ALL_RANKS",
    "Array",
    "Op",
    "Options",
    "Program",
    "Ranges",
    "check_names",
    "compile",
    "count_of",
    "elements_of",
    "verify",
]

_verified: set[tuple[object, ...]] = set()


def compile(
    kind: str,
    ranks: int,
    size: int = 0,
    dtype: str = "float32",
    *,
    count: int | None = None,
    chunks: int | None = None,
    inplace: bool = True,
    peers_at_a_time: int = 0,
    matrix: npt.ArrayLike | None = None,
    verified: bool = True,
) -> Program:
    """Compile a collective over ``ranks`` ranks and check it symbolically (once for every shape of program).

    ``size`` is nccl-tests' size in bytes a rank, from which ``count`` elements of the call follow, or give ``count``.
    alltoallv takes ``matrix`` instead, bytes from row to column. Raises `ConfigError` for what cannot be compiled.
    """
    check_names(kind, dtype)
    if ranks < 2:
        raise ConfigError.of("ranks", ranks, "must be at least 2")
    if chunks is not None and not 1 <= chunks <= MAX_CHUNKS:
        raise ConfigError.of("chunks", chunks, f"must be 1 .. {MAX_CHUNKS}")
    if kind == "alltoallv":
        cells = elements_of(matrix, dtype)
        if len(cells) != ranks:
            raise ConfigError.of(
                "matrix", f"{len(cells)} x {len(cells)}", f"must have a row and a column for each of {ranks} ranks"
            )
        o = Options(ranks, 0, dtype, peers_at_a_time=peers_at_a_time, matrix=cells)
    else:
        count = count_of(kind, size, dtype, ranks) if count is None else count
        if count < 1:
            raise ConfigError.of("count", count, "must be at least 1")
        o = Options(ranks, count, dtype, chunks, inplace and kind != "alltoall", peers_at_a_time)
    program = ALGORITHMS[kind](o)
    if verified:
        shape = _shape(kind, o, program)
        if shape not in _verified:
            verify(program)
            _verified.add(shape)
    return program


def check_names(kind: str, dtype: str) -> None:
    """Raise `ConfigError` unless both are known."""
    if kind not in ALGORITHMS:
        raise ConfigError.unknown("kind", kind, ALGORITHMS)
    if dtype not in ELEMENT_BYTES:
        raise ConfigError.unknown("dtype", dtype, ELEMENT_BYTES)


def elements_of(matrix: npt.ArrayLike | None, dtype: str) -> Array:
    """A byte matrix as int64 elements [n, n]; raises `ConfigError` unless it is square, whole and not all zero."""
    try:
        table = np.array(matrix, dtype=object)
        cells = table.astype(np.int64)
    except (OverflowError, TypeError, ValueError):
        raise ConfigError.of("matrix", matrix, "must be a square table of whole byte counts") from None
    if cells.ndim != 2 or cells.shape[0] != cells.shape[1]:
        shape = " x ".join(map(str, cells.shape)) or "a number"
        raise ConfigError(
            f"matrix = {shape}: must be square, bytes from row to column", "matrix", shape, "must be square"
        )
    element = ELEMENT_BYTES[dtype]
    wrong = (cells < 0) | (cells % element != 0) | (cells != table)
    if wrong.any():
        i, j = (int(k) for k in np.argwhere(wrong)[0])
        raise ConfigError.of(
            f"matrix[{i}][{j}]", table[i, j], f"must be a multiple of {element} bytes ({dtype}), at least 0"
        )
    if not cells.any():
        raise ConfigError.of("matrix", 0, "must have a cell above 0")
    return cells // element


def _shape(kind: str, o: Options, program: Program) -> tuple[object, ...]:
    """Programs of one shape differ in sizes only: all pieces are equal, or the count is part of the shape."""
    moved = program.bytes[(program.op != Op.NOOP) & (program.op != Op.COPY)]
    even = o.matrix is None and not (program.op == Op.NOOP).any() and moved.min() == moved.max()
    size: object = "even" if even else o.count if o.matrix is None else o.matrix.tobytes()
    return (kind, o.ranks, len(program.op), o.inplace, o.peers_at_a_time, size)
