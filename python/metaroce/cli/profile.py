"""`metaroce profile`: what can be set, what is constant, and where each value comes from."""

from __future__ import annotations

import json
import sys
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="profile", help="List and show profiles: every setting and constant, with unit, range and source.")


@app.default
@app.command(name="list")
def list_() -> int:
    """List the profiles."""
    from ..reports import render
    from ..reports.profile import listing

    render.show(listing(), sys.stdout)
    return 0


@app.command
def show(
    name: Annotated[str | None, Parameter(help="A profile (see `metaroce profile list`); default: all.")] = None,
    /,
    *,
    as_json: Annotated[
        bool, Parameter(name="--json", negative=(), help="Exact values, and what each row does; one object by name.")
    ] = False,
) -> int:
    """Show one profile or all: settings, then constants of the model."""
    from ..reports import profile, render

    wanted = profile.names() if name is None else [name]
    if as_json:
        print(json.dumps({each: profile.load(each) for each in wanted}, indent=1))
        return 0
    for each in wanted:
        for table in profile.tables(each):
            render.show(table, sys.stdout)
    return 0
