"""`compare.svg`: busbw against loss, one panel a collective, one line a transport and profile.

The same comparison gives the same bytes (no date, fixed hash salt). Bounds are hollow markers, failed cells crosses on
the axis. The one published figure is drawn as such, beside the measured line, not joined to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compare import Cell, Comparison
from .compare_table import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PUBLISHED_LOSS, PUBLISHED_SHARE = 0.01, 0.86
"""About 86 % of its loss-free throughput at 1 % packet loss: Meta's engineering article on MetaRoCE, 24 August 2026."""

# Okabe–Ito hues, which stay apart for colour-blind readers; the transport asked about is the strongest.
_COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#009E73", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
INK, PALE = "#333333", "#9A9A9A"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "metaroce",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same outlines everywhere
    "font.size": 9.5,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def write_svg(comparison: Comparison, path: Path) -> None:
    """Draw a comparison to an SVG file."""
    import matplotlib
    from matplotlib.figure import Figure

    collectives = list(dict.fromkeys(cell.collective for cell in comparison.cells))
    lines = {key: i for i, key in enumerate(dict.fromkeys((c.transport, c.profile) for c in comparison.cells))}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 4.4 * len(collectives), 4.6), layout="constrained")
        panels = figure.subplots(1, len(collectives), squeeze=False, sharey=True)[0]
        for axes, collective in zip(panels, collectives, strict=True):
            _panel(axes, [cell for cell in comparison.cells if cell.collective == collective], lines)
            axes.set_title(collective, loc="left", fontweight="bold")
        panels[0].set_ylabel("busbw (GB/s)")
        found = {label: h for axes in panels for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        handles = dict(sorted(found.items(), key=lambda item: item[1].get_linestyle() == "None"))  # lines, then notes
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=3 if len(collectives) > 1 else 1,
            frameon=False,
            fontsize=9,
        )
        figure.suptitle(_headline(comparison), x=0.01, ha="left", fontsize=9.5)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _headline(comparison: Comparison) -> str:
    s = comparison.scenario
    return (
        f"busbw under random packet loss: {s['topology']}, {s['ranks']} ranks, {s['size']} a rank, seed {s['seed']}\n"
        f"MetaRoCE-style model, metaroce {comparison.version}; independent, not affiliated with Meta"
    )


def _panel(axes: Axes, cells: Sequence[Cell], lines: Mapping[tuple[str, str], int]) -> None:
    losses = sorted({cell.loss for cell in cells})
    place = positions(losses)
    for (transport, profile), index in lines.items():
        own = sorted((c for c in cells if (c.transport, c.profile) == (transport, profile)), key=lambda c: c.loss)
        if own:
            _line(axes, own, place, index, f"{transport} ({profile})")
    ceiling = [
        c.busbw_gbs / c.of_line_rate for c in cells if c.busbw_gbs and c.of_line_rate and c.transport == "metaroce"
    ]
    if ceiling:
        axes.axhline(ceiling[0], color=PALE, lw=0.8, ls=(0, (1, 2)), zorder=0)
        axes.annotate(
            "payload line rate",
            (1, ceiling[0]),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="top",
            xytext=(-2, -2),
            textcoords="offset points",
            fontsize=8,
            color=PALE,
        )
    _published(axes, cells, place)
    axes.set_ylim(bottom=0)
    axes.set_xlim(min(place.values()) - 0.25, max(place.values()) + 0.3)
    axes.set_xticks([place[loss] for loss in losses], [percent(loss) for loss in losses])
    axes.set_xlabel("packet loss (log scale; 0 set apart)")
    axes.grid(axis="y", color="#E6E6E6", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(losses) > 1 and losses[0] == 0:
        gap = (place[losses[0]] + place[losses[1]]) / 2
        axes.annotate(
            "//",
            (gap, 0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="center",
            color=PALE,
            annotation_clip=False,
        )


def positions(losses: Sequence[float]) -> dict[float, float]:
    """Where each loss stands: its decade, and 0 one step left of the smallest other."""
    decades = {loss: math.log10(loss) for loss in losses if loss > 0}
    return {loss: decades[loss] if loss > 0 else min(decades.values(), default=1.0) - 1.0 for loss in losses}


def _line(axes: Axes, cells: Sequence[Cell], place: Mapping[float, float], index: int, label: str) -> None:
    colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
    shown = [cell for cell in cells if cell.busbw_gbs is not None]
    x, y = [place[cell.loss] for cell in shown], [cell.busbw_gbs or 0.0 for cell in shown]
    axes.plot(x, y, color=colour, lw=2.0 if index == 0 else 1.5, zorder=3 - index * 0.1)
    axes.plot([], [], color=colour, marker=marker, ms=6, lw=2.0 if index == 0 else 1.5, label=label)
    for cell, at, value in zip(shown, x, y, strict=True):
        face = "white" if cell.status == "bound" else colour
        axes.plot(at, value, marker=marker, ms=6, color=colour, mfc=face, mec=colour, zorder=4, clip_on=False)
    if any(cell.status == "bound" for cell in shown):
        axes.plot(
            [], [], ls="none", marker="o", ms=6, mfc="white", mec=INK, label="hollow: stopped early, an upper bound"
        )
    failed = [place[cell.loss] for cell in cells if cell.status == "failed"]
    if failed:
        axes.plot(failed, [0.0] * len(failed), "x", color=colour, ms=8, mew=2, clip_on=False, zorder=5)
        axes.plot([], [], "x", color=INK, ms=7, mew=2, label="cross: did not finish")


def _published(axes: Axes, cells: Sequence[Cell], place: Mapping[float, float]) -> None:
    """The published share as a point, on the AllReduce panel of the transport it was published for."""
    own = [
        c for c in cells if c.transport == "metaroce" and c.loss == 0 and c.collective == "all_reduce" and c.busbw_gbs
    ]
    if not own or PUBLISHED_LOSS not in place:
        return
    value = PUBLISHED_SHARE * (own[0].busbw_gbs or 0.0)
    axes.plot(
        place[PUBLISHED_LOSS],
        value,
        marker="*",
        ms=13,
        mfc="none",
        mec=INK,
        ls="none",
        zorder=5,
        label="published: about 86 % of own loss-free at 1 %",
    )
    # Small messages leave no room between it and the axis.
    is_low = value < axes.get_ylim()[1] / 4
    axes.annotate(
        "published\n≈ 86 %",
        (place[PUBLISHED_LOSS], value),
        xytext=(-9, 4 if is_low else 0),
        textcoords="offset points",
        ha="right",
        va="bottom" if is_low else "center",
        fontsize=8,
    )
