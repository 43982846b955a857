"""How much shorter all communication of a training step is: in parts, on an identical fabric, and by other definitions.

A ratio is never one number here. `decompose` swaps one cause after another from the GPU cluster to the engines', so
that the factors multiply to the ratio, and gives each swap alone beside it; `definitions` asks the other questions that
"equivalent cluster" may mean (docs/offload.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import ConfigError
from . import presets
from .comm import CommModel, EngineModel
from .gpu import NcclModel
from .step import DLRM_150B, Dlrm, communication_us

PARTS = ("link rate", "rack size", "offload", "control path")
"""The order of the swaps. ``link rate``: both networks' nominal rates. ``rack size``: domains. ``offload``: engines
instead of NCCL's kernels: efficiencies, algorithm over domains, stretch under compute. ``control path``: the fixed cost
of a collective."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The two clusters of a comparison, same payload."""

    gpu: NcclModel
    gpu_domains: tuple[int, ...]
    engine: EngineModel
    engine_domains: tuple[int, ...]


def sides(
    ranks: int = 40,
    *,
    gpu: str = "h100",
    accelerator: str = "mtia300",
    partition: str | None = None,
    racks: tuple[int, ...] | None = None,
    stretch: float = 1.0,
) -> Sides:
    """Equal count, the paper's "equivalent"; ``racks`` of the engines, ``stretch`` of the GPU's own by kernels."""
    domains = racks or presets.domains(accelerator, ranks)
    if sum(domains) != ranks:
        raise ConfigError.of("racks", list(domains), f"must be {ranks} accelerators together")
    return Sides(
        gpu=presets.nccl(gpu, step_us=presets.launch_us(gpu), stretch=stretch),
        gpu_domains=presets.domains(gpu, ranks),
        engine=presets.engines(accelerator, partition=partition, step_us=presets.STEP_US),
        engine_domains=domains,
    )


def total_us(model: Dlrm, comm: CommModel, domains: tuple[int, ...], stretch: float = 1.0) -> float:
    """All collectives of a step alone, us; ``stretch``: their transfers beside kernels."""
    return sum(communication_us(model, comm, domains, stretch).values())


@dataclass(frozen=True)
class Decomposition:
    """A ratio of communication times and what it is made of.

    ``factors`` multiply to ``ratio``, in the order of `PARTS`; ``alone`` is each swap on the GPU cluster by itself;
    ``identical`` is engines against NCCL on one and the same fabric, that of the engines: offload and control path.
    """

    gpu_us: float
    engine_us: float
    factors: dict[str, float]
    alone: dict[str, float]
    identical: float
    by_kind: dict[str, float]

    @property
    def ratio(self) -> float:
        """GPU over engines."""
        return self.gpu_us / self.engine_us


def _swapped(both: Sides, parts: Sequence[str]) -> tuple[CommModel, tuple[int, ...], float]:
    """The GPU cluster with some causes replaced by the engines'."""
    for part in parts:
        if part not in PARTS:
            raise ConfigError.unknown("part", part, PARTS)
    rates = both.engine.links if "link rate" in parts else both.gpu.links
    domains = both.engine_domains if "rack size" in parts else both.gpu_domains
    fixed = both.engine.step_us if "control path" in parts else both.gpu.step_us
    if "offload" not in parts:
        links = replace(both.gpu.links, up_gbs=rates.up_gbs, out_gbs=rates.out_gbs)
        return replace(both.gpu, links=links, step_us=fixed), domains, both.gpu.stretch
    links = replace(both.engine.links, up_gbs=rates.up_gbs, out_gbs=rates.out_gbs)
    return replace(both.engine, links=links, step_us=fixed), domains, both.engine.stretch


def decompose(model: Dlrm = DLRM_150B, both: Sides | None = None) -> Decomposition:
    """The ratio of ``both`` (default: 40 MTIA 300 against 40 H100) in parts."""
    both = both or sides()
    times = [total_us(model, *_swapped(both, PARTS[:count])) for count in range(len(PARTS) + 1)]
    kinds = [communication_us(model, *_swapped(both, parts)) for parts in ((), PARTS)]
    return Decomposition(
        times[0],
        times[-1],
        {part: before / after for part, before, after in zip(PARTS, times, times[1:], strict=False)},
        {part: times[0] / total_us(model, *_swapped(both, (part,))) for part in PARTS},
        times[PARTS.index("offload")] / times[-1],
        {kind: kinds[0][kind] / kinds[1][kind] for kind in kinds[0]},
    )


def definitions(model: Dlrm = DLRM_150B) -> dict[str, float]:
    """Ratios for other meanings of "equivalent" (docs/offload.md), 40 MTIA 300 on the engines' side of each."""
    both = sides()
    engines_us = total_us(model, both.engine, both.engine_domains)
    power = int(40 * 1.5 / (6.5 / 8) / 8) * 8  # whole hosts of 6.5 kW for 60 kW
    fewer = replace(model, batch=model.batch * 40 // power)

    def gpu(model: Dlrm = model, domains: tuple[int, ...] = both.gpu_domains, **rates: float) -> float:
        links = replace(both.gpu.links, **rates)
        return total_us(model, replace(both.gpu, links=links), domains) / engines_us

    own = both.engine.links
    return {
        "A equal count": gpu(),
        f"B equal power: {power} H100": gpu(fewer, presets.domains("h100", power)),
        "C1 H100 with 2 x 400G": gpu(out_gbs=100.0),
        "C2 H100 with 4 x 400G": gpu(out_gbs=200.0),
        "C3 identical fabric: offload only": gpu(domains=both.engine_domains, up_gbs=own.up_gbs, out_gbs=own.out_gbs),
        "D NVLink of 900 GB/s over all": gpu(domains=(40,), up_gbs=900.0),
    }
