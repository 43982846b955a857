"""Remake docs/offload.md from docs/offload.in.md: the dump of a packet, and M1 to M8 as measured.

`python docs/make_offload.py`, where the package is installed, takes some minutes; nearly all of them are packet runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from metaroce import __version__
from metaroce.offload.models import ratio
from metaroce.reports.reproduce import Reproducing

DUMP = "metaroce offload compile reduce_scatter --ranks 4 --size 1MiB --engines 1 --algorithm ring --dump --rank 0"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer points")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    here = Path(__file__).parent
    dump = subprocess.run([sys.executable, "-m", *DUMP.split()], capture_output=True, text=True, check=True).stdout
    report = Reproducing(["M"], seeds=given.seeds, quick=given.quick).report(str(__version__))
    rows = [
        "|  | published | this model gives | where the published figure lies | shape |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {o.target.name} | {o.target.published} | {o.finding.gives} | {o.finding.located} | "
            f"{'pass' if o.passed else 'FAIL: ' + failed(o)} |"
            for o in report.outcomes
        ),
    ]
    factors = ratio.decompose().factors
    filled = {
        "dump command": DUMP,
        "dump": dump.rstrip(),
        "command": f"metaroce reproduce M --seeds {given.seeds}" + (" --quick" if given.quick else ""),
        "targets": "\n".join(rows),
        "parts": "Base case: " + " × ".join(f"{value:.2f} ({part})" for part, value in factors.items()) + ".",
    }
    text = (here / "offload.in.md").read_text()
    for name, value in filled.items():
        text = text.replace("{{" + name + "}}", value)
    (here / "offload.md").write_text(text)


def failed(outcome: object) -> str:
    """What does not hold, and where."""
    checks = [check for check in outcome.finding.checks if not check.passed]  # type: ignore[attr-defined]
    return "; ".join(f"{check.statement} ({', '.join(check.failures)})" for check in checks)


if __name__ == "__main__":
    main()
