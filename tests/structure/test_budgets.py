"""Size budgets: Python files of 400 lines and functions of 60, Rust files of 600 lines without their tests.

Rust functions and parameters are Clippy's to count (clippy.toml).
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = sorted(path for folder in ("python", "tests", "benches") for path in (ROOT / folder).rglob("*.py"))
RUST = sorted(path for path in (ROOT / "rust").rglob("*.rs") if "tests" not in path.parts and path.name != "tests.rs")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_python_stays_within_its_budget(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} has {node.end_lineno - node.lineno + 1} lines"


@pytest.mark.parametrize("path", RUST, ids=name)
def test_rust_stays_within_its_budget(path):
    code = path.read_text().split("#[cfg(test)]\nmod tests {")[0]
    assert len(code.splitlines()) <= 600
