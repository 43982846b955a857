"""The algorithm of each node: the one whose estimated time is least, among those that fit it."""

from __future__ import annotations

from ...errors import ConfigError
from ..algorithms import EXCHANGES
from ..cost import estimate
from ..ir import Module, Node, Target
from .chunk import chunked

PUT_BYTES = 64 << 10
"""One shot serves messages up to this size; its scratch memory grows with the number of ranks."""


def algorithm(module: Module) -> Module:
    """Decides ``algorithm``."""
    return module.but(nodes=tuple(_chosen(node, module.target) for node in module.nodes))


def fitting(node: Node, target: Target) -> list[str]:
    """Algorithms that can run a node."""
    members = node.members(target.ranks)
    several = len({target.domains[rank] for rank in members}) > 1
    most = node.count * node.element_bytes if node.matrix is None else int(node.matrix.max()) * node.element_bytes
    small = ["put"] if most <= PUT_BYTES else []
    if node.kind in EXCHANGES:
        return [*small, "hierarchical" if several else "direct"]
    power = ["recursive"] if len(members) & (len(members) - 1) == 0 else []
    return [*small, *power, "ring", "direct", *(["hierarchical"] if several else [])]


def _chosen(node: Node, target: Target) -> Node:
    asked = target.options.algorithm
    if asked != "auto":
        _check(asked, node, target)
        return node.but(algorithm=asked)
    costs = {name: estimate(chunked(node.but(algorithm=name), target), target) for name in fitting(node, target)}
    return node.but(algorithm=min(costs, key=lambda name: costs[name]))


def _check(asked: str, node: Node, target: Target) -> None:
    n = len(node.members(target.ranks))
    if asked == "recursive" and (n & (n - 1) or node.kind in EXCHANGES):
        raise ConfigError.of(
            "algorithm", asked, f"needs a power of two of ranks and a sum or gather, not {node.kind} of {n}"
        )
    if asked == "ring" and node.kind in EXCHANGES:
        raise ConfigError.of("algorithm", asked, f"{node.kind} takes direct, put or hierarchical")
