"""A comparison as tables: one a collective, then what did not finish and why.

A cell stopped at its limit shows bounds (`>` for the time, `<` for what is divided by it); a failed cell shows dashes
and a line below. Nothing is left out.
"""

from collections.abc import Iterator, Sequence

from .compare import BOUND_FACTOR, Cell
from .render import Column, Table

COLUMNS = (
    Column("transport", right=False),
    Column("profile", right=False),
    Column("loss"),
    Column("time", "(us)"),
    Column("algbw", "(GB/s)"),
    Column("busbw", "(GB/s)"),
    Column("own", "loss-free"),
    Column("of line", "rate"),
    Column("resent", "packets"),
    Column("timeouts"),
    Column("#wrong"),
)


def tables(cells: Sequence[Cell]) -> Iterator[Table]:
    """One table a collective, in the order of the cells."""
    for collective in dict.fromkeys(cell.collective for cell in cells):
        own = [cell for cell in cells if cell.collective == collective]
        yield Table(COLUMNS, [row(cell) for cell in own], title=collective, styles=[_style(cell) for cell in own])


def notes(cells: Sequence[Cell]) -> Iterator[str]:
    """Lines under the tables: the meaning of bounds, pauses, the reason of every failure."""
    if any(cell.status == "bound" for cell in cells):
        yield f"> <: stopped at {BOUND_FACTOR} x the loss-free time of its transport; > at least that, < at most that"
    for cell in cells:
        where = f"{cell.collective} {cell.transport} {cell.profile} at loss {percent(cell.loss)}"
        if cell.pauses:
            yield (
                f"{where}: {cell.pauses} pauses, ports paused {cell.paused_us or 0.0:,.1f} us in all, "
                f"{cell.dropped} dropped in the lossless class"
            )
        if cell.reason:
            yield f"{where}: {cell.status}: {cell.reason}"


def row(cell: Cell) -> list[str]:
    """The texts of one cell, one a column."""
    over, under = ("> ", "< ") if cell.status == "bound" else ("", "")
    time = "failed" if cell.status == "failed" else _text(cell.time_us, "{:,.1f}", over).replace(",", " ")
    return [
        cell.transport,
        cell.profile,
        percent(cell.loss),
        time,
        _text(cell.algbw_gbs, "{:.2f}", under),
        _text(cell.busbw_gbs, "{:.2f}", under),
        _text(cell.of_lossfree, "{:.1%}", under),
        _text(cell.of_line_rate, "{:.1%}", under),
        _text(cell.retransmitted, "{:.2%}"),
        _text(cell.timeouts, "{}"),
        "N/A" if cell.wrong is None else str(cell.wrong),
    ]


def percent(fraction: float) -> str:
    """A loss as people write it: `0`, `0.1%`, `10%`."""
    return "0" if fraction == 0 else f"{fraction * 100:.6g}%"


def _text(value: float | None, form: str, bound: str = "") -> str:
    return "-" if value is None else bound + form.format(value)


def _style(cell: Cell) -> str:
    if cell.status == "failed" or cell.wrong:
        return "red"
    return "yellow" if cell.status == "bound" else ""
