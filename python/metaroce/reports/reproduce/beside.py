"""M4: a kernel beside a collective, on message engines and on SMs; rows 6, 7, 12 and 13 of the offload model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ... import offload
from ...offload.models import isolation, memory, presets
from ...offload.models.isolation import Beside
from ...offload.models.related import Ace
from ...result import Result
from .model import Check, Figure, Finding, Row, Setup, Sheet, Sheets, Target, failures, scenario

MODELS = "mr.offload.models"
KINDS = ("reduce_scatter", "all_reduce", "all_gather", "alltoall")
SUMS = KINDS[:2]
"""Kinds that stage what they receive: without the on-chip partition they must show."""
LIMIT = 0.005
"""Published: less than half a percent."""
GPU, ONE_WAVE, USUAL = (0.15, 0.25), (0.40, 0.50), range(20, 27)
"""Accepted losses on a GPU, and the SMs that a collective usually holds (row 7)."""
ACE_MEMORY, ACE_STEP, WITHIN = 3.5, 1.13, 0.25
LOSS = Figure("loss", "GEMM loses", "", "{:.2%}")
MEMORY = Figure("memory", "HBM traffic", "GB/s", "{:.0f}")
OFF = "off chip"


def m4(quick: bool) -> Target:
    """Closed form, compiled programs at the rate of their packet runs, GPUs, draws, and two other designs."""
    sheets = (_closed(), _compiled(quick), _gpu(), _draws(quick), _ace(), _dma())
    return Target(
        "M4",
        "16 ranks, GEMM of 4,096^3 in TF32 beside collectives: less than 0.5 % slower on MTIA 300 (rest: HBM "
        "contention), more than 20 % on GPUs",
        "16 accelerators, large collectives; the loss is the model's (memory contention, SMs held, waves); the rate of "
        "compiled programs is that of their packet runs; sigma, the share of the GEMM that waits for memory, is ours "
        f"({presets.EXPOSED:.1%})",
        sheets,
        judge_m4,
    )


def _closed() -> Sheet:
    setups = [
        Setup((kind, name), f"{MODELS}.isolation.on_engines({kind!r}{said})", beside)
        for kind in KINDS
        for name, said in (("32 MiB on chip", ""), ("h = 0.75", ", staged=0.75"), (OFF, ", staged=0.0"))
    ]
    return Sheet("GEMM beside engines, closed form", ("collective", "staging"), (LOSS, MEMORY), tuple(setups))


def _compiled(quick: bool) -> Sheet:
    setups = [
        Setup(
            (kind, "256MiB"),
            scenario(f'mr.Collective(kind="{kind}", size="256MiB")', topology="mtia300-rack-16", engine="mtia300"),
            compiled,
        )
        for kind in (SUMS[:1] if quick else KINDS)
    ]
    figures = (
        Figure("busbw", "busbw", "GB/s", "{:.0f}"),
        Figure("footprint", "staged", "MiB", "{:.1f}"),
        Figure("share", "h", "", "{:.2f}"),
        Figure("amplification", "HBM bytes", "a byte in", "{:.2f}"),
        LOSS,
        Figure("off", "loses with", "staging off chip", "{:.2%}"),
    )
    title = "GEMM beside the entries of the compiled program, at the rate of its packet run, 8+2 NICs"
    return Sheet(title, ("collective", "size"), figures, tuple(setups))


def _gpu() -> Sheet:
    made = [("all_gather", "channels of its rate", "512 tiles", f"ranks={ranks}") for ranks in (8, 16)]
    made += [("all_gather", str(k), "512 tiles", f"held={k}") for k in (0, 6, 20, 24, 26, 32)]
    made += [("all_gather", str(k), "one wave", f"held={k}, one_wave=True") for k in (0, 20, 24, 26)]
    setups = [
        Setup(
            (kind, held, grid, "8" if "ranks=8" in said else "16"),
            f"{MODELS}.isolation.on_gpu({kind!r}, {said})",
            beside,
        )
        for kind, held, grid, said in made
    ]
    figures = (LOSS, Figure("units", "SMs held", "of 132", "{:.0f}"), MEMORY)
    return Sheet("GEMM beside NCCL on H100", ("collective", "SMs", "grid", "ranks"), figures, tuple(setups))


def _draws(quick: bool) -> Sheet:
    count = 200 if quick else 2000
    figures = (
        Figure("p50", "p50", "", "{:.2%}"),
        Figure("p90", "p90", "", "{:.2%}"),
        Figure("below", "below 0.5 %", "of draws", "{:.0%}"),
    )
    setups = tuple(
        Setup((name,), f"{MODELS}.isolation.losses({count}, S{said})", spread)
        for name, said in (("0.75 to 1", ""), ("0", ", staged=(0.0, 0.0)"))
    )
    title = f"{count} draws of what is unpublished: sigma 0.1 to 2 %, kind of collective, h (all ours)"
    return Sheet(title, ("h",), figures, setups)


def _ace() -> Sheet:
    figures = (
        Figure("memory", "memory", "bytes without / with", "{:.2f}"),
        Figure("faster", "step time", "without / with", "{:.3f}"),
    )
    row = Setup(("ACE (ISCA'21)", "3.5 and 1.13"), f"{MODELS}.related.ace()", ace)
    return Sheet("Another engine: 64 NPUs, AllReduce of a DLRM (row 12)", ("design", "published"), figures, (row,))


def _dma() -> Sheet:
    setups = tuple(
        Setup((f"{size} KiB",), f"{MODELS}.related.dma_losses()[{size << 10}]", loss) for size in (4, 16, 64)
    )
    title = "A shared DMA engine: kernel of 64 KiB packets beside a collective's (Trainium's rule, row 13)"
    return Sheet(title, ("packets",), (Figure("loss", "kernel loses", "", "{:.1%}"),), setups)


def beside(made: Beside) -> dict[str, float]:
    """Loss of the kernel, and what the collective takes."""
    return {"loss": made.loss, "units": float(made.load.units), "memory": made.load.memory_gbs}


def compiled(result: Result) -> dict[str, float]:
    """The loss beside the program of a run at the rate that it had, with staging on chip and off."""
    domains = [0] * result.ranks
    what = {"kind": result.collective, "count": result.count, "dtype": result.dtype}
    made = offload.collective(domains, "mtia300", offload.OffloadOptions(), inplace=True, **what)
    program, device = made.program(), presets.device("mtia300")
    top = program.memory_bytes
    staging = (top - int(made.module.notes["staging_bytes"]), top)  # slots lie above all else
    found = isolation.of_program(program, staging, result.busbw_gbs, device)
    off = isolation.of_program(program, staging, result.busbw_gbs, replace(device, staging_bytes=0.0))
    footprint = memory.footprint(program, staging)
    return {
        "busbw": result.busbw_gbs,
        "footprint": footprint / 2**20,
        "share": memory.absorbed(device.staging_bytes, footprint),
        "amplification": found.load.memory_gbs / result.busbw_gbs,
        "loss": found.loss,
        "off": off.loss,
        "stopped": float(result.status != "done"),
    }


def spread(losses: list[float]) -> dict[str, float]:
    """Percentiles of draws, and how many of them are below the limit."""
    below = float(np.mean(np.array(losses) < LIMIT))
    return {"p50": float(np.percentile(losses, 50)), "p90": float(np.percentile(losses, 90)), "below": below}


def ace(made: Ace) -> dict[str, float]:
    """Both ratios."""
    return {"memory": made.memory, "faster": made.faster}


def loss(value: float) -> dict[str, float]:
    """A loss by itself."""
    return {"loss": value}


def judge_m4(sheets: Sheets) -> Finding:
    """Published sides, and both causes taken away."""
    closed, programs, gpu, draws, others, packets = sheets
    on = [row for row in closed if row.setup.labels[1] != OFF]
    off = [row for row in closed if row.setup.labels[1] == OFF and row.setup.labels[0] in SUMS]
    summed = [row for row in programs if row.setup.labels[0] in SUMS]
    usual = [row for row in gpu if row.median("units") in USUAL]
    waves = {name: [row for row in usual if row.setup.labels[2] == name] for name in ("512 tiles", "one wave")}
    free = [row for row in gpu if row.median("units") == 0]

    def between(low: float, high: float, rows: list[Row], key: str = "loss") -> tuple[str, ...]:
        return failures(rows, lambda row: low <= row.median(key) <= high, lambda row: f"{row.median(key):.2%}")

    def below(rows: Any) -> tuple[str, ...]:
        return failures(rows, lambda row: row.median("loss") < LIMIT, lambda row: f"{row.median('loss'):.2%}")

    def above(rows: Any, key: str) -> tuple[str, ...]:
        return failures(rows, lambda row: row.median(key) > LIMIT, lambda row: f"{row.median(key):.2%}")

    [engine] = others
    losses = [row.median("loss") for row in packets]
    low, high = min(row.median("loss") for row in on), max(row.median("loss") for row in on)
    broken = [row.median("loss") for row in off]
    return Finding(
        f"engines {low:.2%} to {high:.2%}, with staging off chip {min(broken):.2%} to {max(broken):.2%} (sums); H100 "
        f"{_span(waves['512 tiles'])} at 20 to 26 SMs, one wave {_span(waves['one wave'])}, none held {_span(free)}",
        f"at most {high:.2%} on engines is for this sigma; over draws of what is unpublished it is below 0.5 % in "
        f"{draws[0].median('below'):.0%}, with staging off chip in {draws[1].median('below'):.0%} of them; whole waves "
        "of this grid lose 20.0 % for every k of 5 to 29, so 'over 20 %' is another grid or more SMs",
        (
            Check("row 6: below 0.5 % on engines with h of at least 0.75, every kind", below(on)),
            Check(
                "row 6: the same beside the entries of compiled programs, at their packet runs' rate", below(programs)
            ),
            Check("row 6 breaks: sums lose more than 0.5 % with staging off chip", above(off, "loss")),
            Check(
                "row 6 breaks: a compiled ReduceScatter too; an AllReduce, half of it gather, loses half as much again",
                (
                    *above([row for row in summed if row.setup.labels[0] == SUMS[0]], "off"),
                    *failures(
                        summed,
                        lambda row: row.median("off") > 1.5 * row.median("loss"),
                        lambda row: f"{row.median('off'):.2%}",
                    ),
                ),
            ),
            Check("row 7: a GPU loses 15 to 25 % at 20 to 26 SMs", between(*GPU, waves["512 tiles"])),
            Check("row 7: 40 to 50 % with a grid of one wave", between(*ONE_WAVE, waves["one wave"])),
            Check("row 7 breaks: no SM held, no loss", between(0.0, 0.0, free)),
            Check(
                f"row 12: an engine saves memory traffic ({ACE_MEMORY} to 25 %) and time (up to {ACE_STEP} + 25 %)",
                _within(engine),
            ),
            Check(
                "row 13: the smaller the collective's packets, the less the kernel loses",
                () if losses == sorted(losses) and losses[0] < losses[-1] else ("not in order",),
            ),
        ),
    )


def _span(rows: list[Row]) -> str:
    losses = [row.median("loss") for row in rows]
    least, most = f"{min(losses):.1%}", f"{max(losses):.1%}"
    return least if least == most else f"{least} to {most}"


def _within(engine: Row) -> tuple[str, ...]:
    memory, faster = engine.median("memory"), engine.median("faster")
    good = abs(memory / ACE_MEMORY - 1) <= WITHIN and 1 < faster <= ACE_STEP * (1 + WITHIN)
    return () if good else (f"memory {memory:.2f}, step {faster:.3f}",)
