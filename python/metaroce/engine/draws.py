"""Random draws that stay the same for ever: SplitMix64 and Fisher-Yates, one stream per (seed, purpose).

The generators of Python and NumPy may change their shuffles between versions; a seed printed in a table must not.
"""

from __future__ import annotations

from collections.abc import Iterator

_MASK = 2**64 - 1


def stream(seed: int, purpose: str) -> Iterator[int]:
    """Endless 64-bit numbers of one (seed, purpose)."""
    state = seed & _MASK
    for byte in purpose.encode():
        state = _mix(state ^ byte)
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        yield _mix(state)


def permutation(count: int, seed: int, purpose: str) -> list[int]:
    """The integers 0 .. count-1 in random order."""
    order, draws = list(range(count)), stream(seed, purpose)
    for last in range(count - 1, 0, -1):
        other = next(draws) * (last + 1) >> 64
        order[last], order[other] = order[other], order[last]
    return order


def derangement(count: int, seed: int, purpose: str) -> list[int]:
    """A random permutation that leaves nothing in its place (count >= 2)."""
    attempt = 0
    while True:  # 1/e of all permutations qualify
        order = permutation(count, seed, f"{purpose} {attempt}")
        if all(k != place for place, k in enumerate(order)):
            return order
        attempt += 1


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
