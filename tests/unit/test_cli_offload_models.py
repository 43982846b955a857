"""`metaroce offload` beside `compile`: tables, JSON, the plot, and one line for what cannot be."""

import json
import xml.etree.ElementTree as ET

import pytest

from metaroce.cli import main
from metaroce.offload import hardware
from metaroce.offload.models import crossover, presets, ratio, step


def out(capsys, *arguments):
    assert main(["offload", *arguments]) == 0
    return capsys.readouterr().out


def document(capsys, *arguments):
    made = json.loads(out(capsys, *arguments, "--json"))
    assert list(made) == ["model", "version", "tables"]
    assert "not affiliated" in made["model"]
    return [table["rows"] for table in made["tables"]]


COMMANDS = (
    ["hardware"],
    ["hardware", "show", "mtia300"],
    ["hardware", "show", "h100"],
    ["isolation"],
    ["ratio", "--draws", "20"],
    ["step"],
    ["crossover"],
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_tables_stay_within_120_columns_and_name_what_their_json_holds(capsys, arguments):
    lines = out(capsys, *arguments).splitlines()
    assert max(map(len, lines)) <= 120
    assert len(lines) > sum(len(rows) for rows in document(capsys, *arguments))


@pytest.mark.parametrize("name", hardware.names())
def test_every_figure_of_an_accelerator_is_shown_with_its_source(capsys, name):
    [rows] = document(capsys, "hardware", "show", name)
    assert [row["figure"] for row in rows] == [path for path, *_ in hardware.load(name).figures()]
    assert all(row["source"] for row in rows)


def test_numbers_of_an_accelerator_read_well(capsys):
    [rows] = document(capsys, "hardware", "show", "mtia300")
    shown = {row["figure"]: row["value"] for row in rows}
    assert shown["engines.issue"] == "250ns"
    assert shown["memory.size"] == "216GB"
    assert shown["memory.bandwidth"] == "6.1 T"
    assert shown["network.nic_rate"] == "800Gbps"
    [listed] = document(capsys, "hardware", "list")
    assert {row["name"]: row["up"] for row in listed} == {"gaudi3": 525, "h100": 450, "h200": 450, "mtia300": 800}


def test_isolation_follows_what_is_asked(capsys):
    engines, gpu = document(capsys, "isolation")
    losses = {(row["collective"], row["staging"]): row["loss"] for row in engines}
    assert losses["reduce_scatter", "h = 0.75"] < 0.005 < losses["reduce_scatter", "h = 0"]
    assert {row["loss"] for row in gpu if row["units"] == 0} == {0.0}
    [off], [less] = (
        {
            row["loss"]
            for row in document(capsys, "isolation", "--staged", "0", *more)[0]
            if row["collective"] == "alltoall"
        }
        for more in ((), ("--sigma", "0.001"))
    )
    assert off == pytest.approx(5 * less, rel=0.01)


def test_a_ratio_is_shown_with_its_parts_and_its_band(capsys):
    parts, kinds, definitions, [band], inputs = document(capsys, "ratio", "--draws", "50", "--seed", "3")
    product = 1.0
    for row in parts[:4]:
        product *= row["factor"]
    assert product == pytest.approx(parts[4]["factor"])
    assert [row["part"] for row in parts[:4]] == list(ratio.PARTS)
    assert len(kinds) == 3
    assert len(definitions) == 6
    assert band["p5"] < band["p50"] < band["p95"]
    assert sorted(abs(row["correlation"]) for row in inputs)[::-1] == [abs(row["correlation"]) for row in inputs]
    balanced = document(capsys, "ratio", "--draws", "5", "--racks", "14,13,13")[0]
    assert balanced[1]["factor"] > 1.05


def test_steps_are_those_of_the_model(capsys):
    [rows] = document(capsys, "step", "mtia300:24:10240", "h100 SM-free")
    assert [(row["accelerator"], row["ranks"], row["batch"]) for row in rows[:2]] == [
        ("mtia300", 24, 10240),
        ("h100 SM-free", 40, 6144),
    ]
    made = step.run(step.Dlrm(batch=10240), presets.cluster("mtia300", 24))
    assert rows[0]["step_ms"] == pytest.approx(made.time_us / 1e3)
    assert rows[0]["samples"] == pytest.approx(10240 / made.time_us * 1e6)
    [plain] = document(capsys, "step", "h100")
    assert rows[1]["stretch"] < plain[0]["stretch"]  # no SM is held while the exchange is under compute
    [more] = document(capsys, "step", "h100", "--tables", "1200")
    assert more[0]["communication_ms"] > 1.5 * plain[0]["communication_ms"]


def test_a_plot_shows_every_step_and_is_the_same_each_time(capsys, tmp_path):
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        assert main(["offload", "step", "mtia300", "h100", "--plot", str(path)]) == 0
        assert f"wrote {path}" in capsys.readouterr().err
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert len(list(ET.parse(paths[0]).iter())) > 200


def test_a_step_that_is_refused_leaves_no_plot(tmp_path):
    path = tmp_path / "step.svg"
    assert main(["offload", "step", "mtia9", "--plot", str(path)]) == 2
    assert not path.exists()


def test_crossover_tells_from_where_on(capsys):
    [rows] = document(capsys, "crossover", "all_reduce")
    ahead = [row["size"] for row in rows if row["ahead"] > 1]
    assert min(ahead) == crossover.crossover("all_reduce", 8)
    assert rows[0]["ahead"] < 1
    assert "engines ahead from 4MiB on" in out(capsys, "crossover", "all_reduce")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["hardware", "show", "mtia9"],
            "hardware = 'mtia9': unknown; allowed: a path to a .toml file, or gaudi3, h100",
        ),
        (["isolation", "--staged", "2"], "staged = 2.0: must be in [0, 1]"),
        (["isolation", "--sigma", "-1"], "--sigma = -1.0: must be in [0, 1]"),
        (["isolation", "--hardware", "h100"], "hardware = 'h100': must be of kind \"engines\""),
        (["isolation", "--gpu", "mtia300"], "hardware = 'mtia300': must be of kind \"gpu\""),
        (["ratio", "--racks", "14,x"], "--racks = '14,x': must be accelerators of each rack, as 14,13,13"),
        (["ratio", "--racks", "14,14"], "racks = [14, 14]: must be 40 accelerators together"),
        (["ratio", "--racks", ""], "--racks = '': must be accelerators of each rack, as 14,13,13"),
        (["ratio", "--racks", "²,38"], "--racks = '²,38': must be accelerators of each rack, as 14,13,13"),
        (["ratio", "--draws", "0"], "--draws = 0: must be 1 .. 1000000"),
        (["ratio", "--draws", "99999999999"], "--draws = 99999999999: must be 1 .. 1000000"),
        (["ratio", "--seed", "-1"], "--seed = -1: must be 0 .. 2^64 - 1"),
        (["ratio", "--ranks", "1"], "--ranks = 1: must be 2 .. 65536"),
        (["ratio", "--stretch", "0.5"], "--stretch = 0.5: must be in [1, 100)"),
        (["ratio", "--partition", "9+9"], "partition = '9+9': must be NICs"),
        (["step", "mtia300:x"], "cluster = 'mtia300:x': must be NAME, NAME:RANKS or NAME:RANKS:BATCH"),
        (["step", "mtia300:²"], "cluster = 'mtia300:²': must be NAME, NAME:RANKS or NAME:RANKS:BATCH"),
        (["step", "mtia300:40:65537"], "NAME:RANKS:BATCH, numbers of 1 .. 65536"),
        (["step", "mtia300:" + "9" * 5000], "NAME:RANKS:BATCH, numbers of 1 .. 65536"),
        (["step", "mtia300 SM-free"], "cluster = 'mtia300 SM-free': SM-free is of GPUs"),
        (["step", "mtia300:1"], "domains = [1]: must be sizes of at least 1, at least 2 ranks together"),
        (["step", "--utilisation", "2"], "utilisation = 2.0: must be in (0, 1]"),
        (["step", "--utilisation", "1e-320"], "dense forward.alone_us = inf: must be at least 0 and finite"),
        (["step", "--tables", "0"], "--tables = 0: must be 1 .. 1000000"),
        (["step", "--plot", "step.png"], "--plot = 'step.png': must end in .svg"),
        (["step", "--plot", "/dev/null/step.svg"], "must be a file that can be written"),
        (["crossover", "scan"], "kind = 'scan': unknown; allowed: all_gather, all_reduce, alltoall, reduce_scatter"),
        (["crossover", "--ranks", "1"], "--ranks = 1: must be 2 .. 65536"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, arguments, line):
    assert main(["offload", *arguments]) == 2
    shown, err = capsys.readouterr()
    assert shown == ""
    assert line in err
    assert len(err.splitlines()) == 1
