"""RDMA verbs over the emulated transport: the names of libibverbs, and one crossing to the core a run.

Objects are made and work requests posted as with libibverbs; nothing happens until `Context.run`, which runs everything
that was posted. Then completion queues give their completions and the registered buffers hold the final bytes. As the
whole run is one call, what a program would do after polling is said when posting: ``after=`` names the completions that
a request waits for, ``at=`` a time.

A queue pair is one ordered stream of the one connection of its two hosts (F10, F11). `QP.deny_plane`, `Context.planes`
and `QP.paths` are extension calls. `docs/verbs.md` has an example and what differs from RC queue pairs.
"""

from __future__ import annotations

from .objects import CQ, MR, PD, QP, Context, Device, Posted, connect
from .requests import WC, Access, Opcode, RecvWR, SendWR, Status, WCOpcode

LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = (
    Access.LOCAL_WRITE,
    Access.REMOTE_WRITE,
    Access.REMOTE_READ,
    Access.REMOTE_ATOMIC,
)
SEND, RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ = (
    Opcode.SEND,
    Opcode.RDMA_WRITE,
    Opcode.RDMA_WRITE_WITH_IMM,
    Opcode.RDMA_READ,
)
ATOMIC_CMP_AND_SWP, ATOMIC_FETCH_AND_ADD, FLUSH = (
    Opcode.ATOMIC_CMP_AND_SWP,
    Opcode.ATOMIC_FETCH_AND_ADD,
    Opcode.FLUSH,
)

__all__ = [
    "ATOMIC_CMP_AND_SWP",
    "ATOMIC_FETCH_AND_ADD",
    "CQ",
    "FLUSH",
    "LOCAL_WRITE",
    "MR",
    "PD",
    "QP",
    "RDMA_READ",
    "RDMA_WRITE",
    "RDMA_WRITE_WITH_IMM",
    "REMOTE_ATOMIC",
    "REMOTE_READ",
    "REMOTE_WRITE",
    "SEND",
    "WC",
    "Access",
    "Context",
    "Device",
    "Opcode",
    "Posted",
    "RecvWR",
    "SendWR",
    "Status",
    "WCOpcode",
    "connect",
]
