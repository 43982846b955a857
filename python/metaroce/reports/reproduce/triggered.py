"""M6: an AllToAllvDynamic that a word of device memory starts, beside compute: wall time, and what of it is exposed."""

from __future__ import annotations

from ...offload.models.dynamic import Split
from .beside import MODELS
from .model import Check, Figure, Finding, Setup, Sheet, Sheets, Target, failures

WALL, EXPOSED = 123.0, 31.0
COVERED = WALL - EXPOSED
NEAR = 0.10
"""How far the model's exposed time may lie from wall less cover (*ours*)."""
CONTROL_US = 6.5
"""Event handling 3.6 us and dispatch 2.9 us (arXiv 2608.00358): what a trigger on the device saves."""


def m6(quick: bool) -> Target:
    """The split over the cover, and both triggers."""
    covers = (0.0, COVERED, 200.0) if quick else (0.0, 30.0, 60.0, COVERED, 120.0, 200.0)
    rows = [("device", cover, False) for cover in covers] + [("host", COVERED, False), ("device", COVERED, True)]
    setups = tuple(
        Setup((trigger, f"{cover:.0f}", "all" if bound else "a tenth"), _split(cover, trigger, bound), split)
        for trigger, cover, bound in rows
    )
    figures = (
        Figure("wall_us", "wall", "us", "{:.1f}"),
        Figure("exposed_us", "exposed", "us", "{:.1f}"),
        Figure("hidden", "hidden", "", "{:.0%}"),
        Figure("slowed_us", "kernel slower", "by us", "{:.2f}"),
    )
    closed = Sheet(
        f"16 ranks; the payload is that of {WALL:.0f} us alone (input), compute beside it given (input)",
        ("trigger", "cover us", "of the memory"),
        figures,
        setups,
    )
    return Target(
        "M6",
        "device-triggered AllToAllvDynamic: 123 us on the wall, 31 us exposed on the compute stream",
        "the payload is not published: that of 123 us alone is taken, so the wall time is an input; what is exposed under "
        "a given cover, and what a trigger costs, are results",
        (closed,),
        judge_m6,
    )


def _split(cover: float, trigger: str, bound: bool) -> str:
    said = (f", trigger={trigger!r}" if trigger != "device" else "") + (", memory_bound=True" if bound else "")
    return f"{MODELS}.dynamic.split({MODELS}.dynamic.payload({WALL}), {cover}{said})"


def split(made: Split) -> dict[str, float]:
    """Wall, exposed, hidden, and what the kernel beside it loses."""
    return {
        "wall_us": made.wall_us,
        "exposed_us": made.exposed_us,
        "hidden": made.hidden,
        "slowed_us": made.slowed_us,
    }


def judge_m6(sheets: Sheets) -> Finding:
    """What compute covers is hidden, the rest exposed, and a host's trigger costs its control path."""
    rows = {row.setup.labels: row for row in sheets[0]}
    device = [row for row in sheets[0] if row.setup.labels[0] == "device" and row.setup.labels[2] != "all"]
    at = f"{COVERED:.0f}"
    own, host, bound = (rows["device", at, "a tenth"], rows["host", at, "a tenth"], rows["device", at, "all"])
    later = host.median("exposed_us") - own.median("exposed_us")
    exposed = own.median("exposed_us")
    shares = [row.median("exposed_us") for row in device]
    return Finding(
        f"{own.median('wall_us'):.0f} us on the wall (input), {exposed:.1f} us exposed under {at} us of compute; with a "
        f"host's trigger {host.median('exposed_us'):.1f} us; a memory-bound kernel beside it is slower by "
        f"{bound.median('slowed_us'):.1f} us",
        f"31 us exposed is met under {COVERED:.0f} us of cover: the published pair says what was covered, not how",
        (
            Check(
                "what is exposed falls with the cover, and nothing is once it is longer",
                () if shares == sorted(shares, reverse=True) and shares[-1] == 0 else (f"{shares}",),
            ),
            Check(
                f"under {at} us of cover, {EXPOSED:.0f} us are exposed to {NEAR:.0%}",
                () if abs(exposed / EXPOSED - 1) <= NEAR else (f"{exposed:.1f} us",),
            ),
            Check(
                f"a trigger of the host exposes event handling and dispatch, {CONTROL_US} us, more",
                () if abs(later - CONTROL_US) <= 0.5 else (f"{later:.1f} us",),
            ),
            Check(
                "a memory-bound kernel is slowed at least ten times as much as one that computes",
                failures([bound], lambda row: row.median("slowed_us") >= 10 * own.median("slowed_us"), lambda row: f"{row.median('slowed_us'):.2f} us"),
            ),
        ),
    )
