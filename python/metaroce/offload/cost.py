"""Estimated times of collectives from the hardware's figures: what passes choose by, never what a run gives.

Equations of the offload model's section 2.2, with the pipeline's steps: a unit takes the wire's or the issuing time,
whichever is longer, and a step at least its latency over the units under way. Times in microseconds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..collectives import Array
from .ir import Module, Node, Target


class Figures(NamedTuple):
    """Microseconds and bytes/us of a target."""

    fixed: float
    issue: float
    hop_up: float
    hop_out: float
    up: float
    out: float
    unit: float
    units: float


def figures(t: Target) -> Figures:
    """From the hardware, options included."""
    h, network = t.hardware, t.hardware.network
    assert h.engines is not None and h.unit is not None and h.control is not None
    express = network.express_doorbell.value if t.options.express_doorbell is None else t.options.express_doorbell
    extra = 0 if express else network.doorbell.value / 1e6
    up, out = t.rates()
    fixed = (h.control.event.value + h.control.dispatch.value + h.engines.start.value) / 1e6
    shown = 0.0 if h.control.host_copy_hidden.value else h.control.host_copy.value / 1e6
    clock = h.unit.clock.value / 1e6
    return Figures(
        fixed + shown,
        h.engines.issue.value / 1e6,
        network.hop_up.value / 1e6 + extra,
        network.hop_out.value / 1e6 + extra,
        up * network.efficiency_up.value / 1e6,
        out * network.efficiency_out.value / 1e6,
        h.unit.alone.value * clock,
        h.unit.shared.value * clock * h.engines.count.value,
    )


def estimate(node: Node, target: Target) -> float:
    """Microseconds of one node alone, with the algorithm, lanes and chunks that it has."""
    members = node.members(target.ranks)
    domains = np.array(target.domains)[members]
    f = figures(target)
    if node.kind in ("alltoall", "alltoallv"):
        return _exchange(node, domains, target, f)
    return {"ring": _ring, "put": _put, "recursive": _recursive, "direct": _racks, "hierarchical": _racks}[
        node.algorithm
    ](node, domains, target, f)


def total(module: Module) -> float:
    """Microseconds of all nodes: one behind another as dependencies and shared engines want."""
    end: dict[str, float] = {}
    busy: dict[int, float] = {}
    for node in module.nodes:
        engines = node.engines or range(module.target.engines)
        begin = max(
            [end[d] for d in node.deps if d in end] + [busy.get(e, 0.0) for e in engines] + [node.release / 1e6]
        )
        end[node.id] = begin + estimate(node, module.target)
        busy |= dict.fromkeys(engines, end[node.id])
    return max(end.values(), default=0.0)


def _block(node: Node, n: int) -> float:
    """Bytes of a block: what one rank ends with in a reduce_scatter."""
    return node.count * node.element_bytes / (n if node.kind == "all_reduce" else 1)


def _hops(domains: Array, f: Figures) -> tuple[float, float]:
    """Latency of a message and bytes/us of a rank where every step crosses racks, if there are several."""
    several = len(np.unique(domains)) > 1
    return (f.hop_out, min(f.up, f.out)) if several else (f.hop_up, f.up)


def _sum_time(size: float, node: Node, f: Figures) -> float:
    """Of one sum of so many bytes on each of a node's lanes at once."""
    return size / min(f.unit, f.units / node.lanes)


def _ring(node: Node, domains: Array, target: Target, f: Figures) -> float:
    n = len(domains)
    hop, rate = _hops(domains, f)
    unit = _block(node, n) / node.lanes / node.chunks
    wire = unit / (rate / node.lanes)
    under_way = node.flight
    time = f.fixed
    for phase in node.phases:
        sums = phase == "reduce_scatter"
        entries = 3 if sums else 2
        add = _sum_time(unit, node, f) if sums else 0.0
        each = max(wire, entries * f.issue, add, (wire + hop + add + entries * f.issue) / under_way)
        time += (n - 1) * node.chunks * each
    return time + hop


def _put(node: Node, domains: Array, target: Target, f: Figures) -> float:
    n = len(domains)
    hop, _ = _hops(domains, f)
    block = node.count * node.element_bytes
    posters = target.hardware.posters if target.posters else None
    issue, fixed = (posters.issue.value / 1e6, posters.post.value / 1e6) if posters else (f.issue, f.fixed)
    wire = max(inside * block / f.up + outside * block / f.out for inside, outside in _peers(domains))
    sums = node.kind in ("all_reduce", "reduce_scatter")
    slice_time = _sum_time(block / node.lanes, node, f)
    return fixed + 2 * (n - 1) * issue + hop + wire + (n * (issue + slice_time) if sums else 0.0)


def _recursive(node: Node, domains: Array, target: Target, f: Figures) -> float:
    n = len(domains)
    hop, rate = _hops(domains, f)
    time = f.fixed
    for phase in node.phases:
        for step in range(int(math.log2(n))):
            blocks = 1 << step
            size = blocks * _block(node, n)
            messages = 1 if node.kind == "all_reduce" else blocks
            add = size / min(f.unit * node.lanes, f.units) if phase == "reduce_scatter" else 0.0
            time += max(size / rate, 3 * messages * f.issue) + add + hop + 3 * f.issue
    return time


def _racks(node: Node, domains: Array, target: Target, f: Figures) -> float:
    n, block = len(domains), _block(node, len(domains))
    if node.algorithm == "direct":
        several = len(np.unique(domains)) > 1
        worst = max(inside * block / f.up + outside * block / f.out for inside, outside in _peers(domains))
        steps, hop, sizes = n - 1, f.hop_out if several else f.hop_up, np.array([n])
        across = 0.0
    else:
        sizes = np.bincount(np.unique(domains, return_inverse=True)[1])
        # Every block crosses once to each other rack; inside, all of them go round.
        worst = max((n - n / s) * block / f.up for s in sizes if s > 1) if (sizes > 1).any() else 0.0
        across = max((n - s) / s * block for s in sizes) / f.out
        steps, hop = rounds(domains), f.hop_up
    add, units = _sum_time(block / node.lanes / node.chunks, node, f), steps * node.chunks
    time = f.fixed
    for phase in node.phases:
        sums = phase == "reduce_scatter"
        # An engine's unit makes one sum at a time, however many transfers are under way.
        each = max(3 * f.issue, add, (hop + 3 * f.issue + add) / node.flight) if sums else 2 * f.issue
        pipe = max(worst, units * each, across)
        # The first or last chunk of one network has nothing to overlap with in the other.
        time += pipe + (f.hop_out + min(worst, across) / node.chunks if across else 0.0) + hop
    return time


def rounds(domains: Array) -> int:
    """Transfers that one rank sums in one slice of a reduce_scatter by racks, at most."""
    sizes = np.bincount(np.unique(domains, return_inverse=True)[1]).tolist()
    relayed = [sum(math.ceil(other / own) for other in sizes) - math.ceil(own / own) for own in sizes]
    most = max((own - 1) * (1 + k) for own, k in zip(sizes, relayed, strict=True))
    return int(most) + len(sizes) - 1


def _exchange(node: Node, domains: Array, target: Target, f: Figures) -> float:
    n, size = len(domains), node.element_bytes
    same = domains[:, None] == domains
    count = node.matrix if node.matrix is not None else np.full((n, n), node.count)
    off = np.where(np.eye(n, dtype=bool), 0, count) * size
    worst = 0.0
    for axis in (0, 1):
        inside, outside = (off * same).sum(axis=axis), (off * ~same).sum(axis=axis)
        worst = max(worst, float(np.maximum(inside / f.up, outside / f.out).max()))
    several = bool((off * ~same).any())
    hop = f.hop_out if several else f.hop_up
    posters = target.hardware.posters if target.posters else None
    if node.algorithm == "put" and posters:
        issue, fixed = posters.issue.value / 1e6, posters.post.value / 1e6
    else:
        issue, fixed = f.issue, f.fixed
    messages = (n - 1) * min(node.lanes, max(1, int(off.max()) // max(node.part, 1)))
    return fixed + 2 * math.ceil(messages / node.lanes) * issue + hop + worst


def _peers(domains: Array) -> list[tuple[int, int]]:
    """Of each domain: peers inside and outside."""
    sizes = np.bincount(np.unique(domains, return_inverse=True)[1])
    return [(int(s) - 1, len(domains) - int(s)) for s in sizes]
