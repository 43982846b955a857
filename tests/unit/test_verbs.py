"""The verbs face over the real core: bytes, completions and errors of each operation."""

import numpy as np
import pytest

import metaroce as mr
from metaroce import verbs

SMALL = mr.topology.LeafSpine(
    planes=2, leaves=2, spines=2, hosts_per_leaf=2, link={"rate": "200Gbps", "delay": "600ns", "queue": "1MiB"}
)
ALL = verbs.LOCAL_WRITE | verbs.REMOTE_WRITE | verbs.REMOTE_READ | verbs.REMOTE_ATOMIC
BYTES = 50_000
WC = verbs.WC


class Pair:
    """Two connected hosts; host 0 posts, host 3 has a region open to it."""

    def __init__(self, access=ALL, length=2 * BYTES, **options):
        self.context = verbs.Context(**{"topology": SMALL, **options})
        self.pds = [self.context.device(rank).alloc_pd() for rank in (0, 3)]
        draw = np.random.default_rng(5)
        self.mine, self.theirs = (
            pd.reg_mr(draw.integers(0, 256, length, np.uint8), rights)
            for pd, rights in zip(self.pds, (verbs.LOCAL_WRITE, access), strict=True)
        )
        self.before = self.theirs.bytes.copy()
        self.cqs = [pd.device.create_cq() for pd in self.pds]
        self.qp, self.far = self.queue_pairs()

    def queue_pairs(self):
        pair = [pd.create_qp(cq) for pd, cq in zip(self.pds, self.cqs, strict=True)]
        verbs.connect(*pair)
        return pair

    def send(self, opcode, offset=0, length=BYTES, at=0, qp=None, wr_id=1, **fields):
        remote = None if opcode in (verbs.SEND, verbs.FLUSH) else (self.theirs.rkey, at)
        sge = None if opcode is verbs.FLUSH else (self.mine, offset, length)
        wr = verbs.SendWR(wr_id, opcode, sge, **{"remote": remote, **fields})
        return (qp or self.qp).post_send(wr)

    def run(self):
        self.context.run()
        return [cq.poll(10_000) for cq in self.cqs]


def outcome(completions):
    return [(wc.wr_id, wc.status, wc.opcode.name, wc.byte_len, wc.imm) for wc in completions]


# [F11.verbs] [I1]
@pytest.mark.parametrize("transport", ["metaroce", "rocev2-adaptive"])
@pytest.mark.parametrize("loss", [0, "10%"])
def test_each_operation_moves_its_bytes_and_completes(loss, transport):
    pair = Pair(length=4 * BYTES, loss=loss, seed=3, transport=transport)
    flushes = transport == "metaroce"
    source = pair.mine.bytes.copy()
    pair.far.post_recv(verbs.RecvWR(10, (pair.theirs, 0, BYTES + 5)))
    pair.far.post_recv(verbs.RecvWR(11))
    pair.send(verbs.SEND, wr_id=1)
    pair.send(verbs.RDMA_WRITE, at=BYTES + 8, wr_id=2)
    pair.send(verbs.RDMA_WRITE_WITH_IMM, offset=BYTES, at=2 * BYTES + 8, imm=2**32 - 1, wr_id=3)
    if flushes:
        pair.send(verbs.FLUSH, wr_id=4)
    pair.send(verbs.RDMA_READ, offset=2 * BYTES, at=BYTES + 8, fence=True, wr_id=5)
    pair.send(verbs.ATOMIC_FETCH_AND_ADD, offset=3 * BYTES, length=8, at=3 * BYTES + 8, add=7, wr_id=6)
    sent, received = pair.run()
    assert outcome(sent) == [
        (1, WC.SUCCESS, "SEND", BYTES, None),
        (2, WC.SUCCESS, "RDMA_WRITE", BYTES, None),
        (3, WC.SUCCESS, "RDMA_WRITE", BYTES, None),
        *[(4, WC.SUCCESS, "FLUSH", 0, None)] * flushes,
        (5, WC.SUCCESS, "RDMA_READ", BYTES, None),
        (6, WC.SUCCESS, "FETCH_ADD", 8, None),
    ]
    assert outcome(received) == [
        (10, WC.SUCCESS, "RECV", BYTES, None),
        (11, WC.SUCCESS, "RECV_RDMA_WITH_IMM", BYTES, 2**32 - 1),
    ]
    got, at = pair.theirs.bytes, BYTES + 8
    assert np.array_equal(got[:BYTES], source[:BYTES])
    assert np.array_equal(got[at : at + BYTES], source[:BYTES])
    assert np.array_equal(got[2 * BYTES + 8 : 3 * BYTES + 8], source[BYTES : 2 * BYTES])
    assert np.array_equal(pair.mine.bytes[2 * BYTES : 3 * BYTES], source[:BYTES])
    word = slice(3 * BYTES + 8, 3 * BYTES + 16)
    assert pair.mine.bytes[3 * BYTES : 3 * BYTES + 8].tobytes() == pair.before[word].tobytes()
    assert int(got[word].view(np.uint64)[0]) == (int(pair.before[word].view(np.uint64)[0]) + 7) % 2**64
    untouched = np.r_[BYTES : BYTES + 8, 3 * BYTES + 16 : 4 * BYTES]
    assert np.array_equal(got[untouched], pair.before[untouched])


# [I8]
def test_atomics_of_many_hosts_count_exactly_once_under_loss():
    context = verbs.Context(topology=SMALL, loss="10%", seed=11)
    home = context.device(0)
    counter = home.alloc_pd().reg_mr(np.zeros(2, np.uint64), ALL)
    queue, each = home.create_cq(), 100
    answers = []
    for rank in (1, 2, 3):
        pd = context.device(rank).alloc_pd()
        result = pd.reg_mr(np.zeros(each + 1, np.uint64))
        qp, far = pd.create_qp(context.device(rank).create_cq()), counter.pd.create_qp(queue)
        verbs.connect(qp, far)
        for k in range(each):
            add = verbs.SendWR(k, verbs.ATOMIC_FETCH_AND_ADD, (result, 8 * k, 8), (counter.rkey, 0), add=1)
            qp.post_send(add)
        swap = verbs.SendWR(
            each, verbs.ATOMIC_CMP_AND_SWP, (result, 8 * each, 8), (counter.rkey, 8), compare=0, swap=rank
        )
        qp.post_send(swap)
        answers.append((qp, result))
    context.run()
    assert counter.buffer[0] == 3 * each
    found = np.concatenate([result.buffer[:each] for _, result in answers])
    assert sorted(found.tolist()) == list(range(3 * each))
    winners = [rank for rank, (_, result) in enumerate(answers, 1) if result.buffer[each] == 0]
    assert winners == [int(counter.buffer[1])]
    for qp, _ in answers:
        assert [wc.status for wc in qp.send_cq.poll(each + 2)] == [WC.SUCCESS] * (each + 1)


# [I2] [I5]
@pytest.mark.parametrize(
    ("rights", "opcode", "length", "at"),
    [
        (verbs.LOCAL_WRITE | verbs.REMOTE_READ | verbs.REMOTE_ATOMIC, verbs.RDMA_WRITE, BYTES, 0),
        (ALL & ~verbs.REMOTE_READ, verbs.RDMA_READ, BYTES, 0),
        (ALL & ~verbs.REMOTE_ATOMIC, verbs.ATOMIC_FETCH_AND_ADD, 8, 0),
        (ALL, verbs.ATOMIC_FETCH_AND_ADD, 8, 4),
        (ALL, verbs.RDMA_WRITE, 100, 2 * BYTES - 99),
        (ALL, verbs.RDMA_READ, BYTES, BYTES + 1),
        (ALL, verbs.RDMA_WRITE, 1, 2**64 - 1),
    ],
)
def test_what_the_region_does_not_allow_ends_in_an_access_error(rights, opcode, length, at):
    pair = Pair(rights)
    add = {"add": 1} if opcode is verbs.ATOMIC_FETCH_AND_ADD else {}
    pair.send(opcode, length=length, at=at, **add)
    pair.send(verbs.RDMA_WRITE, wr_id=2)
    mine = pair.mine.bytes.copy()
    sent, _ = pair.run()
    assert [(wc.wr_id, wc.status, wc.byte_len) for wc in sent] == [(1, WC.REM_ACCESS_ERR, 0), (2, WC.WR_FLUSH_ERR, 0)]
    assert np.array_equal(pair.theirs.bytes, pair.before)
    assert np.array_equal(pair.mine.bytes, mine)


def test_keys_that_do_not_exist_or_are_of_another_protection_domain_are_refused():
    pair = Pair()
    other = pair.context.device(3).alloc_pd().reg_mr(100, ALL)
    queue_pairs = [pair.qp] + [pair.queue_pairs()[0] for _ in range(2)]
    for qp, key in zip(queue_pairs, (0, other.rkey, 99), strict=True):
        pair.send(verbs.RDMA_WRITE, length=1, qp=qp, remote=(key, 0))
    sent, _ = pair.run()
    assert [wc.status for wc in sent] == [WC.REM_ACCESS_ERR] * 3
    assert not other.bytes.any()


# [I5] [I6]
def test_after_an_error_all_later_requests_are_flushed_in_order_and_other_queue_pairs_go_on():
    pair = Pair()
    other, _ = pair.queue_pairs()
    pair.send(verbs.RDMA_WRITE, wr_id=1)
    bad = pair.send(verbs.RDMA_WRITE, at=2 * BYTES, wr_id=2)
    for wr_id in (3, 4, 5):
        pair.send(verbs.RDMA_WRITE, wr_id=wr_id)
    late = verbs.SendWR(6, verbs.RDMA_WRITE, (pair.mine, 0, 8), (pair.theirs.rkey, 0))
    pair.qp.post_send(late, after=[bad], at="1ms")
    pair.send(verbs.RDMA_WRITE, qp=other, wr_id=7, at=BYTES)
    sent, _ = pair.run()
    failed = [(wc.wr_id, wc.status) for wc in sent if wc.qp_num == pair.qp.qp_num]
    flushed = [(wr_id, WC.WR_FLUSH_ERR) for wr_id in (3, 4, 5, 6)]
    assert failed == [(1, WC.SUCCESS), (2, WC.REM_ACCESS_ERR), *flushed]
    assert [wc.status for wc in sent if wc.qp_num == other.qp_num] == [WC.SUCCESS]
    assert bad.wc == next(wc for wc in sent if wc.wr_id == 2)


def test_a_receive_that_is_too_short_is_an_error_at_both_ends():
    pair = Pair()
    for wr_id in (10, 11):
        pair.far.post_recv(verbs.RecvWR(wr_id, (pair.theirs, 0, BYTES - 1)))
    pair.send(verbs.SEND)
    sent, received = pair.run()
    assert [wc.status for wc in sent] == [WC.REM_INV_REQ_ERR]
    assert [(wc.wr_id, wc.status) for wc in received] == [(10, WC.LOC_LEN_ERR), (11, WC.WR_FLUSH_ERR)]
    assert np.array_equal(pair.theirs.bytes, pair.before)


# [I4]
def test_a_send_waits_for_its_receive_and_gives_up_without_one():
    pair = Pair()
    pair.send(verbs.SEND)
    pair.far.post_recv(verbs.RecvWR(10, (pair.theirs, 0, BYTES)), at="100us")
    sent, received = pair.run()
    assert [wc.status for wc in sent + received] == [WC.SUCCESS] * 2
    assert received[0].time_ps > 100e6
    alone = Pair()
    alone.send(verbs.SEND)
    alone.send(verbs.SEND, wr_id=2)
    sent, _ = alone.run()
    assert [wc.status for wc in sent] == [WC.RNR_RETRY_EXC_ERR, WC.WR_FLUSH_ERR]


def test_an_unreachable_peer_exceeds_retries_and_flushes_receives_too():
    faults = [{"at": "0us", "target": "plane", "id": plane} for plane in (0, 1)]
    pair = Pair(faults=faults)
    pair.qp.post_recv(verbs.RecvWR(9))
    pair.send(verbs.RDMA_WRITE)
    pair.send(verbs.RDMA_WRITE, wr_id=2)
    sent, _ = pair.run()
    assert {wc.wr_id: wc.status for wc in sent} == {1: WC.RETRY_EXC_ERR, 2: WC.WR_FLUSH_ERR, 9: WC.WR_FLUSH_ERR}


# [I9]
def test_a_fenced_write_lets_the_read_before_it_finish():
    for seed in range(10):
        pair = Pair(loss="20%", seed=seed)
        pair.send(verbs.RDMA_READ, offset=BYTES)
        pair.send(verbs.RDMA_WRITE, fence=True, wr_id=2)
        source = pair.mine.bytes[:BYTES].copy()
        pair.run()
        assert np.array_equal(pair.mine.bytes[BYTES:], pair.before[:BYTES]), f"seed {seed}"
        assert np.array_equal(pair.theirs.bytes[:BYTES], source), f"seed {seed}"


def test_an_unsignaled_success_is_silent_and_an_unsignaled_error_is_not():
    pair = Pair()
    pair.send(verbs.RDMA_WRITE, signaled=False)
    pair.send(verbs.RDMA_WRITE, wr_id=2)
    pair.send(verbs.RDMA_WRITE, at=BYTES + 1, signaled=False, wr_id=3)
    sent, _ = pair.run()
    assert [(wc.wr_id, wc.status) for wc in sent] == [(2, WC.SUCCESS), (3, WC.REM_ACCESS_ERR)]


def test_what_waits_starts_after_the_completion_it_waits_for():
    pair = Pair()
    got = pair.far.post_recv(verbs.RecvWR(10, (pair.theirs, 0, BYTES)))
    mine = pair.mine.bytes.copy()
    pair.qp.post_recv(verbs.RecvWR(11, (pair.mine, BYTES, BYTES)))
    pair.send(verbs.SEND)
    echo = verbs.SendWR(20, verbs.SEND, (pair.theirs, 0, BYTES))
    pair.far.post_send(echo, after=[got])
    _, far = pair.run()
    assert [wc.wr_id for wc in far] == [10, 20]
    assert far[1].time_ps > far[0].time_ps
    assert np.array_equal(pair.mine.bytes[BYTES:], mine[:BYTES])


# [F10.many-streams] [F10.one-controller] [F10.state-of-a-pair]
def test_two_thousand_queue_pairs_share_one_connection():
    pair = Pair(loss="1%")
    count, size = 2000, 48
    ends = [pair.queue_pairs() for _ in range(count)]
    for k, (qp, far) in enumerate(ends):
        far.post_recv(verbs.RecvWR(k, (pair.theirs, size * k, size)))
        pair.send(verbs.SEND, offset=size * k, length=size, qp=qp, wr_id=k)
    sent, received = pair.run()
    assert sorted(wc.wr_id for wc in received) == sorted(wc.wr_id for wc in sent) == list(range(count))
    assert {wc.status for wc in sent + received} == {WC.SUCCESS}
    assert np.array_equal(pair.theirs.bytes[: size * count], pair.mine.bytes[: size * count])
    connections = pair.context.result.connections
    last = connections["time_ps"] == connections["time_ps"].max()
    assert list(zip(connections["src"][last], connections["dst"][last], strict=True)) == [(0, 1)]
    few = Pair()
    few.send(verbs.RDMA_WRITE)
    few.run()
    assert len(pair.qp.paths()) == len(few.qp.paths())


# [F11.extensions]
def test_a_denied_plane_carries_nothing_and_paths_say_so():
    pair = Pair()
    assert pair.context.planes == 2
    pair.qp.deny_plane(1)
    pair.send(verbs.RDMA_WRITE)
    pair.run()
    assert pair.context.result.plane_bytes == [BYTES, 0]
    states = {(row["plane"], row["state"]) for row in pair.qp.paths()}
    assert states == {(0, "up"), (1, "denied")}
    assert sum(row["sent"] for row in pair.qp.paths() if row["plane"] == 1) == 0


def test_the_same_context_gives_the_same_digest():
    digests = set()
    for _ in range(2):
        pair = Pair(loss="5%", seed=4)
        pair.send(verbs.RDMA_READ, offset=BYTES)
        pair.run()
        digests.add(pair.context.result.digest)
    assert len(digests) == 1


def test_regions_that_share_memory_share_bytes():
    pair = Pair()
    buffer = np.zeros(3 * BYTES, np.uint8)
    whole, part = pair.pds[1].reg_mr(buffer, ALL), pair.pds[1].reg_mr(buffer[BYTES : 2 * BYTES], ALL)
    pair.send(verbs.RDMA_WRITE, remote=(part.rkey, 0))
    pair.send(verbs.RDMA_READ, offset=BYTES, fence=True, remote=(whole.rkey, BYTES), wr_id=2)
    pair.run()
    assert np.array_equal(buffer[BYTES : 2 * BYTES], pair.mine.bytes[:BYTES])
    assert np.array_equal(pair.mine.bytes[BYTES:], pair.mine.bytes[:BYTES])


def test_leftover_receives_are_no_failure_but_a_request_that_never_starts_is():
    pair = Pair()
    waiting = pair.far.post_recv(verbs.RecvWR(10))
    pair.send(verbs.RDMA_WRITE)
    pair.run()
    assert (pair.context.result.status, waiting.wc) == ("done", None)
    stuck = Pair()
    never = stuck.far.post_recv(verbs.RecvWR(10))
    stuck.far.post_send(verbs.SendWR(20, verbs.FLUSH), after=[never])
    done = stuck.send(verbs.RDMA_WRITE)
    with pytest.raises(mr.SimulationStalled, match="rank 1 -> rank 0 stream 0: 0 bytes left, wr_id 20 waits"):
        stuck.run()
    assert done.wc.status is WC.SUCCESS
