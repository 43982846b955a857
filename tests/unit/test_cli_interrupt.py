"""Ctrl-C in the middle of a run, once or twice, on the real core: one line, status 130, soon."""

import signal
import subprocess
import sys
import time

import pytest

from metaroce.simulation import cores

PERF = ["all_reduce_perf", "-b", "1G", "-e", "1G", "-c", "0"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "-b", "1G"],
        PERF,
        pytest.param([*PERF, "--threads", "2"], marks=pytest.mark.skipif(cores() < 2, reason="a thread needs a core")),
    ],
    ids=["many threads", "one run", "one run on two threads"],
)
def test_ctrl_c_stops_within_seconds(arguments):
    command = [sys.executable, "-m", "metaroce", *arguments]
    # A shell's background job inherits that Ctrl-C is ignored.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heard) as process:
        time.sleep(4)
        assert process.poll() is None, process.stderr.read()
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        lines = iter(process.stderr.readline, "")
        assert next(line for line in lines if "interrupted" in line) == "metaroce: interrupted\n"
        process.send_signal(signal.SIGINT)  # who asks twice is not told more
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == ""
    assert time.monotonic() - begin < 5
