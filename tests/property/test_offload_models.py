"""Overlap and shares for any tasks: work is conserved, nobody is faster than alone, order holds."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from metaroce.offload.models.comm import Cost, EngineModel, Links
from metaroce.offload.models.kernels import Device, Kernel, Load, slowdown
from metaroce.offload.models.memory import Ring, round_robin, shares
from metaroce.offload.models.overlap import Task, simulate

COMM = EngineModel(links=Links(up_gbs=400.0, out_gbs=0.0))
times = st.floats(0.01, 1000.0)
portions = st.floats(0.0, 1.0)


def device(exposed: float) -> Device:
    return Device(name="d", units=16, tflops={}, memory_gbs=1000.0, achieved=0.9, on_chip_bytes=0, exposed=exposed)


@st.composite
def queues(draw):
    tasks: list[Task] = []
    for place in range(draw(st.integers(1, 12))):
        if draw(st.booleans()):
            us = draw(times)
            work = Kernel("k", us, draw(portions) * 900.0 * us * 1e3, draw(st.integers(0, 64)))
        else:
            us = draw(times)
            work = Cost("alltoall", draw(portions) * 600.0 * us * 1e3, draw(times), {"scale-up": us}, "pairwise")
        after = draw(st.sets(st.sampled_from([task.name for task in tasks]))) if tasks else set()
        tasks.append(Task(f"t{place}", work, tuple(sorted(after))))
    return tasks


@given(queues(), st.floats(0.0, 0.02))
def test_a_run_conserves_work_and_keeps_order(tasks, exposed):
    line = simulate(tasks, device(exposed), COMM)
    for task in tasks:
        own = [one for one in line.intervals if one.task == task.name]
        done = sum((one.end_us - one.start_us) * one.rate for one in own)
        assert abs(done - task.alone_us) <= 1e-6 * max(1.0, task.alone_us)
        assert all(0 < one.rate <= 1 + 1e-9 for one in own)
        assert all(line.finish_us[name] <= line.start_us[task.name] + 1e-9 for name in task.after)
    for queue in ("compute", "communication"):
        names = [task.name for task in tasks if task.queue == queue]
        assert all(line.finish_us[a] <= line.start_us[b] + 1e-9 for a, b in pairwise(names))
    assert 0 <= line.exposed_us() <= line.total_us + 1e-9
    assert line.total_us <= 60 * sum(task.alone_us for task in tasks)


@given(st.floats(0, 1e4), st.lists(st.floats(0, 1e4), min_size=1, max_size=6))
def test_fair_shares_never_exceed_demand_or_capacity_and_leave_nothing_unused(capacity, demands):
    given_ = shares(capacity, demands)
    assert all(0 <= got <= want for got, want in zip(given_, demands, strict=True))
    used = sum(given_)
    assert used <= capacity * (1 + 1e-9) + 1e-9
    assert used >= min(capacity, sum(demands)) * (1 - 1e-9) - 1e-9


@given(portions, portions, portions, st.integers(0, 15))
def test_more_load_never_makes_a_kernel_faster(demand, load, more, held):
    kernel = Kernel("k", 100.0, demand * 900.0 * 1e5, 64)
    less, full = (slowdown(device(0.01), kernel, Load(held, part * 900.0)).kernel for part in (load * more, load))
    assert 1 <= less <= full * (1 + 1e-9)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 700)), min_size=1, max_size=5))
def test_turns_of_a_dma_engine_move_all_bytes_and_the_last_ends_with_the_work(rings):
    named = [Ring(str(place), *one) for place, one in enumerate(rings)]
    done = round_robin(named, 1.0)
    total = sum(ring.bytes for ring in named) / 1e3
    assert max(done.values()) == total
    assert all(done[ring.name] >= ring.bytes / 1e3 for ring in named)
