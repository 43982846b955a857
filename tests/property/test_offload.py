"""Any collective on any engines: the program is proved, and exact under random delays of messages and units."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from metaroce.offload import Graph, Node, OffloadOptions, Outside, Word, compile, node
from metaroce.simulation import rehearse

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "alltoall", "alltoallv")
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def domains(draw, most=40):
    racks = draw(st.lists(st.integers(1, 16), min_size=1, max_size=4))
    flat = [rack for rack, size in enumerate(racks) for _ in range(size)][:most]
    return flat if len(flat) > 1 else [0, 0]


@st.composite
def options(draw, kind, ranks):
    algorithms = ["auto", "put", "direct", "hierarchical"]
    if not kind.startswith("alltoall"):
        algorithms += ["ring"] + ["recursive"] * (ranks & (ranks - 1) == 0)
    return OffloadOptions(
        engines=draw(st.integers(1, 16)),
        algorithm=draw(st.sampled_from(algorithms)),
        chunk=draw(st.sampled_from([None, 128, 1024])),
        slots=draw(st.sampled_from([None, 2, 3, 7])),
        ready=draw(st.sampled_from(["never", "first", "every"])),
        posters=draw(st.booleans()),
    )


@st.composite
def collectives(draw, kind):
    flat = draw(domains())
    n = len(flat)
    seed = draw(st.integers(0, 1000))
    random = np.random.default_rng(seed)
    matrix = random.integers(0, 50, (n, n)) * 4 * (random.random((n, n)) < 0.7)
    matrix[0, 1] += 4
    one = node(kind, n, count=draw(st.integers(1, 200)), matrix=matrix, inplace=draw(st.booleans()))
    return one, flat, draw(options(kind, n))


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(data=st.data())
def test_programs_are_proved_and_exact(kind, data):
    one, flat, chosen = data.draw(collectives(kind))
    compiled = compile(one, flat, options=chosen)
    seed = data.draw(st.integers(0, 2**32))
    note(f"algorithm {compiled.module.nodes[0].algorithm}, seeds {seed} ..")
    found = rehearse(compiled.program(), range(seed, seed + 3))
    assert found.exact, (found.reason, found.wrong)
    if chosen.ready == "every":
        assert not found.early_bytes.any()


@SETTINGS
@given(data=st.data())
def test_counts_that_are_patched_in_are_exact(data):
    n = data.draw(st.integers(2, 9))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    room = random.integers(1, 100, (n, n)) * 4
    counts = (room * random.random((n, n))).astype(np.int64) // 4 * 4
    counts[0, 1] = 4
    compiled = compile(node("alltoallv", n, matrix=room), [0] * n, options=data.draw(options("alltoallv", n)))
    assert rehearse(compiled.patched(counts).program(), range(3)).exact


@SETTINGS
@given(data=st.data())
def test_graphs_with_dependencies_and_triggers_are_exact(data):
    n = data.draw(st.integers(2, 6))
    nodes = []
    for k in range(data.draw(st.integers(1, 5))):
        deps = tuple(one.id for one in nodes if data.draw(st.booleans()))
        nodes.append(
            Node(
                f"n{k}",
                data.draw(st.sampled_from(KINDS[:4])),
                count=data.draw(st.integers(1, 60)),
                deps=deps,
                stream=data.draw(st.integers(0, 2)),
                priority=data.draw(st.integers(0, 2)),
                trigger=Word(k) if data.draw(st.booleans()) else None,
                done=Word(10 + k) if data.draw(st.booleans()) else None,
            )
        )
    chosen = OffloadOptions(engines=data.draw(st.integers(1, 4)), chunk=64, bucket=data.draw(st.booleans()))
    compiled = compile(Graph(tuple(nodes)), [0] * n, options=chosen)
    words = [Outside(one.trigger.word, 1, 10**7 * k) for k, one in enumerate(nodes) if one.trigger]
    assert rehearse(compiled.program(words), range(3)).exact
