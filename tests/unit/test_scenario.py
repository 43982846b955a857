import json

import pytest

from metaroce import Collective, ConfigError, Permutation, Scenario, topology

RING = Collective(kind="all_reduce", size="1MiB")


def scenario(**fields):
    return Scenario(**{"topology": "multiplane-4x64", "workload": RING, **fields})


def spec_of(**fields):
    made = scenario(**fields)
    return made.spec(made.program())


def refusal(**fields):
    with pytest.raises(ConfigError) as error:
        scenario(**fields)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_unset_is_left_to_the_core():
    assert sorted(spec_of()) == [
        "fabric", "hosts_of_ranks", "iterations", "memory_bytes", "seed", "transport", "warmup",
    ]  # fmt: skip
    assert spec_of()["transport"] == {"kind": "metaroce"}


def test_everything_set_crosses_as_integers():
    spec = spec_of(
        transport={"kind": "rocev2-adaptive", "qps_per_peer": 4},
        loss={"probability": "1%", "per": "link", "on": "data"},
        faults=[{"at": "100us", "target": "plane", "id": 1}, {"at": "1ms", "target": "plane", "id": 1, "up": True}],
        time_limit="10ms",
        record_wqes=True,
        record_bin="10us",
        record_paths="5us",
        record_paths_ranks=[0, 3],
        flip_byte_at=17,
        iterations=3,
        warmup=1,
        seed=7,
    )
    del spec["fabric"], spec["hosts_of_ranks"]
    assert json.loads(json.dumps(spec)) == {
        "seed": 7,
        "transport": {"kind": "rocev2", "timer": "adaptive", "qps_per_peer": 4},
        "loss": {"probability": 0.01, "per": "link", "on": "data"},
        "faults": [
            {"at_ps": 10**8, "target": "plane", "id": 1, "up": False},
            {"at_ps": 10**9, "target": "plane", "id": 1, "up": True},
        ],
        "time_limit_ps": 10**10,
        "record_wqes": True,
        "record_bin_ps": 10**7,
        "record_paths_ps": 5 * 10**6,
        "record_paths_ranks": [0, 3],
        "inject": {"flip_byte_at": 17},
        "iterations": 3,
        "warmup": 1,
        "memory_bytes": scenario().program().memory_bytes,
    }


def test_faults_find_links_and_switches_by_name():
    faults = [
        {"at": 0, "target": "link", "a": "p1.spine3", "b": "p1.leaf2"},
        {"at": 0, "target": "link", "a": "host5", "b": "p0.leaf0"},
        {"at": 0, "target": "switch", "id": "p1.spine3"},
        {"at": 0, "target": "switch", "id": 0},
        {"at": 0, "target": "link", "id": 511},
    ]
    assert [f["id"] for f in spec_of(faults=faults)["faults"]] == [128 + 64 + 2 * 8 + 3, 5, 16 + 8 + 3, 0, 511]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"target": "plane", "id": 4}, "plane.id = 4: must be 0 .. 3"),
        ({"target": "link", "id": 512}, "link.id = 512: must be 0 .. 511"),
        ({"target": "link", "a": "p0.leaf0", "b": "p1.spine0"}, "no such cable"),
        ({"target": "switch", "id": "p9.leaf0"}, "'p9.leaf0': unknown"),
        ({"target": "switch", "id": "host0"}, "is a host"),
        ({"target": "switch", "id": 64}, "switch = 64: must be 0 .. 63"),
        ({"target": "nic", "id": 0}, "target = 'nic'"),
        ({"target": "plane", "id": 0, "when": 1}, "'when': unknown|key"),
    ],
)
def test_a_fault_of_something_that_is_not_there_is_refused(fault, message):
    assert any(part in refusal(faults=[{"at": "1us", **fault}]) for part in message.split("|"))


def test_random_placement_depends_on_the_seed_only():
    one, same, other = (scenario(seed=seed).hosts_of_ranks() for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(one) == list(range(64))


def test_packed_placement_is_the_order_of_hosts():
    assert scenario(placement="packed", ranks=5).hosts_of_ranks() == [0, 1, 2, 3, 4]


def test_fewer_ranks_than_hosts_sit_on_distinct_hosts():
    hosts = scenario(ranks=10).hosts_of_ranks()
    assert len(set(hosts)) == len(hosts) == 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topology": "ring-9"}, "topology = 'ring-9': unknown; allowed: a path to a .toml file, or deep-buffer-64"),
        ({"topology": 5}, "topology = 5"),
        ({"transport": "tcp"}, "transport = 'tcp': unknown; allowed: metaroce, "),
        ({"loss": 1}, "loss.probability = 1: must be in [0, 1)"),
        ({"loss": -0.1}, "must be in [0, 1)"),
        ({"loss": "101%"}, "must be in [0, 1)"),
        ({"loss": {"probability": 0.1, "per": "hop"}}, "loss.per = 'hop': must be 'packet' or 'link'"),
        ({"ranks": 65}, "ranks = 65: must be 2 .. 64, the hosts of multiplane-4x64"),
        ({"ranks": 1}, "ranks = 1: must be 2 .. 64"),
        ({"placement": "best"}, "placement = 'best': must be 'random' or 'packed'"),
        ({"workload": "all_reduce"}, "must be a Collective, Flows, Groups, Permutation or Incast"),
        ({"seed": -1}, "seed = -1"),
        ({"iterations": 0}, "iterations = 0"),
        ({"time_limit": "0s"}, "time_limit = '0s'"),
        ({"iteration": 2}, "key = 'iteration': unknown; allowed: check, "),
    ],
)
def test_bad_input_is_one_line(fields, message):
    assert message in refusal(**fields)


def test_a_topology_may_be_a_model_or_a_path(tmp_path):
    model = topology.load("multiplane-4x64").replace(planes=2, hosts_per_leaf=1)
    assert scenario(topology=model).rank_count == 8
    path = tmp_path / "two.toml"
    path.write_text(
        'kind = "leaf-spine"\nplanes = 1\nleaves = 1\nspines = 1\nhosts_per_leaf = 4\n'
        '[link]\nrate = "1Gbps"\ndelay = "1us"\nqueue = "64KiB"\n'
    )
    assert scenario(topology=path).rank_count == 4


def test_a_check_beyond_its_memory_says_what_it_needs():
    made = scenario(workload=RING.replace(size="64MiB"), check=True)
    assert made.check_note(made.program()) == "not checked: needs 8128 MiB, check memory is 2048 MiB"
    fitted = made.sized_for_check()
    assert fitted.workload.size == 16 << 20
    assert fitted.check_note(fitted.program()) is None


def test_a_check_that_fits_keeps_its_size():
    made = scenario()
    assert made.sized_for_check() is made


def test_no_size_fits_no_memory():
    assert scenario(check_memory=0).sized_for_check() is None
    assert scenario(workload=Permutation(bytes="1MiB"), check_memory="1MiB").sized_for_check() is None


def test_a_scenario_prints_as_json():
    assert json.loads(json.dumps(scenario(loss="1%", faults=[{"at": 0, "target": "plane", "id": 0}]).to_dict()))[
        "loss"
    ] == {"probability": 0.01}


def test_a_workload_alone_is_a_scenario():
    assert Scenario(workload=Permutation(bytes=1)).topology.name == "multiplane-4x64"
