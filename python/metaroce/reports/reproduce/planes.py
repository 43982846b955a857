"""R4 and R5: bandwidth in proportion to planes, and a plane that dies and comes back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...result import Result
from .analysis import back_in_share, recovered, spread
from .loss import BUSBW, LINE, TIME, collective
from .model import Check, Figure, Finding, Raw, Setup, Sheet, Sheets, Target, failures, scenario, standard

LINEAR = 0.97
"""Share of N times the bandwidth of one plane that counts as linear (*ours*)."""
HOSTS = 64
DOWN_US, UP_US, BIN_US, PLANE = 150, 350, 10, 1
MESSAGE, MESSAGES = 64 << 10, 200
"""A stream of messages from every host to one other: bytes of one, how many of them a plane."""
RECOVERED_US, BACK_US, EVEN = 50, 150, 0.05
"""Data in flight is recovered within this and one round trip; a repaired plane has its share after that; shares are
even within that fraction (*ours*)."""
DIP = 0.03
"""What a bin may lie below (N-1)/N: its own noise, and what is sent again (*ours*)."""


def _fabric(planes: int) -> Raw:
    return Raw(f'mr.topology.load("multiplane-4x64").replace(planes={planes})')


def r4(quick: bool) -> Target:
    """Weak scaling over planes, and over connections on 8 planes against one."""
    ring, direct, share = (8, 4, 4) if quick else (32, 16, 8)
    counts, lossy = ((1, 4), ()) if quick else ((1, 2, 4, 8), (1, 4))
    figures = (BUSBW, LINE, Figure("kept", "of linear", "", "{:.1%}", "< "))
    sheets = [
        Sheet(
            f"{kind}, {size} MiB a rank and plane ({connections} connections)",
            ("planes", "loss"),
            figures,
            tuple(
                Setup(
                    (str(planes), loss),
                    collective(kind, f"{size * planes}MiB", loss, topology=_fabric(planes)),
                    reference=collective(kind, f"{size}MiB", loss, topology=_fabric(1)),
                    times=planes,
                    goal="97 % of linear" if planes > 1 else "",
                )
                for loss, numbers in (("0", counts), ("1%", lossy if kind == "all_reduce" else ()))
                for planes in numbers
            ),
        )
        for kind, size, connections in (("all_reduce", ring, HOSTS), ("alltoall", direct, HOSTS * (HOSTS - 1)))
    ]
    many = tuple(
        Setup(
            (str(HOSTS * peers), "8"),
            _flows(peers, 8, share << 20),
            reference=_flows(peers, 1, share << 20),
            times=8,
        )
        for peers in ((4, 63) if quick else (1, 4, 16, 63))
    )
    sheets.append(
        Sheet(f"Writes, {share} MiB a host and plane, by connections", ("connections", "planes"), figures, many)
    )
    return Target(
        "R4",
        "4 and 8 planes, up to 4,000 concurrent connections: throughput linear in the number of planes",
        f"planes {', '.join(map(str, counts))} of 200 Gbit/s, size in proportion; 64 hosts with 1 to 63 peers each on "
        f"8 planes ({HOSTS} to {HOSTS * 63} connections) against the same on one",
        tuple(sheets),
        judge_r4,
    )


def _flows(peers: int, planes: int, size: int) -> str:
    """Every host writes to the next `peers`, all at once, `size` bytes a plane in all."""
    each = size * planes // peers // 4096 * 4096
    rows = f"(i, (i + k) % {HOSTS}, {each}) for i in range({HOSTS}) for k in range(1, {peers + 1})"
    return scenario(f"mr.Flows(writes=[{rows}])", topology=_fabric(planes))


def judge_r4(sheets: Sheets) -> Finding:
    """At least `LINEAR` of N times one plane, everywhere."""
    rows = [row for sheet in sheets for row in sheet if row.setup.times > 1]
    shares = [row.median("kept") for row in rows]
    short = failures(rows, lambda row: row.median("kept") >= LINEAR, lambda row: f"{row.median('kept'):.1%} of linear")
    most = max(int(row.setup.labels[0]) for row in sheets[2])
    return Finding(
        f"{min(shares):.1%} to {max(shares):.1%} of linear up to 8 planes and {most} connections",
        "'linear' is 100 %; a plane of this model shares nothing with another but the host",
        (Check(f"at least {LINEAR:.0%} of N times one plane at every N, loss and number of connections", short),),
    )


def r5(quick: bool) -> Target:
    """Death in the middle of a checked AllReduce, and of a stream of messages; there the plane comes back."""
    size = "8MiB"
    sheets = (
        Sheet(
            f"AllReduce {size}, every element compared; plane {PLANE} of 4 dies at {DOWN_US} us and stays dead",
            ("loss", "fault"),
            (
                Figure("wrong", "wrong", "elements", "{:.0f}"),
                Figure("checked", "compared", "elements", "{:.0f}"),
                Figure("stopped", "stalled", "runs", "{:.0f}"),
                TIME,
                Figure("kept", "busbw of", "undisturbed", "{:.1%}"),
            ),
            tuple(
                Setup(
                    (loss, f"at {DOWN_US} us" if fault else "none"),
                    _ring(size, loss, fault),
                    checked,
                    reference=_ring(size, loss, False),
                )
                for loss in ("0",) + (() if quick else ("1%",))
                for fault in (False, True)
            ),
        ),
        Sheet(
            f"Stream of {MESSAGE >> 10} KiB Writes to one peer a host; plane {PLANE} is down {DOWN_US} to {UP_US} us",
            ("planes", "loss"),
            (
                Figure("least_bin", f"least {BIN_US} us", "of (N-1)/N", "{:.1%}"),
                Figure("others", "least of a", "other plane", "{:.1%}"),
                Figure("recovered_us", "recovered", "us", "{:.1f}"),
                Figure("trip_us", "round trip", "us", "{:.1f}"),
                Figure("back_us", "back after", "us", "{:.0f}"),
                Figure("uneven", "shares", "apart", "{:.1%}"),
                Figure("stopped", "stalled", "runs", "{:.0f}"),
            ),
            tuple(
                Setup((str(planes), loss), _stream(planes, loss), outage)
                for planes, loss in ([(4, "0")] if quick else [(4, "0"), (4, "1%"), (8, "0")])
            ),
        ),
    )
    return Target(
        "R5",
        "a plane fails during the run: traffic moves to the others by itself; no application error, no operator",
        f"AllReduce with payload, and 64 streams of Writes; no signal but silence; bins of {BIN_US} us; recovered: "
        "all that had been sent at the fault is placed",
        sheets,
        judge_r5,
    )


def _ring(size: str, loss: str, fault: bool) -> str:
    fields: dict[str, Any] = {"faults": [{"at": f"{DOWN_US}us", "target": "plane", "id": PLANE}]} if fault else {}
    return collective("all_reduce", size, loss, check=True, **fields)


def _stream(planes: int, loss: str) -> str:
    plane = {"target": "plane", "id": PLANE}
    faults = [{"at": f"{DOWN_US}us", **plane}, {"at": f"{UP_US}us", **plane, "up": True}]
    rows = f"(i, (i + 1) % {HOSTS}, {MESSAGE}) for i in range({HOSTS}) for _ in range({MESSAGES * planes})"
    recorded = {"record_bin": f"{BIN_US}us", "record_wqes": True, "record_paths": f"{DOWN_US}us"}
    return scenario(f"mr.Flows(writes=[{rows}])", topology=_fabric(planes), faults=faults, loss=loss, **recorded)


def checked(result: Result) -> dict[str, float]:
    """The usual, and elements."""
    wrong = math.inf if result.wrong is None else float(result.wrong)
    return standard(result) | {"wrong": wrong, "checked": float(result.checked)}


def outage(result: Result) -> dict[str, float]:
    """Throughput, recovery and return around the fault of one plane."""
    assert result.connections is not None, "the scenario records paths"
    assert result.wqe_placed_ps is not None, "the scenario records entries"
    bins, connections = np.array(result.plane_bins, float), result.connections
    down, up = DOWN_US // BIN_US, UP_US // BIN_US
    last = int(result.time_us * 0.9) // BIN_US  # then the first streams end
    before = bins[:, down // 3 : down].mean(axis=1)
    left = len(bins) - 1
    during = bins[:, down:up].sum(axis=0) - bins[PLANE, down:up]
    others = np.delete(bins[:, down:last], PLANE, axis=0) / np.delete(before, PLANE)[:, None]
    back = back_in_share(bins, PLANE, up, last, EVEN)
    own = (connections["time_ps"] == DOWN_US * 1_000_000) & (connections["sent_bytes"] > 0)
    order = np.argsort(connections["src"][own])
    placed = result.wqe_placed_ps.reshape(HOSTS, -1).astype(float)[connections["src"][own][order]]
    moved = bins[:, back:last].sum(axis=1) if back is not None else np.zeros(len(bins))
    return {
        "least_bin": float(during.min() / (before.sum() * left / len(bins))),
        "others": float(others.min()),
        "recovered_us": recovered(placed, connections["sent_bytes"][own][order], MESSAGE, DOWN_US * 1e6) / 1e6,
        "trip_us": float(connections["least_rtt_ps"][own].max()) / 1e6,
        "back_us": math.inf if back is None else float(back * BIN_US - UP_US),
        "uneven": spread(moved),
        "stopped": float(result.status != "done"),
    }


def judge_r5(sheets: Sheets) -> Finding:
    """Nothing wrong, nothing stuck, the other planes never wait, and the plane has its share again."""
    rings, streams = sheets
    hurt = failures(
        rings, lambda row: sum(row.values["wrong"]) == 0, lambda row: f"{sum(row.values['wrong']):.0f} wrong"
    )
    dips = failures(
        streams, lambda row: row.median("least_bin") >= 1 - DIP, lambda row: f"{row.median('least_bin'):.1%}"
    )
    late = failures(
        streams,
        lambda row: row.median("recovered_us") <= RECOVERED_US + row.median("trip_us"),
        lambda row: f"{row.median('recovered_us'):.1f} us, round trip {row.median('trip_us'):.1f} us",
    )
    away = failures(
        streams,
        lambda row: row.median("back_us") <= BACK_US and row.median("uneven") <= EVEN,
        lambda row: f"{row.median('back_us'):.0f} us, {row.median('uneven'):.1%} apart",
    )
    first = streams[0]
    return Finding(
        f"no wrong element of {sum(map(sum, (row.values['checked'] for row in rings))):.3g}; the other planes carry "
        f"{first.median('others'):.1%} of what they did in their worst {BIN_US} us; data in flight recovered in "
        f"{first.median('recovered_us'):.0f} us, the plane back {first.median('back_us'):.0f} us after repair",
        "no figure was published",
        (
            Check("no wrong element", hurt),
            Check(f"(N-1)/N of the throughput in every {BIN_US} us of the outage (to {DIP:.0%})", dips),
            Check(f"data in flight recovered within {RECOVERED_US} us and a round trip", late),
            Check(f"share again within {BACK_US} us of repair, even to {EVEN:.0%}", away),
        ),
    )
