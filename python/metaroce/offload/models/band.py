"""The band of a ratio over what nobody published: Monte Carlo with seeded draws, percentiles, rank correlations.

Ranges are those of docs/offload.md; all are *ours* but for the ends that a source gives. Draws come from
`metaroce.engine.draws`, so a seed gives the same band for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...engine import draws
from ...errors import ConfigError
from .ratio import Sides, sides, total_us
from .step import DLRM_150B, Dlrm


@dataclass(frozen=True)
class Range:
    """An input between two ends: ``even``, ``log`` (even in its logarithm) or one of the two (``either``)."""

    name: str
    low: float
    high: float
    form: str = "even"

    def at(self, share: float) -> float:
        """The value at a share in [0, 1) of the range."""
        if self.form == "either":
            return self.low if share < 0.5 else self.high
        if self.form == "log":
            return self.low * math.exp(share * math.log(self.high / self.low))
        return self.low + share * (self.high - self.low)


RANGES = (
    Range("AllToAll bytes", 0.5e9, 8e9, "log"),
    Range("GPU scale-out efficiency", 0.55, 0.94),
    Range("engine scale-out efficiency", 0.75, 0.96),
    Range("GPU scale-up efficiency", 0.70, 0.86),
    Range("engine scale-up efficiency", 0.75, 0.94),
    Range("GPU fixed cost", 15.0, 90.0),
    Range("engine fixed cost", 10.0, 100.0),
    Range("GPU stretch under compute", 1.0, 1.3),
    Range("scale-up NICs", 8, 10, "either"),
    Range("balanced racks", 0, 1, "either"),
)
"""Bytes, shares of the nominal rate, us, times, NICs, whether 40 ranks lie 14+13+13 instead of 16+16+8."""


@dataclass(frozen=True)
class Band:
    """Ratios of all draws with the inputs that gave them."""

    ratios: Sequence[float]
    inputs: dict[str, Sequence[float]]

    def percentile(self, percent: float) -> float:
        """Of the ratios; a value that was drawn."""
        return float(np.percentile(self.ratios, percent, method="inverted_cdf"))

    def below(self, value: float) -> float:
        """Share of the draws below a value: where a published figure falls."""
        return float(np.mean(np.asarray(self.ratios) < value))

    def holds(self, value: float) -> bool:
        """Whether it lies in p5 .. p95."""
        return self.percentile(5) <= value <= self.percentile(95)

    def correlations(self) -> dict[str, float]:
        """Spearman's rank correlation of each input with the ratio, strongest first."""
        all_ = {name: _spearman(values, self.ratios) for name, values in self.inputs.items()}
        return dict(sorted(all_.items(), key=lambda item: -abs(item[1])))


def band(count: int = 4000, seed: int = 1, *, model: Dlrm = DLRM_150B, gpu_exchange_bytes: float = 2.0) -> Band:
    """Draw ``count`` clusters and compare them; ``gpu_exchange_bytes`` 1: FP8 payload on the GPU's side only."""
    if count < 1:
        raise ConfigError.of("count", count, "must be at least 1")
    numbers = draws.stream(seed, "offload band")
    inputs: dict[str, list[float]] = {one.name: [] for one in RANGES}
    ratios = []
    for _ in range(count):
        drawn = {one.name: one.at(next(numbers) / 2**64) for one in RANGES}
        for name, value in drawn.items():
            inputs[name].append(value)
        ratios.append(ratio(drawn, model, gpu_exchange_bytes))
    return Band(ratios, dict(inputs))


def ratio(inputs: dict[str, float], model: Dlrm = DLRM_150B, gpu_exchange_bytes: float = 2.0) -> float:
    """The ratio for some values of `RANGES`; the others are those of the presets."""
    if unknown := [name for name in inputs if name not in {one.name for one in RANGES}]:
        raise ConfigError.unknown("input", unknown[0], [one.name for one in RANGES])
    own = replace(model, alltoall_bytes=inputs.get("AllToAll bytes", model.alltoall_bytes))
    both = _clusters(inputs)
    gpu = total_us(replace(own, exchange_bytes=gpu_exchange_bytes), both.gpu, both.gpu_domains, both.gpu.stretch)
    return gpu / total_us(own, both.engine, both.engine_domains)


def _clusters(inputs: dict[str, float]) -> Sides:
    both = sides(partition="10+2" if inputs.get("scale-up NICs") == 10 else None)
    links = {
        side: _given(
            up_efficiency=inputs.get(f"{side} scale-up efficiency"),
            out_efficiency=inputs.get(f"{side} scale-out efficiency"),
        )
        for side in ("GPU", "engine")
    }
    gpu = replace(both.gpu, links=replace(both.gpu.links, **links["GPU"]))
    engine = replace(both.engine, links=replace(both.engine.links, **links["engine"]))
    return Sides(
        gpu=replace(
            gpu, **_given(step_us=inputs.get("GPU fixed cost"), stretch=inputs.get("GPU stretch under compute"))
        ),
        gpu_domains=both.gpu_domains,
        engine=replace(engine, **_given(step_us=inputs.get("engine fixed cost"))),
        engine_domains=(14, 13, 13) if inputs.get("balanced racks") else both.engine_domains,
    )


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0, equal values share their mean."""
    given = np.asarray(values)
    ordered = np.sort(given)
    low, high = np.searchsorted(ordered, given, "left"), np.searchsorted(ordered, given, "right")
    return [float(rank) for rank in (low + high - 1) / 2]


def _spearman(one: Sequence[float], other: Sequence[float]) -> float:
    first, second = np.array(_ranks(one)), np.array(_ranks(other))
    first, second = first - first.mean(), second - second.mean()
    size = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / size if size else 0.0
