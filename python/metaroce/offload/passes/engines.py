"""Engines: lanes of all nodes by longest processing time inside a priority class, each lane of a node elsewhere.

What is reserved is kept for the most urgent class. One-shot collectives are posted by the accelerator's own cores.
"""

from __future__ import annotations

from ..ir import Module, Node, Target


def engines(module: Module) -> Module:
    """Decides ``engines``."""
    target = module.target
    load = dict.fromkeys(range(target.engines + target.posters), 0)
    chosen: dict[str, tuple[int, ...]] = {}
    order = sorted(module.nodes, key=lambda node: (node.priority, -node.bytes_of(target.ranks) // node.lanes))
    for node in order:
        allowed = _allowed(node, target)
        own = sorted(sorted(allowed, key=lambda engine: (load[engine], engine))[: node.lanes])
        chosen[node.id] = tuple(own)
        for engine in own:
            load[engine] += node.bytes_of(target.ranks) // node.lanes
    return module.but(nodes=tuple(node.but(engines=chosen[node.id]) for node in module.nodes))


def _allowed(node: Node, target: Target) -> range:
    if node.algorithm == "put" and target.posters:
        return range(target.engines, target.engines + target.posters)
    kept = 0 if node.priority == 0 else min(target.options.reserve, target.engines - 1)
    return range(kept, target.engines)
