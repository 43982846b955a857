"""Who may import whom: the order of the Python layers, and the one module that touches the core."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python" / "metaroce"
LAYERS = (
    "errors",
    "units",
    "config",
    ("topology", "collectives"),
    "engine",
    "offload",
    "flow",
    "scenario",
    "simulation",
    "pool",
    "verbs",
    "reports",
    "cli",
)
# `Result` is what `simulation` returns; it and `metrics` know nothing but errors and units.
SIDE = {"result": "simulation", "metrics": "simulation"}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in ([names] if isinstance(names, str) else names)}
RANK |= {name: RANK[layer] for name, layer in SIDE.items()}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """First names below `metaroce` that a module imports when it is loaded or called; type-only imports left out."""
    tree = ast.parse(path.read_text())
    package = ["metaroce", *path.relative_to(PACKAGE).parts[:-1]]
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("metaroce."))


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_layers_below_it(path):
    own = layer(path)
    if own in ("__init__", "__main__"):
        return
    assert own in RANK, f"{own} has no place in the order of layers"
    for name in imports(path):
        if name in RANK and name != own:
            assert RANK[name] <= RANK[own], f"{path.name} ({own}) imports {name}, which lies above it"


def test_layers_side_by_side_do_not_import_each_other():
    for one, other in (("topology", "collectives"), ("collectives", "topology")):
        for path in (PACKAGE / one).rglob("*.py"):
            assert other not in imports(path), f"{path} imports {other}"


def test_only_simulation_touches_the_core():
    users = {layer(path) for path in MODULES if "_core" in imports(path)}
    assert users <= {"simulation"}, users
