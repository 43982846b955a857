"""Buckets: small collectives of one kind become one, where that saves more start-up time than it adds waiting.

Merged are neighbours in the order of enqueueing that agree in kind, group, element type, stream and priority, have the
same dependencies, and are waited for by nobody in between. Their blocks lie side by side in the bucket.
"""

from __future__ import annotations

import numpy as np

from ..cost import figures
from ..ir import Module, Node

FULL = 10
"""A bucket is full when its transfer takes this many times the start-up time."""


def fuse(module: Module) -> Module:
    """Replaces nodes by buckets; ``parts`` names what is in one."""
    if not module.target.options.bucket:
        return module
    f = figures(module.target)
    nodes: list[Node] = []
    renamed: dict[str, str] = {}
    for node in module.nodes:
        node = node.but(deps=tuple(dict.fromkeys(renamed.get(d, d) for d in node.deps)))
        last = nodes[-1] if nodes else None
        if last is not None and _fits(last, node) and last.bytes_of(module.target.ranks) < FULL * f.fixed * f.up:
            nodes[-1] = _merged(last, node)
            renamed |= {node.id: nodes[-1].id, last.id: nodes[-1].id}
        else:
            nodes.append(node)
    return module.but(nodes=tuple(nodes))


def _fits(one: Node, other: Node) -> bool:
    same = ("kind", "group", "dtype", "op", "inplace", "stream", "priority", "deps", "release", "trigger")
    whole = all(node.area == node.id and node.done is None for node in (one, other))
    return whole and all(getattr(one, name) == getattr(other, name) for name in same)


def _merged(one: Node, other: Node) -> Node:
    parts = (one.parts or (one.id,)) + (other.id,)
    name = f"{parts[0]}+{len(parts) - 1}"
    if one.matrix is not None and other.matrix is not None:
        matrix = np.asarray(one.matrix + other.matrix)
        return one.but(id=name, area=name, parts=parts, matrix=matrix, whole=matrix)
    count = one.count + other.count
    return one.but(id=name, area=name, parts=parts, count=count, whole=count)
