"""A DLRM training step on two queues: the 150 B-parameter configuration of ISCA'26, V-D, and its variants.

What the paper states are inputs (parameters, batch, FLOP a sample, bytes of AllReduce and AllGather, calls); what it
does not is *ours*, and a range in `band`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...errors import ConfigError
from .comm import CommModel, Cost
from .kernels import Device, Kernel, streaming
from .overlap import COMPUTE, Task, Timeline, simulate


@dataclass(frozen=True, kw_only=True)
class Dlrm:
    """A recommendation model and how a step of it is cut.

    Parameters
    ----------
    tables, dimension, rows, pooling
        600 tables of 1.93 M rows of 128: 148.5 B parameters (docs/offload.md, *ours*; the paper: ~150 B, 99 % sparse).
    batch
        Samples of a rank: 6,144 on 40, 10,240 on 24 (paper).
    exchange_bytes, index_bytes
        Of an element exchanged (BF16) and of an index (*ours*).
    alltoall_bytes
        All AllToAllv bytes that arrive at a rank in a step of 6,144 samples; None: what the tables give, 2.2 GB (the
        paper: 35 calls of 1 KB to 1 GB, the total is not stated).
    dense_bytes, gathered_bytes
        Vector of the AllReduce and result of the AllGather: 1.6 GB and 2.1 GB arrive at each of 40 ranks (paper).
    calls, buckets, gathers
        AllToAllv calls (paper), AllReduce buckets (docs/offload.md), AllGather calls (*ours*).
    flop
        A sample, forward and backward (paper: about 3 GFLOP). ``utilisation``: share of the BF16 peak (0.45, *ours*).
    update
        HBM bytes of the backward and sparse update over those of the lookup: gradient, row read and written (*ours*).
    optimizer
        FLOP of the dense optimizer (Shampoo) over those of the dense part (0.05, *ours*).
    """

    tables: int = 600
    dimension: int = 128
    rows: float = 1.93e6
    pooling: int = 10
    batch: int = 6144
    exchange_bytes: float = 2.0
    index_bytes: int = 8
    alltoall_bytes: float | None = None
    dense_bytes: float = 1.6e9 * 40 / (2 * 39)
    gathered_bytes: float = 2.1e9 * 40 / 39
    calls: int = 35
    buckets: int = 8
    gathers: int = 1
    flop: float = 3e9
    utilisation: float = 0.45
    update: float = 3.0
    optimizer: float = 0.05

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("calls", 3), ("buckets", 1), ("gathers", 1)):
            if getattr(self, name) < least:
                raise ConfigError.of(name, getattr(self, name), f"must be at least {least}")
        if not 0 < self.utilisation <= 1:
            raise ConfigError.of("utilisation", self.utilisation, "must be in (0, 1]")

    @property
    def parameters(self) -> float:
        """Of all tables."""
        return self.tables * self.dimension * self.rows

    @property
    def pooled_bytes(self) -> float:
        """What a rank receives in the forward AllToAll, and again as gradients."""
        return self._scale * self.batch * self.tables * self.dimension * self.exchange_bytes

    @property
    def input_bytes(self) -> float:
        """What a rank receives when indices go to their tables."""
        return self._scale * self.batch * self.tables * self.pooling * self.index_bytes

    @property
    def lookup_bytes(self) -> float:
        """HBM bytes of a rank's lookups, rows in BF16."""
        return self.batch * self.tables * self.pooling * self.dimension * 2.0

    @property
    def _scale(self) -> float:
        """What brings all AllToAll bytes to ``alltoall_bytes``, the payload's width left to `exchange_bytes`."""
        if self.alltoall_bytes is None:
            return 1.0
        own = 6144 * self.tables * (2 * self.dimension * 2.0 + self.pooling * self.index_bytes)
        return self.alltoall_bytes / own


DLRM_150B = Dlrm()
"""The configuration of M5, a rank of 40."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Accelerators in domains, what kernels run on and how collectives do.

    ``lookup`` and ``update`` are the embedding kernels' shares of the achieved memory bandwidth; published speed-ups
    of them are inputs (2.0x forward, 2.1x backward of H100; row 14 of docs/offload.md).
    """

    device: Device
    comm: CommModel
    domains: tuple[int, ...]
    lookup: float = 1.0
    update: float = 1.0

    @property
    def ranks(self) -> int:
        """Accelerators."""
        return sum(self.domains)


def collectives(model: Dlrm, comm: CommModel, domains: tuple[int, ...]) -> dict[str, list[Cost]]:
    """Every collective of a step, alone, by name; calls that share a dependency are one cost with all their starts."""
    n = sum(domains)
    forward = (model.calls - 1) // 2
    reduced = model.dense_bytes * 2 * (n - 1) / n / model.buckets
    gathered = model.gathered_bytes * (n - 1) / n / model.gathers

    def calls(kind: str, size: float, count: int) -> Cost:
        one = comm.time(kind, size / count, domains)
        parts = {part: count * time for part, time in one.parts_us.items()}
        return replace(one, bytes_in=size, fixed_us=count * one.fixed_us, parts_us=parts)

    return {
        "input": [calls("alltoall", model.input_bytes, 1)],
        "forward": [calls("alltoall", model.pooled_bytes, forward)],
        "gradients": [calls("alltoall", model.pooled_bytes, model.calls - 1 - forward)],
        "all_reduce": [comm.time("all_reduce", reduced, domains)] * model.buckets,
        "all_gather": [comm.time("all_gather", gathered, domains)] * model.gathers,
    }


def communication_us(model: Dlrm, comm: CommModel, domains: tuple[int, ...], stretch: float = 1.0) -> dict[str, float]:
    """Total time of each kind of collective in a step, alone, us; ``stretch``: of their transfers beside kernels."""
    total = dict.fromkeys(("alltoall", "all_reduce", "all_gather"), 0.0)
    for costs in collectives(model, comm, domains).values():
        for cost in costs:
            total[cost.kind] += cost.fixed_us + stretch * cost.link_us
    return total


def kernels(model: Dlrm, cluster: Cluster) -> dict[str, Kernel]:
    """The step's kernels, alone."""
    device = cluster.device
    dense_us = model.flop * model.batch / (device.peak("bfloat16") * model.utilisation) / 1e6

    def dense(name: str, share: float) -> Kernel:
        # Persistent grids: averaged over many layers, the units that are gone cost their share, not whole waves.
        return Kernel(name, share * dense_us, 0.09 * device.bandwidth * share * dense_us * 1e3, 1, persistent=True)

    return {
        "lookup": streaming("lookup", model.lookup_bytes, device, efficiency=cluster.lookup),
        "dense forward": dense("dense forward", 1 / 3),
        "dense backward": dense("dense backward", 2 / 3 / model.buckets),
        "embedding backward": streaming(
            "embedding backward", model.update * model.lookup_bytes, device, efficiency=cluster.update
        ),
        "optimizer": dense("optimizer", model.optimizer),
    }


@dataclass(frozen=True)
class Step:
    """A step in the steady state: samples a rank, us, of which exposed; kernels' time over that alone; its timeline.

    It starts at ``start_us`` of the timeline, with the end of the last dense backward of the step before.
    """

    batch: int
    start_us: float
    time_us: float
    exposed_us: float
    compute_stretch: float
    communication_us: float
    timeline: Timeline

    @property
    def throughput(self) -> float:
        """Samples a second and rank."""
        return self.batch / self.time_us * 1e6


VARIANTS = ("plain", "prefetch")


def run(model: Dlrm, cluster: Cluster, variant: str = "plain", iterations: int = 4) -> Step:
    """One step in the steady state, from the last but one of ``iterations`` (at least 4).

    ``plain``: lookup, its AllToAll, dense forward, dense backward with an AllReduce a bucket, AllToAll of the gradients
    under the optimizer, AllGather (which the next dense forward waits for) under the embedding's backward; the next
    batch's indices travel under the dense part. ``prefetch`` (semi-synchronous): the next batch's lookup comes first,
    and its AllToAll runs under this one's dense part.
    """
    if variant not in VARIANTS:
        raise ConfigError.unknown("variant", variant, VARIANTS)
    if iterations < 4:
        raise ConfigError.of("iterations", iterations, "must be at least 4: the first ones and the last are not steady")
    work: dict[str, Sequence[Kernel | Cost]] = {
        **{name: [kernel] for name, kernel in kernels(model, cluster).items()},
        **collectives(model, cluster.comm, cluster.domains),
    }
    tasks = [task for i in range(iterations) for task in _iteration(work, i, variant == "prefetch", iterations)]
    timeline = simulate(tasks, cluster.device, cluster.comm)
    mark = f"dense backward {model.buckets - 1}"
    start, end = (timeline.finish_us[f"{i} {mark}"] for i in (iterations - 3, iterations - 2))
    own = [task.name for task in tasks if task.name.startswith(f"{iterations - 2} ") and task.queue == COMPUTE]
    return Step(
        model.batch,
        start,
        end - start,
        timeline.exposed_us(start, end),
        timeline.stretch(COMPUTE, own),
        sum(communication_us(model, cluster.comm, cluster.domains).values()),
        timeline,
    )


Work = dict[str, Sequence[Kernel | Cost]]


def _iteration(work: Work, i: int, prefetch: bool, iterations: int) -> Iterator[Task]:
    """Tasks of iteration ``i`` in the order of their queues; the kernels of a task's own queue need no mention."""
    gathers, buckets = len(work["all_gather"]), len(work["all_reduce"])
    exchanges = [i] if not prefetch or i == 0 else []
    ahead = [i + 1] if prefetch and i + 1 < iterations else []
    for one in exchanges:
        yield from _lookup(work, one, i - 1)
        yield Task(f"{one} forward", work["forward"][0], (f"{one} lookup",))
    for one in ahead:
        yield from _lookup(work, one, i - 1)
    gathered = (f"{i - 1} all_gather {gathers - 1}",) if i else ()
    yield Task(f"{i} dense forward", work["dense forward"][0], (f"{i} forward", *gathered))
    for one in ahead:
        yield Task(f"{one} forward", work["forward"][0], (f"{one} lookup",))
    yield Task(f"{i} input", work["input"][0])
    for bucket in range(buckets):
        yield Task(f"{i} dense backward {bucket}", work["dense backward"][0])
        yield Task(f"{i} all_reduce {bucket}", work["all_reduce"][bucket], (f"{i} dense backward {bucket}",))
    yield Task(f"{i} gradients", work["gradients"][0])
    yield Task(f"{i} optimizer", work["optimizer"][0], (f"{i} all_reduce {buckets - 1}",))
    for one in range(gathers):
        yield Task(f"{i} all_gather {one}", work["all_gather"][one], (f"{i} optimizer",))
    yield Task(f"{i} embedding backward", work["embedding backward"][0], (f"{i} gradients",))


def _lookup(work: Work, i: int, indices: int) -> Iterator[Task]:
    """The lookup of iteration ``i``, whose indices travelled in iteration ``indices`` (none: before the run)."""
    yield Task(f"{i} lookup", work["lookup"][0], (f"{indices} input",) if indices >= 0 else ())
