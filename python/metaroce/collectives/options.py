"""What a compiler is told about one collective, and the count conventions of nccl-tests.

``count`` is the elements passed to the call: all of the buffer for all_reduce; for the others one rank's block, the
size divided by n and rounded down to a multiple of 16 bytes, so that the printed size can be smaller than asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from ..units import ELEMENT_BYTES
from .program import Array

BLOCK_BYTES = 16
"""Per-rank blocks are multiples of this (nccl-tests)."""


@dataclass(frozen=True, eq=False)
class Options:
    """One collective: elements, not bytes; ``matrix`` int64[n, n] elements from row to column, alltoallv only."""

    ranks: int
    count: int
    dtype: str
    chunks: int | None = None
    inplace: bool = True
    peers_at_a_time: int = 0
    matrix: Array | None = None

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.dtype]


def count_of(kind: str, size: int, dtype: str, ranks: int) -> int:
    """Elements of the call for ``size`` bytes a rank; raises `ConfigError` when none is left."""
    element = ELEMENT_BYTES[dtype]
    if kind == "all_reduce":
        count, least = size // element, element
    else:
        count, least = size // ranks // BLOCK_BYTES * (BLOCK_BYTES // element), BLOCK_BYTES * ranks
    if count < 1:
        raise ConfigError.of("size", size, f"must be at least {least} bytes for {kind} of {dtype} over {ranks} ranks")
    return count
