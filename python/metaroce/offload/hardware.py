"""Accelerators as data: TOML files in which every figure has its source beside it.

A figure is ``{ value = ..., source = "..." }``; what no public text gives says ``ours: why``. Times and sizes are text
with a unit (`metaroce.units`), NIC rates ``"800Gbps"``, memory rates and peaks plain numbers of bytes/s and FLOP/s.
``kind = "engines"`` has message engines (``[engines]``, ``[unit]``, ``[control]``, optionally ``[posters]``: cores of
the accelerator that post without dispatch); ``kind = "gpu"`` runs collectives as kernels and has ``[gpu]``. Both have
``[network]``, ``[memory]`` and ``[compute]``. Named files lie in ``metaroce/offload/hardware``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from ..config import Config, Rate, Size, Time
from ..errors import ConfigError
from ..topology import Racks, Topology
from ..topology.check import MAX_PLANES

T = TypeVar("T")


class Figure(Config, Generic[T]):
    """A value and where it is from."""

    value: T
    source: str = Field(min_length=1)

    @property
    def ours(self) -> bool:
        """Whether no public text gives it."""
        return self.source.startswith("ours")


class Count(Figure[int]):
    """A whole number, at least 1."""

    value: int = Field(ge=1)


class Share(Figure[float]):
    """A part, above 0 and at most 1."""

    value: float = Field(gt=0, le=1)


class PerSecond(Figure[float]):
    """Bytes, cycles or operations a second."""

    value: float = Field(gt=0)


class Network(Config):
    """NICs of an accelerator, how they are divided, and what a message costs beside its bytes."""

    nics: Count
    nic_rate: Figure[Rate]
    partition: Figure[str]
    domain: Count
    qps: Count
    outstanding: Count
    express_doorbell: Figure[bool]
    doorbell: Figure[Time]
    hop_up: Figure[Time]
    hop_out: Figure[Time]
    efficiency_up: Share
    efficiency_out: Share
    host_link: PerSecond | None = None


class Engines(Config):
    """Message engines: CPU-M time an entry and a subgraph, context memory."""

    count: Count
    issue: Figure[Time]
    start: Figure[Time]
    context: Figure[Size]
    record: Count
    completion_queues: Count | None = None


class Posters(Config):
    """Cores of the accelerator that post work requests themselves: no event, no dispatch."""

    count: Count
    issue: Figure[Time]
    post: Figure[Time]


class Unit(Config):
    """Near-memory compute beside each engine: bytes a cycle of one alone, and each when all run."""

    alone: Count
    shared: Count
    clock: PerSecond
    dtypes: Figure[tuple[str, ...]]
    accumulate: Figure[str]


class Control(Config):
    """From a trigger to a running subgraph."""

    event: Figure[Time]
    dispatch: Figure[Time]
    host_copy: Figure[Time]
    host_copy_hidden: Figure[bool]
    enqueue: Figure[Time]


class Memory(Config):
    """Device memory and, where there is one, on-chip memory with the part kept for staging slots."""

    size: Figure[Size]
    bandwidth: PerSecond
    achieved: Share
    on_chip: Figure[Size] | None = None
    on_chip_bandwidth: PerSecond | None = None
    staging: Figure[Size] | None = None


class Compute(Config):
    """Cores (PEs or SMs) and their peaks by element type."""

    units: Count
    peak: dict[str, PerSecond]
    clock: PerSecond | None = None
    vector: PerSecond | None = None


class Gpu(Config):
    """Collectives as kernels on k of n SMs: launch, CTAs and bytes/s of a channel, HBM bytes a byte of the network."""

    launch: Figure[Time]
    channels: Count
    channel_rate: PerSecond
    memory_factor: PerSecond
    nvls: Share | None = None


class Hardware(Config):
    """One accelerator; raises `ConfigError` for what is missing, unknown or out of range."""

    name: str = ""
    description: str = ""
    kind: Literal["engines", "gpu"]
    network: Network
    memory: Memory
    compute: Compute
    engines: Engines | None = None
    posters: Posters | None = None
    unit: Unit | None = None
    control: Control | None = None
    gpu: Gpu | None = None

    @model_validator(mode="after")
    def _has_its_tables(self) -> Hardware:
        needed = ("engines", "unit", "control") if self.kind == "engines" else ("gpu",)
        for name in needed:
            if getattr(self, name) is None:
                raise ConfigError.of(name, None, f'missing; kind = "{self.kind}" has ' + ", ".join(needed))
        return self

    @field_validator("network")
    @classmethod
    def _partition_fits(cls, network: Network) -> Network:
        split(network, network.partition.value)
        return network

    def spec(
        self, engines: int, posters: int, nics: int, words: int, express_doorbell: bool | None = None
    ) -> dict[str, Any]:
        """The ``offload`` object of a run's specification: ``engines`` message engines, then ``posters``."""
        if self.engines is None or self.unit is None or self.control is None:
            raise ConfigError.of("engine", self.name or self.kind, 'must be hardware of kind "engines"')
        express = self.network.express_doorbell.value if express_doorbell is None else express_doorbell
        doorbell = 0 if express else self.network.doorbell.value
        issue, post = (self.posters.issue.value, self.posters.post.value) if self.posters else (0, 0)
        hidden = self.control.host_copy_hidden.value
        rates = [round(count.value * self.unit.clock.value * 8) for count in (self.unit.alone, self.unit.shared)]
        return {
            "issue_ps": [self.engines.issue.value] * engines + [issue] * posters,
            "start_ps": [self.engines.start.value] * engines + [0] * posters,
            "post_ps": [doorbell] * engines + [post + doorbell] * posters,
            "direct": [False] * engines + [True] * posters,
            "event_ps": self.control.event.value + (0 if hidden else self.control.host_copy.value),
            "dispatch_ps": self.control.dispatch.value,
            "unit_bps": rates[0],
            "units_bps": rates[1] * self.engines.count.value,
            "outstanding": self.network.outstanding.value * nics,
            "words": words,
            "copies_sends": False,
        }

    def topology(self, racks: Sequence[int], partition: str | None = None) -> Topology:
        """``racks`` of so many accelerators, their NICs divided by ``partition``; queues and marking by round trips."""
        network, (up, out) = self.network, split(self.network, partition)
        tables: dict[str, Any] = {"scale_up": _ports(up, network.nic_rate.value, network.hop_up.value)}
        if len(racks) > 1:
            if not out:
                raise ConfigError.of("partition", partition, "must leave NICs for scale-out, there are several racks")
            tables["scale_out"] = _ports(out, network.nic_rate.value, network.hop_out.value)
        return Racks(name=f"{self.name}-{'+'.join(map(str, racks))}", racks=tuple(racks), **tables)

    def having(self, path: str, value: Any) -> Hardware:
        """A copy with one figure changed, as ``having("engines.issue", "1.1us")``; its source says so."""
        data = self.model_dump()
        at: Any = data
        for name in path.split("."):
            at = at.get(name) if isinstance(at, dict) else None
        if not isinstance(at, dict) or "source" not in at:
            raise ConfigError.unknown("figure", path, [name for name, *_ in self.figures()])
        at |= {"value": value, "source": "ours: changed by the caller"}
        return Hardware(**data)

    def figures(self) -> list[tuple[str, Any, str]]:
        """All figures as rows (path, value, source)."""
        return list(_figures(self, ""))


def split(network: Network, partition: str | None = None) -> tuple[int, int]:
    """NICs for scale-up and scale-out from text like ``"8+2"``; raises `ConfigError` when there are not so many."""
    text = network.partition.value if partition is None else partition
    match = re.fullmatch(r"([0-9]+)\+([0-9]+)", str(text))
    up, out = (int(match[1]), int(match[2])) if match else (0, 0)
    if up < 1 or up + out > network.nics.value:
        allowed = f'must be NICs for scale-up + scale-out like "8+2", at most {network.nics.value} together'
        raise ConfigError.of("partition", partition, allowed)
    return up, out


def names() -> list[str]:
    """The named accelerators."""
    return sorted(f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml"))


def load(name_or_path: str | Path | Hardware) -> Hardware:
    """Read a named accelerator or a ``.toml`` file; raises `ConfigError` when unknown or ill-formed."""
    if isinstance(name_or_path, Hardware):
        return name_or_path
    text, name = str(name_or_path), Path(name_or_path).name
    if not text.endswith(".toml"):
        if text not in names():
            raise ConfigError.of("hardware", text, "unknown; allowed: a path to a .toml file, or " + ", ".join(names()))
        return _parse(_folder().joinpath(f"{text}.toml").read_text("utf-8"), text)
    try:
        return _parse(Path(text).read_text("utf-8"), name.removesuffix(".toml"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError.of("hardware", text, f"cannot be read: {reason}") from None


def _parse(text: str, name: str) -> Hardware:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError.of("hardware", name, f"not valid TOML: {error}") from None
    return Hardware(**{"name": name, **data})


def _ports(nics: int, rate: int, hop: int) -> dict[str, Any]:
    """Ports for NICs, bundled to at most `MAX_PLANES`, on cables of half a hop; queues of eight round trips. Ours."""
    planes = max(k for k in range(1, MAX_PLANES + 1) if nics % k == 0)
    trip = rate * (nics // planes) * 2 * hop // 8 // 10**12
    ecn = {"kmin": trip * 2 // 5, "kmax": trip * 8 // 5, "pmax": 0.2}
    return {"planes": planes, "rate": rate * (nics // planes), "delay": hop // 2, "queue": 8 * trip, "ecn": ecn}


def _folder() -> resources.abc.Traversable:
    return resources.files("metaroce") / "offload" / "hardware"


def _figures(value: Any, path: str) -> Any:
    if isinstance(value, Figure):
        yield path, value.value, value.source
    elif isinstance(value, Config):
        for name in type(value).model_fields:
            yield from _figures(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _figures(inner, f"{path}.{name}")
