"""The errors a caller may catch, one short tree.

Every refusal of bad input is one line that names the field, its value and what is allowed, so that a command line can
print it unchanged. A run that cannot end is a typed error with the stuck flows, never a hang. This module imports
nothing, so that every layer may raise from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .result import Result


class MetaRoceError(Exception):
    """Root of everything this package raises on purpose."""


class ConfigError(MetaRoceError, ValueError):
    """Input that cannot be run. ``str(error)`` is one line: field, value, what is allowed."""

    def __init__(self, message: str, field: str = "", value: object = None, allowed: str = "") -> None:
        super().__init__(" ".join(message.split()))
        self.field, self.value, self.allowed = field, value, allowed

    @classmethod
    def of(cls, field: str, value: object, allowed: str) -> ConfigError:
        """Build the line ``field = value: allowed``; long values are cut."""
        return cls(f"{field} = {shown(value)}: {allowed}", field, value, allowed)

    @classmethod
    def unknown(cls, field: str, value: object, names: Iterable[str]) -> ConfigError:
        """Refuse a name which is not in a closed set."""
        return cls.of(field, value, "unknown; allowed: " + ", ".join(sorted(names)))


class ProgramError(MetaRoceError):
    """A compiled collective that fails its symbolic check: a defect of the compiler, not of the input."""


class SimulationStalled(MetaRoceError):
    """Nothing is left to happen and work is left to do, as when all links of a host are down for good.

    ``flows`` are the stuck transfers (``src``, ``dst``, ``stream``, ``bytes_left``, ``reason``), ``time_ps`` the time
    of the last event in picoseconds, ``result`` the counters up to it.
    """

    def __init__(self, flows: list[dict[str, Any]], time_ps: int, result: Result) -> None:
        self.flows, self.time_ps, self.result = flows, time_ps, result
        named = "; ".join(
            f"rank {f['src']} -> rank {f['dst']} stream {f['stream']}: {f['bytes_left']} bytes left, {f['reason']}"
            for f in flows[:3]
        )
        more = f"; and {len(flows) - 3} more" if len(flows) > 3 else ""
        super().__init__(f"stalled at {time_ps / 1e6:.3f} us with {len(flows)} stuck flows: {named}{more}")


class SimulationDeadlocked(SimulationStalled):
    """Links of a lossless class wait for each other.

    ``cycle`` names them: each waits for the next, the last for the first.
    """

    def __init__(self, flows: list[dict[str, Any]], time_ps: int, result: Result) -> None:
        super().__init__(flows, time_ps, result)
        self.cycle = result.deadlock
        shown = self.cycle[:8] + ([f"{len(self.cycle) - 8} more"] if len(self.cycle) > 8 else [])
        self.args = (
            f"deadlock at {time_ps / 1e6:.3f} us, each link waits for the next and the last for the first: "
            + ", ".join(shown)
            + f"; {len(flows)} stuck flows",
        )


def shown(value: object) -> str:
    """A value for an error line: its ``repr``, on one line, at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
