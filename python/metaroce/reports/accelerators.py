"""Tables of the models beside the simulation: accelerators, isolation, ratios, training steps, crossovers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ConfigError
from ..offload import hardware
from ..offload.models import band as bands
from ..offload.models import crossover as crossovers
from ..offload.models import isolation as isolations
from ..offload.models import presets, ratio, step
from ..offload.models.comm import KINDS, busbw
from ..units import format_rate, format_size, format_time
from .listing import Field, Listing

MODEL = "independent model of public figures, not affiliated with Meta or NVIDIA"
PUBLISHED_RATIO = 3.9
US, GBS, SHARE, TIMES = "{:.1f}", "{:.0f}", "{:.2%}", "{:.2f}"


def accelerators() -> Listing:
    """The named ones, a row each."""
    rows = []
    for name in hardware.names():
        one = hardware.load(name)
        up, out = hardware.split(one.network)
        rate = one.network.nic_rate.value / 8e9
        rows.append(
            {
                "name": name,
                "kind": one.kind,
                "domain": one.network.domain.value,
                "up": up * rate,
                "out": out * rate,
                "memory": one.memory.bandwidth.value / 1e12,
                "engines": one.engines.count.value if one.engines else None,
                "description": one.description,
            }
        )
    fields = (
        Field("name", "name"),
        Field("kind", "kind"),
        Field("domain", "domain", "", "{:d}"),
        Field("up", "up", "GB/s", GBS),
        Field("out", "out", "GB/s", GBS),
        Field("memory", "memory", "TB/s", "{:.2f}"),
        Field("engines", "engines", "", "{:d}"),
        Field("description", "description", width=60),
    )
    return Listing("Accelerators (metaroce offload hardware show NAME: every figure with its source)", fields, rows)


def figures(name: str) -> Listing:
    """Every figure of one, with its source."""
    one = hardware.load(name)
    rows = [{"figure": path, "value": _written(path, value), "source": text} for path, value, text in one.figures()]
    fields = (Field("figure", "figure"), Field("value", "value"), Field("source", "source", width=62))
    return Listing(one.description or one.name, fields, rows)


_TIMES = "doorbell hop_up hop_out issue start post event dispatch host_copy enqueue launch".split()
_SIZES = "context size on_chip staging".split()


def _written(path: str, value: Any) -> str:
    last = path.rsplit(".", 1)[-1]
    if last in _TIMES:
        return format_time(value)
    if last in _SIZES:
        return f"{value / 1e9:g}GB" if value % 10**9 == 0 else format_size(value)
    if last == "nic_rate":
        return format_rate(value)
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return _scaled(value) if isinstance(value, float) else str(value)


def _scaled(value: float) -> str:
    return next((f"{value / by:g} {name}" for by, name in ((1e12, "T"), (1e9, "G")) if value >= by), f"{value:g}")


def isolation(
    name: str = "mtia300",
    gpu: str = "h100",
    *,
    partition: str | None = None,
    staged: float | None = None,
    exposed: float = presets.EXPOSED,
) -> Iterator[Listing]:
    """A GEMM of 4,096^3 in TF32 beside a large collective of 16 ranks, on engines and on a GPU."""
    shares = (None, 0.75, 0.0) if staged is None else (staged,)
    rows = [
        {"collective": kind, "staging": "own partition" if h is None else f"h = {h:g}", **_beside(made)}
        for kind in KINDS
        for h in shares
        for made in [isolations.on_engines(kind, staged=h, exposed=exposed, hardware=name, partition=partition)]
    ]
    fields = (Field("collective", "collective"), Field("staging", "staging"), *_BESIDE)
    yield Listing(f"{name}: GEMM beside a collective on message engines, sigma {exposed:.2%}", fields, rows)
    held: Sequence[int | None] = (None, 0, 6, 20, 24, 26, 32)
    rows = [
        {
            "sms": "of its channels" if k is None else str(k),
            "grid": "one wave" if wave else "512 tiles",
            **_beside(made),
        }
        for wave in (False, True)
        for k in held
        for made in [isolations.on_gpu(held=k, one_wave=wave, hardware=gpu)]
    ]
    held_fields = (Field("sms", "SMs asked"), Field("grid", "grid"), Field("units", "SMs held", "", GBS), *_BESIDE)
    yield Listing(f"{gpu}: GEMM beside an all_gather by kernels on SMs", held_fields, rows)


_BESIDE = (Field("loss", "GEMM loses", "", SHARE), Field("memory_gbs", "HBM traffic", "GB/s", GBS))


def _beside(made: isolations.Beside) -> dict[str, Any]:
    return {"loss": made.loss, "memory_gbs": made.load.memory_gbs, "units": made.load.units}


def ratios(both: ratio.Sides, draws: int, seed: int) -> Iterator[Listing]:
    """The ratio of communication times in parts, by kind, by other definitions, and its band."""
    made = ratio.decompose(both=both)
    rows = [{"part": part, "factor": made.factors[part], "alone": made.alone[part]} for part in ratio.PARTS]
    rows.append({"part": "all: the ratio", "factor": made.ratio, "alone": None})
    rows.append({"part": "engines against NCCL on one fabric", "factor": made.identical, "alone": None})
    alone = Field("alone", "alone", "on the GPU side", TIMES)
    fields = (Field("part", "part"), Field("factor", "factor", "", TIMES), alone)
    ranks = sum(both.engine_domains)
    domains = "+".join(map(str, both.engine_domains))
    title = f"All communication of a step, GPU over engines, {ranks} against {ranks} (racks {domains})"
    yield Listing(title, fields, rows)
    yield Listing(
        "By kind of collective",
        (Field("kind", "collective"), Field("ratio", "ratio", "", TIMES)),
        [{"kind": kind, "ratio": own} for kind, own in made.by_kind.items()],
    )
    yield Listing(
        "Other meanings of 'equivalent cluster', 40 MTIA 300 on the engines' side",
        (Field("definition", "definition"), Field("ratio", "ratio", "", TIMES)),
        [{"definition": name, "ratio": value} for name, value in ratio.definitions().items()],
    )
    yield from _band(draws, seed)


def _band(draws: int, seed: int) -> Iterator[Listing]:
    made = bands.band(draws, seed)
    row = {f"p{p}": made.percentile(p) for p in (5, 25, 50, 75, 95)} | {"below": made.below(PUBLISHED_RATIO)}
    fields = [Field(f"p{p}", f"p{p}", "", TIMES) for p in (5, 25, 50, 75, 95)]
    fields.append(Field("below", f"below {PUBLISHED_RATIO}", "of draws", "{:.0%}"))
    yield Listing(f"Band over what nobody published, 40 against 40, {draws} draws, seed {seed}", fields, [row])
    found = made.correlations()
    rows = [
        {"input": one.name, "low": one.low, "high": one.high, "form": one.form, "correlation": found[one.name]}
        for one in sorted(bands.RANGES, key=lambda one: -abs(found[one.name]))
    ]
    yield Listing(
        "Its inputs, the strongest first",
        (
            Field("input", "input"),
            Field("low", "from", "", "{:g}"),
            Field("high", "to", "", "{:g}"),
            Field("form", "drawn"),
            Field("correlation", "rank correlation", "with the ratio", "{:+.2f}"),
        ),
        rows,
    )


CLUSTERS = (("mtia300", 40, 6144), ("mtia300", 24, 10240), ("h100", 40, 6144), ("h100", 24, 10240))
SM_FREE = "SM-free"


def cluster(name: str, ranks: int) -> step.Cluster:
    """Accelerators of a file; ``NAME SM-free``: a GPU whose AllToAll and AllGather are moved by copy engines."""
    plain = name.removesuffix(f" {SM_FREE}")
    free: dict[str, Any] = {"sm_free": ("alltoall", "all_gather")} if plain != name else {}
    if free and hardware.load(plain).kind != "gpu":
        raise ConfigError.of("cluster", name, f'{SM_FREE} is of GPUs: must be hardware of kind "gpu"')
    return presets.cluster(plain, ranks, **free)


Run = tuple[str, int, int, str, step.Step]
"""Name, ranks, batch and variant of a step, and the step."""


def runs(clusters: Iterable[tuple[str, int, int]], model: step.Dlrm) -> list[Run]:
    """A training step of each cluster (name, ranks, batch), plain and with the exchange prefetched."""
    made = [(name, ranks, replace(model, batch=batch), cluster(name, ranks)) for name, ranks, batch in clusters]
    return [
        (name, ranks, own.batch, variant, step.run(own, where, variant))
        for variant in step.VARIANTS
        for name, ranks, own, where in made
    ]


def steps(made: Iterable[Run], model: step.Dlrm) -> Listing:
    """A row each; ``model`` is that of `runs`."""
    rows = [
        {
            "accelerator": name,
            "ranks": ranks,
            "batch": batch,
            "variant": variant,
            "step_ms": one.time_us / 1e3,
            "exposed_ms": one.exposed_us / 1e3,
            "exposed": one.exposed_us / one.time_us,
            "communication_ms": one.communication_us / 1e3,
            "stretch": one.compute_stretch - 1,
            "samples": one.throughput,
        }
        for name, ranks, batch, variant, one in made
    ]
    fields = (
        Field("accelerator", "accelerator"),
        Field("ranks", "ranks", "", "{:d}"),
        Field("batch", "batch", "a rank", "{:d}"),
        Field("variant", "variant"),
        Field("step_ms", "step", "ms", US),
        Field("exposed_ms", "exposed", "ms", US),
        Field("exposed", "of the", "step", "{:.0%}"),
        Field("communication_ms", "communication", "alone, ms", US),
        Field("stretch", "compute", "stretch", "{:.1%}"),
        Field("samples", "samples/s", "a rank", GBS),
    )
    title = f"DLRM training step, {model.parameters / 1e9:.0f} B parameters, utilisation {model.utilisation:.0%} (ours)"
    return Listing(title, fields, rows)


def timelines(made: Iterable[Run]) -> list[tuple[str, step.Step]]:
    """The steps with what to call them."""
    return [(f"{ranks} {name}, {variant}", one) for name, ranks, _, variant, one in made]


def crossover(kind: str, ranks: int, name: str = "mtia300", gpu: str = "h100") -> Listing:
    """Both sides over sizes."""
    points = crossovers.points(kind, ranks, accelerator=name, gpu_name=gpu)
    rows = [
        {
            "size": point.size,
            "engines_us": point.engines.time_us,
            "engines_fixed_us": point.engines.fixed_us,
            "engines_bound": point.engines.bound,
            "engines_busbw": busbw(kind, point.engines, ranks),
            "gpu_us": point.gpu.time_us,
            "gpu_algorithm": point.gpu.algorithm,
            "gpu_busbw": busbw(kind, point.gpu, ranks),
            "ahead": point.gpu.time_us / point.engines.time_us,
        }
        for point in points
    ]
    least = crossovers.least(points)
    told = "engines not ahead at the largest" if least is None else f"engines ahead from {format_size(least)} on"
    fields = (
        Field("size", "size", "bytes", "{:d}"),
        Field("engines_us", name, "us", US),
        Field("engines_fixed_us", "of it fixed", "us", US),
        Field("engines_bound", "then bound by"),
        Field("engines_busbw", "busbw", "GB/s", US),
        Field("gpu_us", gpu, "us", US),
        Field("gpu_algorithm", "by"),
        Field("gpu_busbw", "busbw", "GB/s", US),
        Field("ahead", f"{gpu} over", name, TIMES),
    )
    return Listing(f"{kind}, {ranks} ranks, closed forms: {told}", fields, rows)
