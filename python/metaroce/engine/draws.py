"""Random draws that stay the same for ever: SplitMix64 and Fisher-Yates, one stream per (seed, purpose).

The generators of Python and NumPy may change their shuffles between versions; a seed printed in a table must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15


def stream(seed: int, purpose: str) -> Iterator[int]:
    """Endless 64-bit numbers of one (seed, purpose)."""
    state = _state(seed, purpose)
    while True:
        state = (state + _STEP) & _MASK
        yield _mix(state)


def permutation(count: int, seed: int, purpose: str) -> list[int]:
    """The integers 0 .. count-1 in random order."""
    order, last = list(range(count)), np.arange(count - 1, 0, -1, dtype=np.uint64)
    state = np.uint64(_state(seed, purpose)) + np.arange(1, count, dtype=np.uint64) * np.uint64(_STEP)
    draws, width, low = _mix_all(state), np.uint64(32), np.uint64(2**32 - 1)
    others = ((draws >> width) * (last + 1) + ((draws & low) * (last + 1) >> width)) >> width  # draw * (last + 1) >> 64
    for place, other in zip(range(count - 1, 0, -1), others.tolist(), strict=True):
        order[place], order[other] = order[other], order[place]
    return order


def derangement(count: int, seed: int, purpose: str) -> list[int]:
    """A random permutation that leaves nothing in its place (count >= 2)."""
    attempt = 0
    while True:  # 1/e of all permutations qualify
        order = permutation(count, seed, f"{purpose} {attempt}")
        if (np.arange(count) != order).all():
            return order
        attempt += 1


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _state(seed: int, purpose: str) -> int:
    state = seed & _MASK
    for byte in purpose.encode():
        state = _mix(state ^ byte)
    return state


def _mix_all(z: npt.NDArray[Any]) -> npt.NDArray[Any]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
