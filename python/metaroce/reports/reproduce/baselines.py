"""P3 and P4: what was published of MRC beside RoCEv2, ring AllReduce of 64 GPUs with loss and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...units import parse_probability, parse_size
from .analysis import crossings
from .loss import BUSBW, KEPT, LINE, RESENT, ROCE, TIME, TIMEOUTS, collective
from .model import Check, Finding, Row, Setup, Sheet, Sheets, Target, failures

MRC = "MRC, arXiv 2605.04333 and 2606.18170, second-hand"
"""Where rows of MRC come from; nobody here has seen the papers themselves."""
THIRD = 1 / 3
LITTLE, STEEP, UNUSABLE = 0.9, 0.5, 0.1
"""Share of the loss-free busbw that 0.1 % leaves to large messages (at least), 1 % to MRC (at most), and RoCE when it
is unusable (at most) (*ours*)."""
HALF = (0.35, 0.65)
NO_GAIN = 1.1
"""What one QP reaches of the line rate and still is about half; what counts as no gain (*ours*)."""
PLACES = ("random", "packed")
CONTROL: Mapping[str, Mapping[str, object]] = {"rocev2, DCQCN": {}, "rocev2, no DCQCN": {"dcqcn": "off"}}
QPS = (1, 2, 4, 8, 16, 32)
WIDE = {"kind": "mrc", "entropy_count": 256}
"""MRC over as many entropy values as published."""
FREE = 200
"""Window of a QP that leaves its rate to DCQCN, percent of the bandwidth-delay product (as in `rocev2-1qp`)."""


def p3(quick: bool) -> Target:
    """MRC's loss sweep, with RoCEv2 and metaroce beside it."""
    sizes = ("64MiB",) if quick else ("4MiB", "16MiB", "64MiB")
    losses = ("1%", "5%") if quick else ("0.1%", "0.5%", "1%", "2%", "5%")
    grid = tuple(
        _lossy((size, loss, transport), size, loss, transport)
        for size in sizes
        for loss in ("0", "0.1%", "1%")
        for transport in (("mrc",) if quick and loss == "0.1%" else ("mrc", "metaroce", *ROCE))
    )
    middle = sizes[len(sizes) // 2]
    curve = tuple(_lossy((loss,), middle, loss, "mrc") for loss in losses)
    figures = (BUSBW, LINE, KEPT, TIME, RESENT, TIMEOUTS)
    return Target(
        "P3",
        "64 GPUs, ring all-reduce, loss on all planes: 0.1 % has little effect on large messages, 1 % leaves MRC about "
        f"one third of what was intended, RoCE is unusable ({MRC})",
        f"AllReduce (ring) of {', '.join(sizes)} a rank at loss 0, 0.1 % and 1 %; mrc of {middle} also at "
        f"{', '.join(losses)}; RoCEv2 with adaptive and 67 ms timers, stopped at 50 ms",
        (
            Sheet("AllReduce by size, loss and transport", ("size", "loss", "transport"), figures, grid),
            Sheet(f"mrc, AllReduce {middle}, by loss", ("loss",), figures, curve),
        ),
        judge_p3,
    )


def _lossy(labels: tuple[str, ...], size: str, loss: str, transport: str) -> Setup:
    """Scenarios under the same text as those of R1, so that both run once."""
    return Setup(
        labels,
        collective("all_reduce", size, loss, transport=transport),
        reference=collective("all_reduce", size, transport=transport),
    )


def judge_p3(sheets: Sheets) -> Finding:
    """Little at 0.1 % on the largest message, steep at 1 %, nothing left to RoCEv2; one third is only located."""
    grid, curve = sheets
    own = [row for row in grid if row.setup.labels[2] == "mrc"]
    at = {loss: [row for row in own if row.setup.labels[1] == loss] for loss in ("0.1%", "1%")}
    rivals = [row for row in grid if row.setup.labels[1] == "1%" and row.setup.labels[2] in ROCE]
    sizes = [row.setup.labels[0] for row in at["1%"]]
    by_size = crossings([float(parse_size(size)) for size in sizes], [row.median("kept") for row in at["1%"]], THIRD)
    by_loss = crossings(
        [parse_probability(row.setup.labels[0]) for row in curve], [row.median("kept") for row in curve], THIRD
    )
    where = [f"at about {x / (1 << 20):.0f}MiB at 1 %" for x in by_size] + [f"at {x:.1%} loss" for x in by_loss]
    kept = {loss: ", ".join(f"{row.setup.labels[0]} {row.median('kept'):.1%}" for row in at[loss]) for loss in at}
    peer = [row for row in grid if row.setup.labels[1:] == ("1%", "metaroce")]
    return Finding(
        f"mrc keeps at 0.1 % {kept['0.1%']}; at 1 % {kept['1%']} (metaroce "
        + ", ".join(f"{row.median('kept'):.1%}" for row in peer)
        + f"; RoCEv2 at most {max(row.median('kept') for row in rivals):.1%})",
        f"one third of its loss-free busbw lies {' and '.join(where) if where else 'not on it'}",
        (
            Check(f"0.1 % leaves mrc at least {LITTLE:.0%} at the largest size", _below(at["0.1%"][-1:], LITTLE)),
            Check(f"1 % leaves mrc at most {STEEP:.0%} at every size", _above(at["1%"], STEEP)),
            Check(f"1 % leaves RoCEv2 at most {UNUSABLE:.0%} with either timer", _above(rivals, UNUSABLE)),
        ),
    )


def _below(rows: Sequence[Row], least: float) -> tuple[str, ...]:
    return failures(rows, lambda row: row.median("kept") >= least, lambda row: f"keeps {row.median('kept'):.1%}")


def _above(rows: Sequence[Row], most: float) -> tuple[str, ...]:
    return failures(rows, lambda row: row.median("kept") <= most, lambda row: f"keeps {row.median('kept'):.1%}")


def p4(quick: bool) -> Target:
    """RoCEv2 by QPs a pair without loss; one QP of MRC over all paths."""
    size, counts = "16MiB", (1, 8, 16) if quick else QPS
    sprayed = tuple(
        Setup((name, "1", place), _free(size, transport, place))
        for name, transport in (("mrc, 256 entropies", WIDE), ("metaroce", "metaroce"))
        for place in PLACES
    )
    roce = tuple(
        Setup(
            (name, str(qps), place),
            _free(size, {"kind": "rocev2", "qps": qps, "window_percent": FREE, **dcqcn}, place),
        )
        for name, dcqcn in CONTROL.items()
        for place in PLACES
        for qps in (counts if place == "random" else (1, 8))
    )
    columns, figures = ("transport", "QPs", "ranks"), (BUSBW, LINE, TIME, RESENT)
    return Target(
        "P4",
        "64 GPUs, ring all-reduce, no loss: RoCE with 1 QP about half of the rate, no gain past 8 QPs; one MRC QP over "
        f"256 paths is ahead of 16 QPs ({MRC})",
        f"AllReduce (ring) of {size} a rank on single-plane-64 (800 Gbit/s, 8 spines, ECMP); RoCEv2 with "
        f"{', '.join(map(str, counts))} QPs a pair, windows of {FREE} %, NIC DCQCN and none; ranks on random hosts "
        "(judged) and packed, where 7 of 8 neighbours share a leaf",
        (
            Sheet("One connection over many paths", columns, figures, sprayed),
            Sheet("RoCEv2 by QPs a pair", columns, figures, roce),
        ),
        judge_p4,
    )


def _free(size: str, transport: object, place: str) -> str:
    placed: dict[str, Any] = {} if place == "random" else {"placement": place}
    return collective("all_reduce", size, topology="single-plane-64", transport=transport, **placed)


def judge_p4(sheets: Sheets) -> Finding:
    """Half with one QP, nothing to gain past 8, and one QP over many paths ahead of 16: on random hosts, by control."""
    sprayed, roce = ([row for row in sheet if row.setup.labels[2] == "random"] for sheet in sheets)
    lines = {name: [row for row in roce if row.setup.labels[0] == name] for name in CONTROL}
    one = [row for rows in lines.values() for row in rows if row.setup.labels[1] == "1"]
    gains, behind = [], []
    (mrc,) = (row for row in sprayed if row.setup.labels[0].startswith("mrc"))
    for rows in lines.values():
        eight = next(row for row in rows if row.setup.labels[1] == "8")
        for row in rows:
            gain = row.median("busbw") / eight.median("busbw")
            if int(row.setup.labels[1]) > 8 and gain > NO_GAIN:
                gains.append(f"{row.name}: {gain:.2f} of 8 QPs")
            if row.setup.labels[1] == "16" and row.median("busbw") >= mrc.median("busbw"):
                behind.append(f"{row.name}: {row.median('busbw'):.2f} against {mrc.median('busbw'):.2f} GB/s")
    told = "; ".join(
        f"{name}: {', '.join(f'{row.setup.labels[1]} QP {_line(row)}' for row in rows)}" for name, rows in lines.items()
    )
    halves = [
        f"{x:.0f} QPs ({name})"
        for name, rows in lines.items()
        for x in crossings([int(row.setup.labels[1]) for row in rows], [row.median("of_line") for row in rows], 0.5)
    ]
    packed = [row for row in sheets[1] if row.setup.labels[1:] == ("1", "packed")]
    return Finding(
        f"of line rate, mrc {_line(mrc)}; {told}",
        f"half of the line rate is met with {', '.join(halves) if halves else 'no number of QPs'} on random hosts; "
        f"packed, 1 QP has {', '.join(map(_line, packed))}",
        (
            Check(
                f"1 QP reaches about half of the line rate ({HALF[0]:.0%} to {HALF[1]:.0%})",
                failures(one, lambda row: HALF[0] <= row.median("of_line") <= HALF[1], _line),
            ),
            Check(f"no gain past 8 QPs (at most {NO_GAIN} of what 8 reach)", tuple(gains)),
            Check("one mrc QP over many paths has more busbw than 16 QPs of RoCEv2", tuple(behind)),
        ),
    )


def _line(row: Row) -> str:
    return f"{row.median('of_line'):.1%}"
