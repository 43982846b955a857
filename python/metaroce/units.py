"""Text and numbers become integers here, once, at the edge: picoseconds, bytes, bits per second.

Nothing behind this module parses or rounds. Sizes follow nccl-tests (K, M, G and KiB, MiB, GiB are powers of 1024; KB,
MB, GB powers of 1000); rates are powers of 1000, as link speeds are. A value that is not a whole number of the unit is
refused instead of rounded.
"""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Integral

from .errors import ConfigError

ELEMENT_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int32": 4, "int8": 1}
"""Element types of a collective and their sizes in bytes."""

_SIZE = {"": 1, "b": 1}
_SIZE |= {f"{p}{s}": 1024**k for k, p in enumerate("kmgt", 1) for s in ("", "i", "ib")}
_SIZE |= {f"{p}b": 1000**k for k, p in enumerate("kmgt", 1)}
_TIME = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12}
_RATE = {f"{p}{s}": 1000**k for k, p in enumerate(("", "k", "m", "g", "t")) for s in ("", "bps", "bit/s", "b/s")}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zµ/]*)\s*\Z")
_LIMIT = 2**63


def parse_size(value: object, field: str = "size") -> int:
    """Bytes from ``4096``, ``"64MiB"``, ``"64M"`` (both 1024-based) or ``"64MB"`` (1000-based)."""
    return _parse(value, field, _SIZE, 'a whole number of bytes, like 4096, "64MiB" or "1MB"')


def parse_time(value: object, field: str = "time") -> int:
    """Picoseconds from ``"10us"``, ``"600ns"``, ``"1.5ms"``; a bare integer counts picoseconds."""
    return _parse(value, field, _TIME | {"": 1}, 'a whole number of picoseconds, like "600ns", "10us" or "1ms"')


def parse_rate(value: object, field: str = "rate") -> int:
    """Bits per second from ``"200Gbps"``, ``"200G"`` or a bare integer."""
    return _parse(value, field, _RATE, 'a whole number of bits per second, like "200Gbps" or "200G"')


def parse_probability(value: object, field: str = "probability") -> float:
    """A probability in [0, 1) from ``0.01`` or ``"1%"``."""
    allowed = 'must be in [0, 1), like 0.01 or "1%"'
    try:
        if isinstance(value, str):
            text = value.strip()
            number = float(Decimal(text[:-1]) / 100) if text.endswith("%") else float(text)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError
        else:
            number = float(value)
    except (ArithmeticError, TypeError, ValueError):
        raise ConfigError.of(field, value, allowed) from None
    if not 0.0 <= number < 1.0:
        raise ConfigError.of(field, value, allowed)
    return number


def format_size(size: int) -> str:
    """The shortest exact form: ``64MiB``, ``1KiB``, ``100B``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return f"{size}B"


def format_time(time: int) -> str:
    """Picoseconds for people, to three decimals: ``1.25us``, ``3ms``."""
    for unit in ("s", "ms", "us", "ns"):
        if time >= _TIME[unit]:
            return f"{time / _TIME[unit]:.3f}".rstrip("0").rstrip(".") + unit
    return f"{time}ps"


def format_rate(rate: int) -> str:
    """Bits per second for people: ``200Gbps``."""
    for unit in ("t", "g", "m", "k"):
        if rate >= _RATE[unit]:
            return f"{rate / _RATE[unit]:g}{unit.upper()}bps"
    return f"{rate}bps"


def _parse(value: object, field: str, units: dict[str, int], allowed: str) -> int:
    number = Decimal(-1)
    if isinstance(value, str):
        if match := _NUMBER.match(value.lower()):
            number = Decimal(match[1]) * units.get(match[2], -1)
    elif isinstance(value, (Integral, float)) and not isinstance(value, bool):
        number = Decimal(value if isinstance(value, float) else int(value))
    if not (number.is_finite() and 0 <= number < _LIMIT and number == int(number)):
        raise ConfigError.of(field, value, "must be " + allowed)
    return int(number)
