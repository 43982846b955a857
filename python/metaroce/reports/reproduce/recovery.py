"""P10 to P12: go-back-N and selective repeat under loss, and selective repeat without PFC against RoCE with it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...result import Result
from ...units import format_size, parse_probability
from .analysis import crossings
from .loss import LINE, RESENT, TIME, TIMEOUTS
from .model import (
    MIB,
    Check,
    Figure,
    Finding,
    Measure,
    Raw,
    Row,
    Setup,
    Sheet,
    Sheets,
    Target,
    failures,
    scenario,
    standard,
)

LONE: Mapping[str, Mapping[str, object]] = {
    "go-back-N, 67 ms": {"kind": "rocev2-67ms"},
    "go-back-N, adaptive": {"kind": "rocev2-adaptive"},
    "selective repeat": {"kind": "rocev2-sr"},
}
"""Kinds of one QP alone on its path; no window and no DCQCN, so that recovery alone decides."""
ALONE = {"qps": 1, "window_percent": 0, "dcqcn": "off"}
COLLAPSED, BETTER = 0.1, 0.5
"""Share of the line rate that is "about 0" beyond 1 % (at most), and of a better rule at 1 % (at least) (*ours*)."""
FACTOR, FCT_FACTOR = 5, 2
"""Selective repeat over go-back-N at 1 %: goodput (published: 13.5), mean completion time (published: 3 to 6), at least
(*ours*)."""
GAP_US = 1_000_000
"""Between messages whose completion times are taken: none waits for another."""
LIMIT = "5s"


def _pair(gbps: int) -> Raw:
    """Two hosts on a switch, 10 us round trip."""
    link = {"rate": f"{gbps}Gbps", "delay": "2.4us", "queue": "4MiB"}
    return Raw(f"mr.topology.LeafSpine(planes=1, leaves=1, spines=1, hosts_per_leaf=2, link={link})")


def _write(gbps: int, mib: int, loss: str, transport: Mapping[str, object]) -> str:
    return scenario(
        f"mr.Flows(writes=[(0, 1, {mib * MIB})])",
        topology=_pair(gbps),
        transport={**transport, **ALONE},
        loss=loss,
        time_limit=LIMIT,
    )


_GOODPUT = (
    Figure("busbw", "goodput", "GB/s", "{:.3f}", "< "),
    Figure("of_line", "of line", "rate", "{:.2%}", "< "),
    RESENT,
    TIMEOUTS,
    Figure("time_us", "time", "us", "{:.0f}", "> "),
)


def p10(quick: bool) -> Target:
    """One long Write over 40 Gbit/s by loss."""
    size = 64 if quick else 256
    losses = ("0", "0.1%", "1%", "2%", "5%") if quick else ("0", "0.01%", "0.1%", "0.5%", "1%", "2%", "5%", "10%")
    rows = tuple(
        Setup((name, loss), _write(40, size, loss, transport)) for name, transport in LONE.items() for loss in losses
    )
    return Target(
        "P10",
        "40G go-back-N: about 0 beyond 1 % loss; about 60 % with a better rule for NAKs (ICCCN 2019, 8846946, "
        "abstract)",
        f"one Write of {size} MiB between two hosts, 40 Gbit/s, 10 us round trip, at loss {', '.join(losses)}, stopped "
        f"at {LIMIT}; 1 QP without window and DCQCN; the better rule here is selective repeat, the published one is "
        "not modelled",
        (Sheet("Goodput by loss", ("recovery", "loss"), _GOODPUT, rows),),
        judge_p10,
    )


def judge_p10(sheets: Sheets) -> Finding:
    """With its timers go-back-N is gone beyond 1 %; the better rule is not."""
    lines = {name: [row for row in sheets[0] if row.setup.labels[0] == name] for name in LONE}
    old = [row for name, rows in lines.items() if name.startswith("go-back-N") for row in rows]
    beyond = [row for row in old if parse_probability(row.setup.labels[1]) > 0.01]
    at_one = {name: next(row for row in rows if row.setup.labels[1] == "1%") for name, rows in lines.items()}
    better = at_one["selective repeat"]
    where = []
    for name, rows in lines.items():
        lossy = [row for row in rows if row.setup.labels[1] != "0"]
        xs = [parse_probability(row.setup.labels[1]) for row in lossy]
        found = crossings(xs, [row.median("of_line") for row in lossy], 0.6)
        where.append(f"{name} {' and '.join(f'at {x:.2%}' for x in found) if found else 'not on it'}")
    return Finding(
        "of line rate at 1 %: " + ", ".join(f"{name} {_line(row)}" for name, row in at_one.items()),
        f"60 % of line rate: {'; '.join(where)}; 'about 0' beyond 1 %: at most "
        f"{max(row.median('of_line') for row in beyond):.1%}",
        (
            *(
                Check(
                    f"{name}: at most {COLLAPSED:.0%} of the line rate beyond 1 %",
                    failures(
                        [row for row in beyond if row.setup.labels[0] == name],
                        lambda row: row.median("of_line") <= COLLAPSED,
                        _line,
                    ),
                )
                for name in list(LONE)[:2]
            ),
            Check(
                f"a better rule has at least {BETTER:.0%} at 1 %",
                failures([better], lambda row: row.median("of_line") >= BETTER, _line),
            ),
        ),
    )


def _line(row: Row) -> str:
    return f"{row.median('of_line'):.1%}"


def p11(quick: bool) -> Target:
    """The same at 100 Gbit/s and 1 %, and completion times of messages that do not meet."""
    size, count = (64, 200) if quick else (512, 1000)
    lengths = (64 << 10,) if quick else (16 << 10, 64 << 10, 1 << 20)
    goodput = tuple(Setup((name,), _write(100, size, "1%", transport)) for name, transport in LONE.items())
    times = tuple(
        Setup((format_size(length), name), _apart(length, count, transport), apart)
        for length in lengths
        for name, transport in LONE.items()
    )
    fct = tuple(Figure(f"fct_{p}_us", f"{p} FCT", "us", "{:.1f}", "> ") for p in ("mean", "p50", "p99"))
    return Target(
        "P11",
        "selective repeat in an FPGA at 1 % loss: 13.5 times the goodput of Writes and 15.6 times that of Reads of a "
        "go-back-N NIC; flow completion times 3 to 6 times shorter (RoSR, 3594110, abstract)",
        f"two hosts, 100 Gbit/s, 10 us round trip, 1 % loss, 1 QP without window and DCQCN; one Write of {size} MiB; "
        f"{count} Writes one by one of {', '.join(map(format_size, lengths))}; Writes alone: selective repeat here "
        "refuses Reads",
        (
            Sheet(f"Goodput of a Write of {size} MiB at 1 %", ("recovery",), _GOODPUT, goodput),
            Sheet("Completion times at 1 %", ("size", "recovery"), (*fct, RESENT, TIMEOUTS), times),
        ),
        judge_p11,
    )


def _apart(length: int, count: int, transport: Mapping[str, object]) -> str:
    return scenario(
        f"mr.Flows(writes=[(0, 1, {length}, i * {GAP_US * 1_000_000}) for i in range({count})])",
        topology=_pair(100),
        transport={**transport, **ALONE},
        loss="1%",
        record_wqes=True,
    )


def apart(result: Result) -> dict[str, float]:
    """The usual, and completion times of P11's messages, each from its start."""
    return standard(result) | completion(result, GAP_US * 1_000_000)


def together(result: Result) -> dict[str, float]:
    """The same of messages that all start with the run."""
    return standard(result) | completion(result, 0)


def arriving(result: Result) -> dict[str, float]:
    """The same of P12's mix."""
    return standard(result) | completion(result, EVERY_US * 1_000_000)


def completion(result: Result, every: int) -> dict[str, float]:
    """Completion times of messages that a sender starts each ``every`` ps, senders evenly apart within that time.

    Entries are by sender, as many of each; a message that did not end in a run that was stopped never ends.
    """
    assert result.wqe_placed_ps is not None, "the scenario records entries"
    placed = np.where(result.wqe_placed_ps < 1 << 63, result.wqe_placed_ps.astype(float), math.inf)
    senders = 1 if result.ranks == 2 else result.ranks  # of two hosts one sends
    if every:
        rows = placed.reshape(senders, -1)
        starts = np.arange(rows.shape[1]) * every + np.arange(senders)[:, None] * (every // senders)
        placed = (rows - starts).ravel()
    return {"fct_mean_us": float(placed.mean()) / 1e6} | {
        f"fct_p{share}_us": float(np.percentile(placed, share, method="inverted_cdf")) / 1e6 for share in (50, 99)
    }


def judge_p11(sheets: Sheets) -> Finding:
    """Selective repeat is far ahead of go-back-N in goodput and in completion times."""
    goodput, times = sheets
    old, repeat = goodput[:2], goodput[2]
    factors = {row.name: repeat.median("busbw") / row.median("busbw") for row in old}
    shorter: dict[str, float] = {}
    for size in dict.fromkeys(row.setup.labels[0] for row in times):
        *rivals, own = (row for row in times if row.setup.labels[0] == size)
        shorter |= {row.name: row.median("fct_mean_us") / own.median("fct_mean_us") for row in rivals}
    return Finding(
        "selective repeat has "
        + ", ".join(f"{x:.1f} times the goodput of {name}" for name, x in factors.items())
        + "; mean completion times shorter by "
        + ", ".join(f"{x:.1f} ({name})" for name, x in shorter.items()),
        f"13.5 {_among(list(factors.values()), 13.5, 13.5)} the two timers ({min(factors.values()):.1f} to "
        f"{max(factors.values()):.1f}); 3 to 6 {_among(list(shorter.values()), 3, 6)} sizes and timers "
        f"({min(shorter.values()):.1f} to {max(shorter.values()):.1f}); Reads: not on it",
        (
            *(
                Check(f"at least {FACTOR} times the goodput of {name}", () if x >= FACTOR else (f"{x:.1f} times",))
                for name, x in factors.items()
            ),
            Check(
                f"mean completion times at least {FCT_FACTOR} times shorter, at every size and timer",
                tuple(f"{name}: {x:.1f}" for name, x in shorter.items() if x < FCT_FACTOR),
            ),
        ),
    )


def _among(values: list[float], low: float, high: float) -> str:
    return "lies between those of" if min(values) <= high and max(values) >= low else "is not on it: outside"


HOSTS, EVERY_US, MESSAGES = 128, 14, 64
"""Hosts of the fat tree; a message of each this often, 70 % of 100 Gbit/s; messages of a host."""
_SMALL, _LARGE = 16 << 10, 1 << 20


def p12(quick: bool) -> Target:
    """Three workloads, with DCQCN and without."""
    mixed = MESSAGES // 4 if quick else MESSAGES
    workloads: dict[str, tuple[str, Measure]] = {
        "permutation 4 MiB": (f"mr.Permutation(bytes={4 * MIB})", together),
        "incast 32:1, 1 MiB": (f"mr.Incast(senders=32, bytes={MIB})", together),
        "mixed, 70 % load": (_mixed(mixed), arriving),
    }
    setups = tuple(
        Setup((name, control, label), _fat_tree(workload, transport, dcqcn), measure)
        for name, (workload, measure) in workloads.items()
        for control, dcqcn in (("none", "off"), ("DCQCN", "nic"))
        for label, transport in _SIDES.items()
    )
    fct = tuple(Figure(f"fct_{p}_us", f"{p} FCT", "us", "{:.0f}", "> ") for p in ("mean", "p50", "p99"))
    return Target(
        "P12",
        "IRN without PFC against RoCE with PFC: 6 to 83 % better (IRN, SIGCOMM 2018, arXiv 1806.08159, abstract)",
        f"fat-tree-128 (128 hosts at 100 Gbit/s), 1 QP a pair, no random loss; selective repeat with a window of one "
        "bandwidth-delay product against go-back-N on a lossless class without window; a permutation, an incast and a "
        f"mix ({mixed} messages a host, 9 of 10 of 16 KiB, others 1 MiB, 70 % of the rate); by mean completion time",
        (Sheet("Completion times", ("workload", "control", "transport"), (*fct, TIME, RESENT, LINE), setups),),
        judge_p12,
    )


_SIDES: Mapping[str, Mapping[str, object]] = {
    "IRN, no PFC": {"kind": "rocev2-sr", "qps": 1, "window_percent": 100},
    "RoCE, PFC": {"kind": "rocev2-pfc", "qps": 1, "window_percent": 0},
}


def _fat_tree(workload: str, transport: Mapping[str, object], dcqcn: str) -> str:
    return scenario(workload, topology="fat-tree-128", transport={**transport, "dcqcn": dcqcn}, record_wqes=True)


def _mixed(count: int) -> str:
    """Hosts start one after the other within `EVERY_US`, so that no two messages start at once."""
    step = EVERY_US * 1_000_000
    return (
        f"mr.Flows(writes=[(i, (i + 1 + (37 * k + 11 * i) % {HOSTS - 1}) % {HOSTS}, "
        f"{_SMALL} if (k + i) % 10 else {_LARGE}, k * {step} + i * {step // HOSTS}) "
        f"for i in range({HOSTS}) for k in range({count})])"
    )


def judge_p12(sheets: Sheets) -> Finding:
    """Without PFC ahead of it, in every workload."""
    better = {}
    for own, rival in zip(sheets[0][::2], sheets[0][1::2], strict=True):
        better[", ".join(own.setup.labels[:2])] = rival.median("fct_mean_us") / own.median("fct_mean_us") - 1
    told = {name: f"{name} {x:+.0%}" for name, x in better.items()}
    inside = [name for name, x in better.items() if 0.06 <= x <= 0.83]
    return Finding(
        "mean completion time of RoCE with PFC over that of IRN without: " + "; ".join(told.values()),
        f"6 to 83 % holds {len(inside)} of {len(better)} of them" + (f": {'; '.join(inside)}" if inside else ""),
        (
            Check(
                "IRN without PFC has the shorter mean completion time in the mix (the published kind of load)",
                tuple(text for name, text in told.items() if name.startswith("mixed") and better[name] <= 0),
            ),
            Check(
                "and in the permutation and the incast (ours)",
                tuple(text for name, text in told.items() if not name.startswith("mixed") and better[name] <= 0),
            ),
        ),
    )
