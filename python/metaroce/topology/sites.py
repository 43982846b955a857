"""Sites far apart: a leaf-spine fabric at each, and long cables between their spines.

In every plane, spine i of a site has one cable to spine i of every other site, so a packet that leaves its site crosses
leaf, spine, spine, leaf. Host h sits under leaf h // hosts_per_leaf of the plane, so a site's hosts are consecutive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, NonNegativeInt

from .fabric import LEAF_TIER, SPINE_TIER, Fabric
from .schema import LinkChanges, Multiplane, PlaneChanges


class SitesPlaneChanges(PlaneChanges):
    """What differs in one plane, cables between sites included."""

    long_haul: LinkChanges = LinkChanges()


class Sites(Multiplane):
    """``planes`` x ``sites`` x (``leaves`` x ``spines``), ``sites * leaves * hosts_per_leaf`` hosts."""

    kind: Literal["sites"] = "sites"
    sites: int = Field(default=2, ge=2)
    leaves: int = Field(ge=1)
    spines: int = Field(ge=1)
    hosts_per_leaf: int = Field(ge=1)
    long_haul: LinkChanges
    plane: Mapping[NonNegativeInt, SitesPlaneChanges] = {}

    def build(self) -> Fabric:
        """Switches plane by plane, leaves before spines, site by site; cables of hosts first, long ones last."""
        fabric = Fabric(self.sites * self.leaves * self.hosts_per_leaf, self.planes)
        for plane in range(self.planes):
            self._add_plane(fabric, plane)
        return fabric

    # [F12.scale-across]
    def _add_plane(self, fabric: Fabric, plane: int) -> None:
        leaves = [fabric.switch(f"p{plane}.leaf{i}", plane, LEAF_TIER) for i in range(self.sites * self.leaves)]
        spines = [fabric.switch(f"p{plane}.spine{i}", plane, SPINE_TIER) for i in range(self.sites * self.spines)]
        for host, cable in enumerate(self.host_cables(plane, fabric.hosts)):
            fabric.cable(host, leaves[host // self.hosts_per_leaf], cable)
        between = self.cable(plane)
        for i, leaf in enumerate(leaves):
            site = i // self.leaves
            for spine in spines[site * self.spines : (site + 1) * self.spines]:
                fabric.cable(leaf, spine, between)
        changes = self.plane.get(plane, SitesPlaneChanges())
        long = changes.long_haul.over(self.long_haul.over(between))
        for i, spine in enumerate(spines):
            for other in spines[i + self.spines :: self.spines]:
                fabric.cable(spine, other, long)
