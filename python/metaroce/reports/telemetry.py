"""The time series of a run as files: `Result.connections` and `Result.paths` as NPZ or CSV.

The same run gives the same bytes.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from ..collectives import Array
from ..errors import ConfigError
from ..result import PATH_STATES, Result

SUFFIXES = (".npz", ".csv")


def write(result: Result, path: str | Path) -> list[Path]:
    """Write both tables; returns the files made.

    ``x.npz`` holds the columns as arrays ``connections_<name>`` and ``paths_<name>``; ``x.csv`` becomes
    ``x.connections.csv`` and ``x.paths.csv``, with the states of paths by name. Existing files are replaced.

    Raises
    ------
    ConfigError
        For another suffix, a result without ``record_paths``, or a file that cannot be written.
    """
    target = checked(path)
    if result.connections is None or result.paths is None:
        raise ConfigError.of("result", "without time series", "must be of a Scenario with record_paths")
    tables = {"connections": result.connections, "paths": result.paths}
    try:
        if target.suffix == ".npz":
            arrays: dict[str, Any] = {
                f"{table}_{name}": column for table, columns in tables.items() for name, column in columns.items()
            }
            np.savez_compressed(target, **arrays)
            return [target]
        return [_csv(columns, target.with_suffix(f".{table}.csv")) for table, columns in tables.items()]
    except OSError as error:
        raise ConfigError.of("path", str(path), f"must be a file that can be written: {error.strerror}") from None


def checked(path: str | Path, field: str = "path") -> Path:
    """The path, if its suffix is one of `SUFFIXES` and its directory exists."""
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise ConfigError.of(field, str(path), f"must end in {' or '.join(SUFFIXES)}")
    if not target.parent.is_dir():
        raise ConfigError.of(field, str(path), "must be in a directory that exists")
    return target


def _csv(columns: dict[str, Array], path: Path) -> Path:
    shown = dict(columns)
    if "state" in shown:
        shown["state"] = np.array(PATH_STATES)[shown["state"]]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(shown)
        writer.writerows(zip(*(column.tolist() for column in shown.values()), strict=True))
    return path
