"""A fabric in a dozen lines: sizes, radices, rates, the round trip of an empty network and what it holds in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..topology import Fabric, Link, Topology
from ..units import format_rate, format_size, format_time
from .render import Column, Table

# A full data packet and its acknowledgement as the metaroce transport sends them, preamble and gap included
# (rust/wire/src/lengths.rs: mr_data(4096), mr_ack(0)).
_DATA_BYTES, _ACK_BYTES = 4210, 114
_TIERS = {1: "leaf/ToR", 2: "spine/agg", 3: "core"}


def listing(topologies: Sequence[Topology]) -> Table:
    """Name, size and description, one row a topology."""
    rows = [[t.name, str(t.fabric.hosts), str(t.fabric.planes), t.description] for t in topologies]
    return Table(
        [Column("name", right=False), Column("hosts"), Column("planes"), Column("description", right=False)], rows
    )


def summary(topology: Topology) -> Table:
    """Property and value, one row each."""
    rows = [[name, value] for name, value in _properties(topology)]
    return Table([Column("property", right=False), Column("value", right=False)], rows, title=topology.name)


DEFAULT_ECMP = "linear"
"""What the core takes where a topology leaves `ecmp` out; a test holds the two together."""


def headline(topology: Topology) -> str:
    """Hosts, planes, host rate, switches and ECMP hash in one line: what a bandwidth depends on first."""
    fabric = topology.fabric
    return (
        f"{topology.name}: {fabric.hosts} hosts, {fabric.planes} plane{'s' if fabric.planes > 1 else ''} x "
        f"{format_rate(topology.host_cable.rate)}, {_switches(fabric)} a plane, "
        f"ECMP {topology.ecmp or DEFAULT_ECMP}"
    )


def round_trip_ps(fabric: Fabric) -> tuple[int, int]:
    """Cables between the two hosts furthest apart (in a plane); ps from a full packet's first bit to its ACK's last.

    Empty network, store and forward at every switch; of equally long ways the first found.
    """
    way = _longest_way(fabric)
    return len(way), sum(2 * link.delay + _serialise(link, _DATA_BYTES) + _serialise(link, _ACK_BYTES) for link in way)


def _serialise(link: Link, size: int) -> int:
    return -(-size * 8 * 10**12 // link.rate)


def _properties(topology: Topology) -> Iterator[tuple[str, str]]:
    fabric = topology.fabric
    if topology.description:
        yield "description", topology.description
    yield "kind", topology.kind
    yield "hosts", str(fabric.hosts)
    yield "planes", str(fabric.planes)
    for tier in sorted(set(fabric.switch_tiers)):
        down, up = _radix(fabric, tier)
        count = sum(t == tier for t in fabric.switch_tiers) // fabric.planes
        yield f"{_TIERS.get(tier, f'tier {tier}')} switches", f"{count} a plane, radix {down} down + {up} up"
    yield from _cable("host cables", topology.host_cable)
    yield from _cable("other cables", topology.link)
    hops, trip = round_trip_ps(fabric)
    per_plane = topology.host_cable.rate * trip // (8 * 10**12)
    yield "longest way", f"{hops} cables"
    yield "base round trip", f"{format_time(trip)} (4 KiB of payload there, its ACK back, empty network)"
    yield (
        "bandwidth-delay product",
        f"{per_plane / 1024:.0f} KiB a plane, {fabric.planes * per_plane / 1024:.0f} KiB a host",
    )
    yield "host rate", format_rate(fabric.planes * topology.host_cable.rate)


def _cable(name: str, link: Link) -> Iterator[tuple[str, str]]:
    yield name, f"{format_rate(link.rate)}, {format_time(link.delay)} one way, queue {format_size(link.queue)}"
    if link.ecn:
        low, high = format_size(link.ecn.kmin), format_size(link.ecn.kmax)
        yield f"{name} ECN", f"from {low}, up to {link.ecn.pmax:g} at {high}, all above"
    else:
        yield f"{name} ECN", "none"


def _switches(fabric: Fabric) -> str:
    tiers = sorted(set(fabric.switch_tiers))
    counts = (
        f"{sum(t == tier for t in fabric.switch_tiers) // fabric.planes} {_TIERS.get(tier, f'tier {tier}')}"
        for tier in tiers
    )
    return " + ".join(counts)


def _radix(fabric: Fabric, tier: int) -> tuple[int, int]:
    """The largest number of cables down and up of a tier's switches."""
    ports: dict[int, list[int]] = {}
    for a, b in zip(fabric.a, fabric.b, strict=True):
        for own, other in ((a, b), (b, a)):
            if own >= fabric.hosts and fabric.switch_tiers[own - fabric.hosts] == tier:
                above = other >= fabric.hosts and fabric.switch_tiers[other - fabric.hosts] > tier
                ports.setdefault(own, [0, 0])[above] += 1
    return max(down for down, _ in ports.values()), max(up for _, up in ports.values())


def _longest_way(fabric: Fabric) -> list[Link]:
    """The cables of the longest of all shortest ways between hosts in plane 0."""
    neighbours: dict[int, list[tuple[int, Link]]] = {}
    for row, (a, b, link) in enumerate(zip(fabric.a, fabric.b, fabric.links, strict=True)):
        if fabric.plane_of(row) == 0:
            neighbours.setdefault(a, []).append((b, link))
            neighbours.setdefault(b, []).append((a, link))
    # Hosts of one leaf see the same ways, so one of them speaks for all.
    first_of_leaf = {neighbours[host][0][0]: host for host in reversed(range(fabric.hosts))}
    return max((_furthest(fabric, neighbours, host) for host in sorted(first_of_leaf.values())), key=len)


def _furthest(fabric: Fabric, neighbours: dict[int, list[tuple[int, Link]]], start: int) -> list[Link]:
    ways: dict[int, list[Link]] = {start: []}
    edge = [start]
    while edge:
        reached = []
        for node in edge:
            for other, link in neighbours[node] if node >= fabric.hosts or node == start else ():
                if other not in ways:
                    ways[other] = [*ways[node], link]
                    reached.append(other)
        edge = reached
    return max((ways[host] for host in range(fabric.hosts)), key=len)
