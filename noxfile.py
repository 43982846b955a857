"""The project's tasks: `nox -s lint test instructions` is what CI runs; `bench`, `scale` and `docs` are run by hand.

Every session brings its own environment and builds the package from this tree, so that a clean checkout with Python
and a Rust tool chain is enough.
"""

from pathlib import Path

import nox

nox.options.sessions = ["lint", "test"]
nox.options.reuse_existing_virtualenvs = True

PYPROJECT = nox.project.load_toml("pyproject.toml")
SOURCES = ["python", "tests", "noxfile.py", *(["benches"] if Path("benches").exists() else [])]


def install(session: nox.Session, group: str) -> None:
    """Build the package from this tree, together with a dependency group of pyproject.toml."""
    session.install(".", *nox.project.dependency_groups(PYPROJECT, group))


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting, lints, types, stubs against the built module, and the structure tests (layers, size budgets)."""
    session.run("cargo", "fmt", "--all", "--check", external=True)
    session.run("cargo", "clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings", external=True)
    install(session, "lint")
    session.run("ruff", "check", *SOURCES)
    session.run("ruff", "format", "--check", *SOURCES)
    session.run("mypy")
    session.run("stubtest", "metaroce._core")
    session.run("pytest", "tests/structure", "-q")


@nox.session
def test(session: nox.Session) -> None:
    """Build, install and run the Python tests; arguments after `--` go to pytest."""
    install(session, "test")
    session.run("pytest", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Speed of the engine beside the yardstick, one process a work; arguments after `--` go to benches/engine.py."""
    session.install(".")
    session.run("python", "benches/engine.py", *(session.posargs or ["--json"]))


@nox.session
def scale(session: nox.Session) -> None:
    """How cost grows with hosts, planes, connections and message size; arguments after `--` go to benches/scale.py."""
    session.install(".")
    session.run("python", "benches/scale.py", *session.posargs)


@nox.session(venv_backend="none")
def instructions(session: nox.Session) -> None:
    """Instructions of fixed runs against benches/baseline.json (needs Valgrind); `-- --update` remakes that file."""
    session.run("python3", "benches/instructions.py", *(session.posargs or ["--check"]), external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Remake docs/results.md (a quarter of an hour); exit status 1 where the shape of a result fails."""
    session.install(".")
    session.run("metaroce", "reproduce", "--out", "docs/results.md", *session.posargs)
