"""Work requests and completions: what goes into a queue pair and what comes out of a completion queue.

Names are those of libibverbs without ``IBV_WR_``, ``IBV_WC_`` and ``IBV_ACCESS_``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import TYPE_CHECKING, Any, ClassVar

from ..collectives.program import Op
from ..errors import ConfigError

if TYPE_CHECKING:
    from .objects import MR


class Access(IntFlag):
    """What may be done with a memory region; the local side may always read it."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8


class Opcode(Enum):
    """What a work request does; values are the core's numbers. There is no SEND_WITH_IMM."""

    SEND = Op.SEND
    RDMA_WRITE = Op.WRITE
    RDMA_WRITE_WITH_IMM = Op.WRITE_IMM
    RDMA_READ = Op.READ
    ATOMIC_CMP_AND_SWP = Op.COMPARE_SWAP
    ATOMIC_FETCH_AND_ADD = Op.FETCH_ADD
    FLUSH = Op.FLUSH

    @property
    def is_atomic(self) -> bool:
        """Whether it changes 8 bytes of the peer once and returns what was there."""
        return self in (Opcode.ATOMIC_CMP_AND_SWP, Opcode.ATOMIC_FETCH_AND_ADD)

    @property
    def fetches(self) -> bool:
        """Whether it writes to its local buffer."""
        return self is Opcode.RDMA_READ or self.is_atomic


class WCOpcode(Enum):
    """What a completion reports on."""

    SEND = "SEND"
    RDMA_WRITE = "RDMA_WRITE"
    RDMA_READ = "RDMA_READ"
    COMP_SWAP = "COMP_SWAP"
    FETCH_ADD = "FETCH_ADD"
    FLUSH = "FLUSH"
    RECV = "RECV"
    RECV_RDMA_WITH_IMM = "RECV_RDMA_WITH_IMM"


class Status(Enum):
    """How a work request ended; each value says what of the model it stands for."""

    SUCCESS = "done"
    LOC_LEN_ERR = "the message is longer than the receive"
    WR_FLUSH_ERR = "an earlier request of the queue pair, or the connection, failed"
    REM_ACCESS_ERR = "the peer refused the key, the range (an atomic's also if not a multiple of 8) or the permission"
    REM_INV_REQ_ERR = "the peer's receive is too short for the message"
    REM_OP_ERR = "the queue pair has failed at the peer"
    RETRY_EXC_ERR = "the peer stopped answering"
    RNR_RETRY_EXC_ERR = "the peer posted no receive for too long"


Sge = tuple["MR", int, int]
"""Scatter-gather element: region, offset in it, bytes. A request has one, or none for no bytes."""

COMPLETED: dict[Opcode, WCOpcode] = {
    Opcode.SEND: WCOpcode.SEND,
    Opcode.RDMA_WRITE: WCOpcode.RDMA_WRITE,
    Opcode.RDMA_WRITE_WITH_IMM: WCOpcode.RDMA_WRITE,
    Opcode.RDMA_READ: WCOpcode.RDMA_READ,
    Opcode.ATOMIC_CMP_AND_SWP: WCOpcode.COMP_SWAP,
    Opcode.ATOMIC_FETCH_AND_ADD: WCOpcode.FETCH_ADD,
    Opcode.FLUSH: WCOpcode.FLUSH,
}

_NEEDS: dict[Opcode, tuple[str, ...]] = {
    Opcode.SEND: (),
    Opcode.RDMA_WRITE: ("sge", "remote"),
    Opcode.RDMA_WRITE_WITH_IMM: ("imm",),
    Opcode.RDMA_READ: ("sge", "remote"),
    Opcode.ATOMIC_CMP_AND_SWP: ("sge", "remote", "compare", "swap"),
    Opcode.ATOMIC_FETCH_AND_ADD: ("sge", "remote", "add"),
    Opcode.FLUSH: (),
}
_MAY_HAVE = {Opcode.SEND: ("sge",), Opcode.RDMA_WRITE_WITH_IMM: ("sge", "remote")}
_BITS = {"wr_id": 64, "imm": 32, "compare": 64, "swap": 64, "add": 64}


@dataclass(frozen=True)
class SendWR:
    """A request for the send queue.

    ``remote`` is (rkey, offset in that region of the peer). ``fence``: starts only when all earlier RDMA_READs and
    atomics of the queue pair are complete. ``signaled=False``: a success gives no completion. Raises `ConfigError` for
    a field that the opcode does not have, or lacks.
    """

    wr_id: int
    opcode: Opcode
    sge: Sge | None = None
    remote: tuple[int, int] | None = None
    imm: int | None = None
    compare: int | None = None
    swap: int | None = None
    add: int | None = None
    fence: bool = False
    signaled: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.opcode, Opcode):
            raise ConfigError.unknown("opcode", self.opcode, [opcode.name for opcode in Opcode])
        needs = _NEEDS[self.opcode]
        if self.opcode is Opcode.RDMA_WRITE_WITH_IMM and self.sge is not None:
            needs = (*needs, "remote")
        for name in ("sge", "remote", "imm", "compare", "swap", "add"):
            value = getattr(self, name)
            if value is None and name in needs:
                raise ConfigError.of(name, None, f"{self.opcode.name} needs it")
            if value is not None and name not in needs + _MAY_HAVE.get(self.opcode, ()):
                raise ConfigError.of(name, value, f"{self.opcode.name} has none")
        _check_numbers(self, "wr_id", "imm", "compare", "swap", "add")
        _check_sge(self.sge)
        remote = self.remote
        if remote is not None and not (_tuple_of(remote, 2) and _fits(remote[0], 32) and _fits(remote[1], 64)):
            raise ConfigError.of("remote", remote, "must be (rkey, offset), whole numbers of 32 and 64 bits")
        if self.opcode in (Opcode.RDMA_WRITE, Opcode.RDMA_READ) and self.bytes == 0:
            raise ConfigError.of("sge", self.sge, f"{self.opcode.name} moves at least 1 byte")
        if self.opcode.is_atomic and self.bytes != 8:
            raise ConfigError.of("sge", self.sge, f"{self.opcode.name} moves 8 bytes")

    @property
    def bytes(self) -> int:
        """Length."""
        return self.sge[2] if self.sge else 0

    @property
    def operands(self) -> tuple[int, int]:
        """Compare and swap, or the addend."""
        return (self.add or 0, 0) if self.compare is None else (self.compare, self.swap or 0)


@dataclass(frozen=True)
class RecvWR:
    """A request for the receive queue: where the next SEND of the peer goes; an RDMA_WRITE_WITH_IMM only uses it up."""

    wr_id: int
    sge: Sge | None = None

    def __post_init__(self) -> None:
        _check_numbers(self, "wr_id")
        _check_sge(self.sge)

    @property
    def bytes(self) -> int:
        """Length."""
        return self.sge[2] if self.sge else 0


@dataclass(frozen=True)
class WC:
    """A completion. ``byte_len`` is 0 and ``imm`` None unless `SUCCESS`; ``time_ps`` is in virtual picoseconds."""

    wr_id: int
    status: Status
    opcode: WCOpcode
    byte_len: int
    imm: int | None
    qp_num: int
    time_ps: int

    SUCCESS: ClassVar = Status.SUCCESS
    LOC_LEN_ERR: ClassVar = Status.LOC_LEN_ERR
    WR_FLUSH_ERR: ClassVar = Status.WR_FLUSH_ERR
    REM_ACCESS_ERR: ClassVar = Status.REM_ACCESS_ERR
    REM_INV_REQ_ERR: ClassVar = Status.REM_INV_REQ_ERR
    REM_OP_ERR: ClassVar = Status.REM_OP_ERR
    RETRY_EXC_ERR: ClassVar = Status.RETRY_EXC_ERR
    RNR_RETRY_EXC_ERR: ClassVar = Status.RNR_RETRY_EXC_ERR


def _fits(value: object, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << bits


def _tuple_of(value: object, length: int) -> bool:
    return isinstance(value, tuple) and len(value) == length


def _check_numbers(request: Any, *names: str) -> None:
    for name in names:
        value = getattr(request, name)
        if value is not None and not _fits(value, _BITS[name]):
            raise ConfigError.of(name, value, f"must be a whole number of {_BITS[name]} bits, 0 or more")
    if request.wr_id is None:
        raise ConfigError.of("wr_id", None, "must be a whole number of 64 bits, 0 or more")


def _check_sge(sge: Any) -> None:
    if sge is None:
        return
    if not _tuple_of(sge, 3) or not hasattr(sge[0], "rkey") or not (_fits(sge[1], 63) and _fits(sge[2], 63)):
        raise ConfigError.of("sge", sge, "must be (MR, offset, bytes)")
    region, offset, length = sge
    if offset + length > region.length:
        raise ConfigError.of("sge", f"{offset}+{length}", f"must lie in the {region.length} bytes of the region")
