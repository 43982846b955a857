"""Flow fidelity: closed forms, the error that docs/flow.md states, repeatability, and what is refused."""

import itertools
import json

import numpy as np
import pytest

import metaroce as mr
from metaroce import flow
from metaroce.cli import main
from metaroce.errors import ConfigError

QUICK = {"topology": "multiplane-4x64", "fidelity": "flow"}


def estimate(workload, **fields):
    return mr.run(mr.Scenario(workload=workload, **{**QUICK, **fields}))


def ratio(workload, **fields):
    return estimate(workload, **fields).time_ps / estimate(workload, **fields, fidelity="packet").time_ps


@pytest.mark.parametrize("transport", ["metaroce", "mrc", "rocev2-adaptive", "rocev2-1qp"])
@pytest.mark.parametrize("topology", ["multiplane-4x64", "fat-tree-64", "scale-across-2x32"])
@pytest.mark.parametrize("size", ["4KiB", "1MiB"])
def test_one_message_alone_takes_what_it_takes_packet_by_packet(transport, topology, size):
    workload = mr.Flows(writes=[(0, 1, size)])
    # RoCEv2 cuts what a QP sends into few parts; one of a single packet has a window of its own rate.
    assert ratio(workload, transport=transport, topology=topology) == pytest.approx(
        1, rel=0.1 if "adaptive" in transport else 1e-3
    )


def test_n_to_one_takes_n_times_as_long():
    idle = estimate(mr.Incast(senders=1, bytes=1)).time_us
    one, many = (estimate(mr.Incast(senders=n, bytes="4MiB")).time_us - idle for n in (4, 32))
    assert many == pytest.approx(8 * one, rel=5e-3)


def test_a_permutation_on_full_bisection_runs_at_line_rate():
    assert estimate(mr.Permutation(bytes="64MiB")).of_line_rate == pytest.approx(1, abs=0.03)


def test_a_ring_takes_its_steps():
    one = estimate(mr.Collective(kind="all_gather", size="8MiB", chunks=1), ranks=8, placement="packed")
    step = estimate(mr.Flows(writes=[(0, 1, "1MiB")]), ranks=8, placement="packed", record_wqes=True)
    assert one.time_ps == pytest.approx(7 * float(step.wqe_placed_ps[0]), rel=0.05)


@pytest.mark.parametrize(
    ("transport", "loss", "workload", "least", "most"),
    [
        ("metaroce", "0", mr.Collective(kind="all_reduce", size="1MiB"), 0.97, 1.01),
        ("mrc", "0", mr.Collective(kind="all_reduce", size="1MiB"), 0.97, 1.01),
        ("metaroce", "0", mr.Collective(kind="alltoall", size="16MiB"), 0.93, 1.01),
        ("metaroce", "0", mr.Permutation(bytes="8MiB"), 0.88, 1.01),
        ("metaroce", "0", mr.Incast(senders=16, bytes="1MiB"), 0.95, 1.05),
        ("metaroce", "1%", mr.Collective(kind="all_reduce", size="1MiB"), 0.7, 1.3),
        ("metaroce", "1%", mr.Permutation(bytes="8MiB"), 0.7, 1.3),
    ],
)
def test_the_error_lies_in_the_band_that_the_page_states(transport, loss, workload, least, most):
    assert least <= ratio(workload, transport=transport, loss=loss) <= most


def test_the_same_seed_gives_the_same_digest_and_another_one_another():
    runs = [estimate(mr.Collective(kind="all_reduce", size="1MiB"), loss="1%", seed=seed) for seed in (1, 1, 2)]
    assert runs[0].digest == runs[1].digest != runs[2].digest
    assert runs[0].fidelity == "flow"


def test_loss_takes_longer_the_more_there_is():
    times = [
        estimate(mr.Collective(kind="all_reduce", size="1MiB"), loss=loss).time_ps
        for loss in (0, 1e-4, 1e-3, 1e-2, 0.1)
    ]
    assert all(more > 0.999 * less for less, more in itertools.pairwise(times)), times  # ranks of a sample, not a law


def test_groups_run_side_by_side():
    ring = mr.Collective(kind="all_reduce", size="1MiB")
    alone = estimate(ring, ranks=8)
    assert estimate(mr.Groups(collective=ring, group=8)).time_ps == pytest.approx(alone.time_ps, rel=0.05)
    assert ratio(mr.Groups(collective=ring, group=8)) == pytest.approx(1, rel=0.1)
    with pytest.raises(ConfigError, match=r"group = 7: must divide the 64 ranks"):
        mr.Scenario(workload=mr.Groups(collective=ring, group=7), ranks=64).program()


def test_iterations_repeat_without_loss_and_a_limit_bounds():
    run = estimate(mr.Permutation(bytes="1MiB"), iterations=3, warmup=1)
    assert len(set(run.iteration_us)) == 1
    assert estimate(mr.Permutation(bytes="1MiB"), time_limit="1us").status == "bound"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"check": True}, "check = True: packet fidelity only"),
        ({"faults": ({"at": "1us", "target": "plane", "id": 0},)}, "faults = 1: packet fidelity only"),
        ({"record_paths": "1us"}, "record_paths = 1000000: packet fidelity only"),
        ({"record_bin": "1us"}, "record_bin = 1000000: packet fidelity only"),
        ({"transport": "rocev2-pfc"}, "lossless = True: packet fidelity only; a fluid knows no pauses"),
        ({"loss": "20%"}, "loss = 0.2: must be at most 0.1 with flow fidelity, the most measured"),
        ({"loss": {"probability": "1%", "per": "link"}}, "loss.per = 'link': packet fidelity only"),
        ({"loss": {"probability": "1%", "on": "data"}}, "loss.on = 'data': packet fidelity only"),
        (
            {"loss": "1%", "transport": {"kind": "metaroce", "mtu": 1024}},
            "transport = 'custom': with loss and flow fidelity: metaroce",
        ),
        ({"fidelity": "fluid"}, "fidelity = 'fluid': must be 'packet' or 'flow'"),
    ],
)
def test_what_only_packets_show_is_refused_in_one_line(fields, line):
    with pytest.raises(ConfigError, match=line):
        mr.Scenario(workload=mr.Permutation(bytes="1MiB"), **{**QUICK, **fields})


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"topology": "scale-across-2x32"},
            "bandwidth-delay product: [0-9]+ packets is not allowed; allowed: 40 to 600",
        ),
        (
            {"workload": mr.Permutation(bytes="1GiB")},
            r"bytes\[0\]: [0-9]+ on the wire is not allowed; allowed: at most",
        ),
    ],
)
def test_what_was_not_measured_is_refused_in_one_line(fields, line):
    with pytest.raises(ConfigError, match=line):
        mr.run(mr.Scenario(**{"workload": mr.Permutation(bytes="1MiB"), **QUICK, "loss": "1%", **fields}))


def test_balance_is_refused_and_tensors_too():
    spread = mr.Scenario(workload=mr.Permutation(bytes="1MiB")).topology.replace(balance="spray")
    with pytest.raises(ConfigError, match="balance = 'spray': packet fidelity only"):
        estimate(mr.Permutation(bytes="1MiB"), topology=spread)
    with pytest.raises(ConfigError, match="fidelity = 'flow': must be packet: tensors are moved"):
        mr.all_reduce([np.ones(8, np.float32)] * 4, fidelity="flow")


def test_the_curves_are_what_the_core_takes():
    measured = flow.curves()
    assert measured["about"].startswith("python benches/make_flow_curves.py; ")
    for table in measured["transports"].values():
        assert np.array(table["added"]).shape == (len(table["loss"]), len(table["bdp"]), len(measured["ranks"]))
        assert (np.diff(table["added"], axis=2) >= 0).all()
    json.dumps(measured)


def test_ten_thousand_hosts_are_no_trouble():
    tree = {"pods": 25, "tors_per_pod": 20, "aggs_per_pod": 20, "cores_per_agg": 20, "hosts_per_tor": 20}
    topology = mr.topology.FatTree(link={"rate": "400Gbps", "delay": "1us", "queue": "1400000B"}, **tree)
    run = estimate(mr.Permutation(bytes="1MiB"), topology=topology)
    assert run.ranks == 10_000
    assert run.time_us == pytest.approx(34.3, abs=0.1)
    assert run.counters["rate_settlings"] <= 4


def test_the_command_line_says_that_it_estimates(capsys):
    assert main(["all_reduce_perf", "-b", "1M", "-e", "1M", "--fidelity", "flow"]) == 0
    out = capsys.readouterr().out
    assert f"fidelity flow: {flow.NOTE}" in out
    assert out.count("N/A") == 2
    assert main(["all_reduce_perf", "-b", "1M", "-e", "1M", "--fidelity", "flow", "--loss", "50%"]) == 2
    assert "loss = 0.5: must be at most 0.1 with flow fidelity" in capsys.readouterr().err
