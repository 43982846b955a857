"""Requirements of docs/spec/requirements.toml, and where a checkout keeps and tests each.

Code and tests cite a requirement on a comment line, ``// [F6.gap-is-loss]`` or ``# [I17]``. A citation belongs to the
test that it stands in or right above; in a script under tests/scripts to the script; anywhere else to the code.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .render import Column, Table

REQUIREMENTS = Path("docs/spec/requirements.toml")
KEPT, UNTESTED, UNCITED, OPEN = "kept and tested", "kept, untested", "tested, not cited in code", "open"
_ID = re.compile(r"\[([FI][0-9]+(?:\.[\w-]*)?)\]")
_FUNCTION = re.compile(r"( *)fn (\w+)")
_TEST_MODULE = "#[cfg(test)]"


@dataclass(frozen=True)
class Requirement:
    """One sentence; ``why`` is the reason for one of ours."""

    id: str
    kind: str
    text: str
    why: str = ""


@dataclass(frozen=True)
class Citation:
    """Where an id is cited; ``test`` names the test, is None in code, and empty in test code outside any test."""

    id: str
    file: str
    line: int
    test: str | None

    def __str__(self) -> str:
        return f"test  {self.file}: {self.test}" if self.test else f"code  {self.file}:{self.line}"


@dataclass(frozen=True)
class Spec:
    """All requirements and all citations of a checkout."""

    requirements: Sequence[Requirement]
    citations: Sequence[Citation]

    @classmethod
    def load(cls, start: Path) -> Spec:
        """Read the checkout that a directory lies in; `ConfigError` outside of one."""
        root = _root(start)
        return cls(_requirements(root / REQUIREMENTS), list(_citations(root)))

    def code(self, id_: str) -> list[Citation]:
        """Where the code keeps a requirement."""
        return [citation for citation in self.citations if citation.id == id_ and citation.test is None]

    def tests(self, id_: str) -> list[Citation]:
        """What tests it."""
        return [citation for citation in self.citations if citation.id == id_ and citation.test]

    def state(self, id_: str) -> str:
        """How far it is kept."""
        if self.code(id_):
            return KEPT if self.tests(id_) else UNTESTED
        return UNCITED if self.tests(id_) else OPEN

    def problems(self) -> list[str]:
        """Citations of no requirement, or in test code outside any test, one line each."""
        known = {requirement.id for requirement in self.requirements}
        unknown = [f"{c.file}:{c.line}: [{c.id}] is no requirement" for c in self.citations if c.id not in known]
        stray = [f"{c.file}:{c.line}: [{c.id}] belongs to no test" for c in self.citations if c.test == ""]
        return unknown + stray

    def counts(self) -> dict[str, int]:
        """Number of requirements in each state."""
        found = Counter(self.state(requirement.id) for requirement in self.requirements)
        return {state: found[state] for state in (KEPT, UNTESTED, UNCITED, OPEN)}

    def to_dict(self, missing: bool = False) -> dict[str, Any]:
        """The document of ``metaroce spec --json``."""
        rows = [
            asdict(requirement)
            | {
                "state": self.state(requirement.id),
                "code": [{"file": c.file, "line": c.line} for c in self.code(requirement.id)],
                "tests": [{"file": c.file, "line": c.line, "test": c.test} for c in self.tests(requirement.id)],
            }
            for requirement in self._shown(missing)
        ]
        return {"requirements": rows, "counts": self.counts(), "problems": self.problems()}

    def table(self, missing: bool = False) -> Table:
        """Id, kind and state, and a line for each citation; with ``missing`` only what lacks code or tests."""
        rows = []
        for requirement in self._shown(missing):
            where = [str(citation) for citation in (*self.code(requirement.id), *self.tests(requirement.id))]
            rows.append([requirement.id, requirement.kind, self.state(requirement.id), *(where[:1] or ["-"])])
            rows.extend(["", "", "", more] for more in where[1:])
        return Table(
            [Column(name, right=False) for name in ("requirement", "kind", "state", "kept and tested by")], rows
        )

    def summary(self) -> str:
        """The closing line."""
        counts = "; ".join(f"{count} {state}" for state, count in self.counts().items())
        return f"{len(self.requirements)} requirements: {counts}"

    def _shown(self, missing: bool) -> list[Requirement]:
        return [each for each in self.requirements if not (missing and self.state(each.id) == KEPT)]


def _root(start: Path) -> Path:
    for folder in (start, *start.parents):
        if (folder / REQUIREMENTS).is_file():
            return folder
    raise ConfigError.of("directory", str(start), f"no {REQUIREMENTS} here or above; run in a checkout of metaroce")


def _requirements(path: Path) -> list[Requirement]:
    try:
        entries = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    found = []
    for id_, entry in entries.items():
        given = entry if isinstance(entry, dict) else {}
        wanted = {"kind", "text", "why"} if given.get("kind") == "ours" else {"kind", "text"}
        if not _ID.fullmatch(f"[{id_}]") or given.get("kind") not in ("public", "ours"):
            raise ConfigError.of(f"{path}: {id_}", entry, 'an id like F6.gap-is-loss or I17, kind "public" or "ours"')
        if set(given) != wanted or not all(isinstance(text, str) and text for text in given.values()):
            raise ConfigError.of(f"{path}: {id_}", entry, "needs the texts " + ", ".join(sorted(wanted)))
        found.append(Requirement(id_, **given))
    return found


def _citations(root: Path) -> Iterator[Citation]:
    scripts = root / "tests" / "scripts"
    for path in sorted(path for folder in ("rust", "python", "tests") for path in (root / folder).rglob("*")):
        inside = path.relative_to(root)
        script = scripts in path.parents
        if not path.is_file() or "target" in inside.parts or not (script or path.suffix in (".rs", ".py")):
            continue
        lines = path.read_text(errors="replace").splitlines()
        mark = "//" if path.suffix == ".rs" else "#"
        comments = _python_comments(lines) if path.suffix == ".py" else range(len(lines))
        cited = [(n, i) for n in comments if lines[n].lstrip().startswith(mark) for i in _ID.findall(lines[n])]
        if not cited:
            continue
        tests = [(0, len(lines), path.stem)] if script else list(_tests(lines, mark))
        test_code = _test_code(inside, lines)
        for n, id_ in cited:
            own = next((name for first, last, name in tests if first <= n <= last), "" if n >= test_code else None)
            yield Citation(id_, inside.as_posix(), n + 1, own)


def _python_comments(lines: Sequence[str]) -> list[int]:
    """Lines with a comment; text in a string that looks like one is none."""
    tokens = tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline)
    return [token.start[0] - 1 for token in tokens if token.type == tokenize.COMMENT]


def _test_code(inside: Path, lines: Sequence[str]) -> int:
    """First line that is there for tests alone: of all files under tests/, and of the test module of a Rust file."""
    if "tests" in inside.parts:
        return 0
    return lines.index(_TEST_MODULE) if _TEST_MODULE in lines else len(lines)


def _tests(lines: Sequence[str], mark: str) -> Iterator[tuple[int, int, str]]:
    """First and last line of each test, with the comments right above it, and its name."""
    for first, last, name in _rust_tests(lines) if mark == "//" else _python_tests(lines):
        while first > 0 and lines[first - 1].lstrip().startswith((mark, "#[")):
            first -= 1
        yield first, last, name


def _rust_tests(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Functions below `#[test]`. rustfmt puts the closing brace of one below its first letter."""
    for n, line in enumerate(lines):
        if line.strip() == "#[test]":
            found = ((i, match) for i in range(n, len(lines)) if (match := _FUNCTION.match(lines[i])))
            for head, match in islice(found, 1):
                closing = range(head, head if lines[head].endswith("}") else len(lines))
                yield n, next((i for i in closing if lines[i] == match[1] + "}"), head), match[2]


def _python_tests(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield first - 1, (node.end_lineno or node.lineno) - 1, node.name
