"""Accelerators as data: what a file may say, and what becomes of it."""

import tomllib
from importlib import resources

import pytest

from metaroce.errors import ConfigError
from metaroce.offload import hardware
from metaroce.offload.hardware import Hardware, split

TEXT = (resources.files("metaroce") / "offload" / "hardware" / "mtia300.toml").read_text("utf-8")


def changed(change):
    data = tomllib.loads(TEXT)
    change(data)
    return Hardware(name="changed", **data)


@pytest.mark.parametrize("name", hardware.names())
def test_every_figure_says_where_it_is_from(name):
    rows = hardware.load(name).figures()
    assert len(rows) > 20
    assert all(source for _, _, source in rows)


def test_the_published_figures_of_mtia_300():
    mtia = hardware.load("mtia300")
    assert mtia.engines.count.value == 16
    assert mtia.network.nics.value * mtia.network.nic_rate.value == 9.6e12
    spec = mtia.spec(16, 4, 10, 3)
    assert spec["issue_ps"] == [250_000] * 16 + [30_000] * 4
    assert spec["post_ps"] == [0] * 16 + [450_000] * 4
    assert spec["direct"] == [False] * 16 + [True] * 4
    assert (spec["event_ps"], spec["dispatch_ps"], spec["words"]) == (3_600_000, 2_900_000, 3)
    assert spec["outstanding"] == 245_760
    assert 2.7e12 <= spec["units_bps"] / 8 <= 2.95e12


def test_without_express_doorbell_a_transfer_is_posted_800_ns_later():
    spec = hardware.load("mtia300").spec(2, 1, 10, 0, express_doorbell=False)
    assert spec["post_ps"] == [800_000, 800_000, 1_250_000]


def test_a_host_copy_that_is_not_hidden_delays_the_event():
    shown = changed(lambda data: data["control"]["host_copy_hidden"].update(value=False))
    assert shown.spec(1, 0, 10, 0)["event_ps"] == 20_700_000


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        (lambda d: d["network"].update(speed=1), "network.key", "unknown; allowed: "),
        (lambda d: d["engines"].pop("issue"), "engines.issue", "missing"),
        (lambda d: d["network"]["nics"].pop("source"), "network.nics.source", "missing"),
        (lambda d: d["network"]["nics"].update(source=""), "network.nics.source", ""),
        (lambda d: d["network"]["nics"].update(value=0), "network.nics.value", "greater than or equal to 1"),
        (lambda d: d["network"]["partition"].update(value="11+2"), "network.partition", "at most 12 together"),
        (lambda d: d["network"]["nic_rate"].update(value="fast"), "network.nic_rate.value", "whole number of bits"),
        (lambda d: d.pop("unit"), "unit", "missing"),
        (lambda d: d["memory"]["achieved"].update(value=1.5), "memory.achieved.value", "less than or equal to 1"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(change, field, said):
    with pytest.raises(ConfigError) as error:
        changed(change)
    assert error.value.field == field
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_names_and_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"allowed: a path to a \.toml file, or .*mtia300"):
        hardware.load("mtia9")
    with pytest.raises(ConfigError, match="cannot be read"):
        hardware.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("kind = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        hardware.load(tmp_path / "bad.toml")


@pytest.mark.parametrize("text", ["8+2", "10+2", "1+0", "6+6"])
def test_any_partition_of_twelve(text):
    up, out = map(int, text.split("+"))
    assert split(hardware.load("mtia300").network, text) == (up, out)


@pytest.mark.parametrize("text", ["0+2", "13+0", "8", "8+2+1", "", "eight+2"])
def test_other_partitions_are_refused(text):
    with pytest.raises(ConfigError, match="partition"):
        split(hardware.load("mtia300").network, text)


def test_topologies_of_a_partition():
    mtia = hardware.load("mtia300")
    racks = mtia.topology([16, 16, 8])
    assert racks.domains == [0] * 16 + [1] * 16 + [2] * 8
    assert (racks.scale_up.planes, racks.scale_out.planes) == (8, 2)
    assert mtia.topology([16], "10+2").scale_up.planes * mtia.topology([16], "10+2").scale_up.rate == 8e12
    with pytest.raises(ConfigError, match="partition"):
        mtia.topology([8, 8], "8+0")
