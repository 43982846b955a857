"""A fabric in a dozen lines: sizes, radices, rates, the round trip of an empty network and what it holds in flight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..topology import Fabric, Link, Network, Racks, Topology
from ..units import format_rate, format_size, format_time
from .render import Column, Table

# A full data packet and its acknowledgement as the metaroce transport sends them, preamble and gap included
# (rust/wire/src/lengths.rs: mr_data(4096), mr_ack(0)).
_DATA_BYTES, _ACK_BYTES = 4210, 114
_FULL_TRIP = "(4 KiB of payload there, its ACK back, empty network)"
_TIERS = {1: "leaf/ToR", 2: "spine/agg", 3: "core"}


def listing(topologies: Sequence[Topology]) -> Table:
    """Name, size and description, one row a topology."""
    rows = [[t.name, str(t.accelerators), _planes(t), t.description] for t in topologies]
    return Table(
        [Column("name", right=False), Column("hosts"), Column("planes"), Column("description", right=False)], rows
    )


def _planes(topology: Topology) -> str:
    """Of racks: up + out."""
    if isinstance(topology, Racks):
        return "+".join(str(network.planes) for network in topology.networks.values())
    return str(topology.fabric.planes)


def summary(topology: Topology) -> Table:
    """Property and value, one row each."""
    rows = [[name, value] for name, value in _properties(topology)]
    return Table([Column("property", right=False), Column("value", right=False)], rows, title=topology.name)


DEFAULT_ECMP = "linear"
"""What the core takes where a topology leaves `ecmp` out; a test holds the two together."""


def headline(topology: Topology) -> str:
    """Hosts, planes, host rate, switches and ECMP hash in one line: what a bandwidth depends on first."""
    fabric = topology.fabric
    balance = f", {topology.balance}" if topology.balance not in (None, "ecmp") else ""
    if isinstance(topology, Racks):
        ports = (f"{name} {_ports(network.planes, [network.rate])}" for name, network in topology.networks.items())
        shape = f"{topology.accelerators} accelerators in {_of_racks(topology)}, {', '.join(ports)}"
    else:
        ports_of_host = _ports(fabric.planes, (link.rate for link in _host_cables(fabric)))
        shape = f"{fabric.hosts} hosts, {ports_of_host}, {_switches(fabric)} a plane"
    return f"{topology.name}: {shape}, ECMP {topology.ecmp or DEFAULT_ECMP}{balance}"


def _ports(planes: int, rates: Iterable[int]) -> str:
    return f"{planes} plane{'s' if planes > 1 else ''} x {_rates(rates)}"


def _of_racks(topology: Racks) -> str:
    return "racks of " + ", ".join(map(str, topology.racks)) if len(topology.racks) > 1 else "one rack"


def round_trip_ps(fabric: Fabric) -> tuple[int, int]:
    """Cables between the two hosts furthest apart in a plane; ps from a full packet's first bit to its ACK's last.

    Empty network, store and forward at every switch; in the plane where that takes longest, the slowest host of every
    leaf, by the shortest ways in cables, of which the first found counts.
    """
    trips = [(_trip(way), len(way)) for plane in range(fabric.planes) for way in _ways(fabric, plane)]
    trip, hops = max(trips)
    return hops, trip


def _trip(way: Sequence[Link]) -> int:
    return sum(2 * link.delay + _serialise(link, _DATA_BYTES) + _serialise(link, _ACK_BYTES) for link in way)


def _serialise(link: Link, size: int) -> int:
    return -(-size * 8 * 10**12 // link.rate)


def _properties(topology: Topology) -> Iterator[tuple[str, str]]:
    if topology.description:
        yield "description", topology.description
    yield "kind", topology.kind
    if isinstance(topology, Racks):
        yield from _two_networks(topology)
    else:
        yield from _one_network(topology)


def _two_networks(topology: Racks) -> Iterator[tuple[str, str]]:
    networks, last = topology.networks, topology.accelerators - 1
    yield "accelerators", f"{topology.accelerators} in {_of_racks(topology)}"
    yield "hosts", f"host0 .. host{last}, scale-up"
    if out := topology.scale_out_hosts:
        yield "", f"host{out[0]} .. host{out[-1]}, scale-out, in the same order"
    if options := [name for name, on in _switching(topology) if on]:
        yield "switches", ", ".join(options)
    for name, network in networks.items():
        switches = "p0.rack0, one a rack" if name == "scale-up" else "p0.out, one"
        yield f"{name} planes", f"{network.planes}, switches {switches}"
        yield from _cable(f"{name} cables", network)
        trip = _trip([network, network])
        of_port, of_host = (rate * trip // (8 * 10**12) for rate in (network.rate, network.rate * network.planes))
        yield f"{name} base round trip", f"{format_time(trip)} {_FULL_TRIP}"
        yield f"{name} bandwidth-delay product", f"{of_port / 1024:.0f} KiB a plane, {of_host / 1024:.0f} KiB a host"
        yield f"{name} host rate", format_rate(_rate(network))
    if out:
        up, across = (_rate(network) for network in networks.values())
        yield "scale-up to scale-out", f"{up / across:g} : 1"


def _rate(network: Network) -> int:
    return network.rate * network.planes


def _one_network(topology: Topology) -> Iterator[tuple[str, str]]:
    fabric = topology.fabric
    yield "hosts", str(fabric.hosts)
    yield "planes", str(fabric.planes)
    for tier in sorted(set(fabric.switch_tiers)):
        down, up = _radix(fabric, tier)
        count = sum(t == tier for t in fabric.switch_tiers) // fabric.planes
        yield f"{_TIERS.get(tier, f'tier {tier}')} switches", f"{count} a plane, radix {down} down + {up} up"
    hosts = _host_cables(fabric)
    between = [link for a, b, link in zip(fabric.a, fabric.b, fabric.links, strict=True) if min(a, b) >= fabric.hosts]
    yield from _cables("host cables", hosts)
    yield from _cables("other cables", between)
    if options := [name for name, on in _switching(topology) if on]:
        yield "switches", ", ".join(options)
    hops, trip = round_trip_ps(fabric)
    rates = [0] * fabric.hosts
    for a, b, link in zip(fabric.a, fabric.b, fabric.links, strict=True):
        if min(a, b) < fabric.hosts:
            rates[min(a, b)] += link.rate
    of_port, of_host = (rate * trip // (8 * 10**12) for rate in (max(link.rate for link in hosts), max(rates)))
    yield "longest way", f"{hops} cables"
    yield "base round trip", f"{format_time(trip)} {_FULL_TRIP}"
    yield (
        "bandwidth-delay product",
        f"{of_port / 1024:.0f} KiB a plane, {of_host / 1024:.0f} KiB a host" + " at most" * (len(set(rates)) > 1),
    )
    yield "host rate", _rates(rates)


def _switching(topology: Topology) -> Iterator[tuple[str, bool]]:
    yield "trim packets at full queues", bool(topology.trim)
    yield "send control packets first", bool(topology.control_priority)
    yield "do not mark at the last hop", topology.last_hop_ecn is False
    yield f"balance by {topology.balance}", topology.balance not in (None, "ecmp")
    yield "keep packets in explicit queues", bool(topology.explicit_queues)
    yield "lossless data (PFC)", bool(topology.lossless)


def _host_cables(fabric: Fabric) -> list[Link]:
    rows = zip(fabric.a, fabric.b, fabric.links, strict=True)
    return [link for a, b, link in rows if min(a, b) < fabric.hosts]


def _rates(rates: Iterable[int]) -> str:
    known = sorted(set(rates))
    return " to ".join(format_rate(rate) for rate in known[:1] + known[1:][-1:])


def _cables(name: str, links: Sequence[Link]) -> Iterator[tuple[str, str]]:
    """Two rows for every kind of cable, with its number where there are several."""
    counts: dict[tuple[object, ...], tuple[Link, int]] = {}
    for link in links:
        key = (link.rate, link.delay, link.queue, link.ecn and (link.ecn.kmin, link.ecn.kmax, link.ecn.pmax))
        counts[key] = (link, counts.get(key, (link, 0))[1] + 1)
    for link, count in counts.values():
        yield from _cable(f"{count} {name}" if len(counts) > 1 else name, link)


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


def _ways(fabric: Fabric, plane: int) -> Iterator[list[Link]]:
    """The cables of the shortest way between the slowest hosts of each two leaves; of one leaf, its two slowest."""
    neighbours: dict[int, list[tuple[int, Link]]] = {}
    for row, (a, b, link) in enumerate(zip(fabric.a, fabric.b, fabric.links, strict=True)):
        if fabric.plane_of(row) == plane:
            neighbours.setdefault(a, []).append((b, link))
            neighbours.setdefault(b, []).append((a, link))
    hosts = sorted(range(fabric.hosts), key=lambda host: -_trip([neighbours[host][0][1]]))
    slowest_of_leaf = {neighbours[host][0][0]: host for host in reversed(hosts)}
    ends = set(slowest_of_leaf.values()) if len(slowest_of_leaf) > 1 else set(hosts[:2])
    for start in sorted(ends):
        ways = _ways_from(neighbours, start, fabric.hosts)
        yield from (ways[end] for end in sorted(ends - {start}))


def _ways_from(neighbours: dict[int, list[tuple[int, Link]]], start: int, hosts: int) -> dict[int, list[Link]]:
    ways: dict[int, list[Link]] = {start: []}
    edge = [start]
    while edge:
        reached = []
        for node in edge:
            for other, link in neighbours[node] if node >= hosts or node == start else ():
                if other not in ways:
                    ways[other] = [*ways[node], link]
                    reached.append(other)
        edge = reached
    return ways
