"""Topologies: fabrics by name or from a TOML file, checked when built.

`GENERATORS` maps a file's ``kind`` to its model; to add a kind, write one file and one line here. Named fabrics are the
files in ``metaroce/topologies``; the schema is described in `metaroce.topology.schema`.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

from ..errors import ConfigError
from .fabric import Fabric
from .fat_tree import FatTree
from .graph import Graph
from .leaf_spine import LeafSpine
from .racks import Network, Racks
from .schema import Ecn, HostLinks, Link, PlaneChanges, Topology
from .sites import Sites

# [F9.any-fabric]
GENERATORS: dict[str, type[Topology]] = {
    "leaf-spine": LeafSpine,
    "fat-tree": FatTree,
    "sites": Sites,
    "graph": Graph,
    "racks": Racks,
}

__all__ = [
    "GENERATORS",
    "Ecn",
    "Fabric",
    "FatTree",
    "Graph",
    "HostLinks",
    "LeafSpine",
    "Link",
    "Network",
    "PlaneChanges",
    "Racks",
    "Sites",
    "Topology",
    "load",
    "names",
]


def names() -> list[str]:
    """The named fabrics."""
    return sorted(f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml"))


def load(name_or_path: str | Path) -> Topology:
    """Read a named fabric or a ``.toml`` file; raises `ConfigError` when unknown, ill-formed or disconnected."""
    text, name = str(name_or_path), Path(name_or_path).name
    if not text.endswith(".toml"):
        if text not in names():
            raise ConfigError.of("topology", text, "unknown; allowed: a path to a .toml file, or " + ", ".join(names()))
        return _parse(_folder().joinpath(f"{text}.toml").read_text("utf-8"), text)
    try:
        return _parse(Path(text).read_text("utf-8"), name.removesuffix(".toml"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError.of("topology", text, f"cannot be read: {reason}") from None


def _parse(text: str, name: str) -> Topology:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError.of("topology", name, f"not valid TOML: {error}") from None
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in GENERATORS:
        raise ConfigError.unknown("kind", kind, GENERATORS)
    topology = GENERATORS[kind](**{"name": name, **data})
    topology.fabric  # noqa: B018 - builds it, so that a file is refused when it is read
    return topology


def _folder() -> resources.abc.Traversable:
    return resources.files("metaroce") / "topologies"
