"""Load balancing around RoCEv2 on the real core: QPs and their ports and planes, and what switches do with them."""

import json

import pytest

import metaroce as mr
from metaroce.cli import main
from metaroce.config import TransportChoice

pytest.importorskip("metaroce._core", reason="the compiled core is not built")

LINE = {"kind": "rocev2", "qps_per_plane": 1, "window_percent": 200, "dcqcn": "off"}
"""One QP that its window lets send at line rate."""


def run(transport, topology="single-plane-64", bytes_=4 << 20, **changes):
    model = mr.topology.load(topology).replace(**changes) if changes else mr.topology.load(topology)
    return mr.run(mr.Scenario(topology=model, workload=mr.Permutation(bytes=bytes_), transport=transport, seed=1))


def test_pinned_routes_bring_a_permutation_to_the_ideal_where_hashes_collide():
    idle = mr.run(mr.Scenario(topology="single-plane-64", workload=mr.Flows(writes=[(0, 1, 4 << 20)]), transport=LINE))
    pinned, hashed = run(LINE, balance="pinned"), run(LINE)
    # Acknowledgements share the links, a fiftieth of the data.
    assert pinned.time_us <= 1.02 * idle.time_us
    assert hashed.time_us > 2 * idle.time_us


def test_spraying_costs_go_back_n_its_goodput_without_any_loss():
    plain, sprayed = run(LINE), run(LINE, balance="spray")
    assert (plain.retransmitted, plain.counters["dropped_loss"]) == (0, 0)
    assert sprayed.counters["dropped_loss"] == 0
    assert sprayed.retransmitted > 0.5
    assert sprayed.time_us > 5 * plain.time_us
    tolerant = {"kind": "metaroce", "gap_threshold": 16}
    alone, among = run(tolerant), run(tolerant, balance="spray")
    assert among.retransmitted == 0
    assert among.time_us < 1.2 * alone.time_us
    # With the rule for paths that keep their order it takes reordering for loss, and resends that alone.
    assert run("metaroce", balance="spray").time_us < 2 * alone.time_us


def test_hashing_the_qp_stands_in_for_ports_that_do_not_differ():
    eight = LINE | {"qps_per_plane": 8, "window_percent": 25}
    hashed = run(eight, ecmp="mixed")
    assert run(eight | {"qp_ports": "same"}, ecmp="qp").time_us < 1.2 * hashed.time_us
    assert run(eight | {"qp_ports": "same"}, ecmp="mixed").time_us > 2 * hashed.time_us


def test_a_pair_can_have_one_qp_in_all():
    def planes(**qps):
        flow = mr.Flows(writes=[(0, 1, 4 << 20)])
        result = mr.run(mr.Scenario(workload=flow, transport={"kind": "rocev2", "window_percent": 200, **qps}))
        return sum(sent > 0 for sent in result.plane_bytes)

    assert [planes(qps=n) for n in (1, 2, 3, 4, 6)] == [1, 2, 3, 4, 4]
    assert planes() == planes(qps=0) == planes(qps_per_plane=1) == 4
    assert planes(qps=1, qps_per_plane=8) == 1


def test_one_qp_in_all_still_uses_every_plane_over_many_pairs():
    alltoall = mr.Collective(kind="alltoall", size="1MiB")
    sent = {}
    for qp_planes in ("in-turn", "hashed"):
        transport = {"kind": "rocev2", "qps": 1, "qp_planes": qp_planes, "window_percent": 200}
        sent[qp_planes] = mr.run(
            mr.Scenario(workload=alltoall, transport=transport, ranks=16, placement="packed")
        ).plane_bytes
    assert max(sent["in-turn"]) < 1.3 * min(sent["in-turn"])
    assert max(sent["hashed"]) < 2 * min(sent["hashed"])


@pytest.mark.parametrize("balance", ["flowlet", "flowlet-random", "spray", "spray-least", "pinned"])
@pytest.mark.parametrize("transport", sorted(mr.TRANSPORTS))
def test_every_transport_delivers_every_byte_however_switches_balance(balance, transport):
    model = mr.topology.load("multiplane-4x64").replace(balance=balance)
    faults = [{"at": "5us", "target": "link", "a": "p1.leaf0", "b": "p1.spine3"}]
    workload = mr.Collective(kind="alltoall", size="128KiB")
    result = mr.run(
        mr.Scenario(topology=model, workload=workload, transport=transport, faults=faults, ranks=16, check=True)
    )
    assert (result.status, result.wrong) == ("done", 0)
    assert result.resolved["seed"] == 1


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    digests = [run(LINE, balance="spray", bytes_=1 << 18).digest for _ in range(2)]
    assert digests[0] == digests[1]
    model = mr.topology.load("single-plane-64").replace(balance="spray")
    other = mr.Scenario(topology=model, workload=mr.Permutation(bytes=1 << 18), transport=LINE, seed=2)
    assert mr.run(other).digest != digests[0]


def test_a_transport_may_need_settings_of_the_switches():
    needs = TransportChoice("rocev2", "pinned", {"dcqcn": "off"}, {"balance": "pinned"})
    model = mr.topology.load("single-plane-64")
    # What the topology says of flowlets has no meaning any more.
    flowlets = model.replace(balance="flowlet", flowlet_gap="50us")
    workload = mr.Permutation(bytes=1 << 18)
    given = mr.Scenario(topology=flowlets, workload=workload, transport=needs)
    same = mr.Scenario(
        topology=model.replace(balance="pinned"), workload=workload, transport={"kind": "rocev2", "dcqcn": "off"}
    )
    assert mr.run(given).digest == mr.run(same).digest


def test_options_of_the_command_line_are_those_of_the_topology(capsys):
    command = ["compare", "alltoall", "-b", "64KiB", "--ranks", "8", "--loss", "0", "--transport", "rocev2-adaptive"]
    assert main([*command, "--balance", "spray", "--ecmp", "mixed", "--json"]) == 0
    [cell] = json.loads(capsys.readouterr().out)["cells"]
    model = mr.topology.load("multiplane-4x64").replace(balance="spray", ecmp="mixed")
    workload = mr.Collective(kind="alltoall", size="64KiB")
    result = mr.run(mr.Scenario(topology=model, workload=workload, transport="rocev2-adaptive", ranks=8))
    assert cell["time_us"] == result.time_us
    assert main([*command, "--balance", "spray", "--ecmp", "mixed"]) == 0
    assert "ECMP mixed, spray" in capsys.readouterr().out
    assert main([*command, "--balance", "luck"]) == 2
    assert "balance = 'luck': must be 'ecmp'" in capsys.readouterr().err
