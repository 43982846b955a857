import networkx
import pytest

from metaroce import ConfigError, topology
from metaroce.reports.topology import headline, round_trip_ps, summary
from metaroce.topology import FatTree, LeafSpine

LINK = {"rate": "200Gbps", "delay": "600ns", "queue": "1MiB", "ecn": {"kmin": "50KiB", "kmax": "200KiB", "pmax": 0.2}}
SHAPES = {  # hosts, planes, switches, cables
    "single-plane-64": (64, 1, 16, 128),
    "multiplane-4x64": (64, 4, 64, 512),
    "multiplane-8x64": (64, 8, 128, 1024),
    "shallow-buffer-64": (64, 4, 64, 512),
    "deep-buffer-64": (64, 4, 64, 512),
    "fat-tree-64": (64, 1, 48, 192),
    "fat-tree-128": (128, 1, 80, 384),
    "fat-tree-k8": (128, 1, 80, 384),
    "fat-tree-1024": (1024, 1, 320, 3072),
    "fat-tree-4096": (4096, 1, 768, 12288),
    "incast-1000": (1024, 4, 96, 4608),
    "storage-incast-1000": (1024, 4, 96, 4608),
    "scale-across-2x32": (64, 4, 64, 400),
    "lossless-ring-7": (7, 1, 7, 14),
    "gaudi3-8": (8, 7, 7, 56),
    "h100-8": (8, 4, 4, 32),
    "mtia300-rack-16": (16, 8, 8, 128),
    "mtia300-rack-16-10": (16, 5, 5, 80),
}
ISLANDS = {  # the same, both networks together
    "h100-16": (32, 4, 9, 80),
    "h100-40": (80, 4, 21, 200),
    "mtia300-24": (48, 8, 18, 240),
    "mtia300-40": (80, 8, 26, 400),
    "mtia300-128": (256, 8, 66, 1280),
}
GBPS = 10**9


def small(**changes):
    return LeafSpine(**{"planes": 2, "leaves": 2, "spines": 2, "hosts_per_leaf": 4, "link": LINK, **changes})


def graph_file(tmp_path, links, switches='{ name = "s0" }, { name = "s1" }', extra="hosts = 2"):
    path = tmp_path / "own.toml"
    path.write_text(
        f'kind = "graph"\n{extra}\nswitches = [{switches}]\nlinks = [{links}]\n'
        '[link]\nrate = "100Gbps"\ndelay = "1us"\nqueue = "1MiB"\n'
    )
    return path


def test_the_named_fabrics_are_these():
    assert topology.names() == sorted(SHAPES | ISLANDS)


@pytest.mark.parametrize("name", SHAPES | ISLANDS)
def test_a_named_fabric_has_its_shape_and_is_sound(name):
    model = topology.load(name)
    fabric = model.fabric
    assert (fabric.hosts, fabric.planes, len(fabric.switch_names), len(fabric.a)) == (SHAPES | ISLANDS)[name]
    assert model.check() == []
    assert model.name == name
    assert model.description


@pytest.mark.parametrize("name", SHAPES)
def test_a_host_has_one_port_a_plane_and_all_pairs_are_connected_in_each(name):
    graph = topology.load(name).graph()
    planes = graph.graph["planes"]
    hosts = [node for node, tier in graph.nodes(data="tier") if tier == 0]
    for host in hosts:
        assert sorted(plane for _, _, plane in graph.edges(host, data="plane")) == list(range(planes))
    for plane in range(planes):
        edges = [(a, b) for a, b, p in graph.edges(data="plane") if p == plane]
        assert set(hosts) <= networkx.node_connected_component(networkx.Graph(edges), hosts[0])


def test_the_reference_fabric_has_the_published_numbers():
    links = topology.load("multiplane-4x64").spec()["links"]
    for column, value in {
        "rate_bps": 200 * 10**9,
        "delay_ps": 600_000,
        "queue_bytes": 1 << 20,
        "ecn_kmin_bytes": 50 << 10,
        "ecn_kmax_bytes": 200 << 10,
        "ecn_pmax": 0.2,
    }.items():
        assert set(links[column]) == {value}


def test_shallow_and_deep_differ_from_the_reference_in_buffers_only():
    plain, shallow, deep = (topology.load(n) for n in ("multiplane-4x64", "shallow-buffer-64", "deep-buffer-64"))
    assert shallow.link == plain.link.replace(queue="256KiB", ecn={"kmin": "12.5KiB", "kmax": "50KiB", "pmax": 0.2})
    assert deep.link == plain.link.replace(queue="64MiB")


@pytest.mark.parametrize(
    ("name", "radix", "core_ports"),
    [("fat-tree-64", 8, 4), ("fat-tree-128", 8, 8), ("fat-tree-1024", 16, 16), ("fat-tree-4096", 32, 16)],
)
def test_a_fat_tree_has_full_bisection(name, radix, core_ports):
    graph = topology.load(name).graph()
    degree = {tier: {graph.degree(n) for n, t in graph.nodes(data="tier") if t == tier} for tier in (1, 2, 3)}
    assert degree == {1: {radix}, 2: {radix}, 3: {core_ports}}


def test_hosts_come_first_and_switches_are_numbered_after_them():
    fabric = small().fabric
    assert fabric.node_name(7) == "host7"
    assert fabric.node_name(8) == "p0.leaf0"
    assert fabric.node_id("p1.spine1") == 8 + 7
    assert fabric.switch_id("p1.spine1") == 7
    assert fabric.link_rows("p0.spine1", "p0.leaf0") == fabric.link_rows("p0.leaf0", "p0.spine1") == [9]


def test_options_left_unset_are_left_out():
    options = {
        "ecmp": "mixed",
        "reroute_delay_ps": 10**9,
        "trim": True,
        "control_priority": True,
        "last_hop_ecn": False,
        "explicit_queues": True,
        "lossless": False,
        "pfc": {"buffer_bytes": 1 << 20, "xoff_shift": 2, "watchdog": True, "watchdog_detect_ps": 10**9},
        "balance": "flowlet",
        "flowlet_gap_ps": 50 * 10**6,
        "flowlet_entries": 256,
    }
    assert set(options).isdisjoint(small().spec())
    switching = {"trim": True, "control_priority": True, "last_hop_ecn": False, "explicit_queues": True}
    balance = {"balance": "flowlet", "flowlet_gap": "50us", "flowlet_entries": 256}
    pfc = {"buffer": "1MiB", "xoff_shift": 2, "watchdog": True, "watchdog_detect": "1ms"}
    spec = small(ecmp="mixed", reroute_delay="1ms", lossless=False, pfc=pfc, **switching, **balance).spec()
    assert options.items() <= spec.items()


def test_host_cables_may_differ():
    links = small(host_link={"rate": "400Gbps"}).spec()["links"]
    rates = {rate for a, rate in zip(links["a"], links["rate_bps"], strict=True) if a < 8}
    assert rates == {400 * 10**9}
    assert set(links["delay_ps"]) == {600_000}


def cables(topology, plane):
    """Host cables in order of hosts, and the others, of one plane."""
    fabric = topology.fabric
    rows = [row for row in range(len(fabric.a)) if fabric.plane_of(row) == plane]
    of_hosts = {fabric.a[row]: fabric.links[row] for row in rows if fabric.a[row] < fabric.hosts}
    return [of_hosts[h] for h in range(fabric.hosts)], [fabric.links[r] for r in rows if fabric.a[r] >= fabric.hosts]


FAT_TREE = {"pods": 2, "tors_per_pod": 2, "aggs_per_pod": 2, "cores_per_agg": 2, "hosts_per_tor": 2}


@pytest.mark.parametrize("model", [small(), FatTree(planes=2, link=LINK, **FAT_TREE)], ids=["leaf-spine", "fat-tree"])
def test_planes_and_hosts_may_differ(model):
    changed = model.replace(
        host_link={"rate": "100Gbps"},
        plane={1: {"link": {"delay": "5us", "ecn": None}, "host_link": {"queue": "2MiB"}}},
        host_links=[{"hosts": "1-7/3", "rate": "25Gbps"}, {"hosts": "5", "delay": "9us"}],
    )
    for plane, (delay, queue) in enumerate([(600_000, 1 << 20), (5_000_000, 2 << 20)]):
        of_hosts, between = cables(changed, plane)
        assert [c.rate // GBPS for c in of_hosts] == [100, 25, 100, 100, 25, 100, 100, 25]
        assert [c.delay for c in of_hosts] == [delay] * 5 + [9_000_000] + [delay] * 2
        assert {c.queue for c in of_hosts} == {queue}
        assert {(c.rate, c.delay, c.queue) for c in between} == {(200 * GBPS, delay, 1 << 20)}
        assert {c.ecn is None for c in [*of_hosts, *between]} == {plane == 1}


def test_a_graph_takes_them_too_and_its_cables_still_override(tmp_path):
    links = ", ".join(f'{{ a = "host{h}", b = "s{p}" }}' for h in (0, 1) for p in (0, 1))
    switches = '{ name = "s0" }, { name = "s1", plane = 1 }'
    path = graph_file(
        tmp_path,
        links.replace('"host1", b = "s1"', '"host1", b = "s1", rate = "5G"'),
        switches,
        "hosts = 2\nplanes = 2",
    )
    path.write_text(path.read_text() + '[plane.1.link]\nrate = "50G"\n[[host_links]]\nhosts = "1"\nrate = "25G"\n')
    assert [rate // GBPS for rate in topology.load(path).spec()["links"]["rate_bps"]] == [100, 50, 25, 5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trim": 1}, "trim = 1: must be a valid boolean"),
        ({"control_priority": "yes"}, "control_priority = 'yes': must be a valid boolean"),
        ({"last_hop_ecn": 0}, "last_hop_ecn = 0: must be a valid boolean"),
        ({"ecmp": "sha1"}, "ecmp = 'sha1': must be 'linear', 'mixed' or 'qp'"),
        ({"balance": "hash"}, "balance = 'hash': must be 'ecmp', 'flowlet'"),
        ({"flowlet_gap": "1us"}, "flowlet_gap = 1000000: only with balance flowlet or flowlet-random"),
        (
            {"balance": "spray", "flowlet_entries": 8},
            "flowlet_entries = 8: only with balance flowlet or flowlet-random",
        ),
        ({"balance": "flowlet", "flowlet_gap": "0us"}, "flowlet_gap"),
        ({"balance": "flowlet", "flowlet_entries": 0}, "flowlet_entries = 0"),
        ({"plane": {2: {}}}, r"plane = 2: must be 0 \.\. 1"),
        ({"plane": {-1: {}}}, "plane.-1"),
        ({"plane": {"x": {}}}, "plane.x"),
        ({"plane": {1: {"delay": "1us"}}}, "'delay': unknown; allowed: host_link, link"),
        ({"plane": {1: {"link": {"rate": "0G"}}}}, "plane.1.link.rate"),
        ({"host_links": [{"hosts": "0-8", "rate": "1G"}]}, r"host_links.0.hosts = '0-8': hosts are 0 \.\. 7"),
        ({"host_links": [{"hosts": "0-3"}, {"hosts": "3"}]}, "host_links.1.hosts = '3': host3 is named twice"),
        ({"host_links": [{"hosts": "3-0"}]}, "host_links.0.hosts = '3-0': must be hosts like"),
        ({"host_links": [{"hosts": "0-3/0"}]}, "host_links.0.hosts = '0-3/0': must be hosts like"),
        ({"host_links": [{"hosts": "host3"}]}, "host_links.0.hosts = 'host3': must be hosts like"),
        ({"host_links": [{"rate": "1G"}]}, "host_links.0.hosts"),
    ],
)
def test_options_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        small(**changes).fabric  # noqa: B018 - builds it
    assert "\n" not in str(error.value)


def test_sites_are_joined_spine_by_spine_over_cables_that_differ_by_plane():
    model = topology.load("scale-across-2x32")
    fabric = model.fabric
    delays = []
    for plane in range(4):
        long = [row for row, link in enumerate(fabric.links) if link.delay > 10**9 and fabric.plane_of(row) == plane]
        ends = [(fabric.node_name(fabric.a[row]), fabric.node_name(fabric.b[row])) for row in long]
        assert ends == [(f"p{plane}.spine{i}", f"p{plane}.spine{i + 4}") for i in range(4)]
        delays += {fabric.links[row].delay for row in long}
        # All hosts of a site together are slower than its way out.
        assert sum(fabric.links[row].rate for row in long) >= sum(c.rate for c in cables(model, plane)[0]) // 2
    assert delays == [2_500_000_000 * (100 + percent) // 100 for percent in (0, 2, 5, 10)]
    hops, trip = round_trip_ps(fabric)
    assert hops == 5
    assert 5_500_000_000 < trip < 5_510_000_000


def test_more_than_two_sites_are_all_joined():
    model = topology.load("scale-across-2x32").replace(sites=3, spines=2)
    fabric = model.fabric
    long = {
        (fabric.node_name(a), fabric.node_name(b))
        for a, b, c in zip(fabric.a, fabric.b, fabric.links, strict=True)
        if c.delay > 10**9
    }
    pairs = {(i, j) for i in range(6) for j in range(i + 1, 6) if i % 2 == j % 2}
    assert long == {(f"p{p}.spine{i}", f"p{p}.spine{j}") for p in range(4) for i, j in pairs}


def test_only_the_receivers_ports_bound_an_incast():
    for name, rates in {"incast-1000": [200] * 6, "storage-incast-1000": [200, 25, 50, 100, 25, 50]}.items():
        model = topology.load(name)
        of_hosts, between = cables(model, 3)
        assert [c.rate // GBPS for c in of_hosts[:6]] == rates
        into_leaf = sum(c.rate for c in between) // 16
        assert into_leaf >= 64 * of_hosts[0].rate


def test_the_summary_shows_what_differs():
    model = topology.load("storage-incast-1000").replace(trim=True, last_hop_ecn=False)
    rows = dict(summary(model).rows)
    assert rows["host rate"] == "100Gbps to 800Gbps"
    assert rows["1364 host cables"].startswith("100Gbps")
    assert rows["switches"] == "trim packets at full queues, do not mark at the last hop"
    assert dict(summary(model.replace(balance="pinned")).rows)["switches"].endswith(", balance by pinned")
    assert headline(model.replace(ecmp="qp", balance="spray")).endswith("ECMP qp, spray")
    assert headline(model.replace(balance="ecmp")) == headline(model)
    assert "4 planes x 25Gbps to 200Gbps" in headline(model)
    assert "switches" not in dict(summary(small()).rows)


def test_the_round_trip_is_that_of_the_slowest_hosts_in_the_slowest_plane():
    trip = round_trip_ps(small().fabric)[1]
    assert round_trip_ps(small(plane={1: {"link": {"delay": "1us"}}}).fabric)[1] == trip + 8 * 400_000
    slow = [{"hosts": "2", "delay": "1us"}, {"hosts": "6", "delay": "2us"}]
    assert round_trip_ps(small(host_links=slow).fabric)[1] == trip + 2 * (400_000 + 1_400_000)
    one_leaf = small(leaves=1)
    trip = round_trip_ps(one_leaf.fabric)[1]
    slow = [{"hosts": "2-3", "delay": "1us"}]
    assert round_trip_ps(one_leaf.replace(host_links=slow).fabric)[1] == trip + 4 * 400_000


def test_no_ecn_crosses_as_zeros():
    links = small(link={k: v for k, v in LINK.items() if k != "ecn"}).spec()["links"]
    assert {*links["ecn_kmin_bytes"], *links["ecn_kmax_bytes"], *links["ecn_pmax"]} == {0}


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"topology = 'nope': unknown; allowed: .*multiplane-4x64"):
        topology.load("nope")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind = 1", "kind = 1: unknown; allowed: fat-tree, graph, leaf-spine, racks, sites"),
        ("kind = [", "not valid TOML"),
        ('kind = "leaf-spine"\nplane = 2', "unknown; allowed:|missing"),
        (
            'kind = "leaf-spine"\nplanes=1\nleaves=2\nspines=0\nhosts_per_leaf=2\n[link]\nrate="1G"\ndelay="1us"\nqueue=1',
            "spines = 0",
        ),
        (
            'kind = "leaf-spine"\nplanes=1\nleaves=2\nspines=1\nhosts_per_leaf=2\n[link]\nrate="0G"\ndelay="1us"\nqueue=1',
            "link.rate",
        ),
    ],
)
def test_an_ill_formed_file_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        topology.load(path)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        topology.load(tmp_path / "none.toml")


def test_a_graph_file_loads(tmp_path):
    links = '{ a = "host0", b = "s0" }, { a = "host1", b = "s1", rate = "50Gbps" }, { a = "s0", b = "s1" }'
    model = topology.load(graph_file(tmp_path, links))
    assert model.name == "own"
    assert model.spec()["links"]["rate_bps"] == [10**11, 5 * 10**10, 10**11]
    assert model.graph().number_of_edges() == 3


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ('{ a = "host0", b = "s0" }, { a = "host1", b = "s1" }', "host0 and host1 are not connected in plane 0"),
        ('{ a = "host0", b = "s0" }, { a = "s0", b = "s1" }', "host1 has 0 cables in plane 0"),
        ('{ a = "host0", b = "host1" }', "joins two hosts"),
        ('{ a = "s0", b = "s0" }', "ends where it starts"),
        ('{ a = "host0", b = "s0" }, { a = "host1", b = "s0" }', "s1 has no cable"),
        ('{ a = "host0", b = "s9" }', "unknown; allowed: host0"),
    ],
)
def test_a_broken_graph_is_refused_with_the_reason(tmp_path, links, message):
    with pytest.raises(ConfigError, match=message):
        topology.load(graph_file(tmp_path, links))


def test_planes_must_be_disjoint(tmp_path):
    links = ", ".join(f'{{ a = "host{h}", b = "s{p}" }}' for h in (0, 1) for p in (0, 1)) + ', { a = "s0", b = "s1" }'
    path = graph_file(tmp_path, links, '{ name = "s0" }, { name = "s1", plane = 1 }', "hosts = 2\nplanes = 2")
    with pytest.raises(ConfigError, match="planes must be disjoint"):
        topology.load(path)


def test_a_cut_in_one_plane_of_two_names_the_pair_and_the_plane(tmp_path):
    links = '{ a = "host0", b = "s0" }, { a = "host1", b = "s0" }, { a = "host0", b = "s1" }, { a = "host1", b = "s2" }'
    switches = '{ name = "s0" }, { name = "s1", plane = 1 }, { name = "s2", plane = 1 }'
    with pytest.raises(ConfigError, match="host0 and host1 are not connected in plane 1"):
        topology.load(graph_file(tmp_path, links, switches, "hosts = 2\nplanes = 2"))


@pytest.mark.parametrize("model", [small(), topology.load("fat-tree-64")], ids=["leaf-spine", "fat-tree"])
def test_cutting_any_host_off_is_found(model):
    fabric = model.build()
    for row in (0, fabric.hosts - 1):
        cut = model.build()
        for column in (cut.a, cut.b, cut.links):
            del column[row]
        assert topology.check.problems(cut)
