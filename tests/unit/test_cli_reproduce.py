"""`metaroce reproduce` in its quick form: tables, documents, files, exit status."""

import json

import pytest

pytest.importorskip("metaroce._core", reason="the compiled core is not built")

from metaroce.cli import main
from metaroce.reports import reproduce


@pytest.fixture(scope="module")
def once():
    """Each run of the module is made once: what is printed differs, what is measured does not."""
    known, measured = {}, reproduce._measured

    def remembered(key):
        if key not in known:
            known[key] = measured(key)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "_measured", remembered)
        yield


def run(capsys, *arguments):
    status = main(["reproduce", "R5", "R6", "--quick", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_document_holds_what_was_measured_and_the_status_says_what_failed(once, capsys):
    status, out, err = run(capsys, "--json")
    document = json.loads(out)
    assert [target["target"] for target in document["targets"]] == ["R5", "R6"]
    assert status == (1 if document["failed"] else 0)
    assert ("shape fails: " + ", ".join(document["failed"]) in err) == bool(document["failed"])
    assert "runs on" in err
    outage, incast = document["targets"]
    assert outage["passed"]
    rings, streams = (sheet["rows"] for sheet in outage["sheets"])
    assert [row["values"]["wrong"]["median"] for row in rings] == [0, 0]
    assert rings[1]["values"]["checked"]["median"] == 64 * (8 << 20) // 4
    [stream] = streams
    assert 0 < stream["values"]["recovered_us"]["median"] <= 60
    assert 0 < stream["values"]["back_us"]["median"] <= 150
    assert stream["values"]["least_bin"]["median"] == pytest.approx(1, abs=0.03)
    hints, off = (sheet["rows"] for sheet in incast["sheets"])
    for row in hints:
        assert row["values"]["of_receiver"]["median"] > 0.95
        assert row["values"]["own_trips"]["median"] <= row["values"]["own_trips_worst"]["median"]
        assert row["values"]["jain_rates"]["median"] > 0.99
    assert all(row["values"]["first_us"]["median"] is None for row in off)  # there is no hint


def test_tables_stay_within_120_columns(once, capsys):
    _, out, _ = run(capsys)
    lines = out.splitlines()
    assert max(map(len, lines)) <= 120
    assert "independent" in lines[0]
    assert any(line.startswith("  R5  a plane fails during the run:") for line in lines)


def test_a_page_is_written_and_printed_alike(once, capsys, tmp_path):
    path = tmp_path / "results.md"
    _, out, err = run(capsys, "--markdown", "--out", str(path))
    assert path.read_text() == out
    assert f"wrote {path}" in err
    assert "Made by `metaroce reproduce R5 R6 --quick`." in out
    assert "once a packet, end to end; data and acknowledgements" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["X1"], "target = 'X1': unknown; allowed: M, M1, M2, M3, M4, M5, M6, M7, M8, P, P10, P11, P12, P3, P4, P5"),
        (["--seeds", "0"], "seeds = 0: must be at least 1"),
        (["--out", "results.html"], "--out = 'results.html': must end in .md or .json"),
        (["--out", "/dev/null/results.md"], "must be a file that can be written"),
        (["--json", "--markdown"], "at most one of --json, --markdown"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_anything_runs(capsys, arguments, line):
    assert main(["reproduce", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err
    assert len(err.splitlines()) == 1
