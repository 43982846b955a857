"""Bytes of memory counted from programs, on-chip shares, fair shares, DMA turns."""

import numpy as np
import pytest

from metaroce import collectives
from metaroce.collectives.program import Op, Program, Ranges
from metaroce.errors import ConfigError
from metaroce.offload.models.memory import (
    Ring,
    absorbed,
    amplification,
    footprint,
    round_robin,
    shares,
    traffic,
)

CHUNK = 256
STAGE = 1 << 20


def program(rows: list[list[tuple[Op, int, int, int]]]) -> Program:
    """Ranks' entries (op, local, remote, bytes); peers do not matter here but for a WRITE: the next rank."""
    flat = [(rank, *entry) for rank, entries in enumerate(rows) for entry in entries]
    starts = np.cumsum([0, *(len(entries) for entries in rows)])
    none = Ranges.of(0, 0, 0, 0, 0)
    return Program(
        dtype="float32",
        memory_bytes=2 * STAGE,
        rank_start=starts.astype(np.uint32),
        op=np.array([op for _, op, *_ in flat], np.uint8),
        peer=np.array([(rank + 1) % len(rows) for rank, *_ in flat], np.uint32),
        stream=np.zeros(len(flat), np.uint32),
        local=np.array([local for *_, local, _, _ in flat], np.uint64),
        remote=np.array([remote for *_, remote, _ in flat], np.uint64),
        bytes=np.array([size for *_, size in flat], np.uint64),
        dep_start=np.zeros(len(flat) + 1, np.uint32),
        deps=np.zeros(0, np.uint32),
        fill=none,
        expect=none,
        size_bytes=CHUNK,
        count=1,
    )


def ring_reduce_scatter(ranks: int) -> Program:
    """The partial sum is made in the staging slot where its other half arrived, the last one in the input."""

    def entries(rank: int):
        yield Op.SEND, (rank - 1) % ranks * CHUNK, 0, CHUNK
        for step in range(ranks - 1):
            own, slot = (rank - 2 - step) % ranks * CHUNK, STAGE + step % 4 * CHUNK
            yield Op.RECV, slot, 0, CHUNK
            if step == ranks - 2:
                yield Op.SUM, own, slot, CHUNK
            else:
                yield Op.SUM, slot, own, CHUNK
                yield Op.SEND, slot, 0, CHUNK

    return program([list(entries(rank)) for rank in range(ranks)])


def ring_all_gather(ranks: int) -> Program:
    def entries(rank: int):
        yield Op.SEND, rank * CHUNK, 0, CHUNK
        for step in range(ranks - 1):
            block = (rank - 1 - step) % ranks * CHUNK
            yield Op.RECV, block, 0, CHUNK
            if step < ranks - 2:
                yield Op.SEND, block, 0, CHUNK

    return program([list(entries(rank)) for rank in range(ranks)])


STAGING = (STAGE, STAGE + 4 * CHUNK)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("ranks", [2, 4, 16, 64])
def test_a_ring_reduce_scatter_costs_one_and_four_times_what_misses_the_chip(ranks, share):
    for one in traffic(ring_reduce_scatter(ranks), STAGING, share):
        # first SEND and last SUM touch payload only: two staging accesses less, two of payload more in n - 1 chunks
        ends = 2 * share / (ranks - 1)
        assert one.amplification == pytest.approx(1 + 4 * (1 - share) + ends)
        assert one.sent == one.received == (ranks - 1) * CHUNK
        total = one.hbm_read + one.hbm_written + one.chip_read + one.chip_written
        assert total == 5 * one.received  # every access lies somewhere


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_sums_kept_in_the_input_are_written_to_memory_each(share):
    """The worked ring of four: one write a chunk more than with sums in the slots, and its SEND finds it on chip."""

    def entries(rank: int):
        yield Op.SEND, (rank - 1) % 16 * CHUNK, 0, CHUNK
        for step in range(15):
            own, slot = (rank - 2 - step) % 16 * CHUNK, STAGE + step % 2 * CHUNK
            yield Op.RECV, slot, 0, CHUNK
            yield Op.SUM, own, slot, CHUNK
            if step < 14:
                yield Op.SEND, own, 0, CHUNK

    for one in traffic(program([list(entries(rank)) for rank in range(16)]), STAGING, share):
        assert one.amplification == pytest.approx(2 + 3 * (1 - share) + share / 15)


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_a_ring_all_gather_reads_again_only_what_left_the_chip(share):
    for one in traffic(ring_all_gather(16), None, share):
        assert one.amplification == pytest.approx(1 + (1 - share) + share / 15)  # its own block is never on chip


def test_an_alltoall_reads_and_writes_each_byte_whatever_is_staged():
    entries = [(Op.SEND, k * CHUNK, 0, CHUNK) for k in range(3)] + [
        (Op.RECV, 8192 + k * CHUNK, 0, CHUNK) for k in range(3)
    ]
    for one in traffic(program([entries] * 4), STAGING, 1.0):
        assert one.amplification == 2.0
        assert one.chip_read == one.chip_written == 0


def test_a_write_is_read_at_home_and_written_at_its_peer():
    first, second = traffic(program([[(Op.WRITE, 0, 4096, 100)], [(Op.NOOP, 0, 0, 0)]]))
    assert (first.hbm_read, first.sent, first.received) == (100, 100, 0)
    assert (second.hbm_written, second.received, second.hbm_read) == (100, 100, 0)


def test_a_copy_that_reads_half_of_what_was_written_finds_half_on_chip():
    rows = [[(Op.RECV, 100, 0, 100), (Op.COPY, 5000, 50, 100)]]
    (one,) = traffic(program(rows), None, 1.0)
    assert (one.chip_read, one.hbm_read, one.hbm_written) == (50, 50, 200)


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather"])
def test_the_programs_of_this_package_cost_what_the_formula_says(kind):
    made = collectives.compile(kind, 16, 16 * 4096)
    size = int(made.memory_bytes)
    payload = 16 * 4096
    for share in (0.0, 1.0):
        for one in traffic(made, (payload, size) if size > payload else None, share):
            assert one.amplification == pytest.approx(amplification(kind, share), rel=0.2)


def test_the_share_on_chip_follows_from_partition_and_footprint():
    assert absorbed(32, 64) == 0.5
    assert absorbed(64, 32) == absorbed(0, 0) == 1.0
    assert absorbed(0, 64) == 0.0
    with pytest.raises(ConfigError, match="partition_bytes"):
        absorbed(-1, 1)


def test_the_footprint_is_the_slots_and_what_waits_to_be_sent_on():
    assert footprint(ring_reduce_scatter(16), STAGING) == 4 * CHUNK
    assert footprint(ring_all_gather(16)) == CHUNK
    late = [(Op.RECV, k * CHUNK, 0, CHUNK) for k in range(3)] + [(Op.SEND, k * CHUNK, 0, CHUNK) for k in range(3)]
    assert footprint(program([late])) == 3 * CHUNK


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_share(share):
    with pytest.raises(ConfigError, match="absorbed"):
        amplification("alltoall", share)


def test_an_unknown_kind_is_named():
    with pytest.raises(ConfigError, match=r"broadcast.*all_gather"):
        amplification("broadcast", 0.5)


def test_shares_are_max_min_fair():
    assert shares(10, [2, 20]) == [2, 8]
    assert shares(10, [20, 20]) == [5, 5]
    assert shares(10, [3, 4]) == [3, 4]
    assert shares(9, [1, 5, 7]) == [1, 4, 4]


def test_rings_take_turns_by_packet_so_small_packets_get_less():
    done = round_robin([Ring("big", 64 << 20, 64 << 10), Ring("small", 64 << 20, 4 << 10)], 100.0)
    both = (128 << 20) / 100e3
    assert done["small"] == pytest.approx(both)
    assert done["big"] == pytest.approx((64 << 20) * (1 + 4 / 64) / 100e3, rel=1e-3)
    with pytest.raises(ConfigError, match=r"small\.packet"):
        round_robin([Ring("small", 1, 0)], 1.0)
