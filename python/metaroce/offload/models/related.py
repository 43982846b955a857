"""Rows 1, 4 and 10 to 13 of docs/offload.md: rates and latencies of MTIA 300, H100, Gaudi 3, ACE; Trainium's DMAs.

Each row says whether its published figure was put in or comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import presets
from .comm import Cost, EngineModel, Links, busbw, bytes_in
from .gpu import NcclModel
from .kernels import Device, Kernel, Load, slowdown
from .memory import Ring, amplification, round_robin
from .step import Cluster, Dlrm, Step, run


@dataclass(frozen=True)
class Row:
    """A published figure beside the model's; ``origin`` is "input" where the model was given it."""

    name: str
    model: float
    published: float
    within: float
    origin: str

    @property
    def passed(self) -> bool:
        """Whether it lies in its band."""
        return abs(self.model / self.published - 1) <= self.within


def h100() -> list[Row]:
    """Row 10: bus bandwidth, GB/s, of large collectives."""
    comm, size = presets.nccl("h100"), float(4 << 30)

    def rate(kind: str, ranks: int, model: NcclModel = comm) -> float:
        cost = model.time(kind, bytes_in(kind, size, ranks), presets.domains("h100", ranks))
        return busbw(kind, cost, ranks)

    return [
        Row("AllGather, 8 ranks", rate("all_gather", 8), 370.0, 0.10, "input"),
        Row("AllReduce by NVLS, 8 ranks", rate("all_reduce", 8), 480.0, 0.10, "result"),
        Row("AllReduce, 4 hosts", rate("all_reduce", 32), 320.0, 0.10, "result"),
    ]


def gaudi3() -> list[Row]:
    """Row 11: NIC rates of 256 MB on 8 ranks; headers and control path are all that is lost."""
    comm = presets.engines("gaudi3")

    def rate(kind: str, published: float) -> Row:
        cost = comm.time(kind, bytes_in(kind, 256e6, 8), presets.domains("gaudi3", 8))
        return Row(f"{kind}, 8 ranks", busbw(kind, cost, 8), published, 0.05, "result")

    return [rate("all_reduce", 513.0), rate("all_gather", 509.0)]


def mtia300() -> list[Row]:
    """Rows 1 and 4: near-memory reduction, PUT collectives of 4 to 64 KB; bandwidths are the packet simulation's."""
    put = presets.engines(one_shot_us=presets.one_shot_us())

    def small(kind: str, size: int, ranks: int) -> Row:
        cost = put.time(kind, bytes_in(kind, float(size), ranks), (ranks,))
        return Row(f"PUT {kind} {size >> 10} KiB, {ranks} ranks, us", cost.time_us, 5.5, 0.25, "result")

    kinds = [(kind, size << 10, n) for kind in ("all_reduce", "alltoall") for size in (4, 64) for n in (8, 16)]
    rate = Row("all NMC, GB/s", presets.engines().reduce_gbs, 2800.0, 0.05, "input")
    return [rate, *(small(*one) for one in kinds)]


ACE_GBS = 128.0
"""Network rate of ACE's NPU that its memory sustains, the same with and without the engine (docs/offload.md: 450 GB/s
of memory for the baseline and 128 with ACE give the same rate)."""
ACE_SMS = 6
"""SMs that the baseline's collectives hold, of 80 (docs/offload.md)."""
ACE_DLRM = Dlrm(
    tables=64, dimension=64, pooling=28, batch=512, flop=1e9, dense_bytes=100e6, gathered_bytes=0.0, calls=3
)
"""A DLRM of that time, 64 NPUs (*ours*: the abstract has no figures of it)."""


def ace_device() -> Device:
    """120 TFLOP/s, 80 SMs, 900 GB/s of memory, 4 MB of SRAM (ISCA'21, as remembered: docs/offload.md)."""
    return Device(
        name="ace",
        units=80,
        tflops={"bfloat16": 120.0},
        memory_gbs=900.0,
        achieved=1.0,
        on_chip_bytes=4 << 20,
        staging_bytes=4 << 20,
    )


@dataclass(frozen=True)
class _OnUnits:
    """Collectives of a model that hold compute units."""

    base: EngineModel
    units: int

    def time(self, kind: str, bytes_in: float, domains: Sequence[int]) -> Cost:
        return self.base.time(kind, bytes_in, domains)

    def load(self, cost: Cost) -> Load:
        return replace(self.base.load(cost), units=self.units)


@dataclass(frozen=True)
class Ace:
    """Row 12: memory bytes a byte of AllReduce without over with the engine, and the DLRM step of both."""

    memory: float
    without: Step
    with_engine: Step

    @property
    def faster(self) -> float:
        """Step time without over that with."""
        return self.without.time_us / self.with_engine.time_us


def ace(ranks: int = 64, model: Dlrm = ACE_DLRM) -> Ace:
    """An NPU whose collectives stage in its memory and run on 6 of its SMs, against one with an engine and its SRAM."""
    device = ace_device()
    links = Links(up_gbs=ACE_GBS, out_gbs=0.0)
    engine = EngineModel(links=links, step_us=10.0, chunk_bytes=64 << 10, staging_bytes=float(device.staging_bytes))
    plain = replace(engine, staging_bytes=0.0)
    steps = [
        run(model, Cluster(device=device, comm=comm, domains=(ranks,))) for comm in (_OnUnits(plain, ACE_SMS), engine)
    ]
    factor = amplification("all_reduce", plain.staged) / amplification("all_reduce", engine.staged)
    return Ace(factor, steps[0], steps[1])


def dma_losses(packets: tuple[int, ...] = (4 << 10, 16 << 10, 64 << 10), compute: int = 64 << 10) -> dict[int, float]:
    """Row 13: loss of a kernel fed by an engine's ring of ``compute`` byte packets, by the collective's packet size.

    Trainium's DMA engines are shared: 64 MiB for the kernel, as many for a collective, one packet of each ring in turn.
    """
    total, gbs = 64 << 20, 100.0
    alone = total / gbs / 1e3
    done = {
        packet: round_robin([Ring("kernel", total, compute), Ring("collective", total, packet)], gbs)["kernel"]
        for packet in packets
    }
    return {packet: 1 - alone / beside for packet, beside in done.items()}


def memory_bound_loss(rate_gbs: float, hardware: str = "h100", factor: float = 2.5) -> float:
    """Loss of a memory-bound kernel on a GPU beside a collective at a rate: 2 to 3 bytes of HBM each."""
    device = presets.device(hardware)
    kernel = Kernel("elementwise", 1000.0, device.bandwidth * 1e6)
    return slowdown(device, kernel, Load(0, factor * rate_gbs)).loss
