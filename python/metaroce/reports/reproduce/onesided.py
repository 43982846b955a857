"""M3: collectives that cores post themselves, and what each part of the control path costs (row 4)."""

from __future__ import annotations

from ...result import Result
from .model import Check, Figure, Finding, Raw, Setup, Sheet, Sheets, Target, failures, scenario

LOW, HIGH = 5.0 * 0.8, 6.0 * 1.2
"""5 to 6 us, 20 % either way (row 4)."""
NEAR = 0.2
PARTS = {  # path: what is set to 0 there, by figure of the accelerator, and its published cost in us
    "a core posts": {"posters.post": 0.45},
    "engines": {"control.event": 3.6, "control.dispatch": 2.9, "engines.start": 1.1},
}
TIME = Figure("time_us", "time", "us", "{:.2f}")
FIRST = Figure("first_us", "first entry", "issued, us", "{:.2f}")


def m3(quick: bool) -> Target:
    """Small collectives posted by cores, and by engines, with each part of the control path taken away."""
    ranks, sizes = ((8, 16), (4, 64)) if quick else ((8, 16), (4, 16, 64))
    setups = tuple(
        Setup((kind, str(n), f"{size} KiB", by), _put(kind, n, size, by), small)
        for by in ("a core posts", "engines")
        for kind in ("all_reduce", "alltoallv")
        for n in ranks
        for size in (sizes if by == "a core posts" else sizes[-1:])
    )
    figures = (TIME, FIRST, Figure("rnr", "not ready", "messages", "{:.0f}"))
    return Target(
        "M3",
        "PUT-style AllReduce and AllToAllv, 8 and 16 ranks, 4-64 KB: 5-6 us; a PE posts in about 450 ns; event 3.6, "
        "CPU-C 2.9, CPU-M 1.1 us",
        "one-shot programs packet by packet; the hop of 2.5 us in the rack is ours and taken from this very figure, an "
        "input; what size, ranks and sums add to two hops is the result",
        (
            Sheet("Small collectives in a rack", ("collective", "ranks", "size", "by"), figures, setups),
            Sheet(
                "AllToAllv of 4 KiB on 8 ranks, each cost set to 0 (costs are inputs; that each is paid once is not)",
                ("by", "without"),
                (TIME, FIRST),
                tuple(_parts()),
            ),
        ),
        judge_m3,
    )


def _put(kind: str, ranks: int, size: int, by: str, engine: object = "mtia300", **more: object) -> str:
    cells = f"{(size << 10) // ranks} * (1 + 2 * ((i + j) % 2)) // 2"  # uneven: half and one and a half of the mean
    matrix = f", matrix=[[{cells} for j in range({ranks})] for i in range({ranks})]"
    said = matrix if kind == "alltoallv" else f', size="{size}KiB"'
    options = {"algorithm": "put", **({"posters": True} if by == "a core posts" else {}), **more}
    return scenario(
        f'mr.Collective(kind="{kind}"{said})',
        topology="mtia300-rack-16",
        ranks=ranks,
        engine=engine,
        offload=options,
        record_wqes=True,
    )


def _parts() -> list[Setup]:
    rows = []
    for by, figures in PARTS.items():
        rows.append(Setup((by, "-"), _put("alltoallv", 8, 4, by), small))
        for name in figures:
            engine = Raw(f'mr.offload.hardware.load("mtia300").having("{name}", "0ns")')
            rows.append(Setup((by, name), _put("alltoallv", 8, 4, by, engine), small))
    rows.append(Setup(("a core posts", "express doorbell"), _slow(), small))
    return rows


def _slow() -> str:
    return _put("alltoallv", 8, 4, "a core posts", express_doorbell=False)


def small(result: Result) -> dict[str, float]:
    """Time, and when the first entry was issued."""
    assert result.wqe_issued_ps is not None, "the scenario records entries"
    return {
        "time_us": result.time_us,
        "first_us": float(result.wqe_issued_ps.min()) / 1e6,
        "rnr": float(result.counters.get("rnr", 0)),
        "stopped": float(result.status != "done"),
    }


def judge_m3(sheets: Sheets) -> Finding:
    """Posted by cores within the band; each part costs what it is published to, once; dispatch costs more."""
    every, parts = sheets
    posted = [row for row in every if row.setup.labels[3] == "a core posts"]
    times = [row.median("time_us") for row in posted]
    by = {row.setup.labels: row.median("time_us") for row in parts}
    off, costs = [], []
    for path, figures in PARTS.items():
        for name, cost in figures.items():
            found = by[path, "-"] - by[path, name]
            costs.append(f"{name} {found:.2f}")
            if abs(found / cost - 1) > NEAR:
                off.append(f"{name}: {found:.2f} us")
    doorbell = by["a core posts", "express doorbell"] - by["a core posts", "-"]
    slower = by["engines", "-"] - by["a core posts", "-"]
    return Finding(
        f"{min(times):.1f} to {max(times):.1f} us posted by cores; by engines {slower:.1f} us more for 4 KiB; what "
        f"parts cost, us: {', '.join(costs)}",
        f"5-6 us {'holds' if min(times) >= LOW and max(times) <= HIGH else 'does not hold'} to 20 %; two hops of 2.5 "
        "us are 5.0 of it",
        (
            Check(
                "row 4: 5-6 us to 20 % posted by cores",
                failures(
                    posted,
                    lambda row: LOW <= row.median("time_us") <= HIGH,
                    lambda row: f"{row.median('time_us'):.2f} us",
                ),
            ),
            Check("row 4: posting, event, dispatch and CPU-M each cost their published time to 20 %, once", tuple(off)),
            Check(
                "without an express doorbell an operation costs about 0.8 us more",
                () if 0.8 * (1 - NEAR) <= doorbell <= 2 * 0.8 * (1 + NEAR) else (f"{doorbell:.2f} us",),
            ),
            Check(
                "dispatch by CPU-C to engines costs more than posting by a core",
                () if slower > 0 else (f"{slower:.2f}",),
            ),
        ),
    )
