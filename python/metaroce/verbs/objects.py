"""Devices, regions, queues: what a program holds while it posts, and reads after the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..collectives import Array
from ..engine import Flows
from ..errors import ConfigError
from ..result import PATH_STATES, Result
from ..scenario import Scenario
from ..units import parse_time
from .requests import WC, Access, RecvWR, SendWR

MAX_STREAMS = 1 << 16
"""Queue pairs between two hosts: the core numbers streams with 16 bits."""
_AT_END = "1s"


class Context:
    """A fabric and everything on it; ``options`` are fields of `Scenario`: topology, transport, loss, seed, faults, ….

    ``record_paths`` adds samples to the one at the end, which `QP.paths` reads. Raises `ConfigError` for what cannot be
    run.
    """

    def __init__(self, **options: Any) -> None:
        fixed = ("workload", "ranks", "placement", "iterations", "warmup", "check", "record_wqes", "flip_byte_at")
        for name in fixed:
            if name in options:
                raise ConfigError.of(name, options[name], "is no option of a verbs Context")
        # The workload stands for what will be posted.
        stand_in = Flows(writes=((0, 1, 1, 0),))
        self.scenario = Scenario(
            **{"record_paths": _AT_END, **options}, workload=stand_in, placement="packed", record_wqes=True
        )
        self.devices: dict[int, Device] = {}
        self.streams: dict[tuple[int, int], int] = {}
        self.qps = 0
        self.result: Result | None = None

    @property
    def planes(self) -> int:
        """Planes of the fabric (extension call)."""
        return self.scenario.topology.fabric.planes

    def device(self, rank: int) -> Device:
        """The device of host ``rank``, always the same object."""
        hosts = self.scenario.topology.fabric.hosts
        if not isinstance(rank, int) or not 0 <= rank < hosts:
            raise ConfigError.of("rank", rank, f"must be 0 .. {hosts - 1}")
        return self.devices.setdefault(rank, Device(self, rank))

    def run(self) -> Result:
        """Run all that was posted, once; fill completion queues and registered buffers.

        Raises `SimulationStalled` if a request for a send queue could not end, as when what it waits for never comes;
        receives that get no message stay without completion.
        """
        from .run import run

        self.open()
        self.result = run(self)
        return self.result

    def open(self) -> None:
        """Refuse a change after the run."""
        if self.result is not None:
            raise ConfigError("context: has run already; a context runs once, make a new one")


class Device:
    """The NIC of one host."""

    def __init__(self, context: Context, rank: int) -> None:
        self.context, self.rank = context, rank
        self.regions: list[MR] = []
        self.posted: list[Posted] = []
        self.denied: set[tuple[int, int]] = set()

    def alloc_pd(self) -> PD:
        """A protection domain."""
        return PD(self)

    def create_cq(self) -> CQ:
        """A completion queue, without bound."""
        return CQ(self)


class PD:
    """A protection domain: regions and queue pairs that may be used together."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def reg_mr(self, buffer: int | Array, access: Access = Access.LOCAL_WRITE) -> MR:
        """Register ``buffer``, a C-contiguous writable array (used in place) or a number of bytes (zeroed).

        As in libibverbs, REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE. Regions of a device may overlap.
        """
        self.device.context.open()
        array = np.zeros(buffer, np.uint8) if isinstance(buffer, int) and buffer > 0 else buffer
        if not isinstance(array, np.ndarray) or not _is_plain(array):
            allowed = "must be a number of bytes above 0 or a C-contiguous writable array of numbers"
            raise ConfigError.of("buffer", buffer, allowed)
        if not isinstance(access, Access):
            raise ConfigError.of("access", access, "must be made of " + " | ".join(a.name or "" for a in Access))
        if access & (Access.REMOTE_WRITE | Access.REMOTE_ATOMIC) and not access & Access.LOCAL_WRITE:
            raise ConfigError.of("access", access, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")
        return MR(self, array, access)

    def create_qp(self, send_cq: CQ, recv_cq: CQ | None = None) -> QP:
        """A queue pair; both its queues may report to one completion queue, which is the default."""
        recv_cq = send_cq if recv_cq is None else recv_cq
        for name, cq in (("send_cq", send_cq), ("recv_cq", recv_cq)):
            if not isinstance(cq, CQ) or cq.device is not self.device:
                raise ConfigError.of(name, cq, "must be a completion queue of the same device")
        return QP(self, send_cq, recv_cq)


class MR:
    """A memory region. Offsets start at 0; ``rkey`` is unique on its device."""

    def __init__(self, pd: PD, buffer: Array, access: Access) -> None:
        self.pd, self.buffer, self.access = pd, buffer, access
        self.length = buffer.nbytes
        pd.device.regions.append(self)
        self.rkey = len(pd.device.regions)

    @property
    def bytes(self) -> Array:
        """The buffer as u8[length], a view."""
        return self.buffer.reshape(-1).view(np.uint8)


class CQ:
    """A completion queue; empty until the run is over."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.entries: deque[WC] = deque()

    def poll(self, n: int = 1) -> list[WC]:
        """Take up to ``n`` completions, in the order in which they came."""
        if not isinstance(n, int) or n < 1:
            raise ConfigError.of("n", n, "must be at least 1")
        return [self.entries.popleft() for _ in range(min(n, len(self.entries)))]


class Posted:
    """A request that was posted. ``wc`` is its completion after the run; None if there was none."""

    __slots__ = ("after", "at", "index", "qp", "wc", "wr")

    def __init__(self, qp: QP, wr: SendWR | RecvWR, after: tuple[Posted, ...], at: int) -> None:
        self.qp, self.wr, self.after, self.at = qp, wr, after, at
        self.wc: WC | None = None
        self.index = -1


class QP:
    """A reliable connected queue pair, to be connected with another one by `connect`."""

    def __init__(self, pd: PD, send_cq: CQ, recv_cq: CQ) -> None:
        context = pd.device.context
        context.qps += 1
        self.pd, self.send_cq, self.recv_cq, self.qp_num = pd, send_cq, recv_cq, context.qps
        self.device = pd.device
        self.peer: QP | None = None
        self.stream = 0

    def post_send(self, wr: SendWR, after: Sequence[Posted] = (), at: str | int = 0) -> Posted:
        """Post to the send queue, not before ``at`` and the completions of ``after``, earlier requests of this device.

        Requests of a queue are posted in the order of the calls: what waits makes later ones wait.
        """
        if not isinstance(wr, SendWR):
            raise ConfigError.of("wr", wr, "must be a SendWR")
        self._check_region(wr.sge, "write" if wr.opcode.fetches else "read")
        return self._post(wr, after, at)

    def post_recv(self, wr: RecvWR, after: Sequence[Posted] = (), at: str | int = 0) -> Posted:
        """Post to the receive queue; ``after`` and ``at`` as for `post_send`."""
        if not isinstance(wr, RecvWR):
            raise ConfigError.of("wr", wr, "must be a RecvWR")
        self._check_region(wr.sge, "write")
        return self._post(wr, after, at)

    def deny_plane(self, plane: int) -> None:
        """Keep what this device sends to the peer's off ``plane`` from the start (extension call).

        It holds for all queue pairs of the two hosts, which share the connection. Acknowledgements go back where the
        peer's packets came from. At least one plane has to stay.
        """
        self.device.context.open()
        planes = self.device.context.planes
        if not isinstance(plane, int) or not 0 <= plane < planes:
            raise ConfigError.of("plane", plane, f"must be 0 .. {planes - 1}")
        denied = self.device.denied | {(self._peer.device.rank, plane)}
        if sum(peer == self._peer.device.rank for peer, _ in denied) == planes:
            raise ConfigError.of("plane", plane, "one plane at least must stay in use")
        self.device.denied = denied

    def paths(self) -> list[dict[str, Any]]:
        """The paths that this device sends on to the peer's, at the end of the run (extension call).

        Keys are columns of `Result.paths`; ``state`` is one of `PATH_STATES`.
        """
        result = self.device.context.result
        if result is None or result.paths is None:
            raise ConfigError("paths: are known after the run; call Context.run first")
        ranks = sorted(self.device.context.devices)
        src, dst = ranks.index(self.device.rank), ranks.index(self._peer.device.rank)
        table = result.paths
        rows = np.flatnonzero((table["src"] == src) & (table["dst"] == dst))
        rows = rows[table["time_ps"][rows] == table["time_ps"][rows].max(initial=0)]
        left_out = ("src", "dst", "state")
        return [
            {name: int(column[row]) for name, column in table.items() if name not in left_out}
            | {"state": PATH_STATES[table["state"][row]]}
            for row in rows
        ]

    @property
    def _peer(self) -> QP:
        if self.peer is None:
            raise ConfigError.of("qp", self.qp_num, "must be connected first")
        return self.peer

    def _check_region(self, sge: tuple[MR, int, int] | None, use: str) -> None:
        if sge is None:
            return
        if sge[0].pd is not self.pd:
            raise ConfigError.of("sge", sge[0], "the region must be of the queue pair's protection domain")
        if use == "write" and not sge[0].access & Access.LOCAL_WRITE:
            raise ConfigError.of("sge", sge[0].access, "what is written to needs LOCAL_WRITE")

    def _post(self, wr: SendWR | RecvWR, after: Sequence[Posted], at: str | int) -> Posted:
        self.device.context.open()
        self._peer  # noqa: B018 - refuses an unconnected queue pair
        for one in after:
            if not isinstance(one, Posted) or one.qp.device is not self.device:
                raise ConfigError.of("after", one, "must be what post_send or post_recv of the same device returned")
            if isinstance(one.wr, SendWR) and not one.wr.signaled:
                raise ConfigError.of("after", one.wr.wr_id, "an unsignaled request cannot be waited for")
        posted = Posted(self, wr, tuple(after), parse_time(at, "at"))
        self.device.posted.append(posted)
        return posted


def _is_plain(array: Array) -> bool:
    return array.nbytes > 0 and array.flags.c_contiguous and array.flags.writeable and not array.dtype.hasobject


def connect(a: QP, b: QP) -> None:
    """Connect two queue pairs of different hosts: they become the next stream of the hosts' connection."""
    for name, qp in (("a", a), ("b", b)):
        if not isinstance(qp, QP) or qp.peer is not None:
            raise ConfigError.of(name, qp, "must be a queue pair that is not connected")
    if a.device.context is not b.device.context or a.device is b.device:
        raise ConfigError.of("b", b, "must be of another host of the same context")
    context = a.device.context
    context.open()
    hosts = min(a.device.rank, b.device.rank), max(a.device.rank, b.device.rank)
    stream = context.streams.get(hosts, 0)
    if stream == MAX_STREAMS:
        raise ConfigError.of("b", b, f"two hosts have at most {MAX_STREAMS} queue pairs between them")
    context.streams[hosts] = stream + 1
    a.peer, b.peer, a.stream, b.stream = b, a, stream, stream
