"""From what was posted to a program, and from the core's answer to completions and bytes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from ..collectives import Array, Program
from ..collectives.program import Op, Ranges
from ..errors import ConfigError
from ..result import Result
from ..simulation import run_on, stall
from .objects import MR, QP, Context, Device, Posted
from .requests import COMPLETED, WC, Access, RecvWR, SendWR, Status, WCOpcode

_STATUS = (
    Status.SUCCESS,
    Status.RETRY_EXC_ERR,
    Status.RNR_RETRY_EXC_ERR,
    Status.WR_FLUSH_ERR,
    Status.REM_ACCESS_ERR,
    Status.REM_INV_REQ_ERR,
    Status.REM_OP_ERR,
)
"""By the core's number; on a receive, REM_INV_REQ_ERR is LOC_LEN_ERR."""
_OPEN, _UNSIGNALED = 7, 8
_NO_KEY = 2**32 - 1
_ALIGN = 64
_REMOTE = {Access.REMOTE_WRITE: 1, Access.REMOTE_READ: 2, Access.REMOTE_ATOMIC: 4}


def run(context: Context) -> Result:
    """Run what was posted; see `Context.run`."""
    devices = [context.devices[rank] for rank in sorted(context.devices)]
    if not any(device.posted for device in devices):
        raise ConfigError("post_send: nothing was posted; post at least one request before the run")
    places = _layout(devices)
    program, owners = _compile(devices, places)
    scenario = context.scenario.replace(ranks=len(devices))
    if note := scenario.check_note(program):
        raise ConfigError.of("check_memory", scenario.check_memory, f"too small: {note.removeprefix('not checked: ')}")
    memory = np.zeros((len(devices), program.memory_bytes), np.uint8)
    for mr, (rank, at) in places.items():
        memory[rank, at : at + mr.length] = mr.bytes
    hosts = [device.rank for device in devices]
    # Any host is a device, those of the second network too: what its ports reach, it can talk to.
    raw = run_on(memory.ravel(), scenario, program, hosts_of_ranks=hosts, scale_out=None, on_error="continue")
    final = np.frombuffer(raw["memory"], np.uint8).reshape(memory.shape)
    for mr, (rank, at) in places.items():
        mr.bytes[:] = final[rank, at : at + mr.length]
    status = np.frombuffer(raw["wqe_status"], np.uint8)
    _complete(owners, raw, status)
    waiting = [owner for owner in owners if owner and isinstance(owner.wr, SendWR) and status[owner.index] == _OPEN]
    if raw["status"] == "stalled" and not waiting:
        # Receives that get no message are no failure.
        done = np.frombuffer(raw["wqe_done_ps"], np.uint64)
        end = int(done[status != _OPEN].max(initial=0))
        raw |= {"status": "done", "time_ps": end, "iteration_start_ps": [0], "iteration_end_ps": [end]}
    result = replace(Result.of(scenario, program, raw), collective="verbs")
    if result.status in ("stalled", "deadlock"):
        context.result = result
        raise stall(result, int(raw["time_ps"]), raw["stalled_flows"] or _stuck(waiting, hosts))
    return result


def _stuck(waiting: list[Posted], hosts: list[int]) -> list[dict[str, Any]]:
    def flow(posted: Posted) -> dict[str, Any]:
        peer = posted.qp.peer
        dst = hosts.index(peer.device.rank) if peer else -1
        src, reason = hosts.index(posted.qp.device.rank), f"wr_id {posted.wr.wr_id} waits for what has not completed"
        return {"src": src, "dst": dst, "stream": posted.qp.stream, "bytes_left": posted.wr.bytes, "reason": reason}

    return [flow(posted) for posted in waiting]


def _layout(devices: list[Device]) -> dict[MR, tuple[int, int]]:
    """Rank and offset of each region; buffers that overlap in the caller's memory do so here."""
    spans = []
    for rank, device in enumerate(devices):
        for mr in device.regions:
            start = int(mr.buffer.__array_interface__["data"][0])
            spans.append((start, start + mr.length, rank, mr))
    spans.sort(key=lambda span: span[:3])
    places: dict[MR, tuple[int, int]] = {}
    used, block, end, owner = [0] * len(devices), 0, -1, -1
    for start, stop, rank, mr in spans:
        if start >= end:
            block, end, owner = start - (-(-used[rank] // _ALIGN) * _ALIGN), start, rank
        if rank != owner:
            raise ConfigError.of("buffer", mr.buffer, "hosts have memories of their own: register a copy")
        places[mr] = (rank, start - block)
        end = max(end, stop)
        used[rank] = end - block
    return places


def _compile(devices: list[Device], places: dict[MR, tuple[int, int]]) -> tuple[Program, list[Posted | None]]:
    ranks = {device: rank for rank, device in enumerate(devices)}
    rows: list[tuple[int, ...]] = []
    owners: list[Posted | None] = []
    deps: list[int] = []
    dep_start, rank_start, starts = [0], [0], []

    def add(row: tuple[int, ...], waits: list[int], start: int, owner: Posted | None) -> int:
        rows.append(row)
        owners.append(owner)
        deps.extend(waits)
        dep_start.append(len(deps))
        starts.append(start)
        return len(rows) - 1

    for rank, device in enumerate(devices):
        # What the requests of a queue wait for, so that they are posted in order.
        gates: defaultdict[tuple[QP, type], list[int]] = defaultdict(list)
        for posted in device.posted:
            queue = posted.qp, type(posted.wr)
            if posted.after or posted.at:
                waits = gates[queue] + [one.index for one in posted.after]
                gates[queue] = [add((Op.NOOP, rank, *(0,) * 9), waits, posted.at, None)]
            posted.index = add(_row(posted, ranks, places), gates[queue], 0, posted)
        rank_start.append(len(rows))
    columns = dict(zip(_COLUMNS, np.array(rows, object).T, strict=True))
    typed = {name: columns[name].astype(kind) for name, kind in _COLUMNS.items()}
    nothing = Ranges.of([], [], [], [], [])
    total = int(typed["bytes"].sum())
    program = Program(
        dtype="int8",
        memory_bytes=max([1, *(at + mr.length for mr, (_, at) in places.items())]),
        rank_start=np.array(rank_start, np.uint32),
        **{name: typed[name] for name in ("op", "peer", "stream", "local", "remote", "bytes")},
        dep_start=np.array(dep_start, np.uint32),
        deps=np.array(deps, np.uint32),
        fill=nothing,
        expect=nothing,
        size_bytes=total,
        count=total,
        start_ps=np.array(starts, np.uint64) if any(starts) else None,
        extra={name: typed[name] for name in _ONLY_VERBS} | _setup(devices, places),
    )
    return program, owners


_ONLY_VERBS = ("imm", "operand0", "operand1", "flags", "rkey")
_COLUMNS: dict[str, type] = {
    "op": np.uint8,
    "peer": np.uint32,
    "stream": np.uint32,
    "local": np.uint64,
    "remote": np.uint64,
    "bytes": np.uint64,
    "imm": np.uint32,
    "operand0": np.uint64,
    "operand1": np.uint64,
    "flags": np.uint8,
    "rkey": np.uint32,
}


def _row(posted: Posted, ranks: dict[Device, int], places: dict[MR, tuple[int, int]]) -> tuple[int, ...]:
    """Values for `_COLUMNS`."""
    qp, wr = posted.qp, posted.wr
    assert qp.peer is not None
    peer, local = ranks[qp.peer.device], places[wr.sge[0]][1] + wr.sge[1] if wr.sge else 0
    if isinstance(wr, RecvWR):
        return (Op.RECV, peer, qp.stream, local, 0, wr.bytes, 0, 0, 0, 0, 0)
    key, remote = wr.remote or (0, 0)
    regions = qp.peer.device.regions
    # A region of another protection domain is as good as none.
    known = 1 <= key <= len(regions) and regions[key - 1].pd is qp.peer.pd
    flags = wr.fence | (not wr.signaled) << 1
    return (
        wr.opcode.value,
        peer,
        qp.stream,
        local,
        remote,
        wr.bytes,
        wr.imm or 0,
        *wr.operands,
        flags,
        key if known else _NO_KEY,
    )


def _setup(devices: list[Device], places: dict[MR, tuple[int, int]]) -> dict[str, Array]:
    """Columns of regions and denied planes."""
    rank_of = {device.rank: rank for rank, device in enumerate(devices)}
    regions = [
        (*places[mr], mr.length, sum(bit for access, bit in _REMOTE.items() if mr.access & access))
        for device in devices
        for mr in device.regions
    ] or [(0, 0, 0, 0)]  # without any, peers could reach everything
    denied = [
        (rank, rank_of[peer], plane) for rank, device in enumerate(devices) for peer, plane in sorted(device.denied)
    ]
    region_kinds = {"rank": np.uint32, "offset": np.uint64, "len": np.uint64, "access": np.uint8}
    columns: dict[str, Array] = {
        f"region_{name}": np.array([row[k] for row in regions], kind)
        for k, (name, kind) in enumerate(region_kinds.items())
    }
    for k, name in enumerate(("rank", "peer", "plane")):
        columns[f"deny_{name}"] = np.array([row[k] for row in denied], np.uint32)
    return columns


def _complete(owners: list[Posted | None], raw: dict[str, Any], status: Array) -> None:
    done, size, imm = (np.frombuffer(raw[name], np.uint64) for name in ("wqe_done_ps", "wqe_bytes", "wqe_imm"))
    for index in np.lexsort((np.arange(len(done)), done)):
        posted, code = owners[index], int(status[index])
        if posted is None or code in (_OPEN, _UNSIGNALED):
            continue
        wr, receives, ended = posted.wr, isinstance(posted.wr, RecvWR), _STATUS[code]
        if receives and ended is Status.REM_INV_REQ_ERR:
            ended = Status.LOC_LEN_ERR
        has_imm = int(imm[index]) < 1 << 32
        opcode = COMPLETED[wr.opcode] if isinstance(wr, SendWR) else WCOpcode.RECV
        posted.wc = WC(
            wr_id=wr.wr_id,
            status=ended,
            opcode=WCOpcode.RECV_RDMA_WITH_IMM if has_imm else opcode,
            byte_len=int(size[index]) if ended is Status.SUCCESS else 0,
            imm=int(imm[index]) if has_imm else None,
            qp_num=posted.qp.qp_num,
            time_ps=int(done[index]),
        )
        (posted.qp.recv_cq if receives else posted.qp.send_cq).entries.append(posted.wc)
