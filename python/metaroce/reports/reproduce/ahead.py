"""M7: who needs less time, message engines or NCCL on H100, over sizes and ranks: both signs (rows 5 and 10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...offload.models import presets, related
from ...offload.models.comm import bytes_in
from ...offload.models.crossover import Point, least
from ...result import Result
from .beside import MODELS
from .model import Check, Figure, Finding, Row, Setup, Sheet, Sheets, Target, failures, scenario

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
SIZES = {"16 KiB": 14, "256 KiB": 18, "1 MiB": 20, "16 MiB": 24, "256 MiB": 28, "1 GiB": 30}
LARGE = 24
"""16 MiB: from here on the engines are published to be ahead."""
NEVER = "no size"


def m7(quick: bool) -> Target:
    """Closed forms of both sides, draws of what is unpublished, packet runs, and what NCCL's constants give."""
    ranks = (8, 16) if quick else (8, 16, 32, 40)
    closed = Sheet(
        "Time on H100 over time on engines, closed forms (above 1: engines ahead)",
        ("collective", "ranks"),
        (
            Figure("crossover", "engines ahead", "from MiB", "{:.3g}"),
            *(Figure(f"at {power}", name, "", "{:.2f}") for name, power in SIZES.items()),
        ),
        tuple(
            Setup((kind, str(n)), f"{MODELS}.crossover.points({kind!r}, {n})", over_sizes)
            for kind in KINDS
            for n in ranks
        ),
    )
    count = 40 if quick else 400
    drawn = Sheet(
        f"From which size on engines are ahead, {count} draws of hops, entry time and efficiencies (all ours)",
        ("collective", "ranks"),
        tuple(Figure(f"p{p}", f"p{p}", "MiB", "{:.3g}") for p in (5, 50, 95)),
        tuple(
            Setup((kind, str(n)), f"list({MODELS}.crossover.range_of({kind!r}, {n}, {count}, S))", spread)
            for kind in KINDS[:2]
            for n in (8, 16)
        ),
    )
    return Target(
        "M7",
        "small messages, or fewer than 16 accelerators: H100 with NCCL is often ahead; engines from 16 accelerators or "
        "16 MB on",
        "racks of 16 with 8+2 NICs against hosts of 8; NCCL with the latencies of its own tuner and its channels, "
        "engines with the published control path and hops of 2.5 and 6 us (ours); no fixed cost was chosen for either",
        (closed, drawn, _packets(quick), _rates()),
        judge_m7,
    )


def _packets(quick: bool) -> Sheet:
    kinds, sizes = (KINDS[:2], ("16KiB", "16MiB")) if quick else (KINDS, ("16KiB", "256KiB", "1MiB", "16MiB", "128MiB"))
    setups = []
    for kind in kinds:
        for size in sizes:
            workload = f'mr.Collective(kind="{kind}", size="{size}")'
            text = scenario(workload, topology="mtia300-rack-16", ranks=8, engine="mtia300")
            setups.append(Setup((kind, size), text, beside_nccl))
    figures = (
        Figure("time_us", "engines", "packets, us", "{:.1f}"),
        Figure("own_us", "engines", "closed, us", "{:.1f}"),
        Figure("gpu_us", "H100, NCCL", "closed, us", "{:.1f}"),
        Figure("ahead", "H100 over", "engines", "{:.2f}"),
    )
    return Sheet("8 ranks: engines as packet runs of compiled programs", ("collective", "size"), figures, tuple(setups))


def _rates() -> Sheet:
    setups = tuple(
        Setup((row.name, row.origin, f"{row.within * 100:.0f} %"), f"{MODELS}.related.h100()[{place}]", published)
        for place, row in enumerate(related.h100())
    )
    figures = (
        Figure("model", "closed form", "GB/s", "{:.0f}"),
        Figure("published", "published", "GB/s", "{:.0f}"),
        Figure("over", "over", "published", "{:.3f}"),
    )
    return Sheet("What the H100 side is: bus bandwidth, 4 GiB (row 10)", ("what", "origin", "band"), figures, setups)


def over_sizes(points: Sequence[Point]) -> dict[str, float]:
    """NCCL's time over the engines' at `SIZES`, and the least size from which on the engines are ahead."""
    by_size = {point.size: point.gpu.time_us / point.engines.time_us for point in points}
    return {
        "crossover": _mib(least(points)),
        **{f"at {power}": by_size[1 << power] for power in SIZES.values()},
    }


def _mib(size: int | None) -> float:
    return math.inf if size is None else size / 2**20


def spread(sizes: Sequence[int | None]) -> dict[str, float]:
    """Percentiles of the size, MiB."""
    given = [_mib(size) for size in sizes]
    return {f"p{p}": float(np.percentile(given, p, method="inverted_cdf")) for p in (5, 50, 95)}


def beside_nccl(result: Result) -> dict[str, float]:
    """A run's time beside the closed forms of its own side and of NCCL."""
    kind, n = result.collective, result.ranks
    moved = bytes_in(kind, float(result.size_bytes), n)
    own = presets.engines().time(kind, moved, presets.domains("mtia300", n)).time_us
    gpu = presets.nccl().time(kind, moved, presets.domains("h100", n)).time_us
    return {
        "time_us": result.time_us,
        "own_us": own,
        "gpu_us": gpu,
        "ahead": gpu / result.time_us,
        "stopped": float(result.status != "done"),
    }


def published(row: related.Row) -> dict[str, float]:
    """A figure of the model beside the published one."""
    return {
        "model": row.model,
        "published": row.published,
        "over": row.model / row.published,
        "passed": float(row.passed),
    }


def judge_m7(sheets: Sheets) -> Finding:
    """Both signs, for reductions and gathers; the AllToAll of engines needs one step and is told as it is."""
    closed, drawn, packets, rates = sheets
    small = [row for row in closed if row.setup.labels[1] == "8" and row.setup.labels[0] != "alltoall"]
    large = [f"at {power}" for power in SIZES.values() if power >= LARGE]
    by = {row.setup.labels: row for row in closed}
    kinds = list(dict.fromkeys(row.setup.labels[0] for row in closed))

    def sizes(rows: Sequence[Row]) -> str:
        return ", ".join(f"{row.setup.labels[0]} {_size(row.median('crossover'))}" for row in rows)

    fewer = tuple(
        f"{kind}: {_size(by[kind, '16'].median('crossover'))} against {_size(by[kind, '8'].median('crossover'))}"
        for kind in kinds
        if by[kind, "16"].median("crossover") > by[kind, "8"].median("crossover")
    )
    few = [row for row in packets if row.setup.labels[1] == "16KiB"]
    most = [row for row in packets if row.setup.labels[1] in ("16MiB", "128MiB")]

    def told(key: str) -> Callable[[Row], str]:
        return lambda row: f"{row.median(key):.2f}"

    return Finding(
        f"8 ranks, engines ahead from: {sizes([by[kind, '8'] for kind in kinds])}; 16 ranks: "
        f"{sizes([by[kind, '16'] for kind in kinds])}; draws for AllReduce on 8: p5 to p95 "
        f"{_size(drawn[0].median('p5'))} to {_size(drawn[0].median('p95'))}",
        "'often' and 'from 16 accelerators or 16 MB' have no size of their own; the latest crossover here is "
        f"{_size(max(row.median('crossover') for row in closed))}, over draws "
        f"{_size(max(row.median('p95') for row in drawn))} (p95)",
        (
            Check(
                "row 5: 8 ranks, 16 KiB of sums or gathers: H100 with NCCL is ahead",
                failures(small, lambda row: row.median("at 14") < 1, told("at 14")),
            ),
            Check(
                "row 5: from 16 MiB on, any number of ranks: engines are ahead",
                failures(
                    closed,
                    lambda row: min(row.median(key) for key in large) > 1,
                    lambda row: f"{min(row.median(key) for key in large):.2f}",
                ),
            ),
            Check("row 5: the crossover on 16 ranks is no later than on 8", fewer),
            Check(
                "packet runs, 8 ranks, 16 KiB, every kind: H100 with NCCL is ahead",
                failures(few, lambda row: row.median("ahead") < 1, told("ahead")),
            ),
            Check(
                "packet runs, 8 ranks, from 16 MiB, every kind: engines are ahead",
                failures(most, lambda row: row.median("ahead") > 1, told("ahead")),
            ),
            Check(
                "row 10: bus bandwidths of H100 within 10 % of those published",
                failures(rates, lambda row: bool(row.median("passed")), told("over")),
            ),
        ),
    )


def _size(mib: float) -> str:
    if not math.isfinite(mib):
        return NEVER
    return f"{mib * 1024:.0f} KiB" if mib < 1 else f"{mib:.0f} MiB"
