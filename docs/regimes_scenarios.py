"""What the rows of docs/regimes.md name and measure, where it needs a few lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import metaroce as mr
from metaroce import verbs

STRETCH = (1.0, 1.02, 1.05, 1.1)
"""Delays of the planes of scale-across-2x32."""
SMALL = (8, 64, 512, 4096)
OPERATIONS = {
    "SEND": SMALL,
    "RDMA_WRITE_WITH_IMM": SMALL,
    "RDMA_WRITE": SMALL,
    "RDMA_READ": SMALL,
    "ATOMIC_FETCH_AND_ADD": (8,),
}
RATE_GBPS, DELAY_NS, SPACING_PS, BULK = 400, 100, 2_000_000, 12 << 20
HEADERS, ACK, REQUEST = 118, 118, 134
"""Bytes on the wire, preamble and gap included (rust/wire/src/lengths.rs)."""


def evaluate(text: str, seed: int) -> object:
    """What the text of a row is."""
    return eval(text, {"mr": mr, "S": seed, "haul": haul, "across": across, "idle": idle, "beside": beside})


def haul(ms: float) -> mr.topology.Topology:
    """scale-across-2x32 with a round trip of ``ms`` in plane 0, and 2, 5 and 10 % more in the others."""
    fabric = mr.topology.load("scale-across-2x32")
    first, *others = (f"{ms * 500_000 * stretch:.0f}ns" for stretch in STRETCH)
    planes = {plane: {"long_haul": {"delay": delay}} for plane, delay in enumerate(others, 1)}
    return fabric.replace(long_haul=fabric.long_haul.replace(delay=first), plane=planes)


def across(bdps: int, ms: float, hosts: int, seed: int, messages: int = 1) -> mr.Flows:
    """Both ways between ``hosts`` hosts of each site, one a leaf: messages of ``bdps`` x 100 Gbit/s x ``ms``, in a row."""
    size, ends = round(bdps * ms * 12_500_000), [8 * leaf for leaf in range(hosts)]
    pairs = [(a, 32 + ends[(i + seed) % hosts]) for i, a in enumerate(ends)]
    return mr.Flows(writes=[(*ends, size) for pair in pairs for ends in (pair, pair[::-1])] * messages)


def across_shares(scenario: mr.Scenario) -> Sequence[float]:
    """Of `across`: goodput done, placed, at best; efficiency done, placed; resends and duplicates."""
    run, rtt = mr.run(scenario.replace(record_wqes=True)), scenario.topology.long_haul.delay * 2 / 1e12
    done, placed = run.time_ps / 1e12, int(run.wqe_placed_ps.max()) / 1e12
    source, *_ = scenario.workload.writes[0]
    ideal = sum(size for end, _, size, *_ in scenario.workload.writes if end == source) * 8 / run.payload_line_rate_bps
    bound = ideal + rtt * STRETCH[-1] * (1.5 if scenario.loss.probability else 0.5)
    plain = (ideal / done, ideal / placed, ideal / bound)
    filled = ((ideal + rtt / 2) / done, (ideal + rtt / 2) / placed)
    return (*plain, *filled, run.retransmitted, run.counters["duplicate_packets"])


def _jain(rates: np.ndarray) -> float:
    return float(rates.sum() ** 2 / (len(rates) * (rates**2).sum()))


def incast(scenario: mr.Scenario) -> Sequence[float]:
    """Jain's indices, drops, late drops and trims, p50 and p99 of the senders' times, and the ideal time of all, us."""
    run = mr.run(scenario.replace(record_wqes=True))
    early = mr.run(scenario.replace(time_limit="100us")).counters["dropped_queue"]
    senders, drops = scenario.rank_count - 1, run.counters["dropped_queue"]
    placed_us, ideal_s = run.wqe_placed_ps[:senders] / 1e6, scenario.workload.bytes * 8 / run.payload_line_rate_bps
    groups = [placed_us[k::3] for k in range(3) if "storage" in scenario.topology.name]
    fair = [_jain(1 / group) for group in (*groups, placed_us)]
    packets = (drops / run.counters["data_packets_sent"], drops - min(drops, early), run.counters["packets_trimmed"])
    return (*fair, *packets, *np.percentile(placed_us, (50, 99)), ideal_s * senders * 1e6)


def granted(scenario: mr.Scenario) -> Sequence[float]:
    """Of an incast: senders within 5 % of their share 2 RTT after the first hint; without any; median half-way."""
    senders = scenario.rank_count - 1
    shown = tuple(range(1, senders + 1, max(1, senders // 100)))
    run = mr.run(scenario.replace(record_paths="5us", record_paths_ranks=shown))
    table, times = run.connections, np.unique(run.connections["time_ps"])
    hinted, rtt = times[np.isin(times, table["time_ps"][table["hint_bps"] > 0])][0], table["least_rtt_ps"].max()
    share = table["hint_bps"] * senders / 800e9
    soon, later = (share[table["time_ps"] == times[times >= at][0]] for at in (hinted + 2 * rtt, times[-1] // 2))
    return float((abs(soon - 1) < 0.05).mean()), float((soon == 0).mean()), float(np.median(later[later > 0]))


def idle(operation: str, size: int, seed: int) -> Sequence[float]:
    """Nanoseconds of one operation on an idle switch, one way where the peer gets a completion; the closed form."""
    context, (client, server, _) = _switch("0", seed)
    qp, far = _pair(client, server)
    mine, theirs = client.reg_mr(1 << 13), _remote(server)
    opcode = verbs.Opcode[operation]
    receive = far.post_recv(verbs.RecvWR(2, sge=(theirs, 0, 1 << 13)))
    fields = {"remote": (theirs.rkey, 0)} if opcode is not verbs.SEND else {}
    fields |= {"imm": 7} if opcode is verbs.RDMA_WRITE_WITH_IMM else {}
    fields |= {"add": 1} if opcode is verbs.ATOMIC_FETCH_AND_ADD else {}
    sent = qp.post_send(verbs.SendWR(1, opcode, sge=(mine, 0, size), **fields))
    context.run()
    form = _hops(HEADERS + size)
    if opcode.fetches:
        form += _hops(REQUEST) + ACK * 8 / RATE_GBPS
    elif opcode is verbs.RDMA_WRITE:
        form += _hops(ACK)
    return (receive.wc or sent.wc).time_ps / 1e3, form


def beside(bulk: str, loss: str, seed: int) -> Sequence[float]:
    """p50, p99 and maximum latency, ns, of 64-byte Sends from host 0 to host 1 with a bulk Write beside them."""
    context, domains = _switch(loss, seed)
    client, server, third = domains
    ends = {"same-connection": (client, server), "other-sender": (third, server), "other-receiver": (client, third)}
    if bulk in ends:
        source, target = ends[bulk]
        qp, _ = _pair(source, target)
        region = (source.reg_mr(BULK), 0, BULK)
        far = target.reg_mr(BULK, verbs.LOCAL_WRITE | verbs.REMOTE_WRITE)
        qp.post_send(verbs.SendWR(0, verbs.RDMA_WRITE, sge=region, remote=(far.rkey, 0)))
    qp, far = _pair(client, server)
    mine, theirs = client.reg_mr(64), _remote(server)
    times = [SPACING_PS * (k + 1) for k in range(100)]
    receives = [far.post_recv(verbs.RecvWR(k, sge=(theirs, 0, 64))) for k in range(100)]
    for k, at in enumerate(times):
        qp.post_send(verbs.SendWR(k, verbs.SEND, sge=(mine, 0, 64)), at=at)
    context.run()
    latencies = [(receive.wc.time_ps - at) / 1e3 for receive, at in zip(receives, times, strict=True)]
    return *np.percentile(latencies, (50, 99)), max(latencies)


def _switch(loss: str, seed: int) -> tuple[verbs.Context, list[verbs.PD]]:
    link = {"rate": f"{RATE_GBPS}Gbps", "delay": f"{DELAY_NS}ns", "queue": "1MiB"}
    link["ecn"] = {"kmin": "50KiB", "kmax": "200KiB", "pmax": 0.2}
    cables = [{"a": f"host{host}", "b": "s0"} for host in range(3)]
    fabric = mr.topology.Graph(hosts=3, switches=[{"name": "s0"}], links=cables, link=link)
    context = verbs.Context(topology=fabric, loss=loss, seed=seed)
    return context, [context.device(host).alloc_pd() for host in range(3)]


def _pair(a: verbs.PD, b: verbs.PD) -> tuple[verbs.QP, verbs.QP]:
    qp, far = (domain.create_qp(domain.device.create_cq()) for domain in (a, b))
    verbs.connect(qp, far)
    return qp, far


def _remote(domain: verbs.PD) -> verbs.MR:
    everything = verbs.LOCAL_WRITE | verbs.REMOTE_WRITE | verbs.REMOTE_READ | verbs.REMOTE_ATOMIC
    return domain.reg_mr(1 << 13, everything)


def _hops(wire_bytes: int) -> float:
    """Over two cables and a switch that stores and forwards."""
    return 2 * (wire_bytes * 8 / RATE_GBPS + DELAY_NS)
