"""Rows of values that are shown as a table and printed as JSON: one description of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .render import Column, Table


@dataclass(frozen=True)
class Field:
    """A column: its key in JSON, heading, unit, how a number of it is written; text leans left and wraps at a width."""

    key: str
    name: str
    unit: str = ""
    form: str = ""
    width: int = 0

    def text(self, value: Any) -> str:
        """A value as it stands in a table."""
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return "-"
        return self.form.format(value) if self.form else str(value)


@dataclass(frozen=True)
class Listing:
    """Rows by key under a title."""

    title: str
    fields: Sequence[Field]
    rows: Sequence[Mapping[str, Any]]

    def table(self) -> Table:
        """For `metaroce.reports.render`."""
        columns = [Column(one.name, one.unit, bool(one.form), one.width) for one in self.fields]
        return Table(columns, [[one.text(row.get(one.key)) for one in self.fields] for row in self.rows], self.title)

    def plain(self) -> list[dict[str, Any]]:
        """Rows for JSON, without what is not finite."""
        return [{one.key: _finite(row.get(one.key)) for one in self.fields} for row in self.rows]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
