"""Tables of text cells: coloured on a terminal, aligned plain text in a pipe or a file.

A report makes a `Table`; this module alone knows how one looks. Both forms have the same characters in the same places.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class Column:
    """A column: heading, unit under it, and the side its cells lean to."""

    name: str
    unit: str = ""
    right: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of text under a title. `styles` names a rich style a row, or "" for none; empty means none at all."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    styles: Sequence[str] = ()


def plain(table: Table) -> Iterator[str]:
    """Lines of aligned text, two spaces between columns, no trailing blanks."""
    head = [[column.name for column in table.columns]]
    if any(column.unit for column in table.columns):
        head.append([column.unit for column in table.columns])
    lines = [*head, *table.rows]
    widths = [max(len(row[i]) for row in lines) for i in range(len(table.columns))]
    if table.title:
        yield table.title
    for row in lines:
        cells = (
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(row, widths, table.columns, strict=True)
        )
        yield ("  " + "  ".join(cells)).rstrip()


def show(table: Table, stream: IO[str]) -> None:
    """Write a table to a stream: with rich if that is a terminal, as plain text otherwise."""
    if not stream.isatty():
        stream.writelines(f"{text}\n" for text in plain(table))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream)
    lines = list(plain(table))
    heads = ["bold"] * (len(lines) - len(table.rows))
    for text, style in zip(lines, [*heads, *(table.styles or [""] * len(table.rows))], strict=True):
        console.print(Text(text, style=style), soft_wrap=True)  # a narrow terminal wraps; no cell is ever cut
