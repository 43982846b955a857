"""Message engines: hardware as data, and the compiler of collectives to work packets.

`compile` takes a `Node` or a `Graph` of them to a `Compiled`, whose `program` runs as any (`metaroce.simulation`) and
whose `dump` is for people. `hardware.load` reads an accelerator.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import hardware, trials
from .compiler import Compiled, collective, compile, node
from .hardware import Hardware
from .ir import Graph, Node, Outside, Word
from .options import OffloadOptions
from .proof import prove

__all__ = [
    "Compiled",
    "Graph",
    "Hardware",
    "Node",
    "OffloadOptions",
    "Outside",
    "Word",
    "collective",
    "compile",
    "hardware",
    "node",
    "prove",
    "trials",
]


def __getattr__(name: str) -> Any:
    if name == "models":  # when first used: no scenario needs them
        return import_module(".models", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
