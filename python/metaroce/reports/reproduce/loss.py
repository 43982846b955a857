"""R1 to R3: collectives against RoCEv2, at 1 % loss, at 10 %."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ...units import format_size, parse_probability, parse_size
from ..plot import PUBLISHED_SHARE
from .analysis import crossings
from .model import Check, Figure, Finding, Raw, Row, Setup, Sheet, Sheets, Target, failures, scenario

ROCE = ("rocev2-adaptive", "rocev2-67ms")
KINDS = ("all_reduce", "alltoall")
TOLERANCE = 0.02
"""A curve may fall by this much and still count as rising: the range of a point over seeds (*ours*)."""
USEFUL, CLIFF = 0.4, 0.6
"""Share of the loss-free busbw that is still useful at 10 %; share of itself that a curve keeps a step (*ours*)."""

BUSBW = Figure("busbw", "busbw", "GB/s", bound="< ")
LINE = Figure("of_line", "of line", "rate", "{:.1%}", "< ")
KEPT = Figure("kept", "of own", "loss-free", "{:.1%}", "< ")
TIME = Figure("time_us", "time", "us", "{:.0f}", "> ")
RESENT = Figure("resent", "resent", "packets", "{:.2%}")
TIMEOUTS = Figure("timeouts", "timeouts", "", "{:.0f}")
FCT = tuple(Figure(f"fct_{p}_us", f"{p} FCT", "us", "{:.0f}", "> ") for p in ("mean", "p50", "p99"))

_GOALS = {
    ("all_reduce", "64MiB", "0"): "96 % of line rate",
    ("all_reduce", "64MiB", "1%"): "90 % of line rate",
    ("all_reduce", "64MiB", "10%"): "40 % of line rate",
    ("alltoall", "64MiB", "0"): "94 % of line rate",
    ("alltoall", "64MiB", "1%"): "90 % of line rate",
}


def collective(kind: str, size: str, loss: object = "0", chunks: int | None = None, **fields: Any) -> str:
    """The text of a collective; messages of an AllToAll are recorded, RoCEv2 under loss stops at 50 ms."""
    cut = f", chunks={chunks}" if chunks else ""
    if str(fields.get("transport", "")).startswith("rocev2") and loss != "0":
        fields["time_limit"] = "50ms"
    if kind == "alltoall":
        fields["record_wqes"] = True
    return scenario(f'mr.Collective(kind="{kind}", size="{size}"{cut})', **fields, loss=loss)


def r1(quick: bool) -> Target:
    """Against RoCEv2 at every size and loss."""
    sizes, losses = (("4MiB",), ("0", "1%")) if quick else (("4MiB", "16MiB", "64MiB"), ("0", "0.1%", "1%", "10%"))
    sheets = []
    for kind in KINDS:
        setups = tuple(
            Setup(
                (size, loss, transport),
                collective(kind, size, loss, transport=transport),
                reference=collective(kind, size, transport=transport),
                goal=_GOALS.get((kind, size, loss), "") if transport == "metaroce" else "",
            )
            for size in sizes
            for loss in losses
            for transport in ("metaroce", *ROCE)
        )
        figures = (BUSBW, LINE, KEPT, TIME, *(FCT if kind == "alltoall" else ()), RESENT, TIMEOUTS)
        sheets.append(Sheet(kind, ("size", "loss", "transport"), figures, setups))
    return Target(
        "R1",
        "64 GPU nodes, RCCL all-reduce and all-to-all: higher throughput and lower flow completion time than RoCEv2 at "
        "every point",
        f"{' and '.join(KINDS)}, {', '.join(sizes)} a rank, loss {', '.join(losses)}; RoCEv2 with adaptive and 67 ms "
        "timers, stopped at 50 ms",
        tuple(sheets),
        judge_r1,
    )


def judge_r1(sheets: Sheets) -> Finding:
    """Faster than the better RoCEv2 setting wherever there is loss; loss-free points are told, not judged."""
    points = [(kind, own, rivals) for kind, rows in zip(KINDS, sheets, strict=True) for own, rivals in _points(rows)]
    lossy = [point for point in points if point[1].setup.labels[1] != "0"]
    slower = tuple(
        f"{kind} {own.name}: {own.median('busbw'):.2f} against {_best(rivals):.2f} GB/s"
        for kind, own, rivals in lossy
        if own.median("busbw") <= _best(rivals)
    )
    later = tuple(
        f"{kind} {own.name}: {key} {own.median(key):.0f} against {min(r.median(key) for r in rivals):.0f} us"
        for kind, own, rivals in lossy
        for key in ("time_us", "fct_mean_us", "fct_p99_us")
        if key in own.values and own.median(key) >= min(r.median(key) for r in rivals)
    )
    factors = [own.median("busbw") / _best(rivals) for _, own, rivals in lossy]
    free = [(kind, own, rivals) for kind, own, rivals in points if own.setup.labels[1] == "0"]
    behind = [
        f"{kind} {own.setup.labels[0]} ({own.median('busbw'):.2f} to {_best(rivals):.2f} GB/s)"
        for kind, own, rivals in free
        if own.median("busbw") <= _best(rivals)
    ]
    told = f"ahead at {len(free) - len(behind)} of {len(free)} points" + (
        f"; behind in {', '.join(behind)}" if behind else ""
    )
    return Finding(
        f"{min(factors):.1f} to {max(factors):.0f} times the busbw of the better RoCEv2 setting at the "
        f"{len(lossy)} points with loss",
        f"'every point' has no figure; loss-free: {told}",
        (
            Check("more busbw than the better RoCEv2 setting at every size and loss above 0", slower),
            Check("every completion time (run; messages of the AllToAll, mean and p99) below its best there", later),
        ),
    )


def r2(quick: bool) -> Target:
    """At 1 %: sizes, chunks, what is called loss, how paths map to routes."""
    sizes, chunks = (("4MiB", "16MiB"), (1, 8)) if quick else (("4MiB", "16MiB", "64MiB"), (1, 4, 8, 16))
    last = sizes[-1]
    grid = tuple(
        _kept((size, f"{c} chunks" if c > 1 else "1 chunk"), "all_reduce", size, chunks=c)
        for size in sizes
        for c in chunks
    )
    alltoall = tuple(_kept((size,), "alltoall", size) for size in sizes)
    mixed: dict[str, Any] = {
        "topology": Raw('mr.topology.load("multiplane-4x64").replace(ecmp="mixed")'),
        "transport": {"kind": "metaroce", "entropies": "hashed"},
    }
    variants = [
        Setup(
            (text, mapping),
            collective("all_reduce", last, loss, **fields),
            reference=collective("all_reduce", last, **fields),
        )
        for mapping, fields in (("consecutive, ECMP linear", {}), ("hashed, ECMP mixed", mixed))
        for text, loss in (
            ("packet; data and ACK", "1%"),
            ("packet; data", {"probability": "1%", "on": "data"}),
            ("link; data and ACK", {"probability": "1%", "per": "link"}),
        )
    ]
    rivals = tuple(_kept((kind, name), kind, last, transport=name) for kind in KINDS for name in ("metaroce", *ROCE))
    figures = (Figure("reference", "loss-free", "GB/s"), BUSBW, LINE, KEPT)
    return Target(
        "R2",
        f"64 GPU nodes, 1 % packet loss: about {PUBLISHED_SHARE:.0%} of its loss-free throughput, where RoCEv2 "
        "degrades badly",
        f"AllReduce (ring) of {', '.join(sizes)} a rank in {', '.join(map(str, chunks))} chunks a shard, AllToAll of "
        f"the same sizes; at {last} also by loss definition and entropy mapping, and against RoCEv2",
        (
            Sheet("AllReduce at 1 %, by size and chunks", ("size", "chunks"), figures, grid),
            Sheet("AllToAll at 1 %, by size", ("size",), figures, alltoall),
            Sheet(
                f"AllReduce {last} at 1 %, by loss definition and entropies",
                ("loss per; on", "entropies"),
                figures,
                tuple(variants),
            ),
            Sheet(f"{last} at 1 %, by transport", ("collective", "transport"), figures, rivals),
        ),
        judge_r2,
    )


def judge_r2(sheets: Sheets) -> Finding:
    """busbw at 1 % rises with size and chunks, RoCEv2 loses far more; the published share is only located."""
    grid, alltoall, variants, rivals = sheets
    size_lines = [rows for _, rows in _grouped(grid, 1)] + [list(alltoall)]
    lines = [*size_lines, *(rows for _, rows in _grouped(grid, 0))]
    falls = tuple(
        f"{b.name}: {b.median('busbw'):.2f} after {a.median('busbw'):.2f} GB/s"
        for rows in lines
        for a, b in pairwise(rows)
        if b.median("busbw") < a.median("busbw") * (1 - TOLERANCE)
    )
    own = {row.setup.labels[0]: row for row in rivals if row.setup.labels[1] == "metaroce"}
    close = failures(
        [row for row in rivals if row.setup.labels[1] != "metaroce"],
        lambda row: row.median("kept") < own[row.setup.labels[0]].median("kept") / 2,
        lambda row: f"keeps {row.median('kept'):.1%}",
    )
    every = [row for sheet in (grid, alltoall, variants) for row in sheet]
    *_, high = low, *_ = sorted(every, key=lambda row: row.median("kept"))
    return Finding(
        f"keeps {low.median('kept'):.1%} ({low.name}) to {high.median('kept'):.1%} ({high.name})",
        f"{PUBLISHED_SHARE:.0%} lies " + "; ".join(_located(sheets)),
        (
            Check(f"busbw at 1 % rises with size and with chunks (to {TOLERANCE:.0%})", falls),
            Check("RoCEv2 keeps less than half the share that metaroce keeps", close),
        ),
    )


def _located(sheets: Sheets) -> Iterable[str]:
    grid, alltoall, variants, _ = sheets
    for count, rows in _grouped(grid, 1):
        yield f"{_where(rows, 0)} at {count}"
    yield f"{_where(alltoall, 0)} in the AllToAll"
    near = sorted(variants, key=lambda row: abs(row.median("kept") - PUBLISHED_SHARE))[0]
    yield f"nearest to '{near.setup.labels[0]}, {near.setup.labels[1]}' ({near.median('kept'):.1%}) among definitions"


def _where(rows: Sequence[Row], label: int) -> str:
    """Where along the sizes the published share is met."""
    sizes = [row.setup.labels[label] for row in rows]
    xs, ys = [float(parse_size(size)) for size in sizes], [row.median("kept") for row in rows]
    found = crossings(xs, ys, PUBLISHED_SHARE)
    if not found:
        return f"{'below' if ys[0] > PUBLISHED_SHARE else 'above'} every share from {sizes[0]} to {sizes[-1]}"
    named = []
    for x in found:
        above = next(i for i, right in enumerate(xs) if right >= x)
        here = f"about {format_size(round(x / (1 << 20)) << 20)}"
        named.append(f"{here} (between {sizes[max(above - 1, 0)]} and {sizes[max(above, 1)]})")
    return "at " + " and ".join(named)


def r3(quick: bool) -> Target:
    """From loss-free to 10 %."""
    size, losses = ("64MiB", ("1%", "10%")) if quick else ("64MiB", ("0.1%", "0.5%", "1%", "2%", "5%", "10%"))
    sheets = [
        Sheet(
            f"{kind} {size}, by loss",
            ("loss",),
            (BUSBW, LINE, KEPT, TIME, RESENT, TIMEOUTS),
            tuple(_kept((loss,), kind, size, loss) for loss in losses),
        )
        for kind in KINDS
    ]
    return Target(
        "R3",
        "64 GPU nodes, 10 % packet loss: still useful bandwidth, graceful",
        f"{' and '.join(KINDS)} of {size} a rank at loss {', '.join(losses)}",
        tuple(sheets),
        judge_r3,
    )


def judge_r3(sheets: Sheets) -> Finding:
    """Falls with loss, without a cliff, to a share that is still useful."""
    kinds = list(zip(KINDS, sheets, strict=True))
    short = tuple(
        f"{kind} keeps {rows[-1].median('kept'):.1%}" for kind, rows in kinds if rows[-1].median("kept") < USEFUL
    )
    steps = [(kind, a, b, b.median("kept") / a.median("kept")) for kind, rows in kinds for a, b in pairwise(rows)]
    rises = tuple(f"{kind} from {a.name} to {b.name}: x {s:.2f}" for kind, a, b, s in steps if s > 1 + TOLERANCE)
    cliffs = tuple(
        f"{kind} from {a.name} to {b.name}: x {s:.2f}"
        for kind, a, b, s in steps
        if s < CLIFF ** (max(1.0, _ratio(a, b) / 2.5))
    )
    kept = ", ".join(f"{kind} {rows[-1].median('kept'):.1%}" for kind, rows in kinds)
    meets = "; ".join(f"{kind} {_loss_at(rows)}" for kind, rows in kinds)
    return Finding(
        f"keeps at 10 %: {kept}",
        f"'useful' has no figure; {PUBLISHED_SHARE:.0%} of loss-free is met: {meets}",
        (
            Check(f"keeps at least {USEFUL:.0%} of its loss-free busbw at 10 %", short),
            Check("falls as loss rises", rises),
            Check(f"no cliff: a step of at most 2.5 in loss leaves at least {CLIFF:.0%} of what was kept", cliffs),
        ),
    )


def _loss_at(rows: Sequence[Row]) -> str:
    found = crossings(
        [parse_probability(row.setup.labels[0]) for row in rows], [row.median("kept") for row in rows], PUBLISHED_SHARE
    )
    if found:
        return "at " + " and ".join(f"{loss:.1%}" for loss in found) + " loss"
    side = "beyond" if rows[-1].median("kept") > PUBLISHED_SHARE else "below"
    return f"{side} {rows[-1 if side == 'beyond' else 0].name} loss"


def _ratio(a: Row, b: Row) -> float:
    return parse_probability(b.setup.labels[0]) / parse_probability(a.setup.labels[0])


def _kept(
    labels: tuple[str, ...], kind: str, size: str, loss: str = "1%", chunks: int | None = None, **fields: Any
) -> Setup:
    return Setup(
        labels,
        collective(kind, size, loss, chunks, **fields),
        reference=collective(kind, size, chunks=chunks, **fields),
    )


def _points(rows: Sequence[Row]) -> Iterable[tuple[Row, list[Row]]]:
    """The row of metaroce and those of its rivals at each size and loss."""
    for at in dict.fromkeys(row.setup.labels[:2] for row in rows):
        own, *rivals = (row for row in rows if row.setup.labels[:2] == at)
        yield own, rivals


def _grouped(rows: Sequence[Row], label: int) -> Iterable[tuple[str, list[Row]]]:
    for name in dict.fromkeys(row.setup.labels[label] for row in rows):
        yield name, [row for row in rows if row.setup.labels[label] == name]


def _best(rows: Sequence[Row]) -> float:
    return max(row.median("busbw") for row in rows)
