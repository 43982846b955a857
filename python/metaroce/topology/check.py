"""The self-check of a fabric: degrees, speeds, planes disjoint, all pairs of hosts reachable in each plane.

A fault may cut a fabric later; a fabric that is cut from the start is a mistake in its file, and is refused with the
pair and the plane named instead of ending as a stalled run.
"""

from __future__ import annotations

from .fabric import Fabric

MAX_PLANES = 8
"""What the core has room for."""


def problems(fabric: Fabric) -> list[str]:
    """Everything wrong with the fabric, one line each; empty when it is sound."""
    found = _bad_ends(fabric)
    # The rest reads planes off the cables' ends, so it only makes sense once those are right.
    return found or [*_bad_speeds(fabric), *_bad_degrees(fabric), *_unreachable(fabric)]


def _bad_ends(fabric: Fabric) -> list[str]:
    found = []
    if fabric.hosts < 2:
        found.append(f"has {fabric.hosts} hosts; at least 2 are needed")
    if fabric.planes > MAX_PLANES:
        found.append(f"has {fabric.planes} planes; at most {MAX_PLANES} are possible")
    if len(set(fabric.switch_names)) != len(fabric.switch_names):
        twice = next(n for n in fabric.switch_names if fabric.switch_names.count(n) > 1)
        found.append(f"names two switches {twice!r}")
    for name, plane in zip(fabric.switch_names, fabric.switch_planes, strict=True):
        if not 0 <= plane < fabric.planes:
            found.append(f"puts {name} in plane {plane}; planes are 0 .. {fabric.planes - 1}")
    if found:
        return found
    for a, b in zip(fabric.a, fabric.b, strict=True):
        if wrong := _bad_cable(fabric, min(a, b), max(a, b)):
            found.append(f"cable {fabric.node_name(a)} - {fabric.node_name(b)} {wrong}")
    return found


def _bad_cable(fabric: Fabric, low: int, high: int) -> str:
    if low == high:
        return "ends where it starts"
    if high < fabric.hosts:
        return "joins two hosts; one end must be a switch"
    if low >= fabric.hosts:
        planes = sorted(fabric.switch_planes[node - fabric.hosts] for node in (low, high))
        if planes[0] != planes[1]:
            return f"joins planes {planes[0]} and {planes[1]}; planes must be disjoint"
    return ""


def _bad_speeds(fabric: Fabric) -> list[str]:
    return [
        f"cable {fabric.node_name(a)} - {fabric.node_name(b)} has rate {link.rate}, queue {link.queue}: must be > 0"
        for a, b, link in zip(fabric.a, fabric.b, fabric.links, strict=True)
        if link.rate <= 0 or link.queue <= 0
    ]


def _bad_degrees(fabric: Fabric) -> list[str]:
    ports = [[0] * fabric.planes for _ in range(fabric.hosts)]
    degree = [0] * len(fabric.switch_names)
    for row, ends in enumerate(zip(fabric.a, fabric.b, strict=True)):
        for node in ends:
            if node < fabric.hosts:
                ports[node][fabric.plane_of(row)] += 1
            else:
                degree[node - fabric.hosts] += 1
    found = [
        f"host{host} has {count} cables in plane {plane}; exactly 1 is needed"
        for host, counts in enumerate(ports)
        for plane, count in enumerate(counts)
        if count != 1
    ]
    return found + [f"{fabric.switch_names[s]} has no cable" for s, count in enumerate(degree) if count == 0]


def _unreachable(fabric: Fabric) -> list[str]:
    neighbours: list[list[int]] = [[] for _ in range(fabric.hosts + len(fabric.switch_names))]
    for a, b in zip(fabric.a, fabric.b, strict=True):
        neighbours[a].append(b)
        neighbours[b].append(a)
    found = []
    for plane in range(fabric.planes):
        reached, stack = {0}, [0]
        while stack:
            node = stack.pop()
            if node < fabric.hosts and node != 0:
                continue  # hosts do not forward
            for other in neighbours[node]:
                switch = other - fabric.hosts if other >= fabric.hosts else node - fabric.hosts
                if other not in reached and fabric.switch_planes[switch] == plane:
                    reached.add(other)
                    stack.append(other)
        lost = [host for host in range(fabric.hosts) if host not in reached]
        if lost:
            found.append(f"host0 and host{lost[0]} are not connected in plane {plane}")
    return found
