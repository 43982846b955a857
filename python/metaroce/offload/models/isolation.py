"""M4: a GEMM of 4,096^3 in TF32 beside a collective of 16 ranks, on engines and on SMs; each cause can be taken away.

On engines the loss is memory contention: it depends on whether staging stays on chip. On SMs it is the SMs that the
collective's channels hold: with none held, what is left is memory traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...collectives.program import Program
from ...engine import draws
from ...errors import ConfigError
from . import presets
from .comm import KINDS, CommModel
from .kernels import Device, Kernel, Load, Slowdown, gemm, slowdown
from .memory import Staging, absorbed, footprint, traffic

SIZE = (4096, 4096, 4096)
RANKS = 16
LARGE = float(1 << 30)
"""Bytes that arrive at a rank: the links are at work all the time."""


@dataclass(frozen=True)
class Beside:
    """A kernel beside a collective: what the collective takes, and the slow-down of both."""

    load: Load
    slowdown: Slowdown

    @property
    def loss(self) -> float:
        """Share of the kernel's throughput that is gone."""
        return self.slowdown.loss


def on_engines(
    kind: str = "reduce_scatter",
    *,
    staged: float | None = None,
    exposed: float = presets.EXPOSED,
    hardware: str = "mtia300",
    partition: str | None = None,
) -> Beside:
    """Beside message engines; ``staged`` h replaces the partition's own (0: staging off chip)."""
    device = presets.device(hardware, exposed=exposed)
    comm = presets.engines(hardware, partition=partition)
    if staged is not None:
        if not 0.0 <= staged <= 1.0:
            raise ConfigError.of("staged", staged, "must be in [0, 1]")
        comm = replace(comm, staging_bytes=staged * comm.engines * comm.slots * comm.chunk_bytes)
    return beside(kind, comm, device, gemm(SIZE, "tfloat32", device), presets.domains(hardware, RANKS))


def on_gpu(
    kind: str = "all_gather",
    *,
    held: int | None = None,
    one_wave: bool = False,
    hardware: str = "h100",
    ranks: int = RANKS,
) -> Beside:
    """Beside NCCL; ``held`` SMs replace those of its channels, ``one_wave`` a grid of one tile an SM the GEMM's own."""
    device = presets.device(hardware)
    comm = presets.nccl(hardware)
    kernel = gemm(SIZE, "tfloat32", device)
    if one_wave:
        kernel = replace(kernel, tiles=device.units)
    made = beside(kind, comm, device, kernel, presets.domains(hardware, ranks))
    if held is None:
        return made
    load = replace(made.load, units=held)
    return Beside(load, slowdown(device, kernel, load))


def beside(kind: str, comm: CommModel, device: Device, kernel: Kernel, domains: Sequence[int]) -> Beside:
    """A kernel of ``device`` beside a large collective."""
    load = comm.load(comm.time(kind, LARGE, domains))
    return Beside(load, slowdown(device, kernel, load))


def of_program(
    program: Program, staging: Staging | None, rate_gbs: float, device: Device, kernel: Kernel | None = None
) -> Beside:
    """Beside the entries of a compiled program that receives ``rate_gbs``: its rank with the most memory traffic.

    h follows from the device's staging partition and what the program stages at once.
    """
    share = absorbed(device.staging_bytes, footprint(program, staging))
    most = max(rank.amplification for rank in traffic(program, staging, share))
    load = Load(0, most * rate_gbs)
    return Beside(load, slowdown(device, kernel or gemm(SIZE, "tfloat32", device), load))


def losses(count: int = 1000, seed: int = 1, *, staged: tuple[float, float] = (0.75, 1.0)) -> list[float]:
    """Losses on engines for draws of sigma (log, 0.1 to 2 %), h in ``staged`` and the kind: what nobody published."""
    numbers = draws.stream(seed, "offload isolation")
    found = []
    for _ in range(count):
        sigma, h, kind = (next(numbers) / 2**64 for _ in range(3))
        found.append(
            on_engines(
                KINDS[int(kind * len(KINDS))],
                staged=staged[0] + h * (staged[1] - staged[0]),
                exposed=0.001 * 20.0**sigma,
            ).loss
        )
    return found
