"""A training step as an SVG: one steady step of each cluster, what runs on both queues, and what is exposed.

The same steps give the same bytes (no date, fixed hash salt).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..offload.models.overlap import COMMUNICATION, COMPUTE, Interval
from ..offload.models.step import Step
from .plot import INK, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe–Ito hues; kernels and collectives that belong together have one.
_KINDS = {
    "lookup": ("embedding", "#E69F00"),
    "embedding": ("embedding", "#E69F00"),
    "dense": ("dense layers", "#0072B2"),
    "optimizer": ("optimizer", "#56B4E9"),
    "forward": ("AllToAllv", "#CC79A7"),
    "gradients": ("AllToAllv", "#CC79A7"),
    "input": ("AllToAllv", "#CC79A7"),
    "all_reduce": ("AllReduce", "#009E73"),
    "all_gather": ("AllGather", "#D55E00"),
}
_EXPOSED = "#B00020"
_BAR = 0.8


def write_svg(steps: Sequence[tuple[str, Step]], path: Path, title: str) -> None:
    """Draw labelled steps below each other, on one axis of time."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 1.6 + 1.25 * len(steps)), layout="constrained")
        axes = figure.subplots()
        for row, (label, made) in enumerate(steps):
            _draw(axes, -2.6 * row, label, made)
        axes.set_yticks(
            [y for row in range(len(steps)) for y in (-2.6 * row, -2.6 * row - 1)],
            [COMPUTE, COMMUNICATION] * len(steps),
        )
        axes.set_ylim(-2.6 * len(steps) + 0.9, 1.2)
        axes.set_xlim(0, 1.01 * max(made.time_us for _, made in steps) / 1e3)
        axes.set_xlabel("ms since the last gradient of the step before")
        axes.grid(axis="x", color="#E6E6E6", lw=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        hues = dict(_KINDS.values())
        handles = [Patch(color=hue, label=name) for name, hue in hues.items()]
        handles.append(Patch(color=_EXPOSED, label="exposed: communication alone"))
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Axes, top: float, label: str, made: Step) -> None:
    start, end = made.start_us, made.start_us + made.time_us
    for one in made.timeline.intervals:
        low, high = max(one.start_us, start), min(one.end_us, end)
        if high > low:
            y = top if one.queue == COMPUTE else top - 1
            hue = _KINDS[_kind(one)][1]
            axes.barh(y, (high - low) / 1e3, _BAR, (low - start) / 1e3, color=hue, ec="white", lw=0.3)
    for low, high in made.timeline.exposed(start, end):
        axes.barh(top - 1.47, (high - low) / 1e3, 0.1, (low - start) / 1e3, color=_EXPOSED)
    axes.plot([(end - start) / 1e3] * 2, [top - 1.5, top + 0.5], color=INK, lw=1)
    text = f"{label}: {made.time_us / 1e3:.1f} ms, exposed {made.exposed_us / 1e3:.1f} ms"
    axes.annotate(text, (0, top + 0.48), xytext=(0, 2), textcoords="offset points", va="bottom", fontsize=9)


def _kind(one: Interval) -> str:
    """``2 all_reduce 3`` is an all_reduce."""
    return one.task.split(" ", 1)[1].split(" ", 1)[0]
