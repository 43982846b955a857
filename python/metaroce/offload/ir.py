"""The compiler's intermediate form: collectives with what passes decide about them.

A `Node` is one collective, a `Graph` some of them with dependencies. Passes take a `Module` and return another; each
decides some fields of the nodes, the last ones make the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from ..collectives import Array, Program
from ..units import ELEMENT_BYTES
from .hardware import Hardware, split
from .options import OffloadOptions

COMPARISONS = (">=", "==", ">")
"""By their number in a program's ``imm`` of WAIT."""


@dataclass(frozen=True)
class Word:
    """A word of device memory: a condition to wait for, or a value to set."""

    word: int
    value: int = 1
    compare: Literal[">=", "==", ">"] = ">="


class Outside(NamedTuple):
    """A compute kernel sets a word of a rank (None: of all), so long after the iteration begins."""

    word: int
    value: int
    at_ps: int = 0
    rank: int | None = None


@dataclass(frozen=True, eq=False)
class Node:
    """One collective: ``count`` elements of the call as nccl-tests counts them, or for alltoallv a ``matrix`` of them.

    ``group`` are its ranks (None: all). ``deps`` are nodes that must be complete on a rank before it starts there;
    nodes of one ``stream`` start in order on each engine. A lower ``priority`` number goes first. It starts ``release``
    picoseconds into the iteration, or when ``trigger`` holds if that is later, and sets ``done`` at its end.
    """

    id: str
    kind: str
    count: int = 0
    dtype: str = "float32"
    matrix: Array | None = None
    counts: Array | None = None
    """Of a dynamic alltoallv: what is really sent; ``matrix`` is then what there is room for."""
    group: tuple[int, ...] | None = None
    op: str = "sum"
    inplace: bool = False
    deps: tuple[str, ...] = ()
    stream: int = 0
    priority: int = 0
    trigger: Word | None = None
    done: Word | None = None
    release: int = 0
    # Decided by passes.
    phases: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    """Nodes that were merged into this one."""
    area: str = ""
    """Nodes of one area are cut from one collective, elements ``first`` .. of ``whole`` (a block, or a pair)."""
    first: Any = 0
    whole: Any = 0
    algorithm: str = ""
    lanes: int = 1
    chunks: int = 1
    slots: int = 2
    across: int = 0
    """Staging slots for what comes from other racks."""
    flight: int = 1
    """Transfers of a subgraph that are under way at once where each is reduced."""
    ready: str = "first"
    part: int = 1 << 62
    """Bytes of a part of a block at least, where blocks are cut (alltoall)."""
    engines: tuple[int, ...] = ()

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.dtype]

    def bytes_of(self, ranks: int) -> int:
        """Bytes that the busiest rank sends or receives at least: what costs are counted from."""
        if self.matrix is not None:
            off = self.matrix - np.diag(np.diag(self.matrix))
            return int(max(off.sum(axis=0).max(), off.sum(axis=1).max())) * self.element_bytes
        moved = {"all_reduce": 2 * (ranks - 1) * self.count // ranks}.get(self.kind, (ranks - 1) * self.count)
        return max(moved, 1) * self.element_bytes

    def members(self, ranks: int) -> Array:
        """Its ranks."""
        return np.arange(ranks) if self.group is None else np.array(self.group)

    def but(self, **changes: Any) -> Node:
        """A copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Graph:
    """Collectives of one iteration, in the order of their enqueueing."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Target:
    """What is compiled for: the domain of each rank, the accelerator, options."""

    domains: tuple[int, ...]
    hardware: Hardware
    options: OffloadOptions

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.domains)

    @cached_property
    def nics(self) -> tuple[int, int]:
        """NICs for scale-up and scale-out."""
        return split(self.hardware.network, self.options.partition)

    @cached_property
    def engines(self) -> int:
        """Message engines in use; engines of posters are numbered behind them."""
        assert self.hardware.engines is not None
        return self.options.engines or self.hardware.engines.count.value

    @cached_property
    def posters(self) -> int:
        """Cores that post themselves."""
        return self.hardware.posters.count.value if self.hardware.posters and self.options.posters else 0

    def spec(self, words: int) -> dict[str, Any]:
        """The ``offload`` object of the specification."""
        options = self.options
        return self.hardware.spec(self.engines, self.posters, sum(self.nics), words, options.express_doorbell)

    def rates(self) -> tuple[float, float]:
        """Bytes/s of a rank for scale-up and scale-out, without efficiency."""
        rate = self.hardware.network.nic_rate.value / 8
        return rate * self.nics[0], rate * max(self.nics[1], 1)


@dataclass(frozen=True)
class Cost:
    """What one pass did: the estimated time before and after it, and a note."""

    name: str
    before_us: float
    after_us: float
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name:<12} {self.after_us:9.1f} us ({self.after_us - self.before_us:+.1f})  {self.note}".rstrip()


@dataclass(frozen=True, eq=False)
class Module:
    """The graph on its way through the passes."""

    target: Target
    nodes: tuple[Node, ...]
    program: Program | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """Figures that passes found, for dumps: QPs a NIC, outstanding requests, context bytes."""

    def but(self, **changes: Any) -> Module:
        """A copy with some fields changed."""
        return replace(self, **changes)
