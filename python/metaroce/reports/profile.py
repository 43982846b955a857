"""Profiles as tables: every setting and constant of a named transport or of the fabric, with unit, source and range.

Rows come from the core (`metaroce.simulation.profiles`); a profile is a kind of the core with some settings overridden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..config import TRANSPORTS
from ..errors import ConfigError
from ..simulation import profiles as core_profiles
from ..units import format_size, format_time
from .render import Column, Table

_KINDS = {
    "metaroce": "MetaRoCE-style: packets sprayed over paths, resent one by one",
    "rocev2": "RoCEv2 RC: go-back-N and DCQCN on a lossy class",
    "mrc": "MRC-like, independent: one sequence a QP sprayed over entropies, SACK, NSCC",
    "fabric": "switches, frames and random loss, for every transport",
}
_SCALED = re.compile(r"([0-9.]+)([a-zA-Z]+)")
_LARGE = 1 << 14
"""From here on, bytes read better with a prefix."""
_ALLOWED = 20
"""Width at which what is allowed goes on in the next line."""

Profile = dict[str, Any]
"""``kind`` (of the core), ``overrides`` (settings by name) and ``settings`` (rows as in `metaroce._core.profiles`)."""


def names() -> list[str]:
    """The named transports, and "fabric"."""
    return [*TRANSPORTS, "fabric"]


def load(name: str) -> Profile:
    """One profile, its overrides applied; `ConfigError` for a name that is none."""
    if name not in names():
        raise ConfigError.unknown("profile", name, names())
    choice = TRANSPORTS.get(name)
    kind, overrides = (choice.kind, choice.overrides) if choice else (name, {})
    rows = [row | {"value": overrides.get(row["name"], row["value"])} for row in core_profiles()[kind]]
    return {"kind": kind, "overrides": overrides, "settings": rows}


def listing() -> Table:
    """Name, numbers of settings and constants, overrides and description, one row a profile."""
    rows = []
    for name in names():
        profile = load(name)
        kinds = [row["kind"] for row in profile["settings"]]
        fabric = TRANSPORTS[name].fabric if name in TRANSPORTS else {}
        changes = ", ".join(f"{key} = {value}" for key, value in (profile["overrides"] | fabric).items())
        counts = [str(kinds.count(kind)) for kind in ("setting", "constant")]
        rows.append([name, *counts, changes or "-", _KINDS[profile["kind"]]])
    left = [Column("overrides", right=False), Column("what", right=False)]
    return Table([Column("profile", right=False), Column("settings"), Column("constants"), *left], rows)


def tables(name: str) -> Iterator[Table]:
    """The settings of a profile, then its constants."""
    profile = load(name)
    for kind, range_ in (("setting", [Column("allowed", right=False, width=_ALLOWED)]), ("constant", [])):
        columns = [
            Column(kind, right=False), Column("value"), Column("unit", right=False),
            *range_, Column("source", right=False),
        ]  # fmt: skip
        rows = []
        for row in profile["settings"]:
            if row["kind"] == kind:
                allowed = [_allowed(row)] if range_ else []
                rows.append([row["name"], *_value(row["value"], row["unit"]), *allowed, row["source"]])
        yield Table(columns, rows, title=name)


def _value(value: Any, unit: str) -> tuple[str, str]:
    """A value for people and the unit it is shown in."""
    text = _text(value, unit)
    shown = _SCALED.fullmatch(text) if unit in ("ps", "bytes") else None
    return (shown[1], shown[2]) if shown else (text, unit)


def _text(value: Any, unit: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if unit == "ps":
        return format_time(value) if value else "0"
    if unit == "bytes" and value >= _LARGE:
        return format_size(value).removesuffix("B") if value % 1024 else format_size(value)
    return str(value)


def _allowed(row: dict[str, Any]) -> str:
    allowed, unit = row["allowed"], row["unit"]
    if isinstance(allowed, list):
        return " or ".join(_text(choice, unit) for choice in allowed)
    if "below" in allowed:
        return f"{allowed['least']} to below {allowed['below']}"
    if allowed["most"] == 2**64 - 1:
        return f"from {_text(allowed['least'], unit)}"
    return f"{_text(allowed['least'], unit)} to {_text(allowed['most'], unit)}"
