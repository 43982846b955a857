"""Splitting a buffer: elements into shards (one a rank), shards into chunks (one a stream).

Splits are whole elements and differ by at most one, the larger ones first, so any size works for any number of ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .program import Array

CHUNKS = 8
"""Chunks a shard by default: enough in flight to hide one packet's recovery; more gains little. Ours."""
MIN_CHUNK_BYTES = 4096
"""A chunk is at least one full packet, or there is one chunk. Ours."""


class Pieces(NamedTuple):
    """Byte offsets and sizes of all pieces, shape (shards, chunks); `slot` holds any one shard."""

    offset: Array
    bytes: Array

    @property
    def slot(self) -> int:
        """Bytes of the largest shard."""
        return int(self.bytes.sum(axis=1).max())

    @property
    def within(self) -> Array:
        """Offsets counted from the shard's start."""
        return self.offset - self.offset[:, :1]


def split(elements: int, element_bytes: int, shards: int, chunks: int | None) -> Pieces:
    """Cut ``elements`` into shards and chunks; ``chunks=None`` takes `CHUNKS`, or fewer where they get too small."""
    count, start = _even(np.array([elements]), np.array([0]), shards)
    chunks = chunks or default_chunks(int(count.min()) * element_bytes)
    sizes, starts = _even(count.ravel(), start.ravel(), chunks)
    return Pieces(starts * element_bytes, sizes * element_bytes)


def default_chunks(shard_bytes: int) -> int:
    """`CHUNKS`, or as many as keep a chunk at `MIN_CHUNK_BYTES`, at least 1."""
    return max(1, min(CHUNKS, shard_bytes // MIN_CHUNK_BYTES))


def _even(count: Array, start: Array, parts: int) -> tuple[Array, Array]:
    part = np.arange(parts, dtype=np.int64)
    whole, rest = np.divmod(count[:, None], parts)
    return whole + (part < rest), start[:, None] + part * whole + np.minimum(part, rest)
