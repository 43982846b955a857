"""`metaroce offload` beside `compile`: accelerators with their sources, and tables of the models on top of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ..errors import ConfigError
from .options import whole

if TYPE_CHECKING:
    from ..reports.listing import Listing

hardware = App(name="hardware", help="List accelerators, or show one: every figure with its source.")

_Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print one JSON document.")]
_Whole = Annotated[int, Parameter(converter=whole)]
_Engines = Annotated[str, Parameter(help="An accelerator with message engines, or the path of a TOML file.")]
_Gpu = Annotated[str, Parameter(help="The GPU beside it, or the path of a TOML file.")]
_Partition = Annotated[str | None, Parameter(help='NICs for scale-up and scale-out, as "8+2".')]


@hardware.default
@hardware.command(name="list")
def list_(*, as_json: _Json = False) -> int:
    """List the accelerators."""
    from ..reports.accelerators import accelerators

    return _show([accelerators()], as_json)


@hardware.command
def show(
    name: Annotated[str, Parameter(help="A named accelerator, or the path of a TOML file.")],
    /,
    *,
    as_json: _Json = False,
) -> int:
    """Show one: every figure and where it is from; "ours: why" where no public text gives it."""
    from ..reports.accelerators import figures

    return _show([figures(name)], as_json)


def isolation(
    *,
    hardware: _Engines = "mtia300",
    gpu: _Gpu = "h100",
    partition: _Partition = None,
    staged: Annotated[
        float | None, Parameter(help="h, share of staging that stays on chip; 0: off chip. [default: three of them]")
    ] = None,
    sigma: Annotated[
        float | None, Parameter(help="Share of the GEMM's time that waits for memory (ours). [default: 0.005]")
    ] = None,
    as_json: _Json = False,
) -> int:
    """What a GEMM loses beside a collective, on message engines and on SMs."""
    from ..reports import accelerators

    if sigma is not None and not 0 <= sigma <= 1:
        raise ConfigError.of("--sigma", sigma, "must be in [0, 1]")
    given = {} if sigma is None else {"exposed": sigma}
    made = accelerators.isolation(hardware, gpu, partition=partition, staged=staged, **given)
    return _show(list(made), as_json)


def ratio(
    *,
    hardware: _Engines = "mtia300",
    gpu: _Gpu = "h100",
    ranks: Annotated[_Whole, Parameter(help="Accelerators on both sides.")] = 40,
    partition: _Partition = None,
    racks: Annotated[
        str | None, Parameter(help="Accelerators of each rack, as 14,13,13. [default: full racks]")
    ] = None,
    stretch: Annotated[float, Parameter(help="How much longer a GPU's transfers take beside kernels (ours).")] = 1.0,
    draws: Annotated[_Whole, Parameter(help="Draws of the band.")] = 1000,
    seed: Annotated[_Whole, Parameter(help="Of the draws.")] = 1,
    as_json: _Json = False,
) -> int:
    """Communication of a DLRM step, GPU over engines: its parts, other definitions, the band; never one number."""
    from ..offload.models import ratio as models
    from ..reports import accelerators

    if not 1 <= stretch < 100:
        raise ConfigError.of("--stretch", stretch, "must be in [1, 100)")
    if not 2 <= ranks <= _MOST_RANKS:
        raise ConfigError.of("--ranks", ranks, f"must be 2 .. {_MOST_RANKS}")
    given = {"gpu": gpu, "accelerator": hardware, "partition": partition, "stretch": stretch}
    if not 1 <= draws <= _MOST_DRAWS:
        raise ConfigError.of("--draws", draws, f"must be 1 .. {_MOST_DRAWS}")
    if not 0 <= seed < 2**64:
        raise ConfigError.of("--seed", seed, "must be 0 .. 2^64 - 1")
    both = models.sides(ranks, racks=None if racks is None else _racks(racks), **given)  # type: ignore[arg-type]
    return _show(list(accelerators.ratios(both, draws, seed)), as_json)


def step(
    *names: Annotated[
        str,
        Parameter(help='NAME, NAME:RANKS or NAME:RANKS:BATCH; NAME "h100 SM-free" too. [default: mtia300 and h100]'),
    ],
    tables: Annotated[_Whole, Parameter(help="Embedding tables of 1.93 M rows of 128.")] = 600,
    utilisation: Annotated[float, Parameter(help="Share of the BF16 peak that dense layers reach (ours).")] = 0.45,
    plot: Annotated[str | None, Parameter(help="Also draw the steps' timelines to FILE.svg.")] = None,
    as_json: _Json = False,
) -> int:
    """A DLRM training step: time, exposed communication, what it does to compute; plain and with prefetch."""
    from ..offload.models.step import Dlrm
    from ..reports import accelerators

    if not 1 <= tables <= _MOST_TABLES:
        raise ConfigError.of("--tables", tables, f"must be 1 .. {_MOST_TABLES}")
    model = Dlrm(tables=tables, utilisation=utilisation)
    if plot is not None and Path(plot).suffix != ".svg":
        raise ConfigError.of("--plot", plot, "must end in .svg")
    runs = accelerators.runs([_cluster(name) for name in names] or accelerators.CLUSTERS, model)
    listing = accelerators.steps(runs, model)
    if plot is not None:
        from ..reports.timeline import write_svg

        try:
            write_svg(accelerators.timelines(runs), Path(plot), f"{listing.title}; metaroce: {accelerators.MODEL}")
        except OSError as error:
            raise ConfigError.of("--plot", plot, f"must be a file that can be written: {error.strerror}") from None
        print(f"wrote {plot}", file=sys.stderr)
    return _show([listing], as_json)


def crossover(
    kind: Annotated[str, Parameter(help="all_reduce, reduce_scatter, all_gather or alltoall.")] = "all_reduce",
    /,
    *,
    ranks: Annotated[_Whole, Parameter(help="Ranks on both sides.")] = 8,
    hardware: _Engines = "mtia300",
    gpu: _Gpu = "h100",
    as_json: _Json = False,
) -> int:
    """From which size on message engines need less time than NCCL."""
    from ..reports import accelerators

    if not 2 <= ranks <= _MOST_RANKS:
        raise ConfigError.of("--ranks", ranks, f"must be 2 .. {_MOST_RANKS}")
    return _show([accelerators.crossover(kind, ranks, hardware, gpu)], as_json)


_MOST_RANKS, _MOST_TABLES, _MOST_DRAWS = 65536, 1_000_000, 1_000_000


def _show(listings: Sequence[Listing], as_json: bool) -> int:
    from .. import __version__
    from ..reports import render
    from ..reports.accelerators import MODEL

    if as_json:
        tables = [{"title": one.title, "rows": one.plain()} for one in listings]
        print(json.dumps({"model": MODEL, "version": str(__version__), "tables": tables}, indent=1, allow_nan=False))
        return 0
    for place, one in enumerate(listings):
        if place:
            print()
        render.show(one.table(), sys.stdout)
    return 0


def _count(word: str) -> int:
    """A number of accelerators or samples; 0 for what is none."""
    return int(word) if word.isdecimal() and len(word) < 10 else 0


def _racks(text: str) -> tuple[int, ...]:
    sizes = tuple(_count(word) for word in text.replace("+", ",").split(","))
    if not all(sizes):
        raise ConfigError.of("--racks", text, "must be accelerators of each rack, as 14,13,13")
    return sizes


def _cluster(text: str) -> tuple[str, int, int]:
    name, *words = text.split(":")
    numbers = [_count(word) for word in words]
    if not name or len(words) > 2 or not all(1 <= number <= _MOST_RANKS for number in numbers):
        raise ConfigError.of(
            "cluster", text, f"must be NAME, NAME:RANKS or NAME:RANKS:BATCH, numbers of 1 .. {_MOST_RANKS}"
        )
    ranks, batch = (*numbers, *(40, 6144)[len(numbers) :])
    return name, ranks, batch
