"""The symbolic check must be able to fail: programs are broken one entry at a time, and every break must be caught."""

from dataclasses import replace

import numpy as np
import pytest

from metaroce import ProgramError, collectives
from metaroce.collectives import Op, Ranges, verify
from metaroce.collectives.program import Builder, Entry

KINDS = [("all_reduce", True), ("all_reduce", False), ("reduce_scatter", True), ("reduce_scatter", False)]
KINDS += [("all_gather", True), ("all_gather", False), ("alltoall", False)]


def program_of(kind, inplace=True, ranks=4, count=64, **options):
    return collectives.compile(kind, ranks, count=count, chunks=2, inplace=inplace, **options)


def changed(program, column, index, value):
    values = getattr(program, column).copy()
    values[index] = value
    return replace(program, **{column: values})


def without_dependency(program, index):
    starts = program.dep_start.astype(np.int64)
    starts[np.searchsorted(starts, index, "right") :] -= 1
    return replace(program, dep_start=starts.astype(np.uint32), deps=np.delete(program.deps, index))


def with_dependency(program, entry, on):
    starts = program.dep_start.astype(np.int64)
    deps = np.insert(program.deps, starts[entry], on)
    starts[entry + 1 :] += 1
    return replace(program, dep_start=starts.astype(np.uint32), deps=deps)


def with_entry(program, **fields):
    """One entry more, the last of the last rank, without dependencies."""
    rows = {"op": Op.NOOP, "peer": program.ranks - 1, "stream": 0, "local": 0, "remote": 0, "bytes": 0, **fields}
    columns = {
        name: np.append(getattr(program, name), np.array(value, getattr(program, name).dtype))
        for name, value in rows.items()
    }
    ends = program.rank_start.copy()
    ends[-1] += 1
    return replace(program, **columns, rank_start=ends, dep_start=np.append(program.dep_start, program.dep_start[-1]))


def entries(program, *ops):
    return np.flatnonzero(np.isin(program.op, ops)).tolist()


@pytest.mark.parametrize(("kind", "inplace"), KINDS)
def test_a_sound_program_passes(kind, inplace):
    verify(program_of(kind, inplace))


def test_every_dependency_of_a_ring_all_reduce_matters():
    for inplace in (True, False):
        program = program_of("all_reduce", inplace)
        for index in range(len(program.deps)):
            with pytest.raises(ProgramError):
                verify(without_dependency(program, index))


@pytest.mark.parametrize(("kind", "inplace"), KINDS)
@pytest.mark.parametrize("column", ["local", "remote"])
def test_every_shifted_offset_is_caught(kind, inplace, column):
    program = program_of(kind, inplace)
    ops = (Op.COPY, Op.SUM) if column == "remote" else (Op.SEND, Op.RECV, Op.COPY, Op.SUM)
    for index in entries(program, *ops):
        for shift in (4, -4):
            moved = int(getattr(program, column)[index]) + shift
            if moved >= 0:
                with pytest.raises(ProgramError):
                    verify(changed(program, column, index, moved))


@pytest.mark.parametrize(("kind", "inplace"), KINDS)
def test_every_cut_message_is_caught(kind, inplace):
    program = program_of(kind, inplace)
    for index in entries(program, Op.SEND, Op.RECV, Op.COPY, Op.SUM):
        with pytest.raises(ProgramError):
            verify(changed(program, "bytes", index, int(program.bytes[index]) - 4))


@pytest.mark.parametrize(("kind", "inplace"), KINDS)
def test_every_missing_entry_is_caught(kind, inplace):
    program = program_of(kind, inplace)
    for index in entries(program, Op.SEND, Op.RECV, Op.COPY, Op.SUM):
        with pytest.raises(ProgramError):
            verify(changed(changed(program, "op", index, Op.NOOP), "bytes", index, 0))


def test_a_sum_in_place_of_a_copy_and_the_reverse_are_caught():
    program = program_of("all_reduce")
    for index in entries(program, Op.SUM):
        with pytest.raises(ProgramError):
            verify(changed(program, "op", index, Op.COPY))
    program = program_of("all_gather", inplace=False)
    for index in entries(program, Op.COPY):
        with pytest.raises(ProgramError):
            verify(changed(program, "op", index, Op.SUM))


def test_a_contribution_counted_twice_is_caught():
    program = program_of("reduce_scatter", inplace=False)
    last = entries(program, Op.SUM)[-1]
    twice = {name: int(getattr(program, name)[last]) for name in ("op", "local", "remote", "bytes", "stream")}
    after = with_dependency(with_entry(program, **twice), len(program.op), last)
    with pytest.raises(ProgramError, match="1 ranges end wrong"):
        verify(after)


def test_a_wrong_peer_or_stream_is_caught():
    program = program_of("all_reduce")
    for index in entries(program, Op.SEND, Op.RECV)[::7]:
        for column, value in (("peer", (int(program.peer[index]) + 1) % 4), ("stream", 5)):
            with pytest.raises(ProgramError):
                verify(changed(program, column, index, value))


def test_a_circle_of_dependencies_is_a_deadlock():
    program = program_of("all_reduce")
    receives = [i for i in entries(program, Op.RECV) if program.rank[i] == 0 and program.stream[i] == 0]
    own_shard_summed = receives[3]  # three steps of reduce-scatter before it
    with pytest.raises(ProgramError, match="deadlock"):
        verify(with_dependency(program, 0, own_shard_summed))


def test_waiting_for_each_other_across_ranks_is_a_deadlock():
    program = program_of("alltoall", ranks=2)
    for rank in (0, 1):
        own = [i for i in entries(program, Op.SEND, Op.RECV) if program.rank[i] == rank]
        send, recv = sorted(own, key=lambda i: program.op[i])
        program = with_dependency(program, send, recv)
    with pytest.raises(ProgramError, match="deadlock"):
        verify(program)


def test_a_dependency_on_another_rank_is_refused():
    program = program_of("all_reduce")
    with pytest.raises(ProgramError, match="another rank"):
        verify(with_dependency(program, 0, len(program.op) - 1))


@pytest.mark.parametrize("column", ["local", "bytes"])
def test_leaving_memory_is_refused(column):
    program = program_of("all_reduce")
    index = entries(program, Op.SEND)[0]
    with pytest.raises(ProgramError, match="leaves its rank's memory"):
        verify(changed(program, column, index, program.memory_bytes + 4))


def hand_made(*kinds, expect):
    """Two ranks with 16 bytes each, elements 0-3 filled; every kind is an entry of both."""
    builder = Builder(2, len(kinds))
    for kind in kinds:
        builder.block(1, 1, kind)
    ranks = np.arange(2)
    return builder.program(
        dtype="float32",
        memory_bytes=32,
        fill=Ranges.of(ranks, 0, 4, ranks, 0),
        expect=expect,
        size_bytes=16,
        count=4,
    )


OTHER = np.array([1, 0])[:, None, None]
OWN = 1 - OTHER
SWAPPED = Ranges.of([0, 1], 0, 4, [1, 0], 0)


def test_a_swap_in_place_is_a_race():
    """Symbols come out right, for both SENDs start before either RECV ends; only their order is not certain."""
    send, recv = Entry(Op.SEND, OTHER, 0, 0, 0, 16), Entry(Op.RECV, OTHER, 0, 0, 0, 16)
    with pytest.raises(ProgramError, match="race: SEND 0 of rank 0 and RECV 1 of rank 0"):
        verify(hand_made(send, recv, expect=SWAPPED))


def test_a_read_that_a_receive_may_overtake_is_a_race():
    send, recv = Entry(Op.SEND, OTHER, 0, 0, 0, 8), Entry(Op.RECV, OTHER, 0, 24, 0, 8)
    copy = Entry(Op.COPY, OWN, 0, 16, 24, 8)
    with pytest.raises(ProgramError, match="race: COPY 2 of rank 0 and RECV 1 of rank 0"):
        verify(hand_made(send, recv, copy, expect=Ranges.of([0, 1], 24, 2, [1, 0], 0)))


def test_two_writes_in_no_order_are_a_race():
    send, recv = Entry(Op.SEND, OTHER, 0, 0, 0, 16), Entry(Op.RECV, OTHER, 0, 16, 0, 16)
    copy = Entry(Op.COPY, OWN, 0, 16, 0, 16)
    with pytest.raises(ProgramError, match="race"):
        verify(hand_made(copy, send, recv, expect=Ranges.of([0, 1], 16, 4, [1, 0], 0)))


def test_the_check_is_remembered_by_shape(monkeypatch):
    seen = []
    monkeypatch.setattr(collectives, "verify", seen.append)
    monkeypatch.setattr(collectives, "_verified", set())
    for size in (1 << 20, 2 << 20, 4 << 20):
        collectives.compile("all_reduce", 8, size)
    assert len(seen) == 1
    collectives.compile("all_reduce", 8, count=1001)
    collectives.compile("all_reduce", 8, count=1002)
    assert len(seen) == 3
