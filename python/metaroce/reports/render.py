"""Tables of text cells: coloured on a terminal, aligned plain text in a pipe or a file.

A report makes a `Table`; this module alone knows how one looks. Both forms have the same characters in the same places.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO


@dataclass(frozen=True)
class Column:
    """A column: heading, unit under it, the side its cells lean to, and the width at which they wrap (0: never)."""

    name: str
    unit: str = ""
    right: bool = True
    width: int = 0


@dataclass(frozen=True)
class Table:
    """Rows of text under a title. `styles` names a rich style a row, or "" for none; empty means none at all."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    styles: Sequence[str] = ()


def plain(table: Table) -> Iterator[str]:
    """Lines of aligned text, two spaces between columns, no trailing blanks."""
    yield from (text for text, _ in _lines(table))


def show(table: Table, stream: IO[str]) -> None:
    """Write a table to a stream: with rich if that is a terminal, as plain text otherwise."""
    if not stream.isatty():
        stream.writelines(f"{text}\n" for text in plain(table))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream)
    for text, style in _lines(table):
        console.print(Text(text, style=style), soft_wrap=True)  # a narrow terminal wraps; no cell is ever cut


def _lines(table: Table) -> Iterator[tuple[str, str]]:
    """Each line with its style; a row whose cells wrap takes several."""
    head = [[column.name for column in table.columns]]
    if any(column.unit for column in table.columns):
        head.append([column.unit for column in table.columns])
    if table.title:
        yield table.title, "bold"
    styles = [*["bold"] * len(head), *(table.styles or [""] * len(table.rows))]
    rows = [_wrapped(table.columns, row) for row in (*head, *table.rows)]
    widths = [max(len(line[i]) for row in rows for line in row) for i in range(len(table.columns))]
    for row, style in zip(rows, styles, strict=True):
        for line in row:
            cells = (
                text.rjust(width) if column.right else text.ljust(width)
                for text, width, column in zip(line, widths, table.columns, strict=True)
            )
            yield ("  " + "  ".join(cells)).rstrip(), style


def _wrapped(columns: Sequence[Column], row: Sequence[str]) -> list[tuple[str, ...]]:
    cells = [
        textwrap.wrap(text, column.width) or [""] if column.width else [text]
        for text, column in zip(row, columns, strict=True)
    ]
    return list(zip_longest(*cells, fillvalue=""))
