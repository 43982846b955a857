"""M6: an AllToAllvDynamic that a word in device memory starts, beside compute: wall time and what of it is exposed.

A collective queued ahead is dispatched already: its engines wait for the word, read the counts, and move the data;
another word tells the consumer. Started by the host, event handling and dispatch come in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import ConfigError
from . import presets
from .comm import Cost, EngineModel
from .kernels import Kernel
from .overlap import Task, simulate

TRIGGERS = ("device", "host")
COUNTS_US = 0.8
"""Reading the counts from HBM when the engine issues (the read that an express doorbell saves, ISCA'26)."""


@dataclass(frozen=True)
class Split:
    """From the trigger to the completion word, how much of it the compute stream waited, and what it was slowed, us."""

    wall_us: float
    exposed_us: float
    slowed_us: float

    @property
    def hidden(self) -> float:
        """Share of the wall time under compute."""
        return 1 - self.exposed_us / self.wall_us


def cost(bytes_in: float, ranks: int, trigger: str = "device", comm: EngineModel | None = None) -> Cost:
    """The collective by itself, from its trigger."""
    if trigger not in TRIGGERS:
        raise ConfigError.unknown("trigger", trigger, TRIGGERS)
    model = comm or presets.engines()
    if trigger == "device":
        model = replace(model, event_us=0.0, dispatch_us=0.0)
    made = model.time("alltoall", bytes_in, presets.domains("mtia300", ranks))
    return replace(made, fixed_us=made.fixed_us + COUNTS_US)


def split(
    bytes_in: float, compute_us: float, *, ranks: int = 16, trigger: str = "device", memory_bound: bool = False
) -> Split:
    """The exchange beside a kernel of ``compute_us`` that does not need it; then comes the one that does.

    ``memory_bound``: that kernel takes all of the memory's bandwidth, instead of a tenth.
    """
    device, comm = presets.device("mtia300"), presets.engines()
    demand = device.bandwidth * (1.0 if memory_bound else 0.1)
    tasks = [
        Task("exchange", cost(bytes_in, ranks, trigger, comm)),
        Task("independent", Kernel("independent", compute_us, demand * compute_us * 1e3, device.units)),
        Task("consumer", Kernel("consumer", 0.0, 0.0), ("exchange",)),
    ]
    timeline = simulate(tasks, device, comm)
    slowed = timeline.finish_us["independent"] - compute_us
    return Split(timeline.finish_us["exchange"], timeline.exposed_us(), slowed)


def payload(wall_us: float, ranks: int = 16, trigger: str = "device") -> float:
    """The bytes that arrive at a rank in an exchange of this wall time alone: what a published time implies."""
    empty = cost(1.0, ranks, trigger).time_us
    if wall_us < empty:
        raise ConfigError.of("wall_us", wall_us, f"must be at least {empty:.2f}: the control path and a hop")
    low, high = 1.0, 1e12
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle, ranks, trigger).time_us < wall_us else (low, middle)
    return (low + high) / 2
