"""Racks: accelerators with a host in each of two networks, a fast one in their rack and a slower one between racks.

Every rack is a scale-up domain with a switch of its own in each plane; in each plane of the scale-out network one
switch joins all racks, non-blocking. Accelerator a has host a in the scale-up network and, where there are several
racks, host n + a in the scale-out network, n accelerators in all. Accelerators of a rack talk between their scale-up
hosts, others between their scale-out hosts. Both networks number planes from 0 and share nothing but those numbers;
a fault of plane p takes down all switches of that number, in both.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..errors import ConfigError
from .check import MAX_PLANES
from .fabric import LEAF_TIER, Fabric
from .schema import Link, Topology


class Network(Link):
    """The ports of an accelerator, one a plane, and their cables, all alike."""

    planes: int = Field(ge=1, le=MAX_PLANES)


class Racks(Topology):
    """``sum(racks)`` accelerators, rack by rack; with one rack ``scale_out`` is of no use and is not built."""

    kind: Literal["racks"] = "racks"
    racks: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    scale_up: Network
    scale_out: Network | None = None

    @model_validator(mode="after")
    def _racks_are_joined(self) -> Racks:
        if len(self.racks) > 1 and self.scale_out is None:
            raise ConfigError.of("racks", list(self.racks), "more than one needs [scale_out]")
        return self

    @property
    def accelerators(self) -> int:
        """All racks together."""
        return sum(self.racks)

    @property
    def domains(self) -> list[int]:
        """The rack of every accelerator."""
        return [rack for rack, size in enumerate(self.racks) for _ in range(size)]

    @property
    def scale_out_hosts(self) -> range | None:
        """The second host of every accelerator, unless there is one rack."""
        return range(self.accelerators, 2 * self.accelerators) if len(self.racks) > 1 else None

    @property
    def networks(self) -> dict[str, Network]:
        """Those that are built, by name."""
        out = self.scale_out if self.scale_out_hosts else None
        return {"scale-up": self.scale_up, **({"scale-out": out} if out else {})}

    # [F12.scale-up]
    def build(self) -> Fabric:
        """Switches and cables plane by plane, those of the racks first."""
        hosts = self.accelerators * len(self.networks)
        planes = max(network.planes for network in self.networks.values())
        fabric = Fabric(hosts, planes, islands=self.scale_out_hosts is not None)
        for plane in range(self.scale_up.planes):
            ends = list(accumulate(self.racks))
            for rack, (size, end) in enumerate(zip(self.racks, ends, strict=True)):
                self._star(fabric, plane, f"rack{rack}", range(end - size, end))
        for plane in range(self.scale_out.planes if self.scale_out and self.scale_out_hosts else 0):
            self._star(fabric, plane, "out", self.scale_out_hosts or range(0))
        return fabric

    def _star(self, fabric: Fabric, plane: int, name: str, hosts: range) -> None:
        network = self.networks["scale-out" if name == "out" else "scale-up"]
        switch = fabric.switch(f"p{plane}.{name}", plane, LEAF_TIER)
        for host in hosts:
            fabric.cable(host, switch, network)
