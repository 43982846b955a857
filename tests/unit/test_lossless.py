"""The lossless class from Python: its names, its pauses in results, its deadlock, and what it does to a victim."""

import json

import pytest

pytest.importorskip("metaroce._core", reason="the compiled core is not built")

import metaroce as mr
from metaroce.cli import main
from metaroce.topology import LeafSpine

MIB = 1 << 20
LINK = {"rate": "200Gbps", "delay": "600ns", "queue": "1MiB", "ecn": {"kmin": "50KiB", "kmax": "200KiB", "pmax": 0.2}}
PAUSE_ALONE = {"kind": "rocev2-pfc", "dcqcn": "off", "window_percent": 0}
"""RoCEv2 with nothing but PFC between it and full buffers."""
RING = mr.Flows(writes=[(rank, (rank + 3) % 7, 4 * MIB, 0) for rank in range(7)])


def fabric(**changes):
    return LeafSpine(**{"planes": 1, "leaves": 2, "spines": 4, "hosts_per_leaf": 8, "link": LINK, **changes})


def run(workload, transport, topology, **fields):
    return mr.run(mr.Scenario(topology=topology, workload=workload, transport=transport, placement="packed", **fields))


def test_the_name_makes_data_lossless_whatever_the_topology():
    incast = mr.Incast(senders=15, bytes=MIB)
    lossy = run(incast, {"kind": "rocev2-adaptive", "dcqcn": "off", "window_percent": 0}, fabric())
    lossless = run(incast, PAUSE_ALONE, fabric())
    assert lossy.counters["dropped_queue"] > 0
    assert (lossy.pauses, lossy.paused_us) == ([], 0)
    assert "pauses_sent" not in lossy.counters
    assert (lossless.counters["dropped_queue"], lossless.counters["dropped_headroom"]) == (0, 0)
    assert lossless.resolved["fabric"]["lossless"] is True
    assert lossless.resolved["fabric"]["pfc"]["xoff_shift"] == 3
    assert lossless.pauses
    assert sum(port["count"] for port in lossless.pauses) <= lossless.counters["pauses_sent"]
    assert lossless.paused_us == pytest.approx(lossless.counters["paused_ps"] / 1e6)
    assert {"host7 -> p0.leaf0", "p0.spine0 -> p0.leaf0"} <= {port["link"] for port in lossless.pauses}


def test_settings_of_a_topology_reach_the_core_and_are_refused_there():
    incast = mr.Incast(senders=15, bytes=MIB)
    half = run(incast, PAUSE_ALONE, fabric(pfc={"headroom_percent": 50}))
    assert half.counters["dropped_headroom"] > 0
    with pytest.raises(mr.ConfigError, match=r"fabric\.pfc\.headroom_bytes: 20000 .* at least \d+"):
        run(incast, PAUSE_ALONE, fabric(pfc={"headroom": "20KB"}))
    with pytest.raises(mr.ConfigError, match=r"fabric\.pfc\.buffer_bytes: 524288 .* at least \d+"):
        run(incast, PAUSE_ALONE, fabric(pfc={"buffer": "512KiB"}))
    with pytest.raises(mr.ConfigError, match=r"fabric\.trim: true"):
        run(incast, "rocev2-pfc", fabric(trim=True))
    with pytest.raises(mr.ConfigError, match=r"pfc\.key = 'headrom': unknown"):
        fabric(pfc={"headrom": "1KB"})


def test_explicit_queues_change_no_digest():
    alltoall = mr.Collective(kind="alltoall", size=MIB)
    fast, explicit = (run(alltoall, "metaroce", fabric(explicit_queues=on), seed=3) for on in (False, True))
    assert fast.digest == explicit.digest


def test_a_deadlock_is_an_error_that_names_its_cycle():
    with pytest.raises(mr.SimulationDeadlocked) as caught:
        run(RING, PAUSE_ALONE, "lossless-ring-7")
    cycle = caught.value.cycle
    assert cycle == [f"s{i} -> s{(i + 1) % 7}" for i in range(7)]
    assert caught.value.result.status == "deadlock"
    assert caught.value.flows
    assert str(caught.value).startswith("deadlock at ")
    assert ", ".join(cycle) in str(caught.value)
    assert isinstance(caught.value, mr.SimulationStalled)


def test_congestion_control_keeps_the_ring_from_its_deadlock():
    for transport in ("metaroce", "rocev2-pfc"):
        assert run(RING, transport, "lossless-ring-7").status == "done"


def test_compare_and_perf_tell_the_pauses(capsys, tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        'kind = "leaf-spine"\nplanes = 1\nleaves = 2\nspines = 2\nhosts_per_leaf = 4\n'
        '[link]\nrate = "200Gbps"\ndelay = "600ns"\nqueue = "1MiB"\n[host_link]\nrate = "400Gbps"\n'
        '[pfc]\nbuffer = "2MiB"\n'
    )
    place = ["--topology", str(file)]
    assert main(["compare", "alltoall", "--transport", "rocev2-pfc", "--loss", "0", "--size", "4MiB", *place]) == 0
    assert "alltoall rocev2 pfc at loss 0: " in capsys.readouterr().out
    options = ["--json", "--transport", "rocev2-pfc", "--transport", "metaroce", "--loss", "0", "--size", "4MiB"]
    assert main(["compare", "alltoall", *options, *place]) == 0
    of_pfc, of_metaroce = json.loads(capsys.readouterr().out)["cells"]
    assert of_pfc["pauses"] > 0
    assert of_pfc["paused_us"] > 0
    assert of_pfc["dropped"] == 0
    assert "pauses" not in of_metaroce
    document = tmp_path / "perf.json"
    arguments = ["alltoall_perf", "--transport", "rocev2-pfc", "-b", "4M", "-e", "4M", "-J", str(document), *place]
    assert main(arguments) == 0
    assert "# pauses out of place, in place: " in capsys.readouterr().out
    [(size, halves)] = json.loads(document.read_text())["metaroce"]["pauses"].items()
    assert size == str(4 * MIB)
    assert all(port["count"] > 0 and " -> " in port["link"] for half in halves for port in half)


def victim(transport, seed, incast):
    """Gbit/s of one flow between two leaves while seven others of its leaf overload another host of its target's."""
    sent, start = 4 * MIB, 50_000_000
    others = [(rank, 8, 16 * MIB, 0) for rank in range(7)] if incast else []
    result = run(mr.Flows(writes=[*others, (7, 9, sent, start)]), transport, fabric(), seed=seed, record_wqes=True)
    return sent * 8000 / (int(result.wqe_done_ps[-1]) - start)


def test_pauses_and_dcqcn_hurt_a_victim_and_control_by_path_does_not():
    """Published (MRC, 7:1 incast and a victim): unhurt; DCQCN -25 to -75 %; PFC alone a fraction of the rate."""
    settings = {
        "metaroce": "metaroce",
        "dcqcn": {"kind": "rocev2-pfc", "window_percent": 0},
        "pfc": PAUSE_ALONE,
    }
    kept = {}
    for name, transport in settings.items():
        shares = [victim(transport, seed, True) / victim(transport, seed, False) for seed in (1, 2, 3)]
        kept[name] = sum(shares) / len(shares)
    assert kept["metaroce"] > 0.97
    assert 0.2 < kept["dcqcn"] < 0.75
    assert kept["pfc"] < 0.3
    assert kept["pfc"] < kept["dcqcn"]
