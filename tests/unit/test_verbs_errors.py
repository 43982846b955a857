"""What the verbs face refuses: one line each, naming field, value and what is allowed."""

import numpy as np
import pytest

import metaroce as mr
from metaroce import verbs

SMALL = mr.topology.LeafSpine(
    planes=2, leaves=2, spines=2, hosts_per_leaf=2, link={"rate": "200Gbps", "delay": "600ns", "queue": "1MiB"}
)
ALL = verbs.LOCAL_WRITE | verbs.REMOTE_WRITE | verbs.REMOTE_READ | verbs.REMOTE_ATOMIC


class Ends:
    """Two connected hosts and a region on each."""

    def __init__(self, **options):
        self.context = verbs.Context(**{"topology": SMALL, **options})
        self.devices = [self.context.device(rank) for rank in (0, 1)]
        self.pds = [device.alloc_pd() for device in self.devices]
        self.mine, self.theirs = (pd.reg_mr(100, ALL) for pd in self.pds)
        self.cqs = [device.create_cq() for device in self.devices]
        self.qp, self.far = (pd.create_qp(cq) for pd, cq in zip(self.pds, self.cqs, strict=True))
        verbs.connect(self.qp, self.far)

    def write(self, **fields):
        whole = {"sge": (self.mine, 0, 8), "remote": (self.theirs.rkey, 0), **fields}
        return verbs.SendWR(1, verbs.RDMA_WRITE, **whole)


def reader(ends, **fields):
    return verbs.SendWR(1, verbs.RDMA_READ, **{"sge": (ends.mine, 0, 8), "remote": (ends.theirs.rkey, 0), **fields})


def read_only_sink(ends):
    sink = ends.pds[0].reg_mr(8, verbs.Access(0))
    ends.qp.post_send(reader(ends, sge=(sink, 0, 8)))


def deny_all(ends):
    ends.qp.deny_plane(0)
    ends.qp.deny_plane(1)


def post_after_run(ends):
    ends.qp.post_send(ends.write())
    ends.context.run()
    ends.qp.post_send(ends.write())


def wait_for_silence(ends):
    quiet = ends.qp.post_send(ends.write(signaled=False))
    ends.qp.post_send(ends.write(), after=[quiet])


def shared_between_hosts(ends):
    buffer = np.zeros(8)
    ends.pds[0].reg_mr(buffer)
    ends.pds[1].reg_mr(buffer)
    ends.qp.post_send(ends.write())
    ends.context.run()


def too_much_memory(ends):
    ends.pds[0].reg_mr(4096)
    ends.qp.post_send(ends.write())
    ends.context.run()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: verbs.Context(topology=SMALL, workload=1), "workload = 1: is no option"),
        (lambda e: verbs.Context(topology=SMALL, los=1), "'los': unknown"),
        (lambda e: e.context.device(4), "rank = 4: must be 0 .. 3"),
        (lambda e: e.pds[0].reg_mr(0), "buffer = 0: must be"),
        (lambda e: e.pds[0].reg_mr(np.zeros((4, 4))[:, 1]), "buffer = .* C-contiguous"),
        (lambda e: e.pds[0].reg_mr(8, 3), "access = 3: must be made of LOCAL_WRITE"),
        (lambda e: e.pds[0].reg_mr(8, verbs.REMOTE_WRITE), "access = .* need LOCAL_WRITE"),
        (lambda e: e.pds[0].create_qp(e.cqs[1]), "send_cq = .* same device"),
        (lambda e: e.cqs[0].poll(0), "n = 0: must be at least 1"),
        (lambda e: verbs.connect(e.qp, e.far), "a = .* not connected"),
        (lambda e: verbs.connect(*(e.pds[0].create_qp(e.cqs[0]) for _ in range(2))), "b = .* another host"),
        (lambda e: e.pds[0].create_qp(e.cqs[0]).post_send(e.write()), "qp = 3: must be connected first"),
        (lambda e: e.qp.post_send(verbs.RecvWR(1)), "wr = .* must be a SendWR"),
        (lambda e: e.qp.post_recv(e.write()), "wr = .* must be a RecvWR"),
        (lambda e: verbs.SendWR(1, "WRITE"), "opcode = 'WRITE': unknown; allowed: ATOMIC_CMP_AND_SWP"),
        (lambda e: e.write(remote=None), "remote = None: RDMA_WRITE needs it"),
        (lambda e: e.write(remote=5), "remote = 5: must be"),
        (lambda e: e.write(imm=5), "imm = 5: RDMA_WRITE has none"),
        (lambda e: e.write(sge=(e.mine, 0, 0)), "sge = .* at least 1 byte"),
        (lambda e: e.write(sge=(e.mine, 96, 8)), r"sge = '96\+8': must lie in the 100 bytes"),
        (lambda e: e.write(sge=[e.mine]), "sge = .* must be"),
        (lambda e: verbs.SendWR(-1, verbs.FLUSH), "wr_id = -1"),
        (lambda e: verbs.SendWR(1, verbs.RDMA_WRITE_WITH_IMM, imm=2**32), "imm = 4294967296: .* 32 bits"),
        (lambda e: verbs.SendWR(1, verbs.FLUSH, remote=(1, 0)), "remote = .* FLUSH has none"),
        (
            lambda e: verbs.SendWR(1, verbs.ATOMIC_FETCH_AND_ADD, (e.mine, 0, 4), (1, 0), add=1),
            "sge = .* moves 8 bytes",
        ),
        (lambda e: e.qp.post_send(e.write(sge=(e.theirs, 0, 8))), "sge = .* protection domain"),
        (read_only_sink, "sge = .* needs LOCAL_WRITE"),
        (lambda e: e.qp.post_send(e.write(), after=[1]), "after = 1: must be what"),
        (lambda e: e.qp.post_send(e.write(), after=[e.far.post_recv(verbs.RecvWR(1))]), "after = .* same device"),
        (wait_for_silence, "after = 1: an unsignaled"),
        (lambda e: e.qp.post_send(e.write(), at="3 apples"), "at = '3 apples'"),
        (lambda e: e.qp.deny_plane(2), "plane = 2: must be 0 .. 1"),
        (deny_all, "plane = 1: one plane at least"),
        (lambda e: e.qp.paths(), "paths: are known after the run"),
        (lambda e: e.context.run(), "nothing was posted"),
        (post_after_run, "has run already"),
        (shared_between_hosts, "buffer = .* register a copy"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(mr.ConfigError, match=message) as error:
        call(Ends())
    assert "\n" not in str(error.value)


def test_more_memory_than_allowed_is_refused():
    with pytest.raises(mr.ConfigError, match="check_memory = 4096: too small"):
        too_much_memory(Ends(check_memory=4096))


def test_rocev2_has_no_flush():
    ends = Ends(transport="rocev2-adaptive")
    ends.qp.post_send(verbs.SendWR(1, verbs.FLUSH))
    with pytest.raises(mr.ConfigError, match=r"op\[0\]: FLUSH is not allowed; allowed: of rocev2: SEND, RECV, WRITE"):
        ends.context.run()


@pytest.mark.parametrize("opcode", ["RDMA_READ", "FLUSH", "ATOMIC_FETCH_AND_ADD"])
def test_mrc_refuses_what_it_does_not_have(opcode):
    ends = Ends(transport="mrc")
    extra = {"ATOMIC_FETCH_AND_ADD": {"add": 1}}.get(opcode, {})
    if opcode != "FLUSH":
        extra |= {"sge": (ends.mine, 0, 8), "remote": (ends.theirs.rkey, 0)}
    ends.qp.post_send(verbs.SendWR(1, verbs.Opcode[opcode], **extra))
    with pytest.raises(mr.ConfigError, match=r"op\[0\]: [A-Z_]+ is not allowed; allowed: of mrc: SEND, RECV, WRITE"):
        ends.context.run()


def test_mrc_runs_writes_with_immediate_and_checks_keys():
    ends = Ends(transport="mrc", loss="1%")
    ends.mine.bytes[:] = 7
    ends.far.post_recv(verbs.RecvWR(2, (ends.theirs, 50, 50)))
    last = ends.qp.post_send(ends.write())
    notify = verbs.SendWR(3, verbs.RDMA_WRITE_WITH_IMM, (ends.mine, 0, 8), (ends.theirs.rkey, 8), imm=99)
    last = ends.qp.post_send(notify, after=[last])
    outside = verbs.SendWR(4, verbs.RDMA_WRITE, (ends.mine, 0, 50), (ends.theirs.rkey, 60))
    ends.qp.post_send(outside, after=[last])
    ends.context.run()
    assert [wc.status for wc in ends.cqs[0].poll(9)] == [verbs.WC.SUCCESS] * 2 + [verbs.WC.REM_ACCESS_ERR]
    assert [wc.imm for wc in ends.cqs[1].poll(9)] == [99]
    assert ends.theirs.bytes.tolist() == [7] * 16 + [0] * 84


def test_mrc_leaves_a_denied_plane():
    ends = Ends(transport="mrc")
    ends.qp.post_send(ends.write())
    ends.qp.deny_plane(0)
    result = ends.context.run()
    assert result.plane_bytes[0] == 0
    assert sum(result.plane_bytes) > 0


def test_rocev2_has_no_planes_to_deny():
    ends = Ends(transport="rocev2-adaptive")
    ends.qp.post_send(ends.write())
    ends.qp.deny_plane(0)
    with pytest.raises(mr.ConfigError, match=r"deny_plane\[0\]: 0 is not allowed"):
        ends.context.run()


def test_rocev2_runs_sends_and_writes_and_checks_keys():
    ends = Ends(transport="rocev2-adaptive", loss="1%")
    ends.mine.bytes[:] = 7
    ends.far.post_recv(verbs.RecvWR(2, (ends.theirs, 50, 50)))
    last = ends.qp.post_send(ends.write())
    last = ends.qp.post_send(verbs.SendWR(3, verbs.SEND, (ends.mine, 0, 50)), after=[last])
    outside = verbs.SendWR(4, verbs.RDMA_WRITE, (ends.mine, 0, 50), (ends.theirs.rkey, 60))
    ends.qp.post_send(outside, after=[last])
    ends.context.run()
    assert [wc.status for wc in ends.cqs[0].poll(9)] == [verbs.WC.SUCCESS] * 2 + [verbs.WC.REM_ACCESS_ERR]
    assert [wc.byte_len for wc in ends.cqs[1].poll(9)] == [50]
    assert ends.theirs.bytes.tolist() == [7] * 8 + [0] * 42 + [7] * 50
