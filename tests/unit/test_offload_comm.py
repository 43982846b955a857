"""Collective times of engines and GPUs, kernels beside them, and the published rows."""

from dataclasses import replace

import pytest

from metaroce import collectives
from metaroce.errors import ConfigError
from metaroce.offload import hardware
from metaroce.offload.models import crossover, dynamic, isolation, presets, related
from metaroce.offload.models.comm import EngineModel, Links, Measured, busbw, bytes_in
from metaroce.offload.models.gpu import NcclModel
from metaroce.offload.models.kernels import Device, Kernel, Load, gemm, slowdown, streaming, waves

LINKS = Links(up_gbs=800.0, out_gbs=200.0)


@pytest.mark.parametrize("name", ["h100", "h200", "gaudi3", "mtia300"])
def test_every_accelerator_states_where_its_figures_are_from(name):
    rows = hardware.load(name).figures()
    assert len(rows) > 25
    assert all(source.strip() for _, _, source in rows)


def test_links_of_equal_racks_follow_the_formulas():
    domains, size = (16, 16), 32e9
    assert LINKS.parts("alltoall", size, domains) == pytest.approx(
        {"scale-up": size * 15 / 32 / 800e3, "scale-out": size * 16 / 32 / 200e3}
    )
    whole = size * 32 / 31
    assert LINKS.parts("all_gather", size, domains) == pytest.approx(
        {"scale-up": whole * 15 / 16 / 800e3, "scale-out": whole / 16 * (1 / 2) / 200e3}
    )
    gather = LINKS.parts("all_gather", size / 2, domains)
    assert LINKS.parts("all_reduce", size, domains)["scale-up"] == 2 * gather["scale-up"]


def test_the_smallest_rack_binds_an_alltoall():
    even, uneven = (LINKS.parts("alltoall", 1e9, d)["scale-out"] for d in ((14, 13, 13), (16, 16, 8)))
    assert uneven == pytest.approx(even * 32 / 27)


def test_the_smallest_rack_binds_an_allgather_too():
    whole, made = 1e9 * 40 / 39, LINKS.parts("all_gather", 1e9, (16, 16, 8))
    assert made["scale-out"] == pytest.approx(whole * 32 / 40 / 8 / 200e3)
    assert made["scale-up"] == pytest.approx(whole * 15 / 16 / 800e3)


def test_a_small_collective_costs_control_steps_and_hops():
    model = EngineModel(links=LINKS)
    inside, across = (model.time("all_gather", 1.0, domains) for domains in ((16,), (16, 16)))
    assert inside.fixed_us == pytest.approx(3.6 + 2.9 + 4 * (1.1 + 2.5))
    assert across.fixed_us == pytest.approx(inside.fixed_us + 1.1 + 6.0)
    odd = model.time("all_gather", 1.0, (15,))
    assert (odd.algorithm, odd.fixed_us) == ("ring", pytest.approx(6.5 + 14 * 3.6))


def test_a_put_brings_each_peers_whole_vector():
    put = EngineModel(links=LINKS, one_shot_us=0.5)
    size = 64 << 10
    cost = put.time("all_reduce", bytes_in("all_reduce", size, 16), (16,))
    assert cost.time_us == pytest.approx(0.5 + 2 * 2.5 + 15 * size / 800e3)
    larger = put.time("all_reduce", bytes_in("all_reduce", size + 1, 16), (16,))
    assert larger.algorithm != "put one-shot"


def test_reduction_and_issue_bind_when_they_are_the_slowest():
    slow = EngineModel(links=LINKS, reduce_gbs=10.0)
    assert slow.time("all_reduce", 1e9, (16,)).bound == "reduction"
    assert slow.time("all_gather", 1e9, (16,)).bound == "scale-up"
    entries = EngineModel(links=LINKS, entry_us=1.1, chunk_bytes=16 << 10)
    cost = entries.time("all_gather", 1e9, (16,))
    assert cost.bound == "issue"
    assert cost.rate_gbs == pytest.approx(16 * 16384 / 4.4 / 1e3)


def test_times_grow_with_size_and_shrink_with_rate():
    for model in (presets.engines(), presets.nccl()):
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "alltoall"):
            times = [model.time(kind, float(1 << p), (8, 8)).time_us for p in range(10, 34, 2)]
            assert times == sorted(times)
            fast = replace(model, links=replace(model.links, up_gbs=5e3, out_gbs=5e3))
            assert fast.time(kind, 1e9, (8, 8)).time_us < model.time(kind, 1e9, (8, 8)).time_us


def test_rates_and_sizes_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="up_gbs = 0"):
        Links(up_gbs=0.0, out_gbs=1.0)
    with pytest.raises(ConfigError, match=r"out_efficiency = 1\.5"):
        Links(up_gbs=1.0, out_gbs=1.0, out_efficiency=1.5)
    for size in (-1.0, float("nan"), float("inf")):
        for model in (presets.engines(), presets.nccl()):
            with pytest.raises(ConfigError, match="bytes_in"):
                model.time("all_gather", size, (8,))


def test_memory_bound_kernels_lose_what_half_a_percent_does_not_speak_of():
    """docs/offload.md: 4 to 36 % on MTIA beside 200 GB/s to 1 TB/s."""
    device = presets.device("mtia300")
    lookup = streaming("lookup", 10e9, device, efficiency=0.8)
    least = isolation.beside("alltoall", presets.engines(), device, lookup, (16, 16)).loss
    staged = replace(presets.engines(partition="10+2"), staging_bytes=12 << 20)
    most = isolation.beside("reduce_scatter", staged, device, lookup, (16,)).loss
    assert 0.04 < least < 0.15
    assert 0.30 < most < 0.36


@pytest.mark.parametrize(("kind", "domains", "named"), [("scan", (8,), "kind"), ("alltoall", (1,), "domains")])
def test_what_no_model_knows_is_refused(kind, domains, named):
    for model in (presets.engines(), presets.nccl()):
        with pytest.raises(ConfigError, match=named):
            model.time(kind, 1e6, domains)


def test_two_domains_need_a_scale_out_link():
    alone = Links(up_gbs=100.0, out_gbs=0.0)
    for model in (EngineModel(links=alone), NcclModel(links=alone)):
        with pytest.raises(ConfigError, match="scale-out"):
            model.time("all_gather", 1e6, (8, 8))


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_reductions_cannot_be_sm_free(kind):
    with pytest.raises(ConfigError, match=r"all_gather, alltoall.*reductions"):
        presets.nccl(sm_free=(kind,))


def test_sm_free_takes_no_sm_but_the_memory_and_only_of_its_kinds():
    free = presets.nccl(sm_free=("alltoall", "all_gather"))
    gather, reduce = (free.load(free.time(kind, 1e9, (8,))) for kind in ("all_gather", "reduce_scatter"))
    assert gather.units == 0
    assert gather.memory_gbs > 0
    assert reduce.units == 22


def test_channels_follow_the_rate_up_to_the_cap():
    model = presets.nccl()
    assert [model.held("all_gather", rate) for rate in (1, 36.7, 43, 370, 2000)] == [2, 2, 4, 22, 24]
    nvls = model.time("all_reduce", 1e9, (8,))
    assert nvls.algorithm == "NVLS"
    assert model.load(nvls).units == 16
    with pytest.raises(ConfigError, match="channels = 65"):
        presets.nccl(channels=65)


def test_a_measured_time_takes_the_place_of_the_formula():
    asked = []
    comm = Measured(presets.engines(), lambda *call: asked.append(call) or 500.0)
    cost = comm.time("all_gather", 1e8, (16,))
    assert cost.time_us == comm.time("all_gather", 1e8, (16,)).time_us == pytest.approx(500.0)
    assert asked == [("all_gather", 1e8, (16,))]
    assert comm.load(cost).memory_gbs == pytest.approx(cost.rate_gbs)


def test_bus_bandwidth_is_that_of_nccl_tests():
    cost = EngineModel(links=LINKS, step_us=0.0).time("all_reduce", bytes_in("all_reduce", 8e9, 16), (16,))
    assert busbw("all_reduce", cost, 16) == pytest.approx(800.0)


@pytest.mark.parametrize("row", related.mtia300() + related.h100() + related.gaudi3(), ids=lambda row: row.name)
def test_published_rates_lie_in_their_bands(row):
    assert row.passed, row


def test_waves_are_whole_and_persistent_kernels_even():
    grid = Kernel("grid", 1.0, 0.0, 132)
    assert waves(grid, 132, 0) == 1
    assert waves(grid, 132, 1) == 2
    assert waves(replace(grid, persistent=True), 132, 33) == pytest.approx(4 / 3)
    with pytest.raises(ConfigError, match="held = 132"):
        waves(grid, 132, 132)


def test_latency_of_a_fuller_memory_costs_its_share():
    device = Device(name="d", units=1, tflops={}, memory_gbs=1000.0, achieved=1.0, on_chip_bytes=0, exposed=0.01)
    kernel = Kernel("k", 1000.0, 0.1 * 1e9)
    beside = slowdown(device, kernel, Load(0, 450.0))
    assert beside.kernel == pytest.approx(1 + 0.01 * (0.9 / 0.45 - 1))
    assert beside.collective == 1
    assert slowdown(device, kernel, Load(0, 450.0, stretch=1.2)).collective == pytest.approx(1.2)
    assert slowdown(device, None, Load(0, 450.0, stretch=1.2)).collective == 1


def test_a_memory_bound_kernel_loses_what_the_collective_takes_until_both_have_half():
    device = presets.device("mtia300")
    kernel = Kernel("k", 1000.0, device.bandwidth * 1e6)
    assert slowdown(device, kernel, Load(0, 0.3 * device.bandwidth)).loss == pytest.approx(0.3)
    full = slowdown(device, kernel, Load(0, 0.8 * device.bandwidth))
    assert (full.loss, full.collective) == (pytest.approx(0.5), pytest.approx(1.6))


def test_a_gpus_memory_bound_kernel_loses_a_third_to_a_half():
    assert 0.31 <= related.memory_bound_loss(370, factor=2.0) <= related.memory_bound_loss(370, factor=3.0) <= 0.5


def test_operands_that_do_not_fit_are_read_again():
    small = replace(presets.device("h100"), on_chip_bytes=8 << 20)
    once, often = (gemm((4096,) * 3, "tfloat32", d).memory_bytes for d in (presets.device("mtia300"), small))
    assert once == 3 * 4096**2 * 4
    assert often > 3 * once
    with pytest.raises(ConfigError, match=r"int3.*bfloat16"):
        gemm((1, 1, 1), "int3", small)


KINDS = ("reduce_scatter", "all_gather", "all_reduce", "alltoall")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("staged", [0.75, 0.9, 1.0, None])
def test_m4_engines_cost_a_gemm_less_than_half_a_percent_with_staging_on_chip(kind, staged):
    assert 0 < isolation.on_engines(kind, staged=staged).loss < 0.005


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce"])
def test_m4_breaks_when_staging_is_off_chip(kind):
    assert isolation.on_engines(kind, staged=0.0).loss > 0.005
    assert isolation.on_engines(kind, staged=0.0, partition="10+2").loss > isolation.on_engines(kind, staged=0.0).loss


def test_m4_holds_for_the_entries_of_a_compiled_ring_and_breaks_without_its_partition():
    made = collectives.compile("reduce_scatter", 16, 16 << 20)
    device = presets.device("mtia300")
    staging = (16 << 20, made.memory_bytes)
    on, off = (
        isolation.of_program(made, staging, 750.0, replace(device, staging_bytes=part)) for part in (32 << 20, 0)
    )
    assert 0 < on.loss < 0.005 < off.loss


def test_m4_more_than_half_of_all_draws_of_what_is_unpublished_stay_below():
    losses = isolation.losses(300, seed=3)
    assert sum(loss < 0.005 for loss in losses) / len(losses) > 0.7, "seed 3"
    off = isolation.losses(300, seed=3, staged=(0.0, 0.0))
    assert sum(off) > 2 * sum(losses), "seed 3"


def test_m4_a_gpu_loses_a_fifth_by_its_channels_and_nothing_without():
    for ranks in (8, 16):
        made = isolation.on_gpu(ranks=ranks)
        assert 20 <= made.load.units <= 26
        assert 0.15 <= made.loss <= 0.25
    assert all(0.15 <= isolation.on_gpu(held=k).loss <= 0.25 for k in range(20, 27))
    assert all(0.40 <= isolation.on_gpu(held=k, one_wave=True).loss <= 0.50 for k in range(20, 27))
    assert isolation.on_gpu(held=0).loss == 0
    assert isolation.on_gpu(held=0).load.memory_gbs > 0


def test_m6_what_compute_does_not_cover_is_exposed():
    moved = dynamic.payload(123.0)
    assert dynamic.cost(moved, 16).time_us == pytest.approx(123.0)
    half = dynamic.split(moved, 92.0)
    assert half.wall_us == pytest.approx(123.0)
    assert half.exposed_us == pytest.approx(31.0, abs=1.0)  # 92 us of cover are ours; the split is the model's
    assert dynamic.split(moved, 0.0).exposed_us == pytest.approx(123.0)
    assert dynamic.split(moved, 500.0).exposed_us == 0.0
    host = dynamic.split(moved, 92.0, trigger="host")
    assert host.exposed_us - half.exposed_us == pytest.approx(6.5, abs=0.1)  # event handling and dispatch
    assert dynamic.split(moved, 92.0, memory_bound=True).slowed_us > 10 * half.slowed_us
    with pytest.raises(ConfigError, match="wall_us = 1"):
        dynamic.payload(1.0)
    with pytest.raises(ConfigError, match="trigger"):
        dynamic.cost(1.0, 16, "timer")


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
def test_m7_nccl_is_ahead_when_small_and_engines_when_large(kind):
    points = crossover.points(kind, 8)
    assert points[0].ahead == "gpu"
    assert all(p.ahead == "engines" for p in points if p.size >= 16 << 20)
    assert points[-1].gpu.time_us / points[-1].engines.time_us > 1.2
    assert crossover.crossover(kind, 16) < crossover.crossover(kind, 8)


def test_m7_holds_over_what_is_unpublished_and_turns_with_its_causes():
    found = list(crossover.range_of("all_reduce", 8, 30, seed=5))
    assert all(size is not None and 1 << 20 <= size <= 64 << 20 for size in found), "seed 5"
    quick = replace(presets.engines(), event_us=0.0, dispatch_us=0.0, engine_us=0.0, hop_us=0.5)
    assert crossover.crossover("all_reduce", 8, engines=quick) == crossover.SIZES[0]
    slow = presets.engines()
    slow = replace(slow, links=replace(slow.links, up_gbs=300.0))
    assert crossover.crossover("all_reduce", 8, engines=slow) is None


def test_row_12_the_engine_saves_memory_traffic_and_never_the_other_way():
    made = related.ace()
    assert made.memory == pytest.approx(3.5)
    assert 1.0 < made.faster < 1.13 * 1.25


def test_row_13_smaller_packets_of_the_collective_leave_the_kernel_more():
    losses = related.dma_losses()
    assert [losses[size << 10] for size in (4, 16, 64)] == sorted(losses.values())
    assert losses[64 << 10] == pytest.approx(0.5, abs=0.01)
    assert losses[4 << 10] == pytest.approx(4 / 68, abs=0.01)
