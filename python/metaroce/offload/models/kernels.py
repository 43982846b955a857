"""Compute kernels, and how much slower a collective beside them makes them.

A `Device` has compute units (PEs, SMs) and a memory; a `Kernel` occupies them alone for a time; a `Load` is what the
collectives that run now take: units, and memory bandwidth. Three causes, each from its own mechanism: units that are
gone (wave quantisation), memory bandwidth that is not left (max-min fair shares), memory latency that grows as the
memory fills up, for the share of a kernel's run time that waits for it. Times are us, rates GB/s, peaks TFLOP/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import ConfigError
from .memory import shares

FULL = 0.98
"""The memory load beyond which its queue grows no more: requests in flight are bounded (*ours*)."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What kernels run on: ``units`` compute units, peaks by element type, memory and the share of it achieved.

    ``exposed`` is sigma, the share of a compute-bound kernel's run time that waits for memory (0.001 to 0.02, *ours*;
    0 for SMs, whose many warps hide it, docs/offload.md).
    """

    name: str
    units: int
    tflops: dict[str, float]
    memory_gbs: float
    achieved: float
    on_chip_bytes: float
    staging_bytes: float = 0.0
    exposed: float = 0.0

    @property
    def bandwidth(self) -> float:
        """GB/s of memory that accesses can get."""
        return self.memory_gbs * self.achieved

    def peak(self, dtype: str) -> float:
        """TFLOP/s of an element type."""
        if dtype not in self.tflops:
            raise ConfigError.unknown("dtype", dtype, self.tflops)
        return self.tflops[dtype]


@dataclass(frozen=True)
class Kernel:
    """A kernel alone: its time, its bytes of HBM, its grid (0 tiles: it takes any number of units evenly)."""

    name: str
    alone_us: float
    memory_bytes: float
    tiles: int = 0
    persistent: bool = False

    def __post_init__(self) -> None:
        for name in ("alone_us", "memory_bytes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError.of(f"{self.name}.{name}", getattr(self, name), "must be at least 0 and finite")

    @property
    def demand(self) -> float:
        """GB/s of memory it asks for while alone."""
        return self.memory_bytes / self.alone_us / 1e3 if self.alone_us else 0.0


@dataclass(frozen=True)
class Load:
    """What running collectives take of a device; ``stretch`` is how much longer they take beside any kernel."""

    units: int = 0
    memory_gbs: float = 0.0
    stretch: float = 1.0


@dataclass(frozen=True)
class Slowdown:
    """Times over those alone: of the kernel, by cause, and of the collectives."""

    waves: float = 1.0
    memory: float = 1.0
    latency: float = 1.0
    collective: float = 1.0

    @property
    def kernel(self) -> float:
        """Of the kernel, all causes; latency matters only where bandwidth does not bind already."""
        return self.waves * max(self.memory, self.latency)

    @property
    def loss(self) -> float:
        """Share of the kernel's throughput that is gone."""
        return 1 - 1 / self.kernel


_BYTES = {"tfloat32": 4, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


def gemm(
    size: tuple[int, int, int],
    dtype: str,
    device: Device,
    *,
    efficiency: float = 0.8,
    tile: tuple[int, int] = (128, 256),
) -> Kernel:
    """A matrix product (m, n, k): tiles, memory bytes, time at ``efficiency`` of the peak (0.8, *ours*).

    Operands are read once when the first fits in half of the on-chip memory; otherwise the second is read again for
    every panel of the first that does.
    """
    m, n, k = size
    peak, width = device.peak(dtype), _BYTES[dtype]
    panels = max(1, math.ceil(m * k * width / (device.on_chip_bytes / 2)))
    moved = width * (m * k + n * k * panels + m * n)
    compute_us = 2 * m * n * k / (peak * efficiency) / 1e6
    alone = max(compute_us, moved / device.bandwidth / 1e3)
    return Kernel(f"gemm {m}x{n}x{k} {dtype}", alone, moved, math.ceil(m / tile[0]) * math.ceil(n / tile[1]))


def streaming(name: str, memory_bytes: float, device: Device, *, efficiency: float = 1.0) -> Kernel:
    """A memory-bound kernel (embedding, elementwise) at ``efficiency`` of the achieved bandwidth.

    Short random rows waste the memory's time, so what they do not achieve counts as used: nothing of it is left.
    """
    used = memory_bytes / efficiency
    return Kernel(name, used / device.bandwidth / 1e3, used)


def waves(kernel: Kernel, units: int, held: int) -> float:
    """How much longer a grid takes on ``units - held`` of ``units``: whole waves, or evenly for a persistent kernel."""
    if not 0 <= held < units:
        raise ConfigError.of("held", held, f"must be in [0, {units})")
    if kernel.persistent or not kernel.tiles:
        return units / (units - held)
    return math.ceil(kernel.tiles / (units - held)) / math.ceil(kernel.tiles / units)


def slowdown(device: Device, kernel: Kernel | None, load: Load | None) -> Slowdown:
    """Both sides of a kernel and collectives that run at once (either may be missing)."""
    if load is None:
        return Slowdown()
    alone = shares(device.bandwidth, [load.memory_gbs])[0]
    if kernel is None:
        return Slowdown(collective=load.memory_gbs / alone if alone else 1.0)
    bound = kernel.demand >= FULL * device.bandwidth
    held = 1.0 if bound else waves(kernel, device.units, load.units)  # fewer units still fill the memory
    demand = kernel.demand / held
    own, others = shares(device.bandwidth, [demand, load.memory_gbs])
    before = min(demand / device.bandwidth, FULL)
    after = min((demand + load.memory_gbs) / device.bandwidth, FULL)
    queue = (1 - before) / (1 - after) - 1
    return Slowdown(
        waves=held,
        memory=demand / own if own else 1.0,
        latency=1 + device.exposed * queue,
        collective=load.stretch * (load.memory_gbs / others if others else 1.0),
    )
