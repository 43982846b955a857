"""The TOML schema of a fabric.

Unknown keys are refused. Sizes, times and rates are strings with a unit, as in `metaroce.units`::

    kind = "leaf-spine"                # or "fat-tree", "graph"
    description = "one line, shown by `metaroce topo list`"
    ecmp = "linear"                    # optional: how a switch hashes an entropy; the core's default when left out
    reroute_delay = "1ms"              # optional: from a link's fall until routes avoid it

    [link]                             # every cable, both directions alike
    rate = "200Gbps"                   # > 0
    delay = "600ns"                    # propagation, one way
    queue = "1MiB"                     # output queue of a switch port, tail drop; > 0
    ecn = { kmin = "50KiB", kmax = "200KiB", pmax = 0.2 }    # RED marking; left out = none

    [host_link]                        # optional: keys which differ on the cables of hosts, same keys as [link]

    # leaf-spine: planes copies of leaves x spines, one cable between each pair; a host has one port a plane
    planes = 4
    leaves = 8
    spines = 8
    hosts_per_leaf = 8

    # fat-tree: planes copies of three tiers; agg j of each pod has cables to cores j*cores_per_agg ...
    planes = 1                         # optional, 1
    pods = 4
    tors_per_pod = 4
    aggs_per_pod = 4
    cores_per_agg = 4
    hosts_per_tor = 4

    # graph: anything else, cable by cable; hosts are named host0, host1, ...
    planes = 1
    hosts = 2
    switches = [{ name = "s0", plane = 0, tier = 1 }]
    links = [{ a = "host0", b = "s0" }, { a = "host1", b = "s0", rate = "100Gbps" }]    # keys of [link] override it

Top-level keys come before the first ``[table]``, as TOML wants. Switches of the generators are named
``p<plane>.leaf<i>``, ``spine``, ``tor``, ``agg``, ``core``; i counts through the whole plane.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from ..config import Config, Rate, Size, Time
from ..errors import ConfigError
from .check import problems
from .fabric import Fabric

if TYPE_CHECKING:
    import networkx


class Ecn(Config):
    """RED marking: none below ``kmin`` queued bytes, rising to ``pmax`` at ``kmax``, every packet above."""

    kmin: Size
    kmax: Size = Field(gt=0)
    pmax: float = Field(default=1.0, gt=0.0, le=1.0)

    @model_validator(mode="after")
    def _ordered(self) -> Ecn:
        if self.kmin > self.kmax:
            raise ConfigError.of("kmin", self.kmin, f"must be at most kmax = {self.kmax}")
        return self


class Link(Config):
    """A cable, the same in both directions: bits per second, picoseconds one way, bytes of output queue."""

    rate: Rate
    delay: Time
    queue: Size = Field(gt=0)
    ecn: Ecn | None = None


class LinkChanges(Config):
    """Keys of `Link` which differ from ``[link]``."""

    rate: Rate | None = None
    delay: Time | None = None
    queue: Size | None = Field(default=None, gt=0)
    ecn: Ecn | None = None

    def over(self, link: Link) -> Link:
        """``link`` with these keys put over it."""
        return Link(**{**dict(link), **{k: getattr(self, k) for k in self.model_fields_set & set(Link.model_fields)}})


class Topology(Config, ABC):
    """What all kinds share. `fabric` builds it once; a fabric that fails its self-check raises `ConfigError`."""

    name: str = ""
    description: str = ""
    kind: str
    ecmp: Literal["linear", "mixed"] | None = None
    reroute_delay: Time | None = None
    link: Link
    host_link: LinkChanges = LinkChanges()

    @abstractmethod
    def build(self) -> Fabric:
        """Nodes and cables, unchecked."""

    @cached_property
    def fabric(self) -> Fabric:
        """The checked fabric; raises `ConfigError` with the first problem."""
        fabric = self.build()
        if found := problems(fabric):
            raise ConfigError.of("topology", self.name or self.kind, found[0])
        return fabric

    @property
    def host_cable(self) -> Link:
        """The cable between a host and its first switch."""
        return self.host_link.over(self.link)

    def check(self) -> list[str]:
        """Every problem of the fabric in words; empty when it is sound."""
        return problems(self.build())

    def spec(self) -> dict[str, Any]:
        """The ``fabric`` object of the specification."""
        options = {"ecmp": self.ecmp, "reroute_delay_ps": self.reroute_delay}
        return self.fabric.spec() | {k: v for k, v in options.items() if v is not None}

    def graph(self) -> networkx.MultiGraph:
        """Hosts and switches as a networkx graph, attributes as in `Fabric.graph`."""
        return self.fabric.graph()
