"""The TOML schema of a fabric.

Unknown keys are refused. Sizes, times and rates are strings with a unit, as in `metaroce.units`::

    kind = "leaf-spine"                # or "fat-tree", "sites", "graph", "racks"
    description = "one line, shown by `metaroce topo list`"
    ecmp = "linear"                    # optional: how a switch hashes an entropy; the core's default when left out
    reroute_delay = "1ms"              # optional: from a link's fall until routes avoid it
    trim = false                       # optional: a full queue cuts data packets down to their headers
    control_priority = false           # optional: acknowledgements overtake queued data
    last_hop_ecn = true                # optional: switch ports that lead to hosts mark
    balance = "ecmp"                   # optional: how a switch chooses among ports; "flowlet", "flowlet-random",
                                       # "spray", "spray-least" or "pinned"
    flowlet_gap = "16us"               # optional, with flowlets: pause after which a flow may take another port
    flowlet_entries = 32768            # optional, with flowlets: rows of a switch's table
    explicit_queues = false            # optional: switch ports keep packets in queues; same results, exact priorities
    lossless = false                   # optional: data is a lossless class (PFC)

    [pfc]                              # optional: of a lossless class, where there is one; the core's defaults
    buffer = "16MiB"                   # packet buffer of a switch
    xoff_shift = 3                     # a link may hold what is free of the shared buffer >> 3
    xon_offset = "3KiB"                # it goes on so much below
    reserve = "4KiB"                   # each link's own
    headroom = "0B"                    # a link's, for what comes after XOFF; 0: what its cable needs
    headroom_percent = 100             # taken of it; below 100 lossy on purpose
    watchdog = false                   # drop what a port holds that is paused for
    watchdog_detect = "200ms"          # so long, until it has not been for
    watchdog_restore = "400ms"         # so long

    [link]                             # every cable, both directions alike
    rate = "200Gbps"                   # > 0
    delay = "600ns"                    # propagation, one way
    queue = "1MiB"                     # output queue of a switch port, tail drop; > 0
    ecn = { kmin = "50KiB", kmax = "200KiB", pmax = 0.2 }    # RED marking; left out = none

    [host_link]                        # optional: keys which differ on the cables of hosts, same keys as [link]

    [plane.1.link]                     # optional: keys of [link] or [host_link] which differ in plane 1
    delay = "1.2us"

    [[host_links]]                     # optional: keys which differ on the cables of some hosts, in every plane
    hosts = "1-31"                     # "7", "1-31", or every third: "1-31/3"
    rate = "100Gbps"

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

    # sites: copies of a leaf-spine fabric, far apart; spine i of each has a cable to spine i of every other
    sites = 2                          # optional, 2
    planes = 4                         # optional, 1; leaves, spines and hosts_per_leaf count one site
    [long_haul]                        # keys which differ from [link] on the cables between sites
    delay = "2.5ms"                    # and [plane.1.long_haul]

    # graph: anything else, cable by cable; hosts are named host0, host1, ...
    planes = 1
    hosts = 2
    switches = [{ name = "s0", plane = 0, tier = 1 }]
    links = [{ a = "host0", b = "s0" }, { a = "host1", b = "s0", rate = "100Gbps" }]    # keys of [link] override it

    # racks: accelerators with two hosts, one in each of two networks that nothing joins (`metaroce.topology.racks`);
    # without [link] and the tables that change it
    racks = [16, 16, 8]                # accelerators of each rack
    [scale_up]                         # in a rack: a switch a plane and rack; keys of [link], and planes
    planes = 8
    [scale_out]                        # between racks: a switch a plane; not needed with one rack
    planes = 2

Top-level keys come before the first ``[table]``, as TOML wants. Switches of the generators are named
``p<plane>.leaf<i>``, ``spine``, ``tor``, ``agg``, ``core`` and ``rack``; i counts through the whole plane. The switch
between racks is ``p<plane>.out``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, NonNegativeInt, StrictBool, field_validator, model_validator

from ..config import Config, Rate, Size, Time
from ..errors import ConfigError
from .check import problems
from .fabric import Fabric

if TYPE_CHECKING:
    import networkx


Balance = Literal["ecmp", "flowlet", "flowlet-random", "spray", "spray-least", "pinned"]
"""What a switch does where several ports lead closer to a destination."""
FLOWLETS = ("flowlet", "flowlet-random")
FLOWLET_KEYS = ("flowlet_gap", "flowlet_entries")


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


class HostLinks(LinkChanges):
    """Keys which differ on the cables of some hosts: ``"7"``, ``"0-31"``, or every third of them ``"0-31/3"``."""

    hosts: str

    @field_validator("hosts", mode="before")
    @classmethod
    def _is_range(cls, value: object) -> str:
        first, last, step = _bounds(str(value)) or (1, 0, 1)
        if isinstance(value, bool) or first > last or step < 1:
            raise ConfigError.of("", value, 'must be hosts like "7", "0-31" or "0-31/3", the first not above the last')
        return str(value)

    @property
    def members(self) -> range:
        """The hosts."""
        first, last, step = _bounds(self.hosts) or (0, -1, 1)
        return range(first, last + 1, step)


def _bounds(text: str) -> tuple[int, int, int] | None:
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+)(?:/([0-9]+))?)?", text)
    return (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else None


class Pfc(Config):
    """Settings of a lossless class; those left out are the core's defaults."""

    buffer: Size | None = None
    xoff_shift: NonNegativeInt | None = None
    xon_offset: Size | None = None
    reserve: Size | None = None
    headroom: Size | None = None
    headroom_percent: NonNegativeInt | None = None
    watchdog: StrictBool | None = None
    watchdog_detect: Time | None = None
    watchdog_restore: Time | None = None

    def spec(self) -> dict[str, Any]:
        """The ``fabric.pfc`` object of the specification."""
        sizes, times = ("buffer", "xon_offset", "reserve", "headroom"), ("watchdog_detect", "watchdog_restore")
        units = {**dict.fromkeys(sizes, "_bytes"), **dict.fromkeys(times, "_ps")}
        return {f"{name}{units.get(name, '')}": value for name, value in self.model_dump(exclude_none=True).items()}


class PlaneChanges(Config):
    """What differs in one plane: keys over those of the tables of the same names."""

    link: LinkChanges = LinkChanges()
    host_link: LinkChanges = LinkChanges()


class Topology(Config, ABC):
    """What all kinds share. `fabric` builds it once; a fabric that fails its self-check raises `ConfigError`."""

    name: str = ""
    description: str = ""
    kind: str
    ecmp: Literal["linear", "mixed", "qp"] | None = None
    reroute_delay: Time | None = None
    trim: StrictBool | None = None
    control_priority: StrictBool | None = None
    last_hop_ecn: StrictBool | None = None
    balance: Balance | None = None
    flowlet_gap: Time | None = Field(default=None, gt=0)
    flowlet_entries: int | None = Field(default=None, ge=1)
    explicit_queues: StrictBool | None = None
    lossless: StrictBool | None = None
    pfc: Pfc = Pfc()

    @model_validator(mode="after")
    def _flowlets_have_a_use(self) -> Topology:
        given = [name for name in FLOWLET_KEYS if getattr(self, name) is not None]
        if given and self.balance not in FLOWLETS:
            raise ConfigError.of(given[0], getattr(self, given[0]), "only with balance " + " or ".join(FLOWLETS))
        return self

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
    def accelerators(self) -> int:
        """How many there are to place ranks on: accelerator a has host a."""
        return self.fabric.hosts

    @property
    def domains(self) -> list[int]:
        """The scale-up domain of every accelerator."""
        return [0] * self.accelerators

    @property
    def scale_out_hosts(self) -> range | None:
        """The second host of every accelerator, by which it talks to other domains, where it has one."""
        return None

    def check(self) -> list[str]:
        """Every problem of the fabric in words; empty when it is sound."""
        return problems(self.build())

    def spec(self) -> dict[str, Any]:
        """The ``fabric`` object of the specification."""
        options = {
            "ecmp": self.ecmp,
            "reroute_delay_ps": self.reroute_delay,
            "trim": self.trim,
            "control_priority": self.control_priority,
            "last_hop_ecn": self.last_hop_ecn,
            "balance": self.balance,
            "flowlet_gap_ps": self.flowlet_gap,
            "flowlet_entries": self.flowlet_entries,
            "explicit_queues": self.explicit_queues,
            "lossless": self.lossless,
            "pfc": self.pfc.spec() or None,
        }
        return self.fabric.spec() | {k: v for k, v in options.items() if v is not None}

    def graph(self) -> networkx.MultiGraph:
        """Hosts and switches as a networkx graph, attributes as in `Fabric.graph`."""
        return self.fabric.graph()


class Multiplane(Topology):
    """What kinds share in which every host has a port in each of ``planes`` planes, by cables of ``[link]``."""

    planes: int = Field(default=1, ge=1)
    link: Link
    host_link: LinkChanges = LinkChanges()
    plane: Mapping[NonNegativeInt, PlaneChanges] = {}
    host_links: tuple[HostLinks, ...] = ()

    @model_validator(mode="after")
    def _planes_exist(self) -> Multiplane:
        if beyond := [number for number in self.plane if number >= self.planes]:
            raise ConfigError.of("plane", beyond[0], f"must be 0 .. {self.planes - 1}")
        return self

    def cable(self, plane: int) -> Link:
        """A cable between two switches of a plane."""
        return self._changes(plane).link.over(self.link)

    # [F12.storage-incast]
    def host_cables(self, plane: int, hosts: int) -> list[Link]:
        """The cable of every host into a plane; raises `ConfigError` for ``host_links`` that name one twice."""
        usual = self._changes(plane).host_link.over(self.host_link.over(self.cable(plane)))
        cables, named = [usual] * hosts, set[int]()
        for row, group in enumerate(self.host_links):
            wrong = next((h for h in group.members if h >= hosts or h in named), None)
            if wrong is not None:
                reason = f"host{wrong} is named twice" if wrong in named else f"hosts are 0 .. {hosts - 1}"
                raise ConfigError.of(f"host_links.{row}.hosts", group.hosts, reason)
            named.update(group.members)
            changed = group.over(usual)
            for host in group.members:
                cables[host] = changed
        return cables

    def _changes(self, plane: int) -> PlaneChanges:
        return self.plane.get(plane, PlaneChanges())
