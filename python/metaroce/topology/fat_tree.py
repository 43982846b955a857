"""Three-tier fat trees: ToR, aggregation, core.

Within a pod every ToR has one cable to every aggregation switch; aggregation switch j of every pod has one cable to
each of cores j*cores_per_agg .. (j+1)*cores_per_agg - 1 of its plane. Bisection is full when hosts_per_tor =
aggs_per_pod and tors_per_pod = cores_per_agg (Al-Fares et al., SIGCOMM 2008, with free radices).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .fabric import CORE_TIER, LEAF_TIER, SPINE_TIER, Fabric
from .schema import Multiplane


class FatTree(Multiplane):
    """``pods * tors_per_pod * hosts_per_tor`` hosts, ``aggs_per_pod * cores_per_agg`` cores a plane."""

    kind: Literal["fat-tree"] = "fat-tree"
    pods: int = Field(ge=1)
    tors_per_pod: int = Field(ge=1)
    aggs_per_pod: int = Field(ge=1)
    cores_per_agg: int = Field(ge=1)
    hosts_per_tor: int = Field(ge=1)

    def build(self) -> Fabric:
        """Switches plane by plane, tier by tier; cables of hosts first."""
        tors = self.pods * self.tors_per_pod
        fabric = Fabric(tors * self.hosts_per_tor, self.planes)
        for plane in range(self.planes):
            self._add_plane(fabric, plane, tors)
        return fabric

    def _add_plane(self, fabric: Fabric, plane: int, tor_count: int) -> None:
        tors = [fabric.switch(f"p{plane}.tor{i}", plane, LEAF_TIER) for i in range(tor_count)]
        aggs = [fabric.switch(f"p{plane}.agg{i}", plane, SPINE_TIER) for i in range(self.pods * self.aggs_per_pod)]
        cores = [
            fabric.switch(f"p{plane}.core{i}", plane, CORE_TIER) for i in range(self.aggs_per_pod * self.cores_per_agg)
        ]
        for host, cable in enumerate(self.host_cables(plane, fabric.hosts)):
            fabric.cable(host, tors[host // self.hosts_per_tor], cable)
        between = self.cable(plane)
        for i, tor in enumerate(tors):
            pod = i // self.tors_per_pod
            for agg in aggs[pod * self.aggs_per_pod : (pod + 1) * self.aggs_per_pod]:
                fabric.cable(tor, agg, between)
        for i, agg in enumerate(aggs):
            first = (i % self.aggs_per_pod) * self.cores_per_agg
            for core in cores[first : first + self.cores_per_agg]:
                fabric.cable(agg, core, between)
