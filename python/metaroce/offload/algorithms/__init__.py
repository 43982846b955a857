"""Algorithms: each adds one collective's rows to a table. To add one, write one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from ..call import Call
from . import put, recursive
from .exchange import exchange
from .hierarchical import direct, hierarchical
from .ring import ring


def _pairwise(c: Call) -> None:
    exchange(c) if c.node.kind in EXCHANGES else direct(c)


def _by_racks(c: Call) -> None:
    exchange(c) if c.node.kind in EXCHANGES else hierarchical(c)


EXCHANGES = ("alltoall", "alltoallv")

ALGORITHMS: dict[str, Callable[[Call], None]] = {
    "put": put.put,
    "recursive": recursive.recursive,
    "ring": ring,
    "direct": _pairwise,
    "hierarchical": _by_racks,
}

SCRATCH: dict[str, Callable[[Call], int]] = {"put": put.scratch, "recursive": recursive.scratch}
"""Bytes of memory that an algorithm needs beside buffers and staging slots."""

STAGED = ("ring", "direct", "hierarchical")
"""Algorithms that sum from staging slots."""
