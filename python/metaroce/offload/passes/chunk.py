"""Lanes, chunks and staging slots.

A chunk is at least what the wire takes while its entries are issued, and at most what staging slots of on-chip memory
hold; between the two, as many chunks as are under way at once.
"""

from __future__ import annotations

import numpy as np

from ..algorithms import EXCHANGES
from ..cost import rounds
from ..ir import Module, Node, Target

SLOTS = 4
"""Staging slots of a ring's subgraph: three transfers under way. Ours, of the model's 2 .. 4."""
PEER_SLOTS, MOST_SLOTS = 24, 64
"""Slots where transfers come from many peers, who are not in step: at least these, as many as fit, a third of them
under way. Ours."""
LEAST = 4096
"""A lane carries at least so many bytes of a block, or there are fewer lanes. Ours."""
ENTRIES = 4
"""Entries that a chunk costs: RECV, SEND, SUM and its completion."""
MOST_CHUNKS = 8
"""Chunks of what needs no staging: enough for phases to overlap. Ours."""


def chunk(module: Module) -> Module:
    """Decides ``lanes``, ``chunks``, ``slots`` and ``part``."""
    return module.but(nodes=tuple(chunked(node, module.target) for node in module.nodes))


def bounds(target: Target, slots: int) -> tuple[int, int]:
    """Bytes of a chunk: least and most."""
    h = target.hardware
    assert h.engines is not None
    least = int(ENTRIES * h.engines.issue.value / 1e12 * target.rates()[0] / target.engines)
    staging = h.memory.staging.value if h.memory.staging else h.memory.size.value // 64
    return max(least, 1), max(staging // (target.engines * slots), 64)


def chunked(node: Node, target: Target) -> Node:
    """The node with lanes, chunks, slots and part decided."""
    options = target.options
    n, slots = len(node.members(target.ranks)), options.slots or SLOTS
    least, most = bounds(target, slots)
    asked = options.chunk
    if node.kind in EXCHANGES:
        return _exchange(node, target, n, asked or least)
    block = -(-node.count // (n if node.kind == "all_reduce" else 1)) * node.element_bytes
    if node.algorithm == "put":
        size = node.count * node.element_bytes
        lanes = min(target.posters or target.engines, max(1, size // 256))
        if node.kind == "all_gather":
            lanes = min(target.posters or target.engines, n - 1)
        return node.but(lanes=lanes, chunks=1, slots=2, ready=_put_ready(target, n))
    lanes = min(target.engines - _kept(node, target), max(1, -(-block // LEAST)))
    piece = -(-block // lanes)
    if node.algorithm == "recursive":
        return node.but(lanes=lanes, chunks=1, slots=2, ready=options.ready)
    units = _units(node, target)
    sums = "reduce_scatter" in node.phases
    many = node.algorithm != "ring" and sums
    if asked:
        chunks = -(-piece // asked)
    elif many:
        chunks = min(piece // max(least, bounds(target, PEER_SLOTS)[1]), _context(target) // (units * ENTRIES))
    elif sums:
        chunks = max(-(-piece // most), min(slots - 1, piece // least))
    else:
        chunks = min(MOST_CHUNKS, piece // least)
    chunks = max(1, min(chunks, piece // node.element_bytes))
    flight = max(1, min(chunks, slots - 1))
    if many:
        units, staging = units * chunks, bounds(target, 1)[1]
        slots = options.slots or max(2, min(units + 1, MOST_SLOTS, staging * chunks // piece))
        flight = units if slots > units else max(1, slots // 3)
    across = 2 * (_racks(node, target) - 1) if many and node.algorithm == "hierarchical" else 0
    decided = {"lanes": lanes, "chunks": chunks, "slots": slots, "across": across, "flight": flight}
    return node.but(**decided, ready=options.ready)


def _racks(node: Node, target: Target) -> int:
    return len({target.domains[rank] for rank in node.members(target.ranks)})


def _units(node: Node, target: Target) -> int:
    """Transfers that one rank receives of one chunk, counting entries: each phase of a sum and gather alike."""
    members = node.members(target.ranks)
    each = len(members) - 1
    if node.algorithm == "hierarchical":
        each = rounds(np.array(target.domains)[members])
    return each * len(node.phases)


def _context(target: Target) -> int:
    """Entries that one engine has room for, with a quarter left for others."""
    assert target.hardware.engines is not None
    return target.hardware.engines.context.value * 3 // 4 // target.hardware.engines.record.value


def _put_ready(target: Target, n: int) -> str:
    """``behind`` where a subgraph posts all its entries in less than a hop, so that receives need not be first."""
    posters = target.hardware.posters if target.posters else None
    quick = (
        posters is not None
        and target.options.ready != "every"
        and 2 * (n - 1) * posters.issue.value < target.hardware.network.hop_up.value
    )
    return "behind" if quick else target.options.ready


def _kept(node: Node, target: Target) -> int:
    """Engines that are kept from this node."""
    return 0 if node.priority == 0 else min(target.options.reserve, target.engines - 1)


def _exchange(node: Node, target: Target, n: int, least: int) -> Node:
    size = node.count if node.matrix is None else int(node.matrix.max())
    engines = (target.posters or target.engines) if node.algorithm == "put" else target.engines - _kept(node, target)
    cut = 1 if node.algorithm == "put" else max(1, min(engines, size * node.element_bytes // least))
    lanes = max(1, min(engines, (n - 1) * cut))
    ready = _put_ready(target, n) if node.algorithm == "put" else target.options.ready
    return node.but(lanes=lanes, chunks=min(cut, engines), slots=2, part=least, ready=ready)
