"""Compiled collectives: the worked example, what passes decide, graphs, dynamic exchanges."""

import numpy as np
import pytest

from metaroce.collectives import Op
from metaroce.errors import ConfigError
from metaroce.offload import Graph, Node, OffloadOptions, Outside, Word, compile, node
from metaroce.offload.passes import bind
from metaroce.simulation import rehearse

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "alltoall", "alltoallv")
ONE_ENGINE = OffloadOptions(algorithm="ring", engines=1, chunk="1GiB", slots=2, ready="never")


def listing(program, rank):
    """Entries of a rank as (op, peer, wqe_sync)."""
    rows = range(int(program.rank_start[rank]), int(program.rank_start[rank + 1]))
    return [(Op(int(program.op[k])).name, int(program.peer[k]), int(program.extra["wqe_sync"][k])) for k in rows]


def test_the_worked_example_of_a_ring():
    one = node("reduce_scatter", 4, count=64)
    program = compile(one, [0] * 4, options=ONE_ENGINE).program()
    assert listing(program, 0) == [
        ("RECV", 3, 0),
        ("SEND", 1, 0),
        ("RECV", 3, 0),
        ("SUM", 0, 3),
        ("SEND", 1, 1),
        ("RECV", 3, 2),
        ("SUM", 0, 4),
        ("SEND", 1, 1),
        ("SUM", 0, 3),
    ]
    block = 64 * 4
    sums = program.local[program.op == Op.SUM][:3]
    assert sums.tolist() == [2 * block, block, 0]


@pytest.mark.parametrize("ranks", [4, 16])
def test_a_ring_with_its_end_word_has_three_entries_a_step_and_one_more(ranks):
    one = Node("x", "reduce_scatter", count=64, inplace=True, done=Word(0))
    program = compile(one, [0] * ranks, options=ONE_ENGINE).program()
    assert int(program.rank_start[1]) == 3 * (ranks - 1) + 1
    assert program.op[int(program.rank_start[1]) - 1] == Op.SET


def test_the_dump_shows_the_example_readably():
    text = compile(node("reduce_scatter", 4, count=64), [0] * 4, options=ONE_ENGINE).dump(0)
    lines = text.splitlines()
    assert lines[0] == "work packets for mtia300: 4 ranks in racks of 4, 1 engines, NICs 8+2"
    assert [line.split()[0] for line in lines[3:11]] == (
        "legalise fuse algorithm chunk bind engines synchronise verify".split()
    )
    assert lines[11] == "rank 0 engine 0: packet 0, 9 entries"
    assert lines[15].split() == "3 SUM 0x200 += 0x400 256B wqe_sync=3".split()
    assert len(lines) == 21


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("domains", "options"),
    [
        ([0] * 2, {}),
        ([0] * 5, {"engines": 3, "chunk": 64}),
        ([0] * 8, {"algorithm": "put", "posters": True}),
        ([0] * 8, {"algorithm": "put", "engines": 2, "ready": "every"}),
        ([0] * 6 + [1] * 6 + [2] * 3, {"chunk": 256}),
        ([0] * 6 + [1] * 6 + [2] * 3, {"algorithm": "direct", "engines": 5}),
        ([0, 1, 1, 1, 2], {"algorithm": "hierarchical", "engines": 2, "ready": "every"}),
    ],
)
def test_results_are_exact_whatever_the_delays(kind, domains, options):
    n = len(domains)
    matrix = (np.arange(n * n).reshape(n, n) * 5 % 97) * 4
    for count in (1, 333):
        for inplace in (True, False):
            one = node(kind, n, count=count, matrix=matrix, inplace=inplace)
            found = rehearse(compile(one, domains, options=OffloadOptions(**options)).program(), range(4))
            assert found.exact, (count, inplace, found.reason, found.wrong)
            assert (found.checked > 0).all()


@pytest.mark.parametrize("algorithm", ["ring", "direct", "hierarchical", "put", "recursive"])
def test_nothing_comes_too_early_where_every_receive_is_announced(algorithm):
    early = {}
    for ready in ("never", "every"):
        options = OffloadOptions(algorithm=algorithm, ready=ready, engines=2, chunk=512, slots=2)
        found = rehearse(
            compile(node("all_reduce", 8, count=2000), [0] * 4 + [1] * 4, options=options).program(), range(9)
        )
        assert found.exact
        early[ready] = int(found.rnr.sum()), int(found.early_bytes.sum())
    assert early["every"] == (0, 0)
    if algorithm in ("ring", "direct", "hierarchical"):
        assert min(early["never"]) > 0


def test_racks_are_crossed_once_a_destination_rack():
    domains = [0] * 4 + [1] * 4 + [2] * 2
    block, n = 64, len(domains)
    for kind in ("all_gather", "reduce_scatter"):
        options = OffloadOptions(algorithm="hierarchical", engines=4)
        p = compile(node(kind, n, count=block), domains, options=options).program()
        rack = np.array(domains)
        sends = p.op == Op.SEND
        crossing = sends & (rack[p.rank] != rack[p.peer])
        assert int(p.bytes[crossing].sum()) == n * 2 * block * 4
        # Relays of one rack share what crosses.
        ends = p.peer if kind == "all_gather" else p.rank
        relayed = np.bincount(ends[crossing], p.bytes[crossing].astype(float), n)
        for g in range(3):
            of = relayed[rack == g]
            assert of.max() <= 1.5 * of.mean(), (kind, relayed)


def test_an_exchange_is_shared_by_bytes():
    n, engines = 8, 4
    matrix = np.full((n, n), 4096)
    matrix[:, 3] = 65536
    np.fill_diagonal(matrix, 0)
    options = OffloadOptions(algorithm="direct", engines=engines, chunk=4096)
    p = compile(node("alltoallv", n, matrix=matrix), [0] * n, options=options).program()
    engine = np.repeat(p.extra["subgraph_engine"], np.diff(p.extra["subgraph_start"].astype(int)))
    mine = (p.rank == 0) & (p.op == Op.SEND)
    load = np.bincount(engine[mine], p.bytes[mine].astype(float), engines)
    assert load.sum() == matrix[0].sum()
    assert load.max() - load.min() <= 16384


@pytest.mark.parametrize(
    ("size", "ranks", "domains", "algorithm"),
    [(4096, 8, 1, "put"), (64 << 20, 16, 1, "ring"), (64 << 20, 40, 3, "hierarchical")],
)
def test_the_algorithm_follows_from_cost(size, ranks, domains, algorithm):
    racks = [rank * domains // ranks for rank in range(ranks)]
    compiled = compile(node("all_reduce", ranks, size), racks, verified=False)
    assert compiled.module.nodes[0].algorithm == algorithm


def test_no_other_algorithm_is_estimated_to_be_quicker():
    for size in (4096, 1 << 20, 64 << 20):
        times = {}
        for name in ("auto", "ring", "direct", "recursive"):
            options = OffloadOptions(algorithm=name)
            times[name] = (
                compile(node("all_reduce", 16, size), [0] * 16, options=options, verified=False).costs[-1].after_us
            )
        assert times["auto"] <= min(times.values()) + 1e-9, (size, times)


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_no_sum_is_estimated_to_be_quicker_than_the_unit_of_its_engine(algorithm):
    options = OffloadOptions(engines=1, algorithm=algorithm)
    compiled = compile(node("reduce_scatter", 8, 4 << 20), [0] * 8, options=options, verified=False)
    unit = compiled.module.target.hardware.unit
    assert compiled.costs[-1].after_us > 7 * (512 << 10) / (unit.alone.value * unit.clock.value / 1e6)


def test_chunks_keep_to_their_bounds():
    for size in (1 << 20, 16 << 20, 256 << 20):
        compiled = compile(node("all_reduce", 16, size), [0] * 16, verified=False)
        assert compiled.module.notes["staging_bytes"] <= 32 << 20
        assert int(compiled.program().bytes[compiled.program().op == Op.SEND].max()) <= 1 << 20


def test_one_gigabyte_is_the_most_of_a_node_and_parts_go_in_order():
    compiled = compile(node("all_reduce", 2, (2 << 30) + 64), [0, 0], options=OffloadOptions(engines=1), verified=False)
    nodes = compiled.module.nodes
    assert [n.area for n in nodes] == ["all_reduce"] * 3
    assert sum(n.count for n in nodes) * 4 == (2 << 30) + 64


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_collective_is_exact(kind, monkeypatch):
    monkeypatch.setattr("metaroce.offload.passes.legalise.MOST_BYTES", 1000)
    matrix = np.arange(25).reshape(5, 5) * 24
    compiled = compile(node(kind, 5, count=300, matrix=matrix), [0, 0, 0, 1, 1])
    assert len(compiled.module.nodes) > 1
    assert rehearse(compiled.program(), range(5)).exact


def small(k, **changes):
    return Node(f"n{k}", "all_reduce", **{"count": 50 + k, **changes})


def test_small_neighbours_become_one_bucket():
    compiled = compile(Graph((small(0), small(1), small(2), small(3, priority=1))), [0] * 4)
    assert [n.parts for n in compiled.module.nodes] == [("n0", "n1", "n2"), ()]
    assert compiled.module.nodes[0].count == 153
    assert compiled.costs[1].name == "fuse"
    assert compiled.costs[1].after_us < compiled.costs[1].before_us


def test_buckets_never_cross_a_dependency():
    graph = Graph((small(0), small(1, deps=("n0",)), small(2)))
    assert len(compile(graph, [0] * 4).module.nodes) == 3
    assert len(compile(Graph((small(0), small(1))), [0] * 4, options=OffloadOptions(bucket=False)).module.nodes) == 2


def graph():
    return Graph(
        (
            Node("a", "reduce_scatter", count=100, priority=1),
            Node("b", "all_gather", count=70, deps=("a",), stream=1, done=Word(0, 3)),
            Node("c", "all_reduce", count=5000, stream=2, trigger=Word(1, 2, ">"), done=Word(2)),
            Node("d", "alltoall", count=11, stream=2),
            Node("e", "alltoallv", matrix=np.arange(36).reshape(6, 6), trigger=Word(2), release=5_000_000, stream=3),
            Node("f", "all_reduce", count=40, group=(1, 3, 4), stream=4),
        )
    )


@pytest.mark.parametrize("engines", [1, 3, 16])
def test_a_graph_with_words_is_exact(engines):
    options = OffloadOptions(engines=engines, reserve=min(1, engines - 1), algorithm="direct", chunk=256)
    compiled = compile(graph(), [0, 0, 0, 1, 1, 1], options=options)
    assert rehearse(compiled.program(), range(6)).exact
    late = rehearse(compiled.program([Outside(1, 3, 10**9)]), range(3))
    assert late.exact
    assert (late.time_ps > 10**9).all()


def test_urgent_nodes_have_reserved_engines_to_themselves():
    compiled = compile(graph(), [0] * 6, options=OffloadOptions(engines=4, reserve=2, algorithm="direct", chunk=256))
    engines = {n.id: set(n.engines) for n in compiled.module.nodes}
    assert engines["a"].isdisjoint({0, 1})
    assert engines["c"] & {0, 1}


def test_counts_of_a_dynamic_exchange_are_patched_in():
    room, n = np.full((6, 6), 4000), 6
    options = OffloadOptions(chunk=400, engines=4, algorithm="direct")
    compiled = compile(node("alltoallv", n, matrix=room), [0] * n, options=options)
    counts = (np.arange(36).reshape(6, 6) * 7 % 50) * 4
    program = compiled.patched(counts).program()
    sent = program.op == Op.SEND
    off = counts - np.diag(np.diag(counts))
    assert int(program.bytes[sent].sum()) == off.sum()
    assert int(sent.sum() + (program.op == Op.NOOP).sum() // 2) < int((compiled.program().op == Op.SEND).sum()) * 2
    assert (program.op == Op.NOOP).any()
    assert rehearse(program, range(5)).exact
    with pytest.raises(ConfigError, match="no cell above it"):
        compiled.patched(room + 4)


def test_binding_spreads_peers_over_nics_and_counts_queue_pairs():
    compiled = compile(node("alltoall", 40, 1 << 20), [0] * 16 + [1] * 16 + [2] * 8, verified=False)
    target = compiled.module.target
    assert {bind.nic(target, 0, e, 1) for e in range(16)} == set(range(8))
    assert {bind.nic(target, 0, e, 39) for e in range(16)} == {0, 1}
    assert compiled.module.notes["qps"] == 24


def test_an_empty_graph_and_what_a_packet_has_not_are_refused():
    with pytest.raises(ConfigError, match="nodes = 0: must be at least 1"):
        compile(Graph(()), [0] * 4)
    compiled = compile(Node("x", "all_reduce", count=9, trigger=Word(0, (1 << 63) - 1, ">=")), [0] * 4)
    for row in (Outside(1, 1), Outside(0, -1), Outside(0, 1, -1), Outside(0, 1, 0, 4)):
        with pytest.raises(ConfigError, match=r"words = .*: must be a word below 1 of a rank below 4"):
            compiled.program([row])
    with pytest.raises(ConfigError, match=r"rank = 4: must be 0 \.\. 3"):
        compiled.dump(4)


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"kind": "broadcast"}, {}, "kind = 'broadcast': unknown"),
        ({"dtype": "int32"}, {}, "dtype = 'int32': the units of mtia300 sum bfloat16, float16, float32"),
        ({"op": "max"}, {}, "op = 'max'"),
        ({"count": 0}, {}, "count = 0: must be at least 1"),
        ({"group": (0, 0)}, {}, "group"),
        ({"group": (0, 9)}, {}, "group"),
        ({"group": (0,)}, {}, "group"),
        ({"deps": ("y",)}, {}, "deps = 'y'"),
        ({"kind": "alltoallv"}, {}, "matrix = None: must be given for alltoallv"),
        ({"matrix": np.ones((4, 4), int)}, {}, "matrix = (4, 4): must be given for alltoallv, and only there"),
        ({"kind": "alltoallv", "matrix": np.eye(4, dtype=int) - 1}, {}, "matrix = (4, 4): must have a row"),
        ({"count": 1 << 75}, {}, f"size = {1 << 78}: bytes of input and output up to x; memory has 216000000000"),
        ({"kind": "alltoallv", "matrix": np.full((4, 4), 1 << 62)}, {}, f"size = {1 << 67}: bytes of input and output"),
        ({"count": 1 << 33}, {}, f"size = {1 << 35}: too large: an engine's entries take"),
        ({"priority": 256}, {}, "priority = 256: must be 0 .. 255"),
        ({"release": -1}, {}, "release = -1: must be 0 .. "),
        ({"done": Word(-1)}, {}, "done.word = -1: must be 0 .. 65535"),
        ({"trigger": Word(0, 1 << 63)}, {}, "trigger.value = 9223372036854775808: must be 0 .. "),
        ({"trigger": Word(0, 1, "<")}, {}, "trigger.compare = '<': unknown; allowed: ==, >, >="),
        ({}, {"engines": 17}, "engines = 17: must be 1 .. 16"),
        ({}, {"engines": 2, "reserve": 2}, "reserve = 2: must be below the 2 engines"),
        ({}, {"partition": "11+2"}, "partition = '11+2'"),
        ({"group": (0, 1, 2)}, {"algorithm": "recursive"}, "algorithm = 'recursive': needs a power of two"),
        ({"kind": "alltoall"}, {"algorithm": "ring"}, "algorithm = 'ring': alltoall takes direct"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(change, options, said):
    with pytest.raises(ConfigError) as error:
        compile(Node("x", **{"kind": "all_reduce", "count": 10, **change}), [0] * 4, options=OffloadOptions(**options))
    assert str(error.value).startswith(said)
