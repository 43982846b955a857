"""Closed-form collective times (docs/offload.md) behind one interface, itemised; here for message engines.

A rank has a scale-up link to its domain ("rack") and a scale-out link to the others. ``bytes_in`` counts what arrives
at a rank: of an AllToAll with the rank's own part (V), of an AllReduce 2(N-1)/N of the vector, of an AllGather (N-1)/N
of the result, of a ReduceScatter (N-1)/N of the vector. Times are us, rates GB/s of one direction of one accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...errors import ConfigError
from .kernels import Load
from .memory import absorbed, amplification

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")


@dataclass(frozen=True)
class Cost:
    """Time of one collective: what is fixed, what each resource needs, and which of them binds."""

    kind: str
    bytes_in: float
    fixed_us: float
    parts_us: dict[str, float]
    algorithm: str

    @property
    def bound(self) -> str:
        """The resource that needs longest."""
        return max(self.parts_us, key=lambda part: self.parts_us[part])

    @property
    def link_us(self) -> float:
        """Time that grows with the size."""
        return self.parts_us[self.bound]

    @property
    def time_us(self) -> float:
        """All of it."""
        return self.fixed_us + self.link_us

    @property
    def rate_gbs(self) -> float:
        """GB/s that arrive at a rank while the links are at work."""
        return self.bytes_in / self.link_us / 1e3 if self.link_us else 0.0


class CommModel(Protocol):
    """One side's collectives; a packet simulation may stand behind it as well as a formula (`Measured`)."""

    def time(self, kind: str, bytes_in: float, domains: Sequence[int]) -> Cost:
        """Cost of one collective with nothing beside it."""
        ...

    def load(self, cost: Cost) -> Load:
        """What it takes of the accelerator while it runs."""
        ...


@dataclass(frozen=True, kw_only=True)
class Links:
    """Nominal rates of an accelerator and what of them collectives achieve."""

    up_gbs: float
    out_gbs: float
    up_efficiency: float = 1.0
    out_efficiency: float = 1.0

    def __post_init__(self) -> None:
        for name in ("up_gbs", "out_gbs"):
            value = getattr(self, name)
            if not (0 <= value < math.inf) or (name == "up_gbs" and not value):
                raise ConfigError.of(name, value, "must be GB/s above 0 (scale-out: 0 for none)")
        for name in ("up_efficiency", "out_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError.of(name, getattr(self, name), "must be in (0, 1]")

    @property
    def up(self) -> float:
        """GB/s achieved in the domain."""
        return self.up_gbs * self.up_efficiency

    @property
    def out(self) -> float:
        """GB/s achieved across domains."""
        return self.out_gbs * self.out_efficiency

    def parts(self, kind: str, bytes_in: float, domains: Sequence[int]) -> dict[str, float]:
        """Time, us, that each link needs at the least, for a topology-aware algorithm in domains of any sizes.

        A rank's rack takes each byte from other racks once, spread over its ranks, and spreads it inside. Every
        phase overlaps the others (chunks), so the times are not added.
        """
        n = checked(kind, domains, bytes_in)
        if kind == "all_reduce":  # a ReduceScatter and an AllGather of half of the bytes each
            return {part: 2 * time for part, time in self.parts("all_gather", bytes_in / 2, domains).items()}
        whole = bytes_in if kind == "alltoall" else bytes_in * n / (n - 1)
        inside = max(whole * (s - 1) / (n if kind == "alltoall" else s) for s in domains)
        across = max(whole * (n - s) / (n if kind == "alltoall" else n * s) for s in domains)
        if across and not self.out_gbs:
            raise ConfigError.of("domains", list(domains), "one domain only: there is no scale-out link")
        return {"scale-up": inside / self.up / 1e3, "scale-out": across / self.out / 1e3 if across else 0.0}


def checked(kind: str, domains: Sequence[int], bytes_in: float = 0.0) -> int:
    """All ranks of ``domains``; refuses unknown kinds, less than two ranks, and bytes that are no size."""
    if not 0 <= bytes_in < math.inf:
        raise ConfigError.of("bytes_in", bytes_in, "must be at least 0")
    if kind not in KINDS:
        raise ConfigError.unknown("kind", kind, KINDS)
    if any(size < 1 for size in domains) or sum(domains) < 2:
        raise ConfigError.of("domains", list(domains), "must be sizes of at least 1, at least 2 ranks together")
    return sum(domains)


@dataclass(frozen=True, kw_only=True)
class EngineModel:
    """Collectives on message engines: no compute unit is taken.

    ``step_us`` is the fixed cost of a collective as a training step sees it (10 to 100 us, *ours*). None: only what
    the device itself needs, t_event + t_CPU-C + steps x (t_CPU-M + hop) of the fastest algorithm (published costs,
    hops *ours*). ``one_shot_us`` is a PE that posts the transfers itself (None: not used), for AllReduce and AllToAll
    up to ``one_shot_most`` bytes. ``chunk_bytes`` is what one entry moves, ``slots`` how many of them an engine stages
    (2 to 4, *ours*), so that h follows from ``staging_bytes``, the partition of the on-chip memory (0: off chip).
    """

    links: Links
    step_us: float | None = None
    event_us: float = 3.6
    dispatch_us: float = 2.9
    engine_us: float = 1.1
    hop_us: float = 2.5
    hop_out_us: float = 6.0
    one_shot_us: float | None = None
    one_shot_most: int = 64 << 10
    engines: int = 16
    entry_us: float = 0.25
    chunk_bytes: int = 256 << 10
    reduce_gbs: float = 2800.0
    slots: int = 4
    staging_bytes: float = 32 << 20
    stretch: float = 1.0

    @property
    def staged(self) -> float:
        """h: the share of staging that stays on chip."""
        return absorbed(self.staging_bytes, self.engines * self.slots * self.chunk_bytes)

    def time(self, kind: str, bytes_in: float, domains: Sequence[int]) -> Cost:
        """The latest of links, near-memory reduction and issue of entries, after the fixed part."""
        n = checked(kind, domains, bytes_in)
        if self._one_shot(kind, bytes_in, n):
            return self._put(kind, bytes_in, domains)
        parts = self.links.parts(kind, bytes_in, domains)
        if kind in ("all_reduce", "reduce_scatter"):
            parts["reduction"] = bytes_in / (2 if kind == "all_reduce" else 1) / self.reduce_gbs / 1e3
        chunk = min(self.chunk_bytes, max(1.0, bytes_in / self.engines))
        parts["issue"] = 4 * self.entry_us * bytes_in / (self.engines * chunk)  # RECV, SEND, SUM, completion
        steps, hops_us, algorithm = self._serial(kind, domains)
        device_us = self.event_us + self.dispatch_us + steps * self.engine_us + hops_us
        return Cost(kind, bytes_in, device_us if self.step_us is None else self.step_us, parts, algorithm)

    def load(self, cost: Cost) -> Load:
        """Memory bandwidth only."""
        return Load(0, amplification(cost.kind, self.staged) * cost.rate_gbs, self.stretch)

    def _one_shot(self, kind: str, bytes_in: float, ranks: int) -> bool:
        if self.one_shot_us is None or kind not in ("all_reduce", "alltoall"):
            return False
        vector = bytes_in * ranks / (2 * (ranks - 1)) if kind == "all_reduce" else bytes_in
        return vector <= self.one_shot_most

    def _put(self, kind: str, bytes_in: float, domains: Sequence[int]) -> Cost:
        """Everything is written to everybody at once and acknowledged: a round trip. Each rank sums what it needs."""
        assert self.one_shot_us is not None
        n = sum(domains)
        moved = bytes_in * n * n / (2 * (n - 1)) if kind == "all_reduce" else bytes_in  # each peer's whole vector
        outside = max(n - s for s in domains) / n
        parts = {
            "scale-up": moved * max(s - 1 for s in domains) / n / self.links.up / 1e3,
            "scale-out": moved * outside / self.links.out / 1e3 if outside else 0.0,
        }
        hop = self.hop_out_us if outside else self.hop_us
        return Cost(kind, bytes_in, self.one_shot_us + 2 * hop, parts, "put one-shot")

    def _serial(self, kind: str, domains: Sequence[int]) -> tuple[int, float, str]:
        """Entries one after another, their hops in us, and the algorithm: the faster of ring and halving."""
        across, inside = len(domains), max(domains)
        if kind == "alltoall":
            rounds = math.ceil((sum(domains) - 1) / self.engines)
            return rounds, self.hop_out_us if across > 1 else self.hop_us, "pairwise"
        phases = 2 if kind == "all_reduce" else 1
        options = {"ring": (inside - 1, across - 1)}
        if all(size & (size - 1) == 0 for size in domains):
            options["halving"] = (inside.bit_length() - 1, math.ceil(math.log2(across)))

        def serial(name: str) -> tuple[int, float]:
            up, out = options[name]
            return phases * (up + out), phases * (up * self.hop_us + out * self.hop_out_us)

        best = min(options, key=lambda name: sum((serial(name)[0] * self.engine_us, serial(name)[1])))
        return *serial(best), best if across == 1 else f"hierarchical {best}"


@dataclass(frozen=True)
class Measured:
    """A `CommModel` whose times come from elsewhere: ``measure(kind, bytes_in, domains)`` in us, as from a simulation.

    ``base`` says what the collective takes of the accelerator; ``fixed_us`` of the measured time is not counted as
    transfer, and ``added_us`` is a cost the measurement leaves out.
    """

    base: CommModel
    measure: Callable[[str, float, Sequence[int]], float]
    added_us: float = 0.0
    known: dict[Any, float] = field(default_factory=dict, compare=False)

    def time(self, kind: str, bytes_in: float, domains: Sequence[int]) -> Cost:
        """The measured time, asked for once."""
        key = (kind, bytes_in, tuple(domains))
        if key not in self.known:
            self.known[key] = self.measure(kind, bytes_in, domains)
        cost = self.base.time(kind, bytes_in, domains)
        fixed = min(cost.fixed_us, self.known[key])
        return replace(
            cost, fixed_us=fixed + self.added_us, parts_us={"measured": self.known[key] - fixed}, algorithm="measured"
        )

    def load(self, cost: Cost) -> Load:
        """As the base says, at the measured rate."""
        return self.base.load(cost)


def busbw(kind: str, cost: Cost, ranks: int) -> float:
    """Bus bandwidth of nccl-tests, GB/s: bytes that arrive at a rank over all of the time (not its own part)."""
    own = cost.bytes_in * (ranks - 1) / ranks if kind == "alltoall" else cost.bytes_in
    return own / cost.time_us / 1e3


def bytes_in(kind: str, size: float, ranks: int) -> float:
    """Bytes that arrive at a rank for a nccl-tests ``size`` (the vector; of an AllGather the result)."""
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "alltoall": 1.0}
    return size * factor.get(kind, (ranks - 1) / ranks)
