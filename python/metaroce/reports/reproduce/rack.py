"""M1 and M2: bus bandwidth of compiled collectives in one rack and of an AllGather over eight (rows 1, 2, 3 and 11)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ... import simulation
from ... import topology as topologies
from ...collectives import Program
from ...engine import Collective
from ...offload.models import related
from ...result import Result
from ...scenario import Scenario
from ...units import parse_size
from .analysis import crossings
from .beside import MODELS
from .model import Check, Figure, Finding, Raw, Row, Setup, Sheet, Sheets, Target, failures, scenario

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "alltoall")
RACKS = {"10+2": "mtia300-rack-16-10", "8+2": "mtia300-rack-16"}
UNITS, BUS, ACROSS, GAUDI = (2700.0, 2950.0), (900.0, 1000.0), (790.0, 880.0), 0.05
"""Accepted: GB/s of all near-memory units (row 1), busbw of a rack (2) and of 128 ranks (3), Gaudi 3's share (11)."""
CEILINGS = {"8+2": 847.0, "10+2": 1058.0}
"""Ceilings that the links leave an AllGather of 128 ranks, GB/s: docs/offload.md."""
ISSUE_US = ("0.1", "0.25", "0.5", "1.1")
FIGURES = (
    Figure("busbw", "busbw", "GB/s", "{:.1f}"),
    Figure("of_line", "of line", "rate", "{:.1%}"),
    Figure("time_us", "time", "us", "{:.1f}"),
    Figure("cpu", "CPU-M", "busy", "{:.0%}"),
    Figure("unit", "NMC", "busy", "{:.0%}"),
    Figure("rnr", "not ready", "messages", "{:.0f}"),
)


def m1(quick: bool) -> Target:
    """Curves over sizes in both splits, near-memory units, the issue time, and Gaudi 3 by the same engine."""
    return Target(
        "M1",
        "up to 16 ranks, scale-up only, large messages: up to 940 GB/s of collective bandwidth; all near-memory units "
        "together 2.8 TB/s",
        "16 ranks of a rack, compiled programs run packet by packet, NICs at their line rate with no efficiency "
        "factor; issue of an entry 0.25 us and hop 2.5 us (ours)",
        (_curves(quick), _units(), _issue(quick), _gaudi(quick)),
        judge_m1,
    )


def _on(split: str, kind: str, size: str, **more: Any) -> str:
    options = {"partition": split, **more.pop("offload", {})}
    engine = more.pop("engine", "mtia300")
    workload = f'mr.Collective(kind="{kind}", size="{size}")'
    return scenario(workload, topology=RACKS[split], engine=engine, offload=options, **more)


def _curves(quick: bool) -> Sheet:
    sizes = {"10+2": ("16MiB", "512MiB"), "8+2": ("64MiB",)}
    if not quick:
        sizes = {
            "10+2": ("1MiB", "4MiB", "16MiB", "64MiB", "256MiB", "512MiB"),
            "8+2": ("4MiB", "16MiB", "64MiB", "256MiB"),
        }
    kinds = {"10+2": KINDS, "8+2": ("all_reduce",) if quick else KINDS}
    setups = tuple(
        Setup((split, kind, size), _on(split, kind, size), engines)
        for split in RACKS
        for kind in kinds[split]
        for size in sizes[split]
    )
    return Sheet("Bus bandwidth of 16 ranks, packet runs", ("NICs", "collective", "size"), FIGURES, setups)


def _units() -> Sheet:
    setups = tuple(
        Setup((str(many),), f'mr.offload.trials.sums({many}, "1MiB", 32)', near_memory) for many in (1, 8, 16)
    )
    figures = (
        Figure("busbw", "while busy", "GB/s", "{:.0f}"),
        Figure("wall", "all of the time", "GB/s", "{:.0f}"),
        Figure("each", "of one", "B/cycle", "{:.0f}"),
    )
    title = "Near-memory units: each engine sums 32 x 1 MiB (128 B a cycle alone and 96 together are inputs)"
    return Sheet(title, ("engines",), figures, setups)


def _issue(quick: bool) -> Sheet:
    chunks: dict[str, dict[str, str]] = {"chosen": {}, "64 KiB": {"chunk": "64KiB"}}
    chunks |= {} if quick else {"256 KiB": {"chunk": "256KiB"}}
    size = "64MiB" if quick else "256MiB"
    times = ISSUE_US[1::2] if quick else ISSUE_US
    setups = tuple(
        Setup(
            (chunk, f"{us} us"),
            _on(
                "10+2",
                "reduce_scatter",
                size,
                engine=Raw(f'mr.offload.hardware.load("mtia300").having("engines.issue", "{us}us")'),
                offload={"algorithm": "ring", **options},
            ),
            engines,
        )
        for chunk, options in chunks.items()
        for us in times
    )
    title = f"What the issue time of an entry does: ring ReduceScatter {size}, 10+2 NICs"
    return Sheet(title, ("chunk", "issue"), FIGURES, setups)


def _gaudi(quick: bool) -> Sheet:
    given = [(row.name.split(",")[0], f"{row.published:.0f}") for row in related.gaudi3()]
    rows = [
        Setup(
            (kind, said, "packet run"),
            scenario(f'mr.Collective(kind="{kind}", size="244MiB")', topology="gaudi3-8", engine="gaudi3"),
            engines,
        )
        for kind, said in given[: 1 if quick else 2]
    ]
    rows += [
        Setup((*labels, "closed form"), f"{MODELS}.related.gaudi3()[{place}]", closed)
        for place, labels in enumerate(given)
    ]
    figures = (Figure("busbw", "busbw", "GB/s", "{:.1f}"),)
    title = "Another preset of the same engine: Gaudi 3, 8 ranks, 256 MB (row 11)"
    return Sheet(title, ("collective", "published GB/s", "by"), figures, tuple(rows))


def engines(result: Result) -> dict[str, float]:
    """Bandwidth of a run, how busy the busiest engine's CPU and unit are, and messages that came too early."""
    table = result.engines or {}
    span = result.time_ps or 1.0
    return {
        "busbw": result.busbw_gbs,
        "of_line": result.of_line_rate,
        "time_us": result.time_us,
        "cpu": float(np.max(table.get("cpu_ps", [0]))) / span,
        "unit": float(np.max(table.get("unit_ps", [0]))) / span,
        "rnr": float(result.counters.get("rnr", 0)),
        "stopped": float(result.status != "done"),
    }


def run_program(program: Program, **fields: Any) -> Result:
    """A program on the engines of a rack, without payload."""
    workload = Collective(kind="alltoall", size=4 * program.ranks)
    where = Scenario(topology=topologies.load("mtia300-rack-16"), ranks=program.ranks, workload=workload, **fields)
    return Result.of(where, program, simulation.run_on(None, where, program))


def near_memory(program: Program) -> dict[str, float]:
    """GB/s of the units while they are busy, and over the whole run."""
    result = run_program(program)
    assert result.engines is not None
    busy = float(result.engines["unit_ps"].max())
    many = len(set(result.engines["engine"].tolist()))
    rate = program.size_bytes / busy * 1e3
    return {
        "busbw": rate,
        "wall": program.size_bytes / result.time_ps * 1e3,
        "each": rate / many / 1.82,
        "stopped": float(result.status != "done"),
    }


def closed(row: related.Row) -> dict[str, float]:
    """The same column of a closed form."""
    return {"busbw": row.model}


def judge_m1(sheets: Sheets) -> Finding:
    """The largest size of every kind within the band, units too; more issue time is never better at one chunk."""
    curves, units, issue, gaudi = sheets
    largest = {row.setup.labels[:2]: row for row in curves}
    wide = [row for (split, _), row in largest.items() if split == "10+2"]
    narrow = [row for (split, _), row in largest.items() if split == "8+2"]
    all_units = units[-1].median("busbw")
    best = max(wide, key=lambda row: row.median("busbw"))
    rising = [
        f"{one.name}: {one.median('busbw'):.0f} then {other.median('busbw'):.0f}"
        for one, other in pairwise(issue)
        if one.setup.labels[0] == other.setup.labels[0] == "64 KiB"
        and other.median("busbw") > one.median("busbw") * 1.01
    ]
    small = [row for row in issue if row.setup.labels[0] == "64 KiB"]
    spread = ", ".join(f"{row.setup.labels[1]} {row.median('busbw'):.0f}" for row in small)
    return Finding(
        f"10+2 NICs, largest size: {_range(wide)} GB/s, most {best.name}; 8+2: {_range(narrow)} GB/s; near-memory "
        f"units {all_units / 1e3:.2f} TB/s; with chunks of 64 KiB by issue time: {spread} GB/s",
        "940 GB/s is 94 % of ten NICs and cannot come from the eight of 8+2; no efficiency factor is in it",
        (
            Check(
                "row 1: 16 near-memory units together 2.7 to 2.95 TB/s",
                () if UNITS[0] <= all_units <= UNITS[1] else (f"{all_units:.0f} GB/s",),
            ),
            Check("row 2: 900 to 1,000 GB/s at the largest size with 10 NICs, every kind", between(wide, *BUS)),
            Check("with the 8 NICs of 8+2 it stays below 800 GB/s", between(narrow, 0.0, 800.0)),
            Check("with chunks of 64 KiB, more issue time is never faster", tuple(rising)),
            Check(
                "and 16 engines never beat the issue of three entries a chunk: RECV, SUM, SEND",
                failures(
                    small, lambda row: row.median("busbw") <= _issued(row), lambda row: f"{row.median('busbw'):.0f}"
                ),
            ),
            Check(
                "row 11: Gaudi 3 within 5 % of the published NIC rates",
                failures(
                    gaudi,
                    lambda row: abs(row.median("busbw") / float(row.setup.labels[1]) - 1) <= GAUDI,
                    lambda row: f"{row.median('busbw'):.1f}",
                ),
            ),
        ),
    )


def _issued(row: Row) -> float:
    """GB/s that 16 engines issue in chunks of 64 KiB, three entries each."""
    return 16 * (64 << 10) / (3 * float(row.setup.labels[1].split()[0])) / 1e3


def m2(quick: bool) -> Target:
    """An AllGather over eight racks, in both splits."""
    sizes = {"8+2": ("16MiB",)} if quick else {"8+2": ("64MiB", "256MiB"), "10+2": ("64MiB", "256MiB")}
    racks: dict[str, object] = {
        "8+2": "mtia300-128",
        "10+2": Raw('mr.offload.hardware.load("mtia300").topology([16] * 8, "10+2")'),
    }
    setups = tuple(
        Setup(
            (split, size),
            scenario(
                f'mr.Collective(kind="all_gather", size="{size}")',
                topology=racks[split],
                engine="mtia300",
                offload={"partition": split},
            ),
            engines,
        )
        for split, own in sizes.items()
        for size in own
    )
    return Target(
        "M2",
        "128-rank AllGather (8 racks, 200 GB/s across): 838 GB/s of bus bandwidth",
        "8 racks of 16, the compiler's hierarchical AllGather packet by packet, no efficiency factor; neither split "
        "nor size is published",
        (Sheet("AllGather of 128 ranks", ("NICs", "size"), FIGURES, setups),),
        judge_m2_quick if quick else judge_m2,
    )


def judge_m2(sheets: Sheets) -> Finding:
    """Some size in a stated split lies in the band; none is above the ceiling of its links."""
    rows = sheets[0]
    inside = [row for row in rows if ACROSS[0] <= row.median("busbw") <= ACROSS[1]]
    told = ", ".join(f"{row.name} {row.median('busbw'):.0f}" for row in rows)
    by_split = {split: [row for row in rows if row.setup.labels[0] == split] for split in CEILINGS}
    met = [f"{split}: {_met(own)}" for split, own in by_split.items() if own]
    return Finding(
        f"{told} GB/s",
        f"838 GB/s on the curve over sizes: {'; '.join(met)}. Links leave 847 with 8+2 and 1,058 with 10+2, headers "
        "97 % of that: 824 and 1,029",
        (
            Check(
                "row 3: 790 to 880 GB/s in a stated split" + "".join(f", {row.name}" for row in inside),
                () if inside else (told,),
            ),
            _below_ceiling(sheets),
        ),
    )


def judge_m2_quick(sheets: Sheets) -> Finding:
    """The quick form's size is too small for the band: only what holds at any size is judged."""
    finding = judge_m2(sheets)
    return Finding(finding.gives, "the quick form's size does not fill the links", (_below_ceiling(sheets),))


def _met(rows: list[Row]) -> str:
    sizes = [parse_size(row.setup.labels[1], "size") / 2**20 for row in rows]
    found = crossings(sizes, [row.median("busbw") for row in rows], 838.0)
    return f"at {found[0]:.0f} MiB" if found else "not met"


def _below_ceiling(sheets: Sheets) -> Check:
    over = failures(
        sheets[0],
        lambda row: row.median("busbw") <= CEILINGS[row.setup.labels[0]],
        lambda row: f"{row.median('busbw'):.0f} GB/s",
    )
    return Check("never above what the links of its split leave", over)


def between(rows: list[Row], low: float, high: float, key: str = "busbw") -> tuple[str, ...]:
    """Rows outside of a band."""
    return failures(rows, lambda row: low <= row.median(key) <= high, lambda row: f"{row.median(key):.1f}")


def _range(rows: list[Row]) -> str:
    values = [row.median("busbw") for row in rows]
    return f"{min(values):.0f} to {max(values):.0f}" if len(values) > 1 else f"{values[0]:.0f}"
