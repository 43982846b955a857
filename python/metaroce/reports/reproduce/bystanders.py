"""P5, P6 and P8: a flow beside an incast, a link or a port that fails, a permutation on a fat tree."""

from __future__ import annotations

import math

import numpy as np

from ...collectives import Array
from ...metrics import jain
from ...result import Result
from .baselines import MRC, WIDE
from .loss import LINE, RESENT, TIME
from .model import MIB, Check, Figure, Finding, Raw, Row, Setup, Sheet, Sheets, Target, failures, scenario, standard

SENDERS, START_US, GBPS = 7, 50, 400
UNHURT, FAIR, HURT, PAUSED_GBPS = 0.95, 0.98, 0.9, 100
"""Share of its rate alone that an unhurt victim keeps (at least) and a hurt one (at most), Jain's index of a fair
incast, and what PFC alone leaves to a victim of 400 Gbit/s (published: at most this) (thresholds *ours*)."""
LINK_COST, SINGLE_COST, PORT_COST, PORT_WITHIN = 0.004, 0.03, 0.125, 0.015
"""Published: what a lost T0-T1 link costs with 8 planes and with one, what a NIC port costs; and how near the model
must be to the last (*ours*)."""
SPRAYED, HASHED, OPTIMUM = 0.85, 0.6, 0.95
"""Use of a fat tree by spraying (at least) and by flows on one route (at most), and of the receiver's port by an incast
(published: within 5 %) (thresholds *ours*)."""
UPLINKS = 32
LINK, PORT = "T0-T1 link", "port of a host"
START_PS, BIN_PS = 1_000_000, 10_000_000
"""Of P6's Writes, after the fault; of the bins that rates are read from."""


def _leaf_spine(planes: int, leaves: int, spines: int, hosts: int, gbps: int, more: str = "") -> Raw:
    """Queues and marks in proportion to rate, as in the fabrics with names."""
    link = {
        "rate": f"{gbps}Gbps",
        "delay": "600ns",
        "queue": f"{gbps * 1024 // 200}KiB",
        "ecn": {"kmin": f"{gbps // 4}KiB", "kmax": f"{gbps}KiB", "pmax": 0.2},
    }
    shape = f"planes={planes}, leaves={leaves}, spines={spines}, hosts_per_leaf={hosts}"
    return Raw(f"mr.topology.LeafSpine({shape}, link={link}{more})")


def p5(quick: bool) -> Target:
    """Seven into one, and one between the same leaves to another host."""
    transports = {
        ("mrc", ""): "mrc",
        ("metaroce", ""): "metaroce",
        **{
            (f"RoCEv2, {name}", str(qps)): {"kind": "rocev2-pfc", "qps": qps, **settings}
            for name, settings in _CONTROLS.items()
            for qps in (1, 8)
        },
    }
    size = 8 if quick else 16
    setups = tuple(
        Setup(labels, _victim(transport, size), victim, reference=_victim(transport, 0))
        for labels, transport in transports.items()
    )
    figures = (
        Figure("gbps", "victim", "Gbit/s", "{:.0f}", "< "),
        Figure("kept", "of its rate", "alone", "{:.1%}", "< "),
        Figure("jain", "Jain of", "the incast", "{:.3f}"),
        RESENT,
        TIME,
    )
    return Target(
        "P5",
        "7:1 incast and a victim flow: MRC fair and the victim unhurt; RoCE with DCQCN takes 25 % (1 QP) to 75 % "
        f"(8 QPs) from the victim; PFC alone leaves it 30 to 100 Gbit/s ({MRC})",
        f"one plane of {GBPS} Gbit/s, 2 leaves of 8 hosts, 4 spines; 7 hosts of a leaf write {size} MiB each to one "
        f"host of the other, the eighth 4 MiB to its neighbour from {START_US} us on; RoCEv2 on a lossless class "
        "without windows",
        (Sheet("The victim beside the incast", ("transport", "QPs"), figures, setups),),
        judge_p5,
    )


_CONTROLS: dict[str, dict[str, object]] = {
    "DCQCN and PFC": {"window_percent": 0},
    "PFC alone": {"window_percent": 0, "dcqcn": "off"},
}


def _victim(transport: object, incast_mib: int) -> str:
    others = f"*((i, 8, {incast_mib * MIB}, 0) for i in range({SENDERS})), " if incast_mib else ""
    return scenario(
        f"mr.Flows(writes=[{others}({SENDERS}, 9, {4 * MIB}, '{START_US}us')])",
        topology=_leaf_spine(1, 2, 4, 8, GBPS),
        placement="packed",
        transport=transport,
        record_wqes=True,
    )


def victim(result: Result) -> dict[str, float]:
    """Rate of the last Write from its start, and fairness among those before it; 0 Gbit/s if it never ended."""
    done = _placed(result)
    rate = 4 * MIB * 1e3 / (float(done[-1]) - START_US * 1e6)
    return standard(result) | {"busbw": rate, "gbps": rate * 8, "jain": jain(1 / done[:-1])}


def judge_p5(sheets: Sheets) -> Finding:
    """Unhurt and fair where control is by path; hurt by DCQCN, more with more QPs; most by PFC alone."""
    rows = sheets[0]
    by_path = [row for row in rows if not row.setup.labels[1]]
    dcqcn, pfc = ([row for row in rows if row.setup.labels[0] == f"RoCEv2, {name}"] for name in _CONTROLS)
    kept = {row.name.rstrip(", "): row.median("kept") for row in rows}
    few, many = (row.median("kept") for row in dcqcn)
    return Finding(
        "the victim keeps "
        + "; ".join(f"{name} QP {k:.1%}" if name[-1].isdigit() else f"{name} {k:.1%}" for name, k in kept.items()),
        f"-25 % to -75 % with DCQCN: here {few - 1:+.0%} with 1 QP, {many - 1:+.0%} with 8; 30 to 100 Gbit/s with PFC "
        f"alone: here {' and '.join(map(_gbps, pfc))}",
        (
            Check(
                f"mrc and metaroce leave the victim at least {UNHURT:.0%} of its rate alone",
                failures(by_path, lambda row: row.median("kept") >= UNHURT, _kept),
            ),
            Check(
                f"their incast is fair: Jain's index of the rates at least {FAIR}",
                failures(by_path, lambda row: row.median("jain") >= FAIR, lambda row: f"{row.median('jain'):.3f}"),
            ),
            Check(
                f"DCQCN hurts the victim (at most {HURT:.0%} kept), with 1 QP and with 8",
                failures(dcqcn, lambda row: row.median("kept") <= HURT, _kept),
            ),
            Check("8 QPs hurt it more than 1", () if many < few else (f"{many:.1%} after {few:.1%}",)),
            Check(
                f"PFC alone leaves it at most {PAUSED_GBPS} Gbit/s",
                failures(pfc, lambda row: row.median("gbps") <= PAUSED_GBPS, _gbps),
            ),
        ),
    )


def _kept(row: Row) -> str:
    return f"keeps {row.median('kept'):.1%}"


def _gbps(row: Row) -> str:
    return f"{row.median('gbps'):.0f}"


def p6(quick: bool) -> Target:
    """One link between leaf and spine, one port of a host, down before traffic starts."""
    size = 16 if quick else 64
    setups = [
        Setup(
            (name, str(planes), what, avoided),
            _crossing(transport, planes, size, what, delay, down=True),
            steady,
            reference=_crossing(transport, planes, size, what, delay, down=False),
        )
        for name, transport in (("mrc", WIDE), ("metaroce", "metaroce"))
        for planes, what, avoided, delay in (
            (8, LINK, "endpoints", "1s"),
            (1, LINK, "endpoints", "1s"),
            (8, PORT, "endpoints", "1s"),
            (8, LINK, "switches", "1us"),
            (1, LINK, "switches", "1us"),
        )
    ]
    figures = (
        Figure("reference", "all up", "GB/s"),
        Figure("busbw", "a host", "GB/s"),
        Figure("kept", "kept", "", "{:.2%}"),
        RESENT,
    )
    return Target(
        "P6",
        "8 x 100G planes: a lost T0-T1 link costs 0.4 % (3 % with a single plane), one NIC port 12.5 % "
        f"({MRC}; agrees with 1/256, 1/32 and 1/8)",
        f"64 hosts under 2 leaves, {UPLINKS} spines a plane, 8 planes of 100 Gbit/s or one of 800, mrc with 256 "
        "entropies; link or port down from the start, and either no switch changes its routes (judged) or all do at "
        f"once; every host writes {size} MiB to one across and is written to by it (port: its host and that one "
        "alone); mean rate from a quarter of the time to the first completion on",
        (Sheet("A link down, a port down", ("transport", "planes", "down", "avoided by"), figures, tuple(setups)),),
        judge_p6,
    )


def _crossing(transport: object, planes: int, size: int, what: str, delay: str, *, down: bool) -> str:
    """All hosts across, or of a port that fails the two hosts alone that write to each other."""
    ends = {LINK: ("p0.leaf0", "p0.spine0"), PORT: ("host0", "p0.leaf0")}[what]
    hosts = f"range({2 * UPLINKS})" if what == LINK else f"(0, {UPLINKS})"
    faults = {"faults": [{"at": "0us", "target": "link", "a": ends[0], "b": ends[1]}]} if down else {}
    return scenario(
        f"mr.Flows(writes=[(i, (i + {UPLINKS}) % {2 * UPLINKS}, {size * MIB}, {START_PS}) for i in {hosts}])",
        topology=_leaf_spine(planes, 2, UPLINKS, UPLINKS, 800 // planes, f", reroute_delay={delay!r}"),
        ranks=2 * UPLINKS,
        placement="packed",
        transport=transport,
        record_wqes=True,
        record_bin=f"{BIN_PS}ps",
        **faults,
    )


def _placed(result: Result) -> Array:
    """When each entry was placed, ps; infinite for one that never was."""
    assert result.wqe_placed_ps is not None, "the scenario records entries"
    return np.where(result.wqe_placed_ps < 1 << 63, result.wqe_placed_ps.astype(float), math.inf)


def steady(result: Result) -> dict[str, float]:
    """Mean rate of equal Writes from a quarter of the time to the first completion on, GB/s."""
    placed = _placed(result)
    bins = np.array(result.plane_bins, float).sum(axis=0)
    end = int(placed.min() / BIN_PS)
    return standard(result) | {"busbw": float(bins[end // 4 : end].mean()) * 1e3 / BIN_PS / len(placed)}


def judge_p6(sheets: Sheets) -> Finding:
    """A link of one plane of eight costs next to nothing, of a single plane its share; a port costs its share."""
    rows = sheets[0]
    costs = {row.setup.labels: 1 - row.median("kept") for row in rows}
    names = list(dict.fromkeys(row.setup.labels[0] for row in rows))
    link, single, port = (
        {name: costs[name, planes, what, "endpoints"] for name in names}
        for planes, what in (("8", LINK), ("1", LINK), ("8", PORT))
    )
    told = "; ".join(
        f"{name}: link {link[name]:.2%}, single plane {single[name]:.2%}, port {port[name]:.2%}" for name in names
    )
    switched = "; ".join(f"{name} {costs[name, '8', LINK, 'switches']:.2%}" for name in names)
    return Finding(
        f"{told}; a link of 8 planes that the switches avoid: {switched}",
        f"published {LINK_COST:.1%}, {SINGLE_COST:.0%} and {PORT_COST:.1%}; links counted: {1 / 8 / UPLINKS:.2%}, "
        f"{1 / UPLINKS:.2%} and {1 / 8:.1%}",
        (
            Check("a T0-T1 link of one of 8 planes costs at most 1 %", _costly(link, 0.01)),
            Check("of a single plane at most 5 %", _costly(single, 0.05)),
            Check(
                "and more than with 8 planes",
                tuple(
                    f"{name}: {single[name]:.2%} after {link[name]:.2%}" for name in names if single[name] <= link[name]
                ),
            ),
            Check(
                f"one port of 8 costs its host {PORT_COST:.1%} (to {PORT_WITHIN:.1%})",
                tuple(f"{name}: {cost:.2%}" for name, cost in port.items() if abs(cost - PORT_COST) > PORT_WITHIN),
            ),
        ),
    )


def _costly(costs: dict[str, float], most: float) -> tuple[str, ...]:
    return tuple(f"{name}: {cost:.2%}" for name, cost in costs.items() if cost > most)


FAT_TREE = "fat-tree-128"


def p8(quick: bool) -> Target:
    """A permutation and an incast of seven."""
    size = 4 if quick else 8
    transports = {
        "mrc": "mrc",
        "metaroce": "metaroce",
        "RoCEv2 1 QP, NIC DCQCN": "rocev2-1qp",
        "RoCEv2 1 QP, paper DCQCN": {"kind": "rocev2-1qp", "dcqcn": "paper"},
    }
    mix = tuple(Setup((name,), _permuted(transport, size), use) for name, transport in transports.items())
    incasts = tuple(
        Setup(
            (name,),
            scenario(f"mr.Incast(senders={SENDERS}, bytes={4 * MIB})", topology=FAT_TREE, transport=transport),
        )
        for name, transport in transports.items()
    )
    figures = (
        Figure("together", "of line rate", "while all send", "{:.1%}"),
        Figure("mean", "of line rate", "mean flow", "{:.1%}"),
    )
    return Target(
        "P8",
        "permutation of 432 hosts on a fat tree: NDP uses 92 %, DCTCP and DCQCN about 40 %; 7:1 incast within 5 % of "
        "the optimum (NDP, SIGCOMM 2017, second-hand)",
        f"{FAT_TREE} (128 hosts at 100 Gbit/s, full bisection) for 432 hosts, {size} MiB from every host; 7:1 incast "
        "of 4 MiB there; mrc and metaroce spray as NDP does, but have windows by marks where NDP's receivers pull and "
        "switches trim",
        (
            Sheet(f"Permutation, {size} MiB", ("transport",), (*figures, LINE, TIME, RESENT), mix),
            Sheet("7:1 incast, 4 MiB each", ("transport",), (LINE, TIME, RESENT), incasts),
        ),
        judge_p8,
    )


def _permuted(transport: object, size: int) -> str:
    recorded = {"record_wqes": True, "record_bin": f"{BIN_PS}ps"}
    return scenario(f"mr.Permutation(bytes={size * MIB})", topology=FAT_TREE, transport=transport, **recorded)


def use(result: Result) -> dict[str, float]:
    """Shares of the hosts' ports: while every flow has data, and of a flow from start to end, mean."""
    line = result.payload_line_rate_bps / 8e9
    placed = _placed(result)
    rates = result.size_bytes * 1e3 / placed
    bins = np.array(result.plane_bins, float).sum(axis=0)
    together = float(bins[: int(placed.min() / BIN_PS)].mean()) * 1e3 / BIN_PS / result.ranks
    return standard(result) | {"together": together / line, "mean": float(rates.mean()) / line}


def judge_p8(sheets: Sheets) -> Finding:
    """Spraying fills the fat tree, a route a flow does not; and an incast fills its receiver's port."""
    mix, incasts = sheets
    sprayed, hashed = mix[:2], mix[2:]
    told = ", ".join(f"{row.name} {row.median('together'):.1%}" for row in mix)
    filled = ", ".join(f"{row.name} {row.median('of_line'):.1%}" for row in incasts)
    off = " and ".join(f"{row.median('together') - 0.4:+.1%}" for row in hashed)
    return Finding(
        f"permutation {told} while all send; 7:1 incast {filled} of the receiver's rate",
        f"92 %: mrc {sprayed[0].median('together') - 0.92:+.1%}, metaroce {sprayed[1].median('together') - 0.92:+.1%} "
        f"of line rate; 40 %: DCQCN {off}",
        (
            Check(
                f"spraying uses at least {SPRAYED:.0%}",
                failures(sprayed, lambda row: row.median("together") >= SPRAYED, _together),
            ),
            Check(
                f"DCQCN on one route a flow at most {HASHED:.0%}",
                failures(hashed, lambda row: row.median("together") <= HASHED, _together),
            ),
            Check(
                f"spraying takes a 7:1 incast to {OPTIMUM:.0%} of the receiver's rate",
                failures(
                    incasts[:2],
                    lambda row: row.median("of_line") >= OPTIMUM,
                    lambda row: f"{row.median('of_line'):.1%}",
                ),
            ),
        ),
    )


def _together(row: Row) -> str:
    return f"{row.median('together'):.1%}"
