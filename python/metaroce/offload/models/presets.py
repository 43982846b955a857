"""The models of a `Hardware` file: what kernels run on, its collectives, its domains; no figure stands here twice.

Only what no file can state is an argument: the fixed cost of a collective as a training step sees it, h, sigma.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...errors import ConfigError
from ..hardware import Hardware, split
from ..hardware import load as _read
from .comm import EngineModel, Links
from .gpu import NcclModel
from .kernels import Device
from .step import Cluster

STEP_US = 45.0
"""Fixed cost of a collective on message engines as a training step sees it, us (10 to 100, *ours*: docs/offload.md)."""
EXPOSED = 0.005
"""sigma: share of a compute-bound kernel's time on PEs that waits for memory (0.001 to 0.02, *ours*)."""
EMBEDDING = (2.0, 2.1)
"""Embedding kernels of MTIA 300 over H100, forward and backward (ISCA'26): inputs."""


@lru_cache(maxsize=16)
def _named(name: str) -> Hardware:
    return _read(name)


def load(hardware: Hardware | str) -> Hardware:
    """A file, read once, by its name; or the hardware itself."""
    return hardware if isinstance(hardware, Hardware) else _named(hardware)


def _us(picoseconds: int) -> float:
    return picoseconds / 1e6


def links(hardware: Hardware | str, partition: str | None = None) -> Links:
    """GB/s of both networks in a partition of the NICs (None: the file's)."""
    network = load(hardware).network
    up, out = split(network, partition)
    rate = network.nic_rate.value / 8e9
    return Links(
        up_gbs=up * rate,
        out_gbs=out * rate,
        up_efficiency=network.efficiency_up.value,
        out_efficiency=network.efficiency_out.value,
    )


def device(hardware: Hardware | str, *, exposed: float = EXPOSED) -> Device:
    """What kernels run on; ``exposed`` counts on accelerators with engines only."""
    given = load(hardware)
    memory = given.memory
    return Device(
        name=given.name,
        units=given.compute.units.value,
        tflops={name: peak.value / 1e12 for name, peak in given.compute.peak.items()},
        memory_gbs=memory.bandwidth.value / 1e9,
        achieved=memory.achieved.value,
        on_chip_bytes=memory.on_chip.value if memory.on_chip else 0,
        staging_bytes=memory.staging.value if memory.staging else 0,
        exposed=exposed if given.kind == "engines" else 0.0,
    )


def engines(hardware: Hardware | str = "mtia300", *, partition: str | None = None, **changes: Any) -> EngineModel:
    """Collectives on the message engines of a file; ``changes`` replace fields of `EngineModel`."""
    given = load(hardware)
    if given.engines is None or given.control is None or given.unit is None:
        raise ConfigError.of("hardware", given.name, 'must be of kind "engines"')
    network, unit = given.network, given.unit
    fields: dict[str, Any] = {
        "links": links(given, partition),
        "event_us": _us(given.control.event.value),
        "dispatch_us": _us(given.control.dispatch.value),
        "engine_us": _us(given.engines.start.value),
        "entry_us": _us(given.engines.issue.value),
        "hop_us": _us(network.hop_up.value),
        "hop_out_us": _us(network.hop_out.value),
        "engines": given.engines.count.value,
        "staging_bytes": given.memory.staging.value if given.memory.staging else 0,
        "reduce_gbs": given.engines.count.value * unit.shared.value * unit.clock.value / 1e9,
    }
    return EngineModel(**{**fields, **changes})


def one_shot_us(hardware: Hardware | str = "mtia300") -> float:
    """Fixed cost of a PE that posts its transfers itself, us; the hop comes on top."""
    given = load(hardware)
    if given.posters is None:
        raise ConfigError.of("hardware", given.name, "must have [posters]: cores that post themselves")
    return _us(given.posters.post.value + given.posters.issue.value)


def nccl(hardware: Hardware | str = "h100", **changes: Any) -> NcclModel:
    """Collectives of a GPU; ``changes`` replace fields of `NcclModel`."""
    given = load(hardware)
    if given.gpu is None:
        raise ConfigError.of("hardware", given.name, 'must be of kind "gpu"')
    fields: dict[str, Any] = {
        "links": links(given),
        "sms": given.compute.units.value,
        "channels": given.gpu.channels.value,
        "channel_gbs": given.gpu.channel_rate.value / 1e9,
        "memory": given.gpu.memory_factor.value,
        "nvls": given.gpu.nvls.value if given.gpu.nvls else None,
    }
    return NcclModel(**{**fields, **changes})


def launch_us(hardware: Hardware | str = "h100") -> float:
    """Launch and base latency as a training step sees them, us."""
    given = load(hardware)
    if given.gpu is None:
        raise ConfigError.of("hardware", given.name, 'must be of kind "gpu"')
    return _us(given.gpu.launch.value)


def domains(hardware: Hardware | str, ranks: int) -> tuple[int, ...]:
    """Ranks packed into whole scale-up domains, the rest into a last one."""
    if ranks < 1:
        raise ConfigError.of("ranks", ranks, "must be at least 1")
    size = load(hardware).network.domain.value
    full, rest = divmod(ranks, size)
    return (size,) * full + ((rest,) if rest else ())


def cluster(hardware: Hardware | str, ranks: int, *, exposed: float = EXPOSED, **changes: Any) -> Cluster:
    """Accelerators of a file for a training step; ``changes`` replace fields of its collectives' model.

    Embedding kernels of engines run at the published speed-up over those of H100, at its achieved bandwidth.
    """
    given = load(hardware)
    own = device(given, exposed=exposed)
    if given.kind == "gpu":
        comm = nccl(given, **{"step_us": launch_us(given), **changes})
        return Cluster(device=own, comm=comm, domains=domains(given, ranks))
    base = device("h100").bandwidth
    lookup, update = (min(1.0, faster * base / own.bandwidth) for faster in EMBEDDING)
    return Cluster(
        device=own,
        comm=engines(given, **{"step_us": STEP_US, **changes}),
        domains=domains(given, ranks),
        lookup=lookup,
        update=update,
    )
