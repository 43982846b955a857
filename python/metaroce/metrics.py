"""Bandwidths by the conventions of nccl-tests, and fairness.

algbw is size over time; busbw multiplies it by what the collective must move over each rank's link, so that it compares
with a link's speed: 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather and alltoall (nccl-tests,
``doc/PERFORMANCE.md``). Plain flows have the factor 1, and their size is the bytes of the busiest rank. GB are 1e9
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable


def bus_factor(kind: str, ranks: int) -> float:
    """busbw over algbw of a collective over ``ranks`` ranks; 1 for anything else."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("reduce_scatter", "all_gather", "alltoall", "alltoallv"):
        return (ranks - 1) / ranks
    return 1.0


def algbw(size_bytes: int, time_ps: float) -> float:
    """GB/s (1e9 bytes) of ``size_bytes`` in ``time_ps``; 0 when no time has passed."""
    return size_bytes * 1e3 / time_ps if time_ps > 0 else 0.0


def busbw(kind: str, ranks: int, size_bytes: int, time_ps: float) -> float:
    """GB/s over each rank's link."""
    return algbw(size_bytes, time_ps) * bus_factor(kind, ranks)


def jain(shares: Iterable[float]) -> float:
    """Jain's fairness index of shares: 1 when all are equal, 1/n when one has everything."""
    values = list(shares)
    squares = sum(v * v for v in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
