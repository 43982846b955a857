"""Message engines from Python: a ring made by hand, rehearsed and run, and what is refused."""

import dataclasses

import numpy as np
import pytest

from metaroce import ConfigError, Result, Scenario, SimulationStalled, simulation
from metaroce.collectives import Program
from metaroce.collectives.program import ALL_RANKS, Op, Ranges
from metaroce.engine import Collective

RANKS, ENGINES, ELEMENTS = 4, 2, 300
BYTES = 4 * ELEMENTS
COLUMNS = ("op", "peer", "stream", "local", "remote", "bytes", "wqe_sync")
TYPES = (np.uint8, np.uint32, np.uint32, np.uint64, np.uint64, np.uint64, np.uint32)


def engines(count=ENGINES):
    return {
        "issue_ps": [250_000] * count,
        "start_ps": [1_100_000] * count,
        "post_ps": [0] * count,
        "direct": [False] * count,
        "event_ps": 3_600_000,
        "dispatch_ps": 2_900_000,
        "unit_bps": 1_864 * 10**9,
        "units_bps": 22_400 * 10**9,
        "outstanding": 24_576,
        "words": 1,
        "copies_sends": False,
    }


def subgraph(rank, engine):
    """The worked example of a ring reduce-scatter over 4 ranks, one engine's slice of every chunk."""

    def chunk(back):
        return ((rank - back) % RANKS * ENGINES + engine) * BYTES

    def slot(step):
        return (RANKS * ENGINES + step % 2 * ENGINES + engine) * BYTES

    to, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    return [
        (Op.RECV, before, engine, slot(0), 0, BYTES, 0),
        (Op.SEND, to, engine, chunk(1), 0, BYTES, 0),
        (Op.RECV, before, engine, slot(1), 0, BYTES, 0),
        (Op.SUM, 0, 0, chunk(2), slot(0), BYTES, 3),
        (Op.SEND, to, engine, chunk(2), 0, BYTES, 1),
        (Op.RECV, before, engine, slot(2), 0, BYTES, 2),
        (Op.SUM, 0, 0, chunk(3), slot(1), BYTES, 4),
        (Op.SEND, to, engine, chunk(3), 0, BYTES, 1),
        (Op.SUM, 0, 0, chunk(4), slot(2), BYTES, 3),
        (Op.SET, 0, 0, 0, 1, 0, 1),
    ]


def ring(**changes):
    rows = [row for rank in range(RANKS) for engine in range(ENGINES) for row in subgraph(rank, engine)]
    columns = {
        name: np.array([row[k] for row in rows], t) for k, (name, t) in enumerate(zip(COLUMNS, TYPES, strict=True))
    }
    sync = columns.pop("wqe_sync")
    ranks, graphs, elements = np.arange(RANKS), RANKS * ENGINES, ENGINES * ELEMENTS
    program = Program(
        dtype="float32",
        memory_bytes=(RANKS + 2) * ENGINES * BYTES,
        rank_start=(np.arange(RANKS + 1) * ENGINES * 10).astype(np.uint32),
        dep_start=np.zeros(len(rows) + 1, np.uint32),
        deps=np.zeros(0, np.uint32),
        fill=Ranges.of(ranks, 0, RANKS * elements, ranks, 0),
        expect=Ranges.of(ranks, ranks * elements * 4, elements, ALL_RANKS, ranks * elements),
        size_bytes=RANKS * ENGINES * BYTES,
        count=RANKS * elements,
        extra={
            "subgraph_start": (np.arange(graphs + 1) * 10).astype(np.uint32),
            "subgraph_engine": np.tile(np.arange(ENGINES, dtype=np.uint32), RANKS),
            "subgraph_packet": np.zeros(graphs, np.uint32),
            "subgraph_release_ps": np.zeros(graphs, np.uint64),
            "subgraph_priority": np.zeros(graphs, np.uint8),
            "wqe_sync": sync,
        },
        offload=engines(),
        **columns,
    )
    return dataclasses.replace(program, **changes)


def scenario(**fields):
    workload = Collective(kind="reduce_scatter", size=RANKS * ENGINES * BYTES)
    return Scenario(topology="multiplane-4x64", ranks=RANKS, workload=workload, **fields)


def run(program, **fields):
    """The program's memory after a run, and the run."""
    chosen = scenario(record_wqes=True, **fields)
    memory = np.zeros((RANKS, program.memory_bytes // 4), np.float32)
    memory[:, : RANKS * ENGINES * ELEMENTS] = np.arange(RANKS)[:, None] + np.arange(RANKS * ENGINES * ELEMENTS) % 64
    raw = simulation.run_on(memory.view(np.uint8).ravel(), chosen, program)
    result = Result.of(chosen, program, raw)
    return memory, np.frombuffer(raw["memory"], np.float32).reshape(memory.shape), result


def test_a_ring_is_exact_under_random_delays():
    found = simulation.rehearse(ring(), range(50))
    assert found.exact
    assert found.status == ["done"] * 50
    assert found.reason == [""] * 50
    assert (found.checked == RANKS * ENGINES * ELEMENTS).all()
    assert len(set(found.time_ps.tolist())) == 50
    again = simulation.rehearse(ring(), [7, 3], least="100ns", most=20_000_000)
    assert again.time_ps.tolist() == found.time_ps[[7, 3]].tolist()


def without(entry):
    """The ring whose entries of that number wait for nothing."""
    program = ring()
    program.extra["wqe_sync"].reshape(-1, 10)[:, entry] = 0
    return program


@pytest.mark.parametrize("entry", [3, 4, 6, 7, 8])
def test_without_what_an_entry_waits_for_sums_are_wrong(entry):
    assert not simulation.rehearse(without(entry), range(50)).exact


def test_operations_that_loiter_are_what_finds_a_send_that_comes_too_early():
    assert simulation.rehearse(without(4), range(50), unit=0).exact


def test_a_run_gives_sums_and_what_engines_did():
    before, after, result = run(ring())
    elements = ENGINES * ELEMENTS
    for rank in range(RANKS):
        own = slice(rank * elements, (rank + 1) * elements)
        np.testing.assert_array_equal(after[rank, own], before[:, own].sum(axis=0))
    assert result.status == "done"
    table = result.engines
    assert table["rank"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert table["engine"].tolist() == [0, 1] * 4
    assert (table["issued"] == 10).all()
    assert (table["cpu_ps"] == 1_100_000 + 10 * 250_000).all()
    least = 3 * 8 * BYTES * 10**12 // (1_864 * 10**9)
    assert (table["unit_ps"] >= least).all()
    assert (table["unit_ps"] <= least + 3).all()
    assert (table["stall_ps"] > 0).all()
    assert (result.outstanding_most <= 6 * ENGINES).all()
    issued = result.wqe_issued_ps.reshape(RANKS, ENGINES, 10)
    assert (np.diff(issued.astype(np.int64)) >= 250_000).all()
    assert (result.wqe_issued_ps <= result.wqe_done_ps).all()
    assert issued[0, :, 0].tolist() == [3_600_000 + 2_900_000 + 1_100_000 + 250_000] * 2
    assert "engines" not in result.to_dict()
    assert result.resolved["offload"]["outstanding"] == 24_576


def test_the_same_run_twice_is_the_same_and_without_engines_there_are_none():
    assert run(ring(), seed=5)[2].digest == run(ring(), seed=5)[2].digest
    plain = simulation.run(scenario())
    assert plain.engines is None
    assert plain.wqe_issued_ps is None
    assert plain.outstanding_most is None


def test_a_stall_names_what_cannot_issue():
    program = ring()
    program.op[1] = Op.NOOP
    chosen = scenario()
    memory = np.zeros(RANKS * program.memory_bytes, np.uint8)
    result = Result.of(chosen, program, simulation.run_on(memory, chosen, program))
    assert result.status == "stalled"
    told = [(flow["src"], flow["dst"], flow["reason"]) for flow in result.stalled_flows]
    reason = "engine 0: SUM (entry 8 of rank 1) waits for RECV from rank 0 (entry 5 of rank 1), which has not landed"
    assert told[0] == (1, 0, reason)
    assert reason in str(simulation.stall(result, int(result.time_ps), result.stalled_flows))
    assert isinstance(simulation.stall(result, 0, []), SimulationStalled)
    rehearsed = simulation.rehearse(program, [1])
    assert rehearsed.status == ["stalled"]
    assert reason in rehearsed.reason[0]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"offload": None}, ("program.offload", "None", "engines")),
        ({"offload": {**engines(), "words": 0}}, ("local[9]", "0", "below 0")),
        ({"offload": engines(1)}, ("subgraph_engine[1]", "1", "below 1")),
        ({"offload": {**engines(), "post_ps": [0]}}, ("offload.post_ps", "length 1", "length 2")),
        ({"dtype": "float31"}, ("dtype", "float31", "float32")),
        ({"extra": {}}, ("op[9]", "12", "0 to 10")),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change, parts):
    with pytest.raises(ConfigError) as caught:
        simulation.rehearse(ring(**change), [1])
    assert all(part in str(caught.value) for part in parts)
    assert "\n" not in str(caught.value)


def test_delays_and_seeds_are_checked():
    with pytest.raises(ConfigError, match="least"):
        simulation.rehearse(ring(), [1], least="many")
    with pytest.raises(ConfigError, match="most_ps"):
        simulation.rehearse(ring(), [1], least="2us", most="1us")
    assert simulation.rehearse(ring(), []).status == []


def test_threads_are_refused():
    program = ring()
    memory = np.zeros(RANKS * program.memory_bytes, np.uint8)
    with pytest.raises(ConfigError, match="threads: 2 is not allowed; allowed: 1 with"):
        simulation.run_on(memory, scenario(threads=2), program)
