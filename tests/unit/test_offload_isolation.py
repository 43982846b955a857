"""M4 from the entries of compiled work packets: what they move in HBM, with staging on and off the chip."""

from dataclasses import replace

import pytest

from metaroce.offload.models import isolation, presets
from metaroce.offload.models.memory import footprint, traffic

compiler = pytest.importorskip("metaroce.offload.compiler")

RANKS, SIZE = 16, 16 << 20
DEVICE = presets.device("mtia300")


@pytest.fixture(scope="module", params=["reduce_scatter", "all_reduce", "all_gather", "alltoall"])
def packet(request):
    """The program of one collective and its staging range: the last bytes of a rank's memory."""
    made = compiler.compile(compiler.node(request.param, RANKS, SIZE), (0,) * RANKS, "mtia300", verified=False)
    program, staged = made.program(), made.module.notes["staging_bytes"]
    return request.param, program, (program.memory_bytes - staged, program.memory_bytes) if staged else None


def test_m4_holds_for_work_packets_with_staging_on_chip(packet):
    _, program, staging = packet
    assert footprint(program, staging) <= DEVICE.staging_bytes
    assert 0 < isolation.of_program(program, staging, 750.0, DEVICE).loss < 0.005


def test_m4_breaks_for_reductions_with_staging_off_chip(packet):
    kind, program, staging = packet
    on, off = (isolation.of_program(program, staging, 750.0, replace(DEVICE, staging_bytes=s)) for s in (32 << 20, 0))
    if kind in ("reduce_scatter", "all_reduce"):
        assert off.loss > 0.005
    assert off.loss >= on.loss


def test_without_the_chip_work_packets_cost_what_the_formula_says(packet):
    kind, program, staging = packet
    expected = {"reduce_scatter": 5.0, "all_reduce": 3.5, "all_gather": 2.0, "alltoall": 2.0}[kind]
    for rank in traffic(program, staging, 0.0):
        assert rank.amplification == pytest.approx(expected, rel=0.08)  # AllToAll copies its own part
