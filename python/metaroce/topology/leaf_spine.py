"""Leaf-spine planes: every leaf has one cable to every spine of its plane, every host one port to a leaf of each plane.

Host h sits under leaf h // hosts_per_leaf of every plane, so planes are copies. Oversubscription is hosts_per_leaf to
spines; cables between tiers have the speed of ``[link]``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .fabric import LEAF_TIER, SPINE_TIER, Fabric
from .schema import Multiplane


class LeafSpine(Multiplane):
    """``planes`` x (``leaves`` x ``spines``), ``leaves * hosts_per_leaf`` hosts."""

    kind: Literal["leaf-spine"] = "leaf-spine"
    planes: int = Field(ge=1)
    leaves: int = Field(ge=1)
    spines: int = Field(ge=1)
    hosts_per_leaf: int = Field(ge=1)

    def build(self) -> Fabric:
        """Switches plane by plane, leaves before spines; cables of hosts first."""
        fabric = Fabric(self.leaves * self.hosts_per_leaf, self.planes)
        for plane in range(self.planes):
            leaves = [fabric.switch(f"p{plane}.leaf{i}", plane, LEAF_TIER) for i in range(self.leaves)]
            spines = [fabric.switch(f"p{plane}.spine{i}", plane, SPINE_TIER) for i in range(self.spines)]
            for host, cable in enumerate(self.host_cables(plane, fabric.hosts)):
                fabric.cable(host, leaves[host // self.hosts_per_leaf], cable)
            between = self.cable(plane)
            for leaf in leaves:
                for spine in spines:
                    fabric.cable(leaf, spine, between)
        return fabric
