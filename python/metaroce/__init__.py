"""metaroce: collectives over a packet-level model of a MetaRoCE-style transport and its RoCEv2 baseline.

``import metaroce as mr``; describe a run with `mr.Scenario` and start it with `mr.run`, hand tensors to
`mr.all_reduce`, or post work requests with `mr.verbs`. Names are loaded when first used, so importing the package costs
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import collectives, metrics, offload, topology, units, verbs
    from .config import TRANSPORTS, Fault, Loss
    from .engine import Collective, Flows, Groups, Incast, Permutation
    from .errors import ConfigError, MetaRoceError, ProgramError, SimulationDeadlocked, SimulationStalled
    from .pool import run_many
    from .result import Result
    from .scenario import Scenario
    from .simulation import all_gather, all_reduce, alltoall, reduce_scatter, run
    from .topology import Topology

_HOME = {
    **dict.fromkeys(
        ("ConfigError", "MetaRoceError", "ProgramError", "SimulationDeadlocked", "SimulationStalled"), "errors"
    ),
    **dict.fromkeys(("TRANSPORTS", "Fault", "Loss"), "config"),
    **dict.fromkeys(("Collective", "Flows", "Groups", "Incast", "Permutation"), "engine"),
    **dict.fromkeys(("all_gather", "all_reduce", "alltoall", "reduce_scatter", "run"), "simulation"),
    "Result": "result",
    "Scenario": "scenario",
    "Topology": "topology",
    "run_many": "pool",
}
_MODULES = ("collectives", "metrics", "offload", "topology", "units", "verbs")

__all__ = [
    "TRANSPORTS",
    "Collective",
    "ConfigError",
    "Fault",
    "Flows",
    "Groups",
    "Incast",
    "Loss",
    "MetaRoceError",
    "Permutation",
    "ProgramError",
    "Result",
    "Scenario",
    "SimulationDeadlocked",
    "SimulationStalled",
    "Topology",
    "all_gather",
    "all_reduce",
    "alltoall",
    "collectives",
    "metrics",
    "offload",
    "reduce_scatter",
    "run",
    "run_many",
    "topology",
    "units",
    "verbs",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("metaroce")
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
