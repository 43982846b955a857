"""What is read off a run or a curve: where a figure lies, when a hint settles, when a plane is missed no longer.

Functions of plain numbers and arrays, so that each can be held against a series made by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...collectives import Array


def crossings(xs: Sequence[float], ys: Sequence[float], value: float) -> list[float]:
    """Where the line through the points passes ``value``; straight between points against log x.

    ``xs`` rise and are above 0. A point that has the value counts once; empty where the line stays on one side.
    """
    found = [xs[0]] if ys[0] == value else []
    for x0, x1, y0, y1 in zip(xs, xs[1:], ys, ys[1:], strict=False):
        if y1 == value and y0 != value:
            found.append(x1)
        elif (y0 < value) != (y1 < value) and y0 != value:
            found.append(x0 * (x1 / x0) ** ((value - y0) / (y1 - y0)))
    return found


def settled(time: Array, granted: Array, fair: float, tolerance: float) -> tuple[float, float] | None:
    """First time at which a rate is granted, and the first from which it stays within ``tolerance`` of ``fair``.

    ``granted`` 0 means none. The second is `math.inf` if the last sample is outside; None if nothing was ever granted.
    """
    given = np.flatnonzero(granted)
    if not len(given):
        return None
    outside = np.flatnonzero(np.abs(granted / fair - 1) > tolerance)
    after = int(outside[-1]) + 1 if len(outside) and outside[-1] >= given[0] else int(given[0])
    return float(time[given[0]]), float(time[after]) if after < len(time) else math.inf


def round_trips(time: Array, rtt: Array, start: float, end: float) -> float:
    """Round trips that pass between two times, each as long as it was measured then; samples without one are left out.

    Between two samples the round trip of the earlier one holds.
    """
    if not math.isfinite(end):
        return math.inf
    known = rtt > 0
    at, length = time[known].astype(float), rtt[known].astype(float)
    if not len(at):
        return 0.0 if end == start else math.inf
    edges = np.clip(np.append(at, max(end, at[-1])), start, end)
    edges[0] = start  # before the first measurement, the first one holds
    return float((np.diff(edges) / length).sum())


def back_in_share(bins: Array, plane: int, first: int, last: int, tolerance: float) -> int | None:
    """The first bin of ``first`` .. ``last`` from which ``plane`` carries its share, None if it never does for good.

    ``bins`` [planes, bins] are bytes; the share is the mean of the other planes, and must be kept within ``tolerance``
    up to ``last``, which is not looked at.
    """
    others = np.delete(bins, plane, axis=0)[:, first:last].mean(axis=0)
    off = np.flatnonzero(np.abs(bins[plane, first:last] / np.maximum(others, 1) - 1) > tolerance)
    begin = int(off[-1]) + 1 if len(off) else 0
    return first + begin if first + begin < last else None


def spread(values: Array) -> float:
    """Largest distance from the mean, as a fraction of the mean."""
    mean = float(values.mean())
    return float(np.abs(values - mean).max()) / mean if mean else math.inf


def recovered(placed: Array, sent: Array, message: int, fault: float) -> float:
    """Time from ``fault`` until everything sent before it has been placed; 0 where it already had.

    ``placed`` [connections, messages] are times in the order of sending, ``sent`` bytes of each connection that
    had been sent at least once at ``fault``, all messages ``message`` bytes. A message sent in part is not counted.
    """
    last = [row[: int(count) // message].max(initial=0) for row, count in zip(placed, sent, strict=True)]
    return max(0.0, float(max(last, default=0)) - fault)
