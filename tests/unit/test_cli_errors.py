"""Bad input on the command line: one line that names field, value and what is allowed, and exit status 2."""

import re

import pytest

from metaroce.cli import main

PERF = "all_reduce_perf"
CASES = {
    "unknown topology": ([PERF, "--topology", "ring-of-fire"], "topology", "ring-of-fire", "multiplane-4x64"),
    "missing topology file": ([PERF, "--topology", "nowhere.toml"], "topology", "nowhere.toml", "cannot be read"),
    "one argument too many": (["topo", "list", "more"], "argument", "more", "nothing takes it"),
    "unknown dtype": ([PERF, "-d", "fp8"], "dtype", "fp8", "float16"),
    "unknown op": ([PERF, "-o", "prod"], "--op", "prod", "sum"),
    "loss of one": ([PERF, "--loss", "1.0"], "loss", "1.0", "[0, 1)"),
    "negative loss": ([PERF, "--loss", "-0.1"], "loss", "-0.1", "[0, 1)"),
    "loss of one in compare": (["compare", "--loss", "0", "100%"], "loss", "100%", "[0, 1)"),
    "loss that is no number": (["compare", "--loss", "some"], "loss", "some", "[0, 1)"),
    "more ranks than hosts": ([PERF, "--ranks", "65"], "ranks", "65", "2 .. 64"),
    "one rank": (["compare", "--ranks", "1"], "ranks", "1", "2 .. 64"),
    "zero size": ([PERF, "-b", "0"], "--minbytes", "0", "at least 1"),
    "zero size in compare": (["compare", "-b", "0"], "size", "0", "above 0"),
    "size that is no size": (["compare", "-b", "lots"], "size", "lots", "64MiB"),
    "sizes the wrong way round": ([PERF, "-b", "4K", "-e", "2K"], "--maxbytes", "2048", "4096"),
    "size below one element a rank": (["alltoall_perf", "-b", "8", "-e", "8"], "size", "8", "1024"),
    "no worker": ([PERF, "-b", "1M", "--workers", "0"], "--workers", "0", "at least 1"),
    "no worker in compare": (["compare", "--workers", "0"], "--workers", "0", "at least 1"),
    "no iteration": ([PERF, "-n", "0"], "iterations", "0", "1"),
    "iterations that are no number": ([PERF, "-n20x"], "-n", "20x", "an integer"),
    "ranks that are no whole number": ([PERF, "--ranks", "2.5"], "--ranks", "2.5", "an integer"),
    "a seed that is no whole number": (["compare", "--seed", "1e3"], "--seed", "1e3", "an integer"),
    "a directory as the JSON file": ([PERF, "-b", "1M", "-e", "1M", "-J", "/"], "--json", "/", "a file"),
    "telemetry of no known kind": ([PERF, "--telemetry", "x.parquet"], "--telemetry", "x.parquet", ".npz or .csv"),
    "telemetry in no directory": ([PERF, "--telemetry", "no/x.csv:5us"], "--telemetry", "no/x.csv", "a directory"),
    "telemetry without a time": ([PERF, "--telemetry", "x.csv:soon"], "--telemetry", "soon", "10us"),
    "telemetry all the time": ([PERF, "--telemetry", "x.npz:0us"], "--telemetry", "0us", "at least 1ps"),
    "unknown option": ([PERF, "--lossy", "1%"], "option", "--lossy", "--loss"),
    "unknown option in compare": (["compare", "--speed", "1"], "option", "--speed", "--size"),
    "unknown command": (["compete"], "command", "compete", "compare"),
    "unknown command of topo": (["topo", "draw"], "command", "draw", "show"),
    "unknown transport": (["compare", "--transport", "tcp"], "transport", "tcp", "rocev2-67ms"),
    "unknown transport of one run": ([PERF, "--transport", "tcp"], "transport", "tcp", "rocev2-67ms"),
    "unknown collective": (["compare", "broadcast"], "collective", "broadcast", "alltoall"),
    "a collective without a size": (["compare", "alltoallv"], "collective", "alltoallv", "alltoall"),
    "unknown placement": ([PERF, "--placement", "alphabetic"], "placement", "alphabetic", "packed"),
    "unknown loss drawing": ([PERF, "--loss-per", "hop"], "per", "hop", "link"),
    "negative seed": ([PERF, "--seed", "-1"], "seed", "-1", "0"),
    "fault without a target": ([PERF, "--fault", "10us"], "--fault", "10us", "TIME"),
    "fault of a plane that is not there": ([PERF, "--fault", "10us,plane,9"], "id", "9", "0 .. 3"),
    "fault of an unknown thing": ([PERF, "--fault", "10us,cable,1"], "target", "cable", "link"),
    "memory that is no size": (["compare", "--check-memory", "all"], "check_memory", "all", "64MiB"),
    "missing argument": (["topo", "show"], "NAME", "missing", "value"),
}


def refused(capsys, arguments):
    status = main(arguments)
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert re.fullmatch(r"metaroce: error: [^\n]+\n", err)
    return err


@pytest.mark.parametrize(("arguments", "field", "value", "allowed"), CASES.values(), ids=CASES)
def test_bad_input_is_refused_in_one_line(capsys, arguments, field, value, allowed):
    line = refused(capsys, arguments)
    for part in (field, value, allowed):
        assert part in line


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0 16\n16 0 16\n", ("--matrix", "square")),
        ("0 16\n", ("--matrix", "1 rows of 2", "square")),
        ("", ("--matrix", "square")),
        ("0 -16\n16 0\n", ("--matrix", "-16", "whole number")),
        ("0 1.5\n16 0\n", ("--matrix", "1.5", "whole number")),
        ("0 0\n0 0\n", ("matrix", "above 0")),
        ("0 6\n16 0\n", ("matrix[0][1]", "6", "multiple of 4")),
    ],
)
def test_a_matrix_that_is_not_square_or_not_bytes_is_refused(capsys, tmp_path, text, parts):
    path = tmp_path / "matrix.txt"
    path.write_text(text)
    line = refused(capsys, ["alltoallv_perf", "--matrix", str(path)])
    for part in parts:
        assert part in line


def test_a_matrix_must_match_the_ranks(capsys, tmp_path):
    path = tmp_path / "matrix.txt"
    path.write_text("0 16\n16 0\n")
    assert "each of 3 ranks" in refused(capsys, ["alltoallv_perf", "--matrix", str(path), "--ranks", "3"])


def test_a_disconnected_pair_is_refused(capsys, tmp_path):
    path = tmp_path / "cut.toml"
    path.write_text(
        'kind = "graph"\nhosts = 2\nplanes = 1\nswitches = [{ name = "s0" }, { name = "s1" }]\n'
        'links = [{ a = "host0", b = "s0" }, { a = "host1", b = "s1" }]\n'
        '[link]\nrate = "100Gbps"\ndelay = "1us"\nqueue = "1MiB"\n'
    )
    for command in (["topo", "check"], [PERF, "--topology"], ["compare", "--topology"]):
        assert "host0 and host1 are not connected in plane 0" in refused(capsys, [*command, str(path)])


def test_an_unknown_key_in_a_topology_file_is_refused(capsys, tmp_path):
    path = tmp_path / "key.toml"
    path.write_text(
        'kind = "leaf-spine"\ncolour = "blue"\nplanes = 1\nleaves = 2\nspines = 1\nhosts_per_leaf = 2\n'
        '[link]\nrate = "100Gbps"\ndelay = "1us"\nqueue = "1MiB"\n'
    )
    assert "colour" in refused(capsys, ["topo", "show", str(path)])


@pytest.mark.parametrize("out", ["/dev/null/results"])
def test_a_directory_that_cannot_be_made_is_refused_before_anything_runs(capsys, out):
    assert out in refused(capsys, ["compare", "--out", out])


def test_a_json_file_that_cannot_be_made_is_refused_before_anything_runs(capsys):
    assert "--json" in refused(capsys, [PERF, "-b", "1M", "-e", "1M", "-J", "/dev/null/results.json"])


def test_a_bandwidth_floor_that_is_no_number_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "fast")
    assert "NCCL_TESTS_MIN_BW" in refused(capsys, [PERF, "-b", "1M", "-e", "1M"])
