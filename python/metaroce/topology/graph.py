"""An explicit fabric: switches and cables listed one by one, for a user's own file.

Hosts are ``host0`` .. ``host<hosts-1>``. Nothing is assumed about its shape; the self-check refuses what cannot carry
traffic between all hosts in each plane.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..config import Config
from ..errors import ConfigError
from .fabric import Fabric
from .schema import LinkChanges, Multiplane


class Switch(Config):
    """A switch: its name, plane, and tier (1 = next to hosts)."""

    name: str = Field(min_length=1)
    plane: int = Field(default=0, ge=0)
    tier: int = Field(default=1, ge=1, le=255)


class Cable(LinkChanges):
    """A cable between two named nodes; keys of ``[link]`` given here override it."""

    a: str
    b: str


class Graph(Multiplane):
    """``hosts`` hosts, the listed switches, the listed cables."""

    # A scale-up domain is one switch and short cables.
    # [F12.scale-up]

    kind: Literal["graph"] = "graph"
    hosts: int = Field(ge=1)
    switches: list[Switch]
    links: list[Cable]

    def build(self) -> Fabric:
        """Nodes and cables in the order of the file."""
        fabric = Fabric(self.hosts, self.planes)
        for switch in self.switches:
            if switch.name.startswith("host") and switch.name[4:].isdigit():
                raise ConfigError.of("switches.name", switch.name, "is a host's name")
            fabric.switch(switch.name, switch.plane, switch.tier)
        of_hosts = [self.host_cables(plane, self.hosts) for plane in range(self.planes)]
        between = [self.cable(plane) for plane in range(self.planes)]
        for cable in self.links:
            a, b = fabric.node_id(cable.a), fabric.node_id(cable.b)
            # Two hosts, or a plane that there is not: the check of the whole fabric says so.
            plane = (
                min(fabric.switch_planes[max(a, b) - fabric.hosts], self.planes - 1) if max(a, b) >= fabric.hosts else 0
            )
            base = of_hosts[plane][min(a, b)] if min(a, b) < fabric.hosts else between[plane]
            fabric.cable(a, b, cable.over(base))
        return fabric
