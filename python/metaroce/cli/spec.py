"""`metaroce spec`: what the emulator has to do, and which code and tests see to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def spec(
    *,
    as_json: Annotated[
        bool, Parameter(name="--json", negative=(), help="With the text of each, and why one of ours is there.")
    ] = False,
    missing: Annotated[
        bool, Parameter(negative=(), help="Only what lacks code or a test; status 1 if there is any.")
    ] = False,
) -> int:
    """Requirements of this checkout, with the code that keeps and the tests that test each."""
    from ..reports import render
    from ..reports.spec import Spec

    found = Spec.load(Path.cwd())
    if as_json:
        print(json.dumps(found.to_dict(missing), indent=1))
    else:
        render.show(found.table(missing), sys.stdout)
        print(found.summary())
    for problem in found.problems():
        print(f"metaroce: error: {problem}", file=sys.stderr)
    lacking = missing and found.to_dict(missing)["requirements"]
    return 1 if lacking or found.problems() else 0
