"""What engines can run: an all_reduce becomes two phases, a large collective becomes several.

The phases of an all_reduce stay in one node, so that chunks of the second follow those of the first. No node moves more
than `MOST_BYTES` a rank. Sums must be of an element type that the near-memory unit knows.
"""

from __future__ import annotations

import numpy as np

from ...collectives import check_names
from ...errors import ConfigError
from ..call import buffer_bytes, even
from ..ir import COMPARISONS, Module, Node, Target

MOST_BYTES = 1 << 30
"""Bytes of one node's buffer, or of one row of its matrix; larger ones are split."""
WORD_BITS = 16
"""Words of a rank are numbered with so many bits: each rank has memory for all of them. Ours."""
_PHASES = {"all_reduce": ("reduce_scatter", "all_gather")}


def legalise(module: Module) -> Module:
    """Decides ``phases``, ``area``, ``first`` and ``whole``; raises `ConfigError` for what no engine can run."""
    nodes: list[Node] = []
    taken, size = 0, module.target.hardware.memory.size.value
    for node in module.nodes:
        _check(node, module.target)
        phases = _PHASES.get(node.kind, (node.kind,))
        whole = node.count if node.matrix is None else node.matrix
        node = node.but(phases=phases, area=node.id, whole=whole)
        taken += buffer_bytes(node, len(node.members(module.target.ranks)))
        if taken > size:
            raise ConfigError.of("size", taken, f"bytes of input and output up to {node.id}; memory has {size}")
        nodes += _split(node, module.target.ranks)
    return module.but(nodes=tuple(_renamed(nodes)))


def _check(node: Node, target: Target) -> None:
    assert target.hardware.unit is not None
    check_names(node.kind, node.dtype)
    if node.op != "sum":
        raise ConfigError.unknown("op", node.op, ["sum"])
    known = target.hardware.unit.dtypes.value
    if node.kind in ("all_reduce", "reduce_scatter") and node.dtype not in known:
        allowed = f"the units of {target.hardware.name or 'this hardware'} sum " + ", ".join(known)
        raise ConfigError.of("dtype", node.dtype, allowed)
    members = node.members(target.ranks)
    if (
        len(members) < 2
        or len(np.unique(members)) < len(members)
        or not 0 <= members.min() <= members.max() < target.ranks
    ):
        raise ConfigError.of("group", node.group, f"must be at least 2 different ranks of {target.ranks}")
    if (node.matrix is None) == (node.kind == "alltoallv"):
        shape = None if node.matrix is None else node.matrix.shape
        raise ConfigError.of("matrix", shape, f"must be given for alltoallv, and only there; this is {node.kind}")
    if node.matrix is None and node.count < 1:
        raise ConfigError.of("count", node.count, "must be at least 1")
    if node.matrix is not None and (node.matrix.shape != (len(members),) * 2 or node.matrix.min() < 0):
        allowed = f"must have a row and a column for each of {len(members)} ranks, and no cell below 0"
        raise ConfigError.of("matrix", node.matrix.shape, allowed)
    _check_numbers(node)


def _check_numbers(node: Node) -> None:
    """That the program's columns can hold them."""
    numbers = [("priority", node.priority, 8), ("release", node.release, 63)]
    for name, word in (("trigger", node.trigger), ("done", node.done)):
        if word is not None:
            numbers += [(f"{name}.word", word.word, WORD_BITS), (f"{name}.value", word.value, 63)]
            if word.compare not in COMPARISONS:
                raise ConfigError.unknown(f"{name}.compare", word.compare, COMPARISONS)
    for name, value, bits in numbers:
        if not 0 <= value < 1 << bits:
            raise ConfigError.of(name, value, f"must be 0 .. {(1 << bits) - 1}")


def _split(node: Node, ranks: int) -> list[Node]:
    n = len(node.members(ranks))
    if node.matrix is not None:
        row = int(max(node.matrix.sum(axis=1).max(), node.matrix.sum(axis=0).max())) * node.element_bytes
    else:
        row = node.count * node.element_bytes * (1 if node.kind == "all_reduce" else n)
    many = -(-row // MOST_BYTES)
    if many <= 1:
        return [node]
    if node.matrix is None:
        start, count = even(node.count, many)
        cut = [node.but(first=int(s), count=int(k)) for s, k in zip(start, count, strict=True)]
    else:
        whole, rest = node.matrix // many, node.matrix % many
        cut = [node.but(first=k * whole + np.minimum(k, rest), matrix=whole + (k < rest)) for k in range(many)]
    return [part.but(id=f"{node.id}.{k}") for k, part in enumerate(cut)]


def _renamed(nodes: list[Node]) -> list[Node]:
    """Who depended on a split node depends on its parts; what it waits for and sets is for the first and last."""
    parts: dict[str, list[str]] = {}
    for node in nodes:
        parts.setdefault(node.area, []).append(node.id)
    out = []
    for node in nodes:
        own = parts[node.area]
        deps = tuple(part for dep in node.deps for part in parts.get(dep, [dep]))
        done = node.done if node.id == own[-1] else None
        later = tuple(own[: own.index(node.id)]) if done and len(own) > 1 else ()
        out.append(node.but(deps=deps + later, done=done))
    return out
