"""Racks: accelerators with a host in a scale-up and one in a scale-out network."""

import numpy as np
import pytest

import metaroce as mr
from metaroce import Collective, ConfigError, Fault, Flows, Scenario, verbs
from metaroce.cli import main
from metaroce.reports.topology import headline, summary
from metaroce.topology import Racks

UP = {"planes": 3, "rate": "800Gbps", "delay": "1us", "queue": "4MiB"}
OUT = {"planes": 2, "rate": "200Gbps", "delay": "3us", "queue": "4MiB"}
ALL_REDUCE = Collective(kind="all_reduce", size="1MiB")
MTIA = mr.topology.load("mtia300-40")


def racks(*sizes, **changes):
    return Racks(**{"racks": sizes, "scale_up": UP, "scale_out": OUT, **changes})


def write(topology, *writes, **fields):
    return mr.run(Scenario(topology=topology, workload=Flows(writes=writes), record_wqes=True, **fields))


def test_accelerators_have_a_host_in_each_network_and_nothing_joins_these():
    model = racks(2, 3)
    fabric = model.fabric
    assert (model.accelerators, fabric.hosts, fabric.planes, fabric.islands) == (5, 10, 3, True)
    assert model.domains == [0, 0, 1, 1, 1]
    assert model.scale_out_hosts == range(5, 10)
    cables = {(fabric.node_name(a), fabric.node_name(b)) for a, b in zip(fabric.a, fabric.b, strict=True)}
    up = {(f"host{a}", f"p{p}.rack{model.domains[a]}") for a in range(5) for p in range(3)}
    assert cables == up | {(f"host{5 + a}", f"p{p}.out") for a in range(5) for p in range(2)}
    assert {link.rate for a, link in zip(fabric.a, fabric.links, strict=True) if a >= 5} == {200 * 10**9}
    assert model.spec()["islands"] is True


def test_one_rack_is_a_fabric_as_any_other():
    for model in (racks(5), racks(5, scale_out=None)):
        assert (model.accelerators, model.fabric.hosts, model.domains) == (5, 5, [0] * 5)
        assert model.scale_out_hosts is None
        assert "islands" not in model.spec()
        assert list(model.networks) == ["scale-up"]
        scenario = Scenario(topology=model, workload=ALL_REDUCE)
        assert "scale_out" not in scenario.spec(scenario.program())


@pytest.mark.parametrize(
    ("name", "domains"),
    [
        ("mtia300-rack-16", [16]),
        ("mtia300-rack-16-10", [16]),
        ("mtia300-24", [16, 8]),
        ("mtia300-40", [16, 16, 8]),
        ("mtia300-128", [16] * 8),
        ("h100-8", [8]),
        ("h100-16", [8, 8]),
        ("h100-40", [8] * 5),
        ("gaudi3-8", [8]),
    ],
)
def test_the_named_racks_have_their_domains_and_rates(name, domains):
    model = mr.topology.load(name)
    assert np.bincount(model.domains).tolist() == domains
    rates = {network: of.planes * of.rate / 8e9 for network, of in model.networks.items()}
    up = {"mtia300-rack-16-10": 1000, "gaudi3-8": 525}.get(name, 800 if name.startswith("mtia") else 450)
    out = {"scale-out": 200 if name.startswith("mtia") else 50} if len(domains) > 1 else {}
    assert rates == {"scale-up": up, **out}


def test_other_kinds_have_one_domain():
    model = mr.topology.load("multiplane-4x64")
    assert (model.accelerators, model.domains, model.scale_out_hosts) == (64, [0] * 64, None)


@pytest.mark.parametrize("transport", ["metaroce", "mrc", "rocev2-1qp"])
def test_eight_bytes_take_two_cables_of_the_network_between_them(transport):
    for name, near, far in (("mtia300-40", 2.5, 6.0), ("h100-40", 0.9, 4.0)):
        placed = write(name, (0, 1, 8), (2, 39, 8), transport=transport).wqe_placed_ps / 1e6
        assert placed == pytest.approx([near, far], rel=0.005)


@pytest.mark.parametrize("transport", ["metaroce", "mrc", "rocev2-sr", "rocev2-adaptive"])
@pytest.mark.parametrize("kind", ["all_reduce", "alltoall"])
def test_collectives_of_40_accelerators_are_right_under_loss(kind, transport):
    workload = Collective(kind=kind, size="1MiB")
    result = mr.run(Scenario(topology=MTIA, workload=workload, transport=transport, loss="1%", check=True))
    assert (result.status, result.wrong) == ("done", 0)
    assert result.checked >= 0.99 * 40 * 2**20 // 4  # a size is cut down to equal shares
    assert result.counters["dropped_loss"] > 0
    assert result.counters["dropped_no_route"] == 0


def test_ranks_fill_racks_in_order_whatever_the_seed_and_placement():
    for fields in ({}, {"seed": 9}, {"placement": "random"}):
        scenario = Scenario(topology=MTIA, workload=ALL_REDUCE, ranks=20, **fields)
        spec = scenario.spec(scenario.program())
        assert spec["hosts_of_ranks"] == list(range(20))
        out = {"hosts_of_ranks": list(range(40, 60)), "domain_of_rank": [0] * 16 + [1] * 4}
        assert spec["scale_out"] == out
        assert scenario.to_dict()["placement"] == "packed"


def test_a_plane_of_that_number_is_down_in_both_networks():
    down = [Fault(at="0us", target="plane", id=1, up=False)]
    moved = write(MTIA, (0, 1, 1 << 20), (2, 39, 1 << 20), faults=down)
    assert moved.status == "done"
    assert moved.plane_bytes[1] == 0
    in_rack = [Fault(at="0us", target="switch", id="p1.rack0", up=False)]
    near, far = (write(MTIA, (0, to, 1 << 20), faults=in_rack).plane_bytes[1] for to in (1, 39))
    assert near == 0
    assert far > 0


def test_two_networks_are_shown_apart():
    text = {row[0]: row[1] for row in summary(MTIA).rows}
    assert text["accelerators"] == "40 in racks of 16, 16, 8"
    assert text["scale-up host rate"] == "6.4Tbps"
    assert text["scale-out cables"] == "800Gbps, 3us one way, queue 10MiB"
    assert text["scale-up to scale-out"] == "4 : 1"
    assert headline(MTIA) == (
        "mtia300-40: 40 accelerators in racks of 16, 16, 8, scale-up 8 planes x 800Gbps, "
        "scale-out 2 planes x 800Gbps, ECMP linear"
    )
    assert "in one rack, scale-up 8 planes" in headline(mr.topology.load("mtia300-rack-16"))


def test_the_command_line_takes_racks_of_a_file(tmp_path, capsys):
    path = tmp_path / "own.toml"
    network = 'planes = 2\nrate = "400Gbps"\ndelay = "1us"\nqueue = "1MiB"\n'
    path.write_text(f'kind = "racks"\nracks = [3, 2]\n[scale_up]\n{network}[scale_out]\n{network}')
    assert main(["topo", "check", str(path)]) == 0
    assert capsys.readouterr().out.startswith("own: 5 accelerators in racks of 3, 2")
    assert main(["topo", "show", "mtia300-24"]) == 0
    assert "host24 .. host47, scale-out" in capsys.readouterr().out
    assert main(["topo", "list"]) == 0
    assert "8+2" in capsys.readouterr().out
    assert main(["all_reduce_perf", "-b", "64K", "-e", "64K", "--topology", str(path)]) == 0
    out = capsys.readouterr().out
    assert "5 accelerators" in out
    assert "placement packed" in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"racks": ()}, "racks"),
        ({"racks": (4, 0)}, "racks.1 = 0"),
        ({"scale_out": None}, r"racks = \[2, 2\]: more than one needs \[scale_out\]"),
        ({"scale_up": {**UP, "planes": 9}}, "scale_up.planes = 9"),
        ({"scale_out": {**OUT, "planes": 0}}, "scale_out.planes = 0"),
        ({"scale_up": {**UP, "rate": "0Gbps"}}, "scale_up.rate"),
        ({"scale_up": {k: v for k, v in UP.items() if k != "delay"}}, "scale_up.delay"),
        ({"link": UP}, "link"),
        ({"planes": 2}, "planes"),
        ({"racks": (1,)}, "has 1 hosts; at least 2"),
    ],
)
def test_ill_formed_racks_are_refused_in_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        mr.topology.Racks(**{"racks": (2, 2), "scale_up": UP, "scale_out": OUT, **changes}).fabric  # noqa: B018
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ranks": 41}, "ranks = 41: must be 2 .. 40, the accelerators of mtia300-40"),
        ({"fidelity": "flow"}, "topology = 'mtia300-40': packet fidelity only"),
        ({"threads": 2}, "threads: 2 is not allowed; allowed: 1 with islands or scale_out"),
    ],
)
def test_what_racks_do_not_do_is_refused_in_one_line(fields, message):
    with pytest.raises(ConfigError, match=message) as error:
        mr.run(Scenario(topology=MTIA, workload=ALL_REDUCE, **fields))
    assert "\n" not in str(error.value)


def verbs_write(source, target):
    context = verbs.Context(topology=racks(2, 2))
    rights = verbs.LOCAL_WRITE | verbs.REMOTE_WRITE
    ends = [context.device(host).alloc_pd() for host in (source, target)]
    mine, theirs = (pd.reg_mr(np.full(1000, k + 1, np.uint8), rights) for k, pd in enumerate(ends))
    pair = [pd.create_qp(pd.device.create_cq()) for pd in ends]
    verbs.connect(*pair)
    pair[0].post_send(verbs.SendWR(1, verbs.RDMA_WRITE, (mine, 0, 1000), remote=(theirs.rkey, 0)))
    context.run()
    return theirs.bytes


def test_verbs_reach_what_a_host_reaches():
    for source, target in ((0, 1), (4, 7)):
        assert set(verbs_write(source, target)) == {1}
    for source, target in ((0, 2), (0, 4)):
        with pytest.raises(ConfigError, match=f"hosts {source} and {target}"):
            verbs_write(source, target)
