import networkx
import pytest

from metaroce import ConfigError, topology
from metaroce.topology import LeafSpine

LINK = {"rate": "200Gbps", "delay": "600ns", "queue": "1MiB", "ecn": {"kmin": "50KiB", "kmax": "200KiB", "pmax": 0.2}}
SHAPES = {  # hosts, planes, switches, cables
    "single-plane-64": (64, 1, 16, 128),
    "multiplane-4x64": (64, 4, 64, 512),
    "multiplane-8x64": (64, 8, 128, 1024),
    "shallow-buffer-64": (64, 4, 64, 512),
    "deep-buffer-64": (64, 4, 64, 512),
    "fat-tree-64": (64, 1, 48, 192),
    "fat-tree-128": (128, 1, 80, 384),
    "fat-tree-1024": (1024, 1, 320, 3072),
}


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
    assert topology.names() == sorted(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_named_fabric_has_its_shape_and_is_sound(name):
    model = topology.load(name)
    fabric = model.fabric
    assert (fabric.hosts, fabric.planes, len(fabric.switch_names), len(fabric.a)) == SHAPES[name]
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


@pytest.mark.parametrize(("name", "core_ports"), [("fat-tree-64", 4), ("fat-tree-128", 8), ("fat-tree-1024", 16)])
def test_a_fat_tree_has_full_bisection(name, core_ports):
    graph = topology.load(name).graph()
    degree = {tier: {graph.degree(n) for n, t in graph.nodes(data="tier") if t == tier} for tier in (1, 2, 3)}
    radix = {"fat-tree-64": 8, "fat-tree-128": 8, "fat-tree-1024": 16}[name]
    assert degree == {1: {radix}, 2: {radix}, 3: {core_ports}}


def test_hosts_come_first_and_switches_are_numbered_after_them():
    fabric = small().fabric
    assert fabric.node_name(7) == "host7"
    assert fabric.node_name(8) == "p0.leaf0"
    assert fabric.node_id("p1.spine1") == 8 + 7
    assert fabric.switch_id("p1.spine1") == 7
    assert fabric.link_rows("p0.spine1", "p0.leaf0") == fabric.link_rows("p0.leaf0", "p0.spine1") == [9]


def test_options_left_unset_are_left_out():
    assert {"ecmp", "reroute_delay_ps"}.isdisjoint(small().spec())
    spec = small(ecmp="mixed", reroute_delay="1ms").spec()
    assert (spec["ecmp"], spec["reroute_delay_ps"]) == ("mixed", 10**9)


def test_host_cables_may_differ():
    links = small(host_link={"rate": "400Gbps"}).spec()["links"]
    rates = {rate for a, rate in zip(links["a"], links["rate_bps"], strict=True) if a < 8}
    assert rates == {400 * 10**9}
    assert set(links["delay_ps"]) == {600_000}


def test_no_ecn_crosses_as_zeros():
    links = small(link={k: v for k, v in LINK.items() if k != "ecn"}).spec()["links"]
    assert {*links["ecn_kmin_bytes"], *links["ecn_kmax_bytes"], *links["ecn_pmax"]} == {0}


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"topology = 'nope': unknown; allowed: .*multiplane-4x64"):
        topology.load("nope")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind = 1", "kind = 1: unknown; allowed: fat-tree, graph, leaf-spine"),
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
