"""`metaroce topo`: what fabrics there are, what one looks like, whether a file is sound."""

from __future__ import annotations

import json
import sys
from typing import Annotated

from cyclopts import App, Parameter

from .options import NAME_OR_FILE

app = App(name="topo", help="List, show and check topologies.")


@app.command(name="list")
def list_() -> int:
    """List the named topologies."""
    from .. import topology
    from ..reports import render
    from ..reports.topology import listing

    render.show(listing([topology.load(name) for name in topology.names()]), sys.stdout)
    return 0


@app.command
def show(
    name: Annotated[str, NAME_OR_FILE],
    /,
    *,
    as_json: Annotated[
        bool, Parameter(name="--json", negative=(), help="Node-link JSON, as networkx reads it.")
    ] = False,
) -> int:
    """Summarise one topology, or print its graph."""
    from .. import topology
    from ..reports import render
    from ..reports.topology import summary

    fabric = topology.load(name)
    if as_json:
        import networkx

        print(json.dumps(networkx.node_link_data(fabric.graph(), edges="edges")))
    else:
        render.show(summary(fabric), sys.stdout)
    return 0


@app.command
def check(name: Annotated[str, NAME_OR_FILE], /) -> int:
    """Check a topology: degrees, rates, planes disjoint, and every pair of hosts that can talk reachable."""
    from .. import topology
    from ..reports.topology import headline

    print(f"{headline(topology.load(name))}: ok")  # load refuses what is not sound, with the reason
    return 0
