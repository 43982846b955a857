"""The proof of programs for message engines: it takes each edge that is needed, and refuses what is not sound."""

from dataclasses import replace

import numpy as np
import pytest

from metaroce.collectives import Op
from metaroce.errors import ConfigError, ProgramError
from metaroce.offload import Graph, Node, OffloadOptions, Word, compile, node, prove
from metaroce.offload.proof import implied, waits
from metaroce.offload.table import Flow
from metaroce.simulation import rehearse


def program(kind="all_reduce", ranks=4, count=96, racks=1, inplace=True, **options):
    domains = [rank * racks // ranks for rank in range(ranks)]
    options = OffloadOptions(**{"algorithm": "ring", "engines": 1, "slots": 2, **options})
    return compile(node(kind, ranks, count=count, inplace=inplace), domains, options=options).program()


def with_column(p, name, entry, value):
    column = p.extra[name].copy()
    column[entry] = value
    return replace(p, extra=p.extra | {name: column})


def edges_one_by_one(p):
    """Each stated dependency with the program that lacks it."""
    for entry in np.flatnonzero(p.extra["wqe_sync"]).tolist():
        on = entry - int(p.extra["wqe_sync"][entry])
        yield entry, on, with_column(p, "wqe_sync", entry, 0)


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather", "all_reduce"])
@pytest.mark.parametrize(("engines", "slots", "inplace"), [(1, 2, True), (2, 2, True), (1, 4, True), (1, 2, False)])
def test_each_edge_of_a_ring_is_needed_or_implied(kind, engines, slots, inplace):
    p = program(
        kind,
        count=24 * engines if kind == "all_reduce" else 6 * engines,
        engines=engines,
        slots=slots,
        inplace=inplace,
        chunk=16,
    )
    needed = redundant = 0
    for entry, on, lacking in edges_one_by_one(p):
        if implied(lacking, np.array([entry]), np.array([on]))[0]:
            prove(lacking)
            redundant += 1
            continue
        needed += 1
        with pytest.raises(ProgramError):
            prove(lacking, "first")
    assert needed > 0
    if kind != "all_gather":
        assert redundant > 0  # slots: the send before has waited for the same sum


def test_a_missing_edge_is_wrong_under_some_delays_too():
    p = program("reduce_scatter")
    caught = 0
    for entry, on, lacking in edges_one_by_one(p):
        if not implied(lacking, np.array([entry]), np.array([on]))[0]:
            caught += not rehearse(lacking, range(50)).exact
    assert caught > 0


def test_sums_wait_for_what_came_and_sends_for_sums():
    p = program("reduce_scatter")
    edges = waits(p)
    pairs = {(Op(int(p.op[to])).name, Op(int(p.op[on])).name) for to, on in zip(edges.to, edges.on, strict=True)}
    assert {("SUM", "RECV"), ("SEND", "SUM"), ("RECV", "SUM")} <= pairs


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("all_reduce", {"algorithm": "put", "posters": True}),
        ("all_reduce", {"algorithm": "recursive"}),
        ("all_reduce", {"algorithm": "direct", "slots": 3, "chunk": 64}),
        ("reduce_scatter", {"algorithm": "hierarchical", "racks": 2, "slots": 2, "chunk": 128}),
        ("all_gather", {"algorithm": "hierarchical", "racks": 2}),
        ("all_gather", {"algorithm": "recursive", "inplace": False}),
    ],
)
def test_each_edge_of_other_algorithms_is_needed_or_implied(kind, options):
    p = program(kind, **options)
    found = list(edges_one_by_one(p))
    assert found
    for entry, on, lacking in found:
        if implied(lacking, np.array([entry]), np.array([on]))[0]:
            prove(lacking)
        else:
            with pytest.raises(ProgramError):
                prove(lacking)


def test_a_flow_bit_that_is_needed_is_missed():
    p = program("all_reduce", algorithm="put", posters=True)
    last = np.flatnonzero(p.extra["flow"] & Flow.TX_SYNC)
    assert len(last)
    with pytest.raises(ProgramError, match="race"):
        prove(with_column(p, "flow", int(last[0]), 0))


@pytest.mark.parametrize("bit", [Flow.FENCE, Flow.SYNC, Flow.RX_SYNC, Flow.TX_SYNC])
def test_flow_bits_more_than_needed_are_sound_or_a_deadlock(bit):
    p = program("reduce_scatter", engines=2)
    sums = np.flatnonzero(p.op == Op.SUM)
    prove(with_column(p, "flow", sums[-1:], int(bit)))
    # A first RECV behind which nothing issues until it has landed: everybody waits for everybody.
    if bit == Flow.FENCE:
        with pytest.raises(ProgramError, match="deadlock"):
            prove(with_column(p, "flow", np.flatnonzero(p.op == Op.RECV), int(bit)))


def test_a_receive_that_is_too_late_is_a_deadlock():
    p = program("reduce_scatter")
    order = np.arange(len(p.op))
    # SEND 4 and SUM 3 of rank 0 change places: the SUM's send then comes before it.
    order[[3, 4]] = [4, 3]
    columns = {name: getattr(p, name)[order] for name in ("op", "peer", "stream", "local", "remote", "bytes")}
    sync = p.extra["wqe_sync"][order].copy()
    sync[[3, 4]] = [0, 4]
    with pytest.raises(ProgramError):
        prove(replace(p, **columns, extra=p.extra | {"wqe_sync": sync}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: with_column(p, "wqe_sync", 0, 1), "RECV 0 of subgraph 0 .* waits for an entry before its subgraph"),
        (
            lambda p: replace(p, op=np.where(np.arange(len(p.op)) == 1, Op.READ, p.op).astype(np.uint8)),
            "no engine runs",
        ),
        (lambda p: replace(p, bytes=np.where(np.arange(len(p.op)) == 1, 4, p.bytes)), "differ in bytes"),
        (lambda p: replace(p, stream=np.where(np.arange(len(p.op)) == 1, 9, p.stream)), "do not pair up"),
        (lambda p: with_column(p, "subgraph_start", -1, 5), "do not cover all entries"),
        (lambda p: replace(p, deps=np.zeros(1, np.uint32)), "dependencies beside its flow fields"),
        (
            lambda p: replace(p, local=np.where(p.op == Op.SUM, p.local + np.uint64(4), p.local)),
            "nothing writes what is expected|end wrong|do not line up",
        ),
        (lambda p: replace(p, op=np.where(p.op == Op.SUM, Op.COPY, p.op).astype(np.uint8)), "end wrong"),
    ],
)
def test_a_spoilt_program_is_refused(change, said):
    with pytest.raises(ProgramError, match=said):
        prove(change(program("reduce_scatter")))


def words(**changes):
    nodes = (Node("a", "all_reduce", count=9, done=Word(0)), Node("b", "all_gather", count=9, deps=("a",)))
    return compile(Graph(nodes), [0] * 3, options=OffloadOptions(algorithm="direct", engines=2)).program()


def test_each_wait_has_one_set():
    p = words()
    setting = np.flatnonzero(p.op == Op.SET)
    waiting = np.flatnonzero(p.op == Op.WAIT)
    assert len(waiting) == 3
    for change in (
        lambda: replace(p, op=np.where(np.arange(len(p.op)) == setting[0], Op.NOOP, p.op).astype(np.uint8)),
        lambda: replace(p, remote=np.where(np.arange(len(p.op)) == setting[0], 0, p.remote)),
        lambda: replace(p, remote=np.where(np.arange(len(p.op)) == waiting[0], 0, p.remote)),
    ):
        with pytest.raises(ProgramError, match=r"WAIT 0 of subgraph .* is satisfied (by 0 SETs|from the start)"):
            prove(change())


def test_words_that_wait_for_each_other_are_a_deadlock():
    p = words()
    setting, waiting = np.flatnonzero(p.op == Op.SET), np.flatnonzero(p.op == Op.WAIT)
    # Rank 0's subgraph of a now waits for the word that it sets itself.
    first = int(p.extra["subgraph_start"][0])
    assert first < setting[0] < waiting[0]
    op, local, remote = p.op.copy(), p.local.copy(), p.remote.copy()
    op[first], local[first], remote[first] = Op.WAIT, p.local[setting[0]], 1
    with pytest.raises(ProgramError):
        prove(replace(p, op=op, local=local, remote=remote))


def test_what_does_not_fit_the_context_memory_is_refused():
    with pytest.raises(ConfigError, match=r"chunk = 128: too small: .* bytes of context memory"):
        program("all_reduce", ranks=4, count=1 << 17, chunk=128)


def test_engines_may_not_touch_each_others_slots():
    p = program("reduce_scatter", engines=2, count=4096)
    second = np.repeat(p.extra["subgraph_engine"], np.diff(p.extra["subgraph_start"].astype(int))) == 1
    staged = (p.op == Op.RECV) & (p.bytes > 0)
    staging, other = int(p.local[staged & ~second].min()), int(p.local[staged & second].min())
    assert other > staging
    moved = (other - staging) * second
    local = np.where(second & (p.op == Op.RECV), p.local - moved.astype(np.uint64), p.local)
    remote = np.where(second & (p.op == Op.SUM), p.remote - moved.astype(np.uint64), p.remote)
    with pytest.raises(ProgramError):
        prove(replace(p, local=local, remote=remote))
