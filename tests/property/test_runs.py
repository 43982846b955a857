"""Whole runs over a lossy fabric: every byte arrives and every sum is right, whatever the loss; same seed, same run."""

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import metaroce as mr
from metaroce.units import ELEMENT_BYTES
from program_interpreter import add

pytest.importorskip("metaroce._core", reason="the compiled core is not built")

SMALL = mr.topology.LeafSpine(
    planes=2,
    leaves=2,
    spines=2,
    hosts_per_leaf=4,
    link={
        "rate": "200Gbps",
        "delay": "600ns",
        "queue": "1MiB",
        "ecn": {"kmin": "50KiB", "kmax": "200KiB", "pmax": 0.2},
    },
)
SEEDS = st.integers(0, 2**64 - 1)
RANKS = st.integers(2, 8)
LOSSES = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.2]) | st.floats(0.0, 0.2)
WIDE_LOSSES = st.builds(
    lambda probability, per, on: {"probability": probability, "per": per, "on": on},
    LOSSES,
    st.sampled_from(["packet", "link"]),
    st.sampled_from(["data_and_ack", "data"]),
)
DTYPES = st.sampled_from(sorted(ELEMENT_BYTES))
TRANSPORTS = st.sampled_from(sorted(mr.TRANSPORTS))


def scenario(workload, **fields):
    return mr.Scenario(**{"topology": SMALL, "workload": workload, "check": True, **fields})


def finished(made):
    """The result of a run; RoCEv2 may give a QP up after its retry count instead, which ends the example."""
    try:
        return mr.run(made)
    except mr.SimulationStalled as stall:
        if made.transport.kind != "rocev2" or not any("timeouts" in flow["reason"] for flow in stall.flows):
            raise
        reject()


@settings(max_examples=120)
@given(
    kind=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "alltoall"]),
    ranks=RANKS,
    count=st.integers(1, 200) | st.integers(1, 60_000),
    dtype=DTYPES,
    chunks=st.none() | st.integers(1, 12),
    inplace=st.booleans(),
    peers=st.integers(0, 3),
    transport=TRANSPORTS,
    loss=WIDE_LOSSES,
    seed=SEEDS,
)
# [I1]
def test_no_element_is_wrong_whatever_is_lost(kind, ranks, count, dtype, chunks, inplace, peers, transport, loss, seed):
    workload = mr.Collective(kind=kind, count=count, dtype=dtype, chunks=chunks, inplace=inplace, peers_at_a_time=peers)
    result = finished(scenario(workload, ranks=ranks, transport=transport, loss=loss, seed=seed))
    outputs = {"reduce_scatter": count}.get(kind, count * (1 if kind == "all_reduce" else ranks))
    assert (result.status, result.wrong, result.checked) == ("done", 0, ranks * outputs)


@settings(max_examples=30)
@given(data=st.data(), ranks=RANKS, transport=TRANSPORTS, loss=LOSSES, seed=SEEDS)
def test_no_cell_of_a_matrix_is_wrong(data, ranks, transport, loss, seed):
    cells = st.lists(st.integers(0, 3000), min_size=ranks**2, max_size=ranks**2).filter(any)
    matrix = np.array(data.draw(cells)).reshape(ranks, ranks) * 4
    result = finished(
        scenario(mr.Collective(kind="alltoallv", matrix=matrix), transport=transport, loss=loss, seed=seed)
    )
    assert (result.wrong, result.checked) == (0, matrix.sum() // 4)


@settings(max_examples=30)
@given(
    writes=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 50_000), st.integers(0, 10**7)).filter(
            lambda write: write[0] != write[1]
        ),
        min_size=1,
        max_size=20,
    ),
    transport=TRANSPORTS,
    loss=LOSSES,
    seed=SEEDS,
)
# [I1]
def test_no_write_is_wrong(writes, transport, loss, seed):
    result = finished(scenario(mr.Flows(writes=writes), transport=transport, loss=loss, seed=seed))
    assert (result.wrong, result.checked) == (0, sum(size for _, _, size, _ in writes))


@settings(max_examples=30)
@given(
    kind=st.sampled_from(["all_reduce", "alltoall"]),
    transport=TRANSPORTS,
    loss=WIDE_LOSSES,
    interval=st.integers(10**6, 10**8),
    seed=SEEDS,
)
def test_time_series_change_nothing_and_end_at_the_totals(kind, transport, loss, interval, seed):
    made = scenario(mr.Collective(kind=kind, size="256KiB"), transport=transport, loss=loss, seed=seed, check=False)
    bare = finished(made)
    # A long silence has many samples: RoCEv2 timers are longer than a run.
    shown = mr.run(made.replace(record_paths=max(interval, int(bare.time_ps) // 200)))
    assert (shown.digest, shown.iteration_us, shown.counters) == (bare.digest, bare.iteration_us, bare.counters)
    paths = shown.paths
    end = {name: int(column[paths["time_ps"] == shown.time_ps].sum()) for name, column in paths.items()}
    assert end["sent"] == shown.counters["data_packets_sent"]
    by_time = shown.counters["timeouts" if transport.startswith("rocev2") else "timer_detections"]
    assert end["lost_gap"] + end["lost_tail"] == shown.counters["gap_detections"] + by_time
    assert end["in_flight_bytes"] == 0
    columns = shown.connections
    done = columns["time_ps"] == shown.time_ps
    assert (columns["acked_bytes"][done] == columns["sent_bytes"][done]).all()
    assert not columns["unsent_bytes"][done].any()


@settings(max_examples=25)
@given(loss=st.sampled_from([0.0, 0.02]), place=st.integers(1, 60), transport=TRANSPORTS, seed=SEEDS)
def test_one_flipped_byte_is_found(loss, place, transport, seed):
    """An int8 exchange copies every byte once, so that one flipped byte is one wrong element."""
    workload = mr.Collective(kind="alltoall", size="256KiB", dtype="int8")
    result = mr.run(scenario(workload, transport=transport, loss=loss, seed=seed, flip_byte_at=place))
    assert result.wrong == 1


@settings(max_examples=25)
@given(
    kind=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "alltoall"]),
    transport=TRANSPORTS,
    loss=LOSSES,
    seed=SEEDS,
)
def test_the_same_seed_gives_the_same_run_with_and_without_payload(kind, transport, loss, seed):
    made = scenario(mr.Collective(kind=kind, size="256KiB"), transport=transport, loss=loss, seed=seed)
    one, two, bare = finished(made), mr.run(made), mr.run(made.replace(check=False))
    assert one.to_dict() == two.to_dict()
    assert (one.digest, one.time_ps, one.counters) == (bare.digest, bare.time_ps, bare.counters)
    assert bare.wrong is None


def arrays(draw, ranks, shape, dtype):
    """Arrays whose sums depend on their order, with zeros of both signs and large ranges."""
    out = []
    for _ in range(ranks):
        if dtype.startswith("int"):
            bounds = np.iinfo(dtype)
            out.append(draw.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True))
            continue
        values = draw.standard_normal(shape) * 10.0 ** draw.integers(-4, 5, shape) * (draw.random(shape) > 0.1)
        if dtype == "bfloat16":
            out.append((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))
        else:
            out.append(values.astype(dtype))
    return out


def fold(parts, dtype):
    total = parts[0].view(np.uint8)
    for part in parts[1:]:
        total = add(dtype, total, part.view(np.uint8))
    return total.view(parts[0].dtype)


def ring_sum(inputs, dtype, shards, first):
    """Shard j summed from rank j + first on, round the ring: the documented order."""
    n = len(inputs)
    flat = [array.ravel() for array in inputs]
    sums = [fold([flat[(j + first + k) % n][shard] for k in range(n)], dtype) for j, shard in enumerate(shards)]
    return np.concatenate(sums)


TENSORS = {"ranks": RANKS, "rows": st.integers(1, 40), "dtype": DTYPES, "loss": LOSSES, "seed": SEEDS}


def tensors(ranks, rows, dtype, seed, columns=3):
    return arrays(np.random.default_rng(seed), ranks, (rows, columns), dtype)


def same_bits(outs, wanted):
    assert len(outs) == len(wanted)
    for out, want in zip(outs, wanted, strict=True):
        assert (out.shape, out.dtype) == (want.shape, want.dtype)
        assert out.tobytes() == want.tobytes()


@settings(max_examples=60)
@given(**TENSORS)
def test_all_reduce_of_tensors_is_the_documented_sum_bit_for_bit(ranks, rows, dtype, loss, seed):
    inputs = tensors(ranks, rows, dtype, seed)
    outs, result = mr.all_reduce(inputs, dtype=dtype, topology=SMALL, loss=loss, seed=seed)
    shards = np.array_split(np.arange(inputs[0].size), ranks)
    wanted = ring_sum(inputs, dtype, shards, first=0).reshape(inputs[0].shape)
    same_bits(outs, [wanted] * ranks)
    assert result.status == "done"


@settings(max_examples=30)
@given(**TENSORS)
def test_reduce_scatter_of_tensors_is_the_documented_sum_bit_for_bit(ranks, rows, dtype, loss, seed):
    inputs = tensors(ranks, rows * ranks, dtype, seed)
    outs, _ = mr.reduce_scatter(inputs, dtype=dtype, topology=SMALL, loss=loss, seed=seed)
    shards = np.split(np.arange(inputs[0].size), ranks)
    wanted = ring_sum(inputs, dtype, shards, first=1).reshape(ranks, rows, 3)
    same_bits(outs, list(wanted))


@settings(max_examples=30)
@given(**TENSORS)
def test_all_gather_and_alltoall_of_tensors_move_them_unchanged(ranks, rows, dtype, loss, seed):
    inputs = tensors(ranks, rows, dtype, seed)
    outs, _ = mr.all_gather(inputs, dtype=dtype, topology=SMALL, loss=loss, seed=seed)
    same_bits(outs, [np.concatenate(inputs)] * ranks)
    inputs = tensors(ranks, rows * ranks, dtype, seed)
    outs, _ = mr.alltoall(inputs, dtype=dtype, topology=SMALL, loss=loss, seed=seed)
    same_bits(outs, [np.concatenate([given[r * rows : (r + 1) * rows] for given in inputs]) for r in range(ranks)])


@settings(max_examples=20)
@given(transport=TRANSPORTS, loss=LOSSES, seed=SEEDS, count=st.integers(1, 30_000))
def test_both_entry_points_give_the_same_run(transport, loss, seed, count):
    fields = {"topology": SMALL, "transport": transport, "loss": loss, "seed": seed}
    described = finished(mr.Scenario(workload=mr.Collective(kind="all_reduce", count=count), **fields))
    _, tensor = mr.all_reduce([np.zeros(count, np.float32)] * 8, **fields)
    assert (tensor.digest, tensor.time_ps, tensor.counters) == (described.digest, described.time_ps, described.counters)


# [I15]
def test_all_links_down_for_good_is_a_stall_that_names_its_flows():
    faults = [{"at": "5us", "target": "plane", "id": plane} for plane in (0, 1)]
    with pytest.raises(mr.SimulationStalled) as error:
        mr.run(scenario(mr.Collective(kind="all_reduce", size="1MiB"), faults=faults))
    assert error.value.flows
    assert {"src", "dst", "stream", "bytes_left", "reason"} <= set(error.value.flows[0])
    assert error.value.result.status == "stalled"


# [I1] [I16]
@settings(max_examples=20)
@given(at=st.integers(0, 60), plane=st.integers(0, 1), loss=st.sampled_from([0.0, 0.01]), seed=SEEDS)
def test_a_plane_that_dies_leaves_the_numbers_right(at, plane, loss, seed):
    faults = [{"at": f"{at}us", "target": "plane", "id": plane}]
    result = mr.run(scenario(mr.Collective(kind="all_reduce", size="1MiB"), faults=faults, loss=loss, seed=seed))
    assert (result.status, result.wrong) == ("done", 0)


def test_a_key_that_the_core_does_not_know_is_one_line():
    with pytest.raises(mr.ConfigError) as error:
        mr.run(scenario(mr.Permutation(bytes=100), transport={"kind": "metaroce", "windw": 3}))
    assert "windw" in str(error.value)
    assert "\n" not in str(error.value)
