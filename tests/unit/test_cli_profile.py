"""`metaroce profile`: every setting of the core is shown, as it is, and a profile's overrides with it."""

import json

import pytest

pytest.importorskip("metaroce._core", reason="the compiled core is not built")

from metaroce import _core
from metaroce.cli import main
from metaroce.config import TRANSPORTS
from metaroce.reports import profile

DEFAULTS = json.loads(_core.defaults())
FIELDS = {name: DEFAULTS[choice.kind] | choice.overrides for name, choice in TRANSPORTS.items()}
FIELDS["fabric"] = DEFAULTS["fabric"] | {f"loss.{name}": value for name, value in DEFAULTS["loss"].items()}


def out(capsys, *arguments):
    assert main(["profile", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", FIELDS)
def test_a_profile_has_every_setting_with_its_exact_value(capsys, name):
    document = json.loads(out(capsys, "show", name, "--json"))
    assert list(document) == [name]
    rows = document[name]["settings"]
    assert {row["name"]: row["value"] for row in rows if row["kind"] == "setting"} == FIELDS[name]
    for row in rows:
        assert set(row) == {"name", "kind", "value", "unit", "allowed", "source", "what"}
        assert (row["allowed"] is None) == (row["kind"] == "constant")
        assert row["unit"]
        assert row["source"]
        assert row["what"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_table_shows_every_row_within_120_columns(capsys, name):
    lines = out(capsys, "show", name).splitlines()
    assert max(map(len, lines)) <= 120
    shown = {line.split()[0] for line in lines}
    assert shown >= {row["name"] for row in profile.load(name)["settings"]}


def test_an_override_is_what_is_shown(capsys):
    for name in ("adaptive", "fixed"):
        [choice] = [key for key, transport in TRANSPORTS.items() if transport.overrides.get("timer") == name]
        [line] = [line for line in out(capsys, "show", choice).splitlines() if line.split()[0] == "timer"]
        assert line.split()[:2] == ["timer", name]


def test_numbers_are_shown_in_units_that_read_well(capsys):
    lines = [line.split() for line in out(capsys, "show").splitlines()]
    shown = {line[0]: " ".join(line[1:3]) for line in lines if len(line) > 2}
    assert shown["tail_slack_ps"] == "2 us"
    assert shown["dead_after_ps"] == "2 s"
    assert shown["split_bytes"] == "16 KiB"
    assert shown["mtu"] == "4096 bytes"
    assert shown["dcqcn_paper_increase_bytes"] == "10000000 bytes"
    assert shown["hints"] == "window choice"
    assert shown["cut_on_loss"] == "off switch"


def test_all_profiles_are_listed_one_a_line(capsys):
    listed = out(capsys, "list")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == list(FIELDS)
    assert out(capsys) == listed
    assert list(json.loads(out(capsys, "show", "--json"))) == list(FIELDS)


def test_an_unknown_name_is_refused_in_one_line(capsys):
    assert main(["profile", "show", "rocev3"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == "metaroce: error: profile = 'rocev3': unknown; allowed: " + ", ".join(sorted(FIELDS))
