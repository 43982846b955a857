"""Peaks of memory of the core, each run in a process of its own by benches/one_run.py: the interpreter is in them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import metaroce as mr

BENCHES = Path(__file__).parents[2] / "benches"


def packed(topology, workload, **options):
    return mr.Scenario(topology=topology, workload=workload, placement="packed", **options)


RUNS = {  # the scenario, and the most MiB that its process may take
    "ring of 64 MiB, 64 hosts, 4 planes": (
        lambda: mr.Scenario(workload=mr.Collective(kind="all_reduce", size="64MiB")),
        19,
    ),
    "alltoall of 16 MiB, 64 hosts": (
        lambda: packed("fat-tree-64", mr.Collective(kind="alltoall", size="16MiB", peers_at_a_time=8)),
        40,
    ),
    "permutation of 2 MB, 1,024 hosts": (lambda: packed("fat-tree-1024", mr.Permutation(bytes=2_000_000), seed=45), 64),
    "permutation of 60 kB, 4,096 hosts": (lambda: packed("fat-tree-4096", mr.Permutation(bytes=60_000)), 110),
    "windowed alltoall, 256 hosts": (
        lambda: packed("fat-tree-1024", mr.Collective(kind="alltoall", size="1MiB", peers_at_a_time=8), ranks=256),
        160,
    ),
}


def peak(directory, spec, columns):
    """Of a process that runs `spec` on `columns`, MiB."""
    for column, values in columns.items():
        (directory / f"{column}.{np.dtype(values.dtype).char.replace('L', 'Q')}").write_bytes(values.tobytes())
    (directory / "spec.json").write_text(json.dumps(spec))
    found = subprocess.run([sys.executable, BENCHES / "one_run.py", directory], check=True, capture_output=True)
    return json.loads(found.stdout)["peak_rss_mib"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_stays_within_its_memory(name, tmp_path):
    make, most = RUNS[name]
    scenario = make()
    program = scenario.program()
    # Nothing is in flight that was not in the first millisecond: the rest adds time, not memory.
    found = peak(tmp_path, scenario.spec(program) | {"time_limit_ps": 1_000_000_000}, program.columns())
    assert found <= most, f"{name}: peak {found:.1f} MiB, allowed {most}"


def test_what_packets_bring_takes_no_memory_of_its_own(tmp_path):
    scenario = mr.Scenario(workload=mr.Collective(kind="all_reduce", size="1MiB"))
    program = scenario.program()
    spec = scenario.spec(program) | {"payload": {"dtype": program.dtype}}
    found = peak(tmp_path, spec, program.columns() | program.payload_columns())
    # 64 buffers, and as much as the run without payload; a slot for what comes in each step would be as much again.
    assert found <= 64 + 20, f"peak {found:.1f} MiB"


def test_connections_that_give_their_paths_back_change_nothing():
    scenario = packed("fat-tree-1024", mr.Collective(kind="alltoall", size="512KiB", peers_at_a_time=8), ranks=256)
    # Whose state is recorded keeps it.
    kept = scenario.replace(record_paths="1s", record_paths_ranks=(0,))
    assert mr.run(scenario).digest == mr.run(kept).digest
