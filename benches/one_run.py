"""One compiled simulation in a process of its own: `one_run.py DIRECTORY` prints time, memory and counters as JSON.

The directory has `spec.json` (or another specification, named behind it) and one file a column, named
`<column>.<format>` with the format of a memoryview. Nothing but the core is imported and a file is mapped only while
the core reads it, so that the peak of memory is the engine's own: the interpreter takes some 11 MiB of it.
"""

# ruff: noqa: PTH118, PTH123, PTH202, PTH208
# pathlib takes a third of a MiB.
import mmap
import os
import sys
import time

from metaroce import _core


class Columns:
    """Columns by name, read when they are asked for."""

    def __init__(self, directory: str) -> None:
        files = (name for name in os.listdir(directory) if not name.endswith(".json"))
        self._files = {name.split(".")[0]: os.path.join(directory, name) for name in files}

    def __getitem__(self, name: str) -> memoryview:
        return _map(self._files[name])

    def __contains__(self, name: str) -> bool:
        return name in self._files


def main(directory: str, specification: str = "spec.json") -> None:
    """Run it. `seconds` is CPU time of all threads and `wall_seconds` what a clock shows, of `simulate` alone."""
    columns = Columns(directory)
    with open(os.path.join(directory, specification)) as file:
        spec = file.read()
    wall, cpu = time.perf_counter(), time.process_time()
    result = _core.simulate(spec, columns)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak = _peak_rss_kib()

    import json  # only now: with what it imports it takes half a MiB

    print(
        json.dumps(
            {
                "status": result["status"],
                "digest": result["digest"],
                "seconds": cpu,
                "wall_seconds": wall,
                "peak_rss_mib": peak / 1024,
                "counters": result["counters"],
            }
        )
    )


def _map(file: str) -> memoryview:
    form = file.rsplit(".", 1)[1]
    if os.path.getsize(file) == 0:
        return memoryview(b"").cast(form)
    with open(file, "rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)).cast(form)


def _peak_rss_kib() -> int:
    # getrusage would answer with the parent's peak where that is larger: exec hands it down.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
