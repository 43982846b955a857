"""A fabric as columns: hosts first, then switches, then cables.

Node ids are hosts 0 .. hosts-1, then switches; a cable is one row and two directed links. This is the form that crosses
to the core and that faults are resolved in, so names exist here only at the edge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    import networkx

    from .schema import Link

HOST_TIER, LEAF_TIER, SPINE_TIER, CORE_TIER = 0, 1, 2, 3


@dataclass
class Fabric:
    """Nodes and cables; filled by a generator through `switch` and `cable`."""

    hosts: int
    planes: int
    islands: bool = False
    """Hosts need not reach each other, and have ports in the first planes only."""
    switch_names: list[str] = field(default_factory=list)
    switch_planes: list[int] = field(default_factory=list)
    switch_tiers: list[int] = field(default_factory=list)
    a: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def switch(self, name: str, plane: int, tier: int) -> int:
        """Add a switch and return its node id."""
        self.switch_names.append(name)
        self.switch_planes.append(plane)
        self.switch_tiers.append(tier)
        return self.hosts + len(self.switch_names) - 1

    def cable(self, a: int, b: int, link: Link) -> None:
        """Add a cable between two nodes."""
        self.a.append(a)
        self.b.append(b)
        self.links.append(link)

    def node_name(self, node: int) -> str:
        """``host5`` or the switch's name."""
        return f"host{node}" if node < self.hosts else self.switch_names[node - self.hosts]

    def node_id(self, name: str) -> int:
        """The id of a node's name; raises `ConfigError` when there is none."""
        if name not in self._ids:
            raise ConfigError.of(
                "node", name, f"unknown; allowed: host0 .. host{self.hosts - 1}, {self._switch_examples()}"
            )
        return self._ids[name]

    def switch_id(self, name_or_index: str | int) -> int:
        """The switch index (not the node id) of a name or index."""
        if isinstance(name_or_index, int):
            if not 0 <= name_or_index < len(self.switch_names):
                raise ConfigError.of("switch", name_or_index, f"must be 0 .. {len(self.switch_names) - 1}")
            return name_or_index
        node = self.node_id(name_or_index)
        if node < self.hosts:
            raise ConfigError.of("switch", name_or_index, f"is a host; switches are {self._switch_examples()}")
        return node - self.hosts

    def link_rows(self, a: str, b: str) -> list[int]:
        """The rows of all cables between two named nodes; raises `ConfigError` when there is none."""
        ends = {self.node_id(a), self.node_id(b)}
        rows = [row for row, pair in enumerate(zip(self.a, self.b, strict=True)) if set(pair) == ends]
        if not rows:
            raise ConfigError.of("link", f"{a} - {b}", "no such cable; both ends must be neighbours")
        return rows

    def link_name(self, link: int) -> str:
        """``from -> to`` of a directed link: 2 row from a to b, 2 row + 1 back."""
        ends = self.node_name(self.a[link // 2]), self.node_name(self.b[link // 2])
        return " -> ".join(ends if link % 2 == 0 else ends[::-1])

    def plane_of(self, row: int) -> int:
        """The plane of a cable, which its switch end has."""
        return self.switch_planes[max(self.a[row], self.b[row]) - self.hosts]

    def spec(self) -> dict[str, Any]:
        """The ``fabric`` object of the specification, options left out."""
        ecns = [link.ecn for link in self.links]
        return {
            "hosts": self.hosts,
            "planes": self.planes,
            "switches": {"plane": self.switch_planes, "tier": self.switch_tiers},
            "links": {
                "a": self.a,
                "b": self.b,
                "rate_bps": [link.rate for link in self.links],
                "delay_ps": [link.delay for link in self.links],
                "queue_bytes": [link.queue for link in self.links],
                "ecn_kmin_bytes": [ecn.kmin if ecn else 0 for ecn in ecns],
                "ecn_kmax_bytes": [ecn.kmax if ecn else 0 for ecn in ecns],
                "ecn_pmax": [ecn.pmax if ecn else 0.0 for ecn in ecns],
            },
            **({"islands": True} if self.islands else {}),
        }

    def graph(self) -> networkx.MultiGraph:
        """Nodes by name with ``tier`` (0: host) and ``plane`` (host: None); edges with ``plane`` and numbers."""
        import networkx  # only here: it takes longer to import than everything else together

        graph = networkx.MultiGraph(hosts=self.hosts, planes=self.planes)
        graph.add_nodes_from((f"host{h}", {"tier": HOST_TIER, "plane": None}) for h in range(self.hosts))
        for name, plane, tier in zip(self.switch_names, self.switch_planes, self.switch_tiers, strict=True):
            graph.add_node(name, tier=tier, plane=plane)
        for row, link in enumerate(self.links):
            numbers = {"rate_bps": link.rate, "delay_ps": link.delay, "queue_bytes": link.queue}
            a, b = self.node_name(self.a[row]), self.node_name(self.b[row])
            graph.add_edge(a, b, key=row, plane=self.plane_of(row), **numbers)
        return graph

    @cached_property
    def _ids(self) -> dict[str, int]:
        names = [f"host{h}" for h in range(self.hosts)] + self.switch_names
        return {name: node for node, name in enumerate(names)}

    def _switch_examples(self) -> str:
        names = self.switch_names
        return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, ... {names[-1]}"
