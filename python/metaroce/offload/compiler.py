"""From collectives to a work packet: the passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..collectives import Program, check_names, count_of, elements_of
from ..errors import ConfigError
from .cost import total
from .hardware import Hardware, load
from .ir import Cost, Graph, Module, Node, Outside, Target
from .options import OffloadOptions
from .passes.algorithm import algorithm
from .passes.bind import bind
from .passes.chunk import chunk
from .passes.engines import engines
from .passes.fuse import fuse
from .passes.legalise import legalise
from .passes.synchronise import outside, synchronise
from .passes.verify import verify

PASSES: tuple[Callable[[Module], Module], ...] = (
    legalise,
    fuse,
    algorithm,
    chunk,
    bind,
    engines,
    synchronise,
    verify,
)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled graph: one work packet a node, a subgraph an engine."""

    module: Module
    costs: tuple[Cost, ...]

    def program(self, words: Sequence[Outside] = ()) -> Program:
        """The verified program of all ranks; ``words`` say when triggers are set, each at the start if left out."""
        program = self.module.program
        assert program is not None
        if not words:
            return program
        limit, ranks = program.offload["words"] if program.offload else 0, range(program.ranks)
        for row in words:
            numbers = 0 <= row.value < 1 << 63 and 0 <= row.at_ps < 1 << 63
            if not 0 <= row.word < limit or row.rank not in (None, *ranks) or not numbers:
                allowed = f"must be a word below {limit} of a rank below {len(ranks)}, value and time at least 0"
                raise ConfigError.of("words", tuple(row), allowed)
        rows = [row._replace(rank=rank) for row in words for rank in (ranks if row.rank is None else [row.rank])]
        named = {(row.rank, row.word) for row in rows}
        at = zip(*(program.extra[f"set_{name}"].tolist() for name in ("word", "value", "ps", "rank")), strict=True)
        rows += [Outside(*row) for row in at if (row[3], row[0]) not in named]
        return replace(program, extra=program.extra | outside(rows))

    def patched(self, counts: npt.ArrayLike, node: str | None = None) -> Compiled:
        """The same packets with the byte counts of a dynamic alltoallv, which a device reads when it issues.

        What runs where was decided by the matrix that was compiled, which no count may exceed.
        """
        one = next((k for k in self.module.nodes if k.kind == "alltoallv" and node in (None, k.id)), None)
        if one is None or one.matrix is None or one.area != one.id:
            raise ConfigError.of("node", node, "must be an alltoallv that was neither merged nor split")
        cells = elements_of(counts, one.dtype)
        if cells.shape != one.matrix.shape or (cells > one.matrix).any():
            raise ConfigError.of("counts", cells.shape, "must be a matrix like the compiled one, with no cell above it")
        nodes = tuple(k.but(counts=cells) if k is one else k for k in self.module.nodes)
        return Compiled(verify(synchronise(self.module.but(nodes=nodes, program=None))), self.costs)

    def headline(self) -> str:
        """Packets, and what each pass decided and made of the estimated time."""
        from .dump import headline

        return headline(self)

    def dump(self, rank: int | None = None) -> str:
        """The program in readable form, of one rank or all."""
        from .dump import dump

        if rank is not None and not 0 <= rank < self.module.target.ranks:
            raise ConfigError.of("rank", rank, f"must be 0 .. {self.module.target.ranks - 1}")
        return dump(self, rank)


def compile(
    graph: Graph | Node,
    domains: Sequence[int],
    hardware: str | Path | Hardware = "mtia300",
    options: OffloadOptions | None = None,
    *,
    verified: bool = True,
) -> Compiled:
    """Compile for ranks in the given domains; raises `ConfigError` for what cannot be compiled."""
    nodes = graph.nodes if isinstance(graph, Graph) else (graph,)
    target = Target(tuple(int(d) for d in domains), load(hardware), options or OffloadOptions())
    _check(nodes, target)
    module, costs = Module(target, nodes), []
    before = None
    for one in PASSES:
        if one is verify and not verified:
            continue
        module = one(module)
        after = _cost(module)
        costs.append(Cost(one.__name__, after if before is None else before, after, _note(module, one.__name__)))
        before = after
    return Compiled(module, tuple(costs))


def node(
    kind: str,
    ranks: int,
    size: int = 0,
    dtype: str = "float32",
    *,
    count: int | None = None,
    matrix: npt.ArrayLike | None = None,
    inplace: bool = True,
    id: str = "",
) -> Node:
    """A collective of ``size`` bytes, ``count`` elements or a ``matrix``, as for `metaroce.collectives.compile`."""
    check_names(kind, dtype)
    if kind == "alltoallv":
        return Node(id or kind, kind, dtype=dtype, matrix=elements_of(matrix, dtype))
    count = count_of(kind, size, dtype, ranks) if count is None else count
    return Node(id or kind, kind, count=count, dtype=dtype, inplace=inplace and kind != "alltoall")


def collective(
    domains: Sequence[int], hardware: str | Path | Hardware, options: OffloadOptions, **what: Any
) -> Compiled:
    """One collective, ``what`` as for `node`; the last few are kept, as a device keeps packets that are enqueued again.

    Raises `ConfigError` as `compile`.
    """
    accelerator = load(hardware)
    matrix = what.get("matrix")
    said = sorted((name, value) for name, value in what.items() if name != "matrix")
    rows = None if matrix is None else np.asarray(matrix, object).tolist()
    key = (tuple(domains), repr(accelerator), repr(options), repr(said), repr(rows))
    if key not in _cache:
        while len(_cache) >= _CACHED:
            del _cache[next(iter(_cache))]
        _cache[key] = compile(node(ranks=len(domains), **what), domains, accelerator, options)
    return _cache[key]


_CACHED = 4
_cache: dict[tuple[object, ...], Compiled] = {}


def _check(nodes: tuple[Node, ...], target: Target) -> None:
    hardware, options = target.hardware, target.options
    if hardware.kind != "engines" or hardware.engines is None:
        raise ConfigError.of("hardware", hardware.name or hardware.kind, 'must be hardware of kind "engines"')
    most = hardware.engines.count.value
    if options.engines is not None and options.engines > most:
        raise ConfigError.of("engines", options.engines, f"must be 1 .. {most}")
    if options.reserve >= target.engines:
        raise ConfigError.of("reserve", options.reserve, f"must be below the {target.engines} engines")
    target.nics  # noqa: B018 - refuses a partition that there is not
    if target.ranks < 2:
        raise ConfigError.of("ranks", target.ranks, "must be at least 2")
    if other := next((one for one in nodes if one.dtype != nodes[0].dtype), None):
        raise ConfigError.of("dtype", other.dtype, f"must be that of the other nodes, {nodes[0].dtype}")
    if not nodes:
        raise ConfigError.of("nodes", 0, "must be at least 1")
    names = [one.id for one in nodes]
    for k, one in enumerate(nodes):
        if one.id in names[:k]:
            raise ConfigError.of("id", one.id, "must be of one node")
        if missing := [dep for dep in one.deps if dep not in names[:k]]:
            raise ConfigError.of("deps", missing[0], "must be nodes before this one: " + ", ".join(names[:k]))


def _cost(module: Module) -> float:
    """Before the passes that decide it, a node is costed as a plain ring or exchange on one engine."""
    plain = [
        one if one.algorithm else one.but(algorithm="direct" if one.kind in ("alltoall", "alltoallv") else "ring")
        for one in module.nodes
    ]
    return total(module.but(nodes=tuple(plain)))


def _note(module: Module, name: str) -> str:
    nodes, notes = module.nodes, module.notes
    texts = {
        "legalise": lambda: ", ".join(f"{k.id}: {' + '.join(k.phases)}" for k in nodes[:4]),
        "fuse": lambda: f"{len(nodes)} nodes",
        "algorithm": lambda: ", ".join(k.algorithm for k in nodes[:8]),
        "chunk": lambda: ", ".join(f"{k.lanes} lanes x {k.chunks} chunks, {k.slots} slots" for k in nodes[:4]),
        "bind": lambda: f"{notes['qps']} QPs a NIC of {notes['qp_limit']}, NICs {notes['nics'][0]}+{notes['nics'][1]}",
        "engines": lambda: f"{len({e for k in nodes for e in k.engines})} engines",
        "synchronise": lambda: (
            f"{len(module.program.op) if module.program else 0} entries, "
            f"{notes['staging_bytes']} bytes of staging a rank"
        ),
        "verify": lambda: f"context {notes['context_bytes']} bytes an engine, {notes['transfers']} transfers a rank",
    }
    return texts[name]()
