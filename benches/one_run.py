"""One compiled simulation in a process of its own: `one_run.py DIRECTORY` prints time, memory and counters as JSON.

The directory has `spec.json` (or another specification, named behind it) and one file a column, named
`<column>.<format>` with the format of a memoryview. Nothing but the core is imported and a file is mapped only while
the core reads it, so that the peak of memory is the engine's own: the interpreter takes some 12 MiB of it.
"""

import json
import mmap
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from metaroce import _core


class Columns(Mapping[str, memoryview]):
    """Columns by name, read when they are asked for."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = {file.stem: file for file in files}

    def __getitem__(self, name: str) -> memoryview:
        return _map(self._files[name])

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def main(directory: Path, specification: str = "spec.json") -> None:
    """Run it. `seconds` is CPU time of all threads and `wall_seconds` what a clock shows, of `simulate` alone."""
    columns = Columns(file for file in directory.iterdir() if file.suffix != ".json")
    spec = (directory / specification).read_text()
    wall, cpu = time.perf_counter(), time.process_time()
    result = _core.simulate(spec, columns)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(
        json.dumps(
            {
                "status": result["status"],
                "digest": result["digest"],
                "seconds": cpu,
                "wall_seconds": wall,
                "peak_rss_mib": _peak_rss_kib() / 1024,
                "counters": result["counters"],
            }
        )
    )


def _map(file: Path) -> memoryview:
    if file.stat().st_size == 0:
        return memoryview(b"").cast(file.suffix[1:])
    with file.open("rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)).cast(file.suffix[1:])


def _peak_rss_kib() -> int:
    # getrusage would answer with the parent's peak where that is larger: exec hands it down.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
