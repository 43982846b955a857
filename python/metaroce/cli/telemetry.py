"""`--telemetry FILE[:INTERVAL]`: the out-of-place half of each row records its connections and paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..units import parse_time

if TYPE_CHECKING:
    from ..result import Result
    from ..scenario import Scenario

_INTERVAL = "10us"


@dataclass(frozen=True)
class Telemetry:
    """Where time series go; with several sizes, each has a file with its size in the name."""

    path: Path
    interval: int
    several: bool

    @classmethod
    def of(cls, text: str | None, several: bool) -> Telemetry | None:
        """Read the flag; a file that cannot be is refused now, not after the run."""
        from ..reports.telemetry import SUFFIXES, checked

        if text is None:
            return None
        name, _, tail = text.rpartition(":")
        if not name.endswith(SUFFIXES):
            name, tail = text, _INTERVAL
        interval = parse_time(tail, "--telemetry")
        if interval < 1:
            raise ConfigError.of("--telemetry", text, "the interval must be at least 1ps")
        return cls(checked(name, "--telemetry"), interval, several)

    def recorded(self, scenario: Scenario) -> Scenario:
        """A half of a row, to record time series if it is out of place."""
        in_place = getattr(scenario.workload, "inplace", False)
        return scenario if in_place else scenario.replace(record_paths=self.interval)

    def write(self, result: Result) -> None:
        """Write the time series of a half, if it has them."""
        from ..reports.telemetry import write

        if result.paths is None:
            return
        size = f".{result.size_bytes}" if self.several else ""
        for path in write(result, self.path.with_suffix(size + self.path.suffix)):
            print(f"# Wrote {path}", flush=True)
