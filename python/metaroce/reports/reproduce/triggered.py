"""M6: an AllToAllvDynamic that a word of device memory starts, beside compute: wall time, and what of it is exposed."""

from __future__ import annotations

from ...collectives import Program
from ...offload.models.dynamic import Split
from .beside import MODELS
from .model import Check, Figure, Finding, Setup, Sheet, Sheets, Target, failures
from .rack import run_program

WALL, EXPOSED = 123.0, 31.0
COVERED = WALL - EXPOSED
AT_US = 50.0
"""When the trigger comes: long after a collective that was queued ahead has been dispatched."""
NEAR = 0.10
"""How far the model's exposed time may lie from wall less cover (*ours*)."""
CONTROL_US, START_US = 6.5, 1.1
"""Event handling 3.6 us and dispatch 2.9 us (arXiv 2608.00358), which a trigger on the device saves; and with them
CPU-M's start where it has been made before."""
CLOSE = 0.10
"""How far the wall time of a packet run may lie from the closed form's (*ours*)."""


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
        "the payload is not published: that of 123 us alone is taken, so the wall time is an input; what is exposed "
        "under a given cover, and what a trigger costs, are results",
        (closed, _packets(quick)),
        judge_m6,
    )


def _packets(quick: bool) -> Sheet:
    rows = [(trigger, "123 us alone", f"{MODELS}.dynamic.payload({WALL})") for trigger in ("device", "host")]
    rows += [] if quick else [(trigger, "1 MB", "1e6") for trigger in ("device", "host")]
    setups = tuple(
        Setup((trigger, name), f'mr.offload.trials.exchange({size}, 16, "{trigger}", {AT_US}, S)', from_trigger)
        for trigger, name, size in rows
    )
    figures = (
        Figure("wall_us", "wall", "us", "{:.1f}"),
        Figure("exposed_us", "exposed under", f"{COVERED:.0f} us", "{:.1f}"),
        Figure("rnr", "not ready", "messages", "{:.0f}"),
    )
    title = (
        "The same as packet runs: counts uneven by peer, known when entries are issued; from trigger to completion word"
    )
    return Sheet(title, ("trigger", "payload"), figures, setups)


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


def from_trigger(program: Program) -> dict[str, float]:
    """From the trigger until every rank has its completion word, and what compute that long does not cover."""
    result = run_program(program)
    wall = result.time_us - AT_US
    return {
        "wall_us": wall,
        "exposed_us": max(0.0, wall - COVERED),
        "rnr": float(result.counters.get("rnr", 0)),
        "stopped": float(result.status != "done"),
    }


def judge_m6(sheets: Sheets) -> Finding:
    """What compute covers is hidden, the rest exposed, and a host's trigger costs its control path."""
    rows, packets = {row.setup.labels: row for row in sheets[0]}, sheets[1]
    run, by_host = packets[0].median("wall_us"), packets[1].median("wall_us")
    device = [row for row in sheets[0] if row.setup.labels[0] == "device" and row.setup.labels[2] != "all"]
    at = f"{COVERED:.0f}"
    own, host, bound = (rows["device", at, "a tenth"], rows["host", at, "a tenth"], rows["device", at, "all"])
    later = host.median("exposed_us") - own.median("exposed_us")
    exposed = own.median("exposed_us")
    near = abs(exposed / EXPOSED - 1) <= NEAR
    shares = [row.median("exposed_us") for row in device]
    return Finding(
        f"{own.median('wall_us'):.0f} us on the wall (input; {run:.1f} us as a packet run), {exposed:.1f} us exposed "
        f"under {at} us of compute; with a host's trigger {host.median('exposed_us'):.1f} us; a memory-bound kernel "
        f"beside it is slower by {bound.median('slowed_us'):.1f} us",
        f"31 us exposed is {'' if near else 'not '}met under {COVERED:.0f} us of cover: the published pair says what "
        "was covered, not how",
        (
            Check(
                "what is exposed falls with the cover, and nothing is once it is longer",
                () if shares == sorted(shares, reverse=True) and shares[-1] == 0 else (f"{shares}",),
            ),
            Check(
                f"under {at} us of cover, {EXPOSED:.0f} us are exposed to {NEAR:.0%}",
                () if near else (f"{exposed:.1f} us",),
            ),
            Check(
                f"a trigger of the host exposes event handling and dispatch, {CONTROL_US} us, more",
                () if abs(later - CONTROL_US) <= 0.5 else (f"{later:.1f} us",),
            ),
            Check(
                f"the packet run's wall time is the closed form's to {CLOSE:.0%}, and a host's trigger costs it "
                f"{CONTROL_US} to {CONTROL_US + START_US} us more",
                ()
                if abs(run / WALL - 1) <= CLOSE and CONTROL_US - 0.5 <= by_host - run <= CONTROL_US + START_US + 0.5
                else (f"{run:.1f} us, {by_host - run:+.1f} us",),
            ),
            Check(
                "a memory-bound kernel is slowed at least ten times as much as one that computes",
                failures(
                    [bound],
                    lambda row: row.median("slowed_us") >= 10 * own.median("slowed_us"),
                    lambda row: f"{row.median('slowed_us'):.2f} us",
                ),
            ),
        ),
    )
