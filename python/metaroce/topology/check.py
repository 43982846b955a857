"""The self-check of a fabric: degrees, speeds, planes disjoint, all pairs of hosts reachable in each plane.

Hosts of a fabric of islands may have ports in the first planes only and need not reach each other: whether ranks that
talk do, the core checks.

A fault may cut a fabric later; a fabric that is cut from the start is a mistake in its file, and is refused with the
pair and the plane named instead of ending as a stalled run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .fabric import Fabric

Array = npt.NDArray[Any]
MAX_PLANES = 8
"""What the core has room for."""


def problems(fabric: Fabric) -> list[str]:
    """Everything wrong with the fabric, one line each; empty when it is sound."""
    found = _bad_ends(fabric)
    # The rest reads planes off the cables' ends, so it only makes sense once those are right.
    return found or [
        *_bad_speeds(fabric),
        *_bad_degrees(fabric),
        *([] if fabric.islands else _unreachable(fabric)),
    ]


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
    low, high = _ends(fabric)
    of_node = np.array([-1] * fabric.hosts + fabric.switch_planes)  # of a host: any
    wrong = (low == high) | (high < fabric.hosts) | (low >= fabric.hosts) & (of_node[low] != of_node[high])
    for row in np.flatnonzero(wrong):
        a, b = fabric.a[row], fabric.b[row]
        cable = f"cable {fabric.node_name(a)} - {fabric.node_name(b)}"
        if a == b:
            found.append(f"{cable} ends where it starts")
        elif max(a, b) < fabric.hosts:
            found.append(f"{cable} joins two hosts; one end must be a switch")
        else:
            planes = {int(of_node[node]) for node in (a, b)}
            found.append(f"{cable} joins planes {min(planes)} and {max(planes)}; planes must be disjoint")
    return found


def _bad_speeds(fabric: Fabric) -> list[str]:
    return [
        f"cable {fabric.node_name(a)} - {fabric.node_name(b)} has rate {link.rate}, queue {link.queue}: must be > 0"
        for a, b, link in zip(fabric.a, fabric.b, fabric.links, strict=True)
        if link.rate <= 0 or link.queue <= 0
    ]


def _bad_degrees(fabric: Fabric) -> list[str]:
    low, high = _ends(fabric)
    of_host = low < fabric.hosts
    plane = np.array(fabric.switch_planes)[high - fabric.hosts]
    ports = np.zeros((fabric.hosts, fabric.planes), np.int64)
    np.add.at(ports, (low[of_host], plane[of_host]), 1)
    ends = np.concatenate((high, low[~of_host])) - fabric.hosts
    degree = np.bincount(ends, minlength=len(fabric.switch_names))
    wanted = np.ones_like(ports)
    if fabric.islands:  # up to the last plane with a port
        wanted[:, 1:] = (np.cumsum(ports[:, ::-1], axis=1)[:, ::-1] > 0)[:, 1:]
    found = [
        f"host{host} has {ports[host, plane]} cables in plane {plane}; exactly 1 is needed"
        for host, plane in np.argwhere(ports != wanted)
    ]
    return found + [f"{fabric.switch_names[s]} has no cable" for s in np.flatnonzero(degree == 0)]


def _unreachable(fabric: Fabric) -> list[str]:
    low, high = _ends(fabric)
    of_row = np.array(fabric.switch_planes)[high - fabric.hosts]
    found = []
    for plane in range(fabric.planes):
        a, b = low[of_row == plane], high[of_row == plane]
        reached = np.zeros(fabric.hosts + len(fabric.switch_names), bool)
        reached[0] = True
        forwards = np.ones(len(reached), bool)
        forwards[1 : fabric.hosts] = False
        count = 0
        while count < (count := int(reached.sum())):  # a step further each time
            along, back = reached[a] & forwards[a], reached[b] & forwards[b]
            reached[b[along]] = True
            reached[a[back]] = True
        lost = np.flatnonzero(~reached[: fabric.hosts])
        if len(lost):
            found.append(f"host0 and host{lost[0]} are not connected in plane {plane}")
    return found


def _ends(fabric: Fabric) -> tuple[Array, Array]:
    """The lower and the higher node id of every cable: host or switch, and switch."""
    a, b = np.array(fabric.a, np.int64), np.array(fabric.b, np.int64)
    return np.minimum(a, b), np.maximum(a, b)
