"""Limits of the hardware, then the proof of the program."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ...collectives import Array, Op, Program
from ...errors import ConfigError
from ..ir import Module
from ..proof import prove


def verify(module: Module) -> Module:
    """Raises `ConfigError` for a program that does not fit, `ProgramError` for one that does not do what it should."""
    program, hardware = module.program, module.target.hardware
    assert program is not None and hardware.engines is not None
    start, engine = program.extra["subgraph_start"].astype(np.int64), program.extra["subgraph_engine"]
    rank = program.rank[start[:-1]].astype(np.int64)
    context = _most(rank * (engine.max(initial=0) + 1) + engine, np.diff(start)) * hardware.engines.record.value
    limit = hardware.engines.context.value
    if context > limit:
        raise _too_many(module, program, f"an engine's entries take {context} of {limit} bytes of context memory")
    transfers = np.isin(program.op, (Op.SEND, Op.RECV, Op.WRITE, Op.WRITE_IMM))
    outstanding = _most(program.rank[transfers], np.ones(int(transfers.sum()), np.int64))
    receives = _most(program.rank[program.op == Op.RECV], np.ones(int((program.op == Op.RECV).sum()), np.int64))
    allowed = hardware.network.outstanding.value * sum(module.target.nics)
    if receives >= allowed:
        raise _too_many(module, program, f"a rank has {receives} receives of {allowed} outstanding requests")
    prove(program, _announced(module))
    return module.but(notes=module.notes | {"context_bytes": context, "transfers": outstanding, "outstanding": allowed})


def _too_many(module: Module, program: Program, why: str) -> ConfigError:
    if module.target.options.chunk is None:
        return ConfigError.of("size", program.size_bytes, f"too large: {why}")
    return ConfigError.of("chunk", module.target.options.chunk, f"too small: {why}")


def _announced(module: Module) -> Literal["never", "first", "every"]:
    """What the compiler promises of all messages: rings announce their first receives, unless pieces are empty."""
    ready = module.target.options.ready
    full = all(
        node.algorithm == "ring" and node.count >= node.lanes * node.chunks * len(node.members(module.target.ranks))
        for node in module.nodes
    )
    return ready if ready != "first" or full else "never"


def _most(key: Array, weight: Array) -> int:
    if not len(key):
        return 0
    return int(np.bincount(np.unique(key, return_inverse=True)[1], weight).max())
