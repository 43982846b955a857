"""Progress of many runs, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: int, text: str, workers: int | None = None) -> Iterator[Callable[[], None]]:
    """Count finished runs: a bar on a terminal, otherwise a line at the start and at every tenth of 100 or more."""
    if not sys.stderr.isatty():
        from ..simulation import cores

        print(f"metaroce: {total} runs on {workers or cores()} cores", file=sys.stderr)
        yield _tenths(total) if total >= 100 else lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def _tenths(total: int) -> Callable[[], None]:
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if done * 10 // total > (done - 1) * 10 // total:
            print(f"metaroce: {done} of {total} runs", file=sys.stderr, flush=True)

    return advance
