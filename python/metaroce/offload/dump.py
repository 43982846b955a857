"""Programs for people: the packet, what each pass decided, then entry by entry as a listing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..collectives import Op, Program
from ..units import format_size, format_time
from .ir import COMPARISONS
from .passes.bind import nic
from .table import Flow

if TYPE_CHECKING:
    from .compiler import Compiled

_NAMES = {Flow.FENCE: "fence", Flow.SYNC: "sync", Flow.RX_SYNC: "rx_sync", Flow.TX_SYNC: "tx_sync", Flow.FUSED: "fused"}


def dump(compiled: Compiled, rank: int | None = None) -> str:
    """The whole text."""
    lines = [headline(compiled)]
    for one in range(compiled.module.target.ranks) if rank is None else [rank]:
        lines += _rank(compiled, compiled.program(), one)
    return "\n".join(lines)


def headline(compiled: Compiled) -> str:
    """Packets and passes."""
    module, target = compiled.module, compiled.module.target
    racks = np.bincount(np.unique(target.domains, return_inverse=True)[1]).tolist()
    lines = [
        f"work packets for {target.hardware.name or 'hardware'}: {target.ranks} ranks in racks of "
        f"{'+'.join(map(str, racks))}, {target.engines} engines, NICs {target.nics[0]}+{target.nics[1]}",
    ]
    for k, node in enumerate(module.nodes):
        size = format_size(node.bytes_of(target.ranks))
        merged = f" of {', '.join(node.parts)}" if node.parts else ""
        lines.append(
            f"packet {k}: {node.id}{merged}: {node.kind} of {node.dtype}, {size} a rank each way, {node.algorithm}, "
            f"{node.lanes} lanes x {node.chunks} chunks, {node.slots} slots"
        )
    lines += ["passes:", *(f"  {cost}" for cost in compiled.costs)]
    return "\n".join(lines)


def _rank(compiled: Compiled, p: Program, rank: int) -> list[str]:
    start = p.extra["subgraph_start"].astype(np.int64)
    first, last = int(p.rank_start[rank]), int(p.rank_start[rank + 1])
    lines = []
    for s in np.flatnonzero((start[:-1] >= first) & (start[:-1] < last)).tolist():
        engine, packet = int(p.extra["subgraph_engine"][s]), int(p.extra["subgraph_packet"][s])
        release = int(p.extra["subgraph_release_ps"][s])
        when = f", released at {format_time(release)}" if release else ""
        many = int(start[s + 1] - start[s])
        lines.append(f"rank {rank} engine {engine}: packet {packet}, {many} entries{when}")
        for entry in range(int(start[s]), int(start[s + 1])):
            lines.append(f"  {entry - int(start[s]):>4} {_entry(compiled, p, rank, engine, entry)}".rstrip())
    return lines


def _entry(compiled: Compiled, p: Program, rank: int, engine: int, e: int) -> str:
    op, peer, size = Op(int(p.op[e])), int(p.peer[e]), format_size(int(p.bytes[e]))
    local, remote, stream = int(p.local[e]), int(p.remote[e]), int(p.stream[e])
    target = compiled.module.target
    if op in (Op.SEND, Op.RECV, Op.WRITE, Op.WRITE_IMM):
        where = "up" if target.domains[rank] == target.domains[peer] else "out"
        way = {Op.SEND: f"{peer:<3} <- {local:#x}", Op.RECV: f"{peer:<3} -> {local:#x}"}
        put = f"{peer:<3} {local:#x} -> {remote:#x}"
        text = f"{way.get(op, put)} {size} stream {stream} nic {where}{nic(target, rank, engine, peer)}"
    elif op == Op.SUM:
        text = f"{local:#x} += {remote:#x} {size}"
    elif op == Op.COPY:
        text = f"{local:#x} = {remote:#x} {size}"
    elif op == Op.WAIT:
        text = f"word {local} {COMPARISONS[int(p.extra['imm'][e])]} {remote}"
    else:
        text = f"word {local} = {remote}" if op == Op.SET else ""
    return f"{op.name:<9} {text:<48} {_flow(p, e)}"


def _flow(p: Program, e: int) -> str:
    bits, sync = int(p.extra["flow"][e]), int(p.extra["wqe_sync"][e])
    names = [name for bit, name in _NAMES.items() if bits & bit]
    return " ".join(([f"wqe_sync={sync}"] if sync else []) + names)
