"""M7: who is ahead, message engines or NCCL, over sizes and ranks; every term of both sides is a mechanism.

Engines: event, dispatch, and per step of the algorithm a CPU-M start and a hop. NCCL: its tuner's base latency, hops
and protocols. Rates from the links of both. Neither side has a fixed cost that was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...engine import draws
from . import presets
from .comm import CommModel, Cost, bytes_in

SIZES = tuple(1 << power for power in range(10, 31))
"""1 KiB to 1 GiB."""


@dataclass(frozen=True)
class Point:
    """Both sides at a size (of nccl-tests) on some ranks."""

    kind: str
    ranks: int
    size: int
    engines: Cost
    gpu: Cost

    @property
    def ahead(self) -> str:
        """Who needs less time."""
        return "engines" if self.engines.time_us < self.gpu.time_us else "gpu"


def points(
    kind: str,
    ranks: int,
    sizes: Sequence[int] = SIZES,
    *,
    engines: CommModel | None = None,
    gpu: CommModel | None = None,
    accelerator: str = "mtia300",
    gpu_name: str = "h100",
) -> list[Point]:
    """Both sides over sizes; either model may be another, as of packet simulations (`comm.Measured`)."""
    own, other = engines or presets.engines(accelerator), gpu or presets.nccl(gpu_name)
    racks, hosts = presets.domains(accelerator, ranks), presets.domains(gpu_name, ranks)
    made = []
    for size in sizes:
        moved = bytes_in(kind, float(size), ranks)
        made.append(Point(kind, ranks, size, own.time(kind, moved, racks), other.time(kind, moved, hosts)))
    return made


def crossover(kind: str, ranks: int, **models: Any) -> int | None:
    """The `least` size for a kind and ranks."""
    return least(points(kind, ranks, **models))


def least(given: Sequence[Point]) -> int | None:
    """The least size, of those of the points, from which on the engines are ahead at every one; None: at none."""
    found = None
    for point in reversed(given):
        if point.ahead == "gpu":
            break
        found = point.size
    return found


def range_of(kind: str, ranks: int, count: int = 200, seed: int = 1) -> Iterator[int | None]:
    """Crossovers for draws of what nobody published of the engines.

    Hop in the rack 2 to 3 us and across 5 to 7, an entry 0.1 to 1.1 us, efficiencies as in `band`; all *ours*.
    """
    numbers = draws.stream(seed, "offload crossover")
    base = presets.engines()
    for _ in range(count):
        hop, out, entry, up, across = (next(numbers) / 2**64 for _ in range(5))
        links = replace(base.links, up_efficiency=0.75 + 0.19 * up, out_efficiency=0.75 + 0.21 * across)
        model = replace(base, hop_us=2 + hop, hop_out_us=5 + 2 * out, entry_us=0.1 + entry, links=links)
        yield crossover(kind, ranks, engines=model)
