"""`metaroce spec` on small checkouts: what counts as a citation, whose it is, and what it makes of a requirement."""

import json

import pytest

from metaroce.cli import main

REQUIREMENTS = """
["F6.gap-is-loss"]
kind = "public"
text = "A gap is loss."

["F6.at-once"]
kind = "public"
text = "At once."

[I1]
kind = "ours"
text = "Bytes arrive."
why = "What else."

[I17]
kind = "ours"
text = "Tails recover."
why = "They must."
"""
CODE = "/// Reads [I17], a link and a citation alike.\n// [F6.gap-is-loss] and more\nfn keep() { let x = y[I1]; } // [I1] is not on its own line\n"
RUST = """
// [F6.gap-is-loss]
/// Says more.
#[test]
#[ignore]
fn first() {
    if true {
    }
    // [I1]
}

proptest! {
    // [F6.at-once]
    #[test]
    fn second(
        x in 0..3,
    ) {
        check(x);
    }
}

#[test]
fn short() {}
"""
PYTHON = """
# [I1]
@given(
    x=1,
)
def test_third():
    # [F6.at-once]
    assert True
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    def write(**files):
        for name, text in {"docs/spec/requirements.toml": REQUIREMENTS, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "rust" / "deep").mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(tmp_path / "rust" / "deep")

    return write


def document(capsys, *arguments):
    status = main(["spec", "--json", *arguments])
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    return status, {row["id"]: row for row in found["requirements"]}, found


def where(row):
    return [f"{c['file']}:{c['line']}" for c in row["code"]], [f"{c['file']}: {c['test']}" for c in row["tests"]]


def test_a_citation_belongs_to_the_test_it_stands_in_or_above_and_else_to_the_code(checkout, capsys):
    checkout(
        **{
            "rust/p/src/a.rs": CODE,
            "rust/p/tests/b.rs": RUST,
            "tests/unit/test_c.py": PYTHON,
            "tests/scripts/lost_tail.txt": "0 send 1\n# [I17]\n",
        }
    )
    status, rows, found = document(capsys)
    assert status == 0
    assert where(rows["F6.gap-is-loss"]) == (["rust/p/src/a.rs:2"], ["rust/p/tests/b.rs: first"])
    assert where(rows["F6.at-once"]) == ([], ["rust/p/tests/b.rs: second", "tests/unit/test_c.py: test_third"])
    assert where(rows["I1"]) == ([], ["rust/p/tests/b.rs: first", "tests/unit/test_c.py: test_third"])
    assert where(rows["I17"]) == (["rust/p/src/a.rs:1"], ["tests/scripts/lost_tail.txt: lost_tail"])
    assert (rows["I1"]["kind"], rows["I1"]["why"]) == ("ours", "What else.")
    assert list(found["counts"].values()) == [2, 0, 2, 0]


def test_tests_inside_a_source_file_are_tests(checkout, capsys):
    inside = "\n".join("    " + line if line else "" for line in RUST.splitlines())
    checkout(**{"rust/p/src/a.rs": f"{CODE}\n#[cfg(test)]\nmod tests {{\n{inside}\n}}\n"})
    _, rows, _ = document(capsys)
    assert where(rows["F6.gap-is-loss"]) == (["rust/p/src/a.rs:2"], ["rust/p/src/a.rs: first"])
    assert where(rows["F6.at-once"]) == ([], ["rust/p/src/a.rs: second"])


def test_states_are_counted_and_shown(checkout, capsys):
    kept = "// [F6.gap-is-loss] [I1]\n"
    checkout(**{"rust/p/src/a.rs": kept, "tests/test_x.py": "# [I1]\n# [I17]\ndef test_x():\n    pass\n"})
    assert main(["spec"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "requirement kind state kept and tested by",
        "F6.gap-is-loss public kept, untested code rust/p/src/a.rs:1",
        "F6.at-once public open -",
        "I1 ours kept and tested code rust/p/src/a.rs:1",
        "test tests/test_x.py: test_x",
        "I17 ours tested, not cited in code test tests/test_x.py: test_x",
        "4 requirements: 1 kept and tested; 1 kept, untested; 1 tested, not cited in code; 1 open",
    ]
    status, rows, _ = document(capsys, "--missing")
    assert (status, list(rows)) == (1, ["F6.gap-is-loss", "F6.at-once", "I17"])


def test_nothing_missing_is_status_0(checkout, capsys):
    every = "[F6.gap-is-loss] [F6.at-once] [I1] [I17]"
    checkout(**{"python/a.py": f"# {every}\n", "tests/test_x.py": f"# {every}\ndef test_x():\n    pass\n"})
    status, rows, _ = document(capsys, "--missing")
    assert (status, rows) == (0, {})


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("python/a.py", "x = 1\n# [F6.gap]\n", "python/a.py:2: [F6.gap] is no requirement"),
        ("python/a.py", "text = '''\n# [I98]\n'''\n# [I99]\n", "python/a.py:4: [I99] is no requirement"),
        ("rust/p/src/a.rs", "// [F6]\n", "rust/p/src/a.rs:1: [F6] is no requirement"),
        ("rust/p/tests/a.rs", "// [I1]\n\n#[test]\nfn x() {}\n", "rust/p/tests/a.rs:1: [I1] belongs to no test"),
        ("tests/x.py", "def helper():\n    # [I1]\n    pass\n", "tests/x.py:2: [I1] belongs to no test"),
    ],
)
def test_a_citation_of_nothing_or_in_no_test_is_an_error(checkout, capsys, file, text, told):
    checkout(**{file: text})
    assert main(["spec"]) == 1
    assert capsys.readouterr().err.splitlines() == [f"metaroce: error: {told}"]


def test_outside_of_a_checkout_there_is_one_clear_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["spec"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("no docs/spec/requirements.toml here or above; run in a checkout of metaroce")


@pytest.mark.parametrize(
    ("requirements", "told"),
    [
        ("[F6.gap]\nkind = 'public'\ntext = 'x'\n", "an id like F6.gap-is-loss"),
        ("[I1]\nkind = 'ours'\ntext = 'x'\n", "needs the texts kind, text, why"),
        ("[I1]\nkind = 'public'\ntext = 'x'\nwhy = 'y'\n", "needs the texts kind, text"),
        ("[I1]\nkind = 'theirs'\ntext = 'x'\n", 'kind "public" or "ours"'),
        ("[I1\n", "requirements.toml: "),
    ],
)
def test_a_bad_entry_is_refused_in_one_line(checkout, capsys, requirements, told):
    checkout(**{"docs/spec/requirements.toml": requirements})
    assert main(["spec"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line
