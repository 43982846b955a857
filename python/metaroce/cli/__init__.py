"""The command line: arguments in, tables on stdout, progress and errors on stderr, an exit status that tells.

Exit status: 0 all right; 1 a wrong element, a missed bandwidth floor, a shape that fails or a run that did not finish;
2 bad input, refused in one line that names field, value and what is allowed; 130 interrupted. Commands are imported
when they are called, so that `--help` does not wait for numerics.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

OK, FAILED, BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
GRACE = 0.5
"""Seconds that a stopped run is given to end."""

_COMMANDS = {
    "compare": ("compare:compare", "Collectives × losses × transports, side by side: the main job."),
    "reproduce": ("reproduce:reproduce", "Published results beside what the model gives, with their sweeps."),
    "all_reduce_perf": ("perf:all_reduce_perf", "nccl-tests: AllReduce (ring)."),
    "reduce_scatter_perf": ("perf:reduce_scatter_perf", "nccl-tests: ReduceScatter (ring)."),
    "all_gather_perf": ("perf:all_gather_perf", "nccl-tests: AllGather (ring)."),
    "alltoall_perf": ("perf:alltoall_perf", "nccl-tests: AllToAll (direct)."),
    "alltoallv_perf": ("perf:alltoallv_perf", "nccl-tests: AllToAll with a matrix of bytes."),
    "offload": ("offload:app", "Message engines: compiled collectives, accelerators, training steps."),
    "topo": ("topo:app", "List, show and check topologies."),
    "profile": ("profile:app", "List and show settings and constants, with unit, range and source."),
    "spec": ("spec:spec", "In a checkout: the requirements, and which code and tests keep each."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit status."""
    from cyclopts import CycloptsError

    from ..errors import ConfigError, SimulationStalled

    try:
        status = _app()(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except CycloptsError as error:
        return _refuse(_one_line(error))
    except ConfigError as error:
        return _refuse(str(error))
    except SimulationStalled as error:
        print(f"metaroce: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read us has seen enough
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return _interrupted()
    return status if isinstance(status, int) else OK


def _app() -> App:
    from cyclopts import App

    app = App(
        name="metaroce",
        help="Packet-level emulator of a MetaRoCE-style RDMA transport. Independent; not affiliated with Meta.",
        version=_version,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        verbose=False,
        help_format="plaintext",
    )
    for name, (where, text) in _COMMANDS.items():
        app.command(f"{__name__}.{where}", name=name, help=text)
    return app


def _version() -> str:
    from .. import __version__

    return str(__version__)


def _refuse(message: str) -> int:
    print(f"metaroce: error: {message}", file=sys.stderr)
    return BAD_INPUT


def _interrupted() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough: the end is near
    print("metaroce: interrupted", file=sys.stderr)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(GRACE)
    if threading.active_count() > 1:
        # One still compiles or sets up a run; the interpreter would wait for it. It owns no files.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    return INTERRUPTED


def _one_line(error: CycloptsError) -> str:
    """Field, value, allowed: what the parser refused, in the words of `ConfigError`."""
    from cyclopts import (
        CoercionError,
        MissingArgumentError,
        UnknownCommandError,
        UnknownOptionError,
        UnusedCliTokensError,
    )

    from ..errors import ConfigError

    if isinstance(error.__cause__, ConfigError):
        return str(error.__cause__)
    if isinstance(error, UnknownOptionError):
        names = [name for argument in error.argument_collection if argument.show for name in argument.names]
        return f"option = {error.token.keyword or error.token.value!r}: unknown; allowed: {' '.join(sorted(names))}"
    if isinstance(error, UnknownCommandError):
        commands = [name for name in error.app or () if not name.startswith("-")]
        return f"command = {(error.unused_tokens or [''])[0]!r}: unknown; allowed: {' '.join(commands)}"
    if isinstance(error, UnusedCliTokensError):
        return f"argument = {(error.unused_tokens or [''])[0]!r}: nothing takes it; --help shows what is allowed"
    if isinstance(error, CoercionError) and error.token is not None:
        field = error.token.keyword or (error.argument.name if error.argument else "argument")
        return f"{field} = {error.token.value!r}: must be {_kind(error.target_type)}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return f"{error.argument.name}: missing; needs a value"
    return " ".join(str(error).split())


def _kind(target: Any) -> str:
    choices = getattr(target, "__args__", ())
    if target is int or int in choices:
        return "an integer"
    return "one of " + ", ".join(map(str, choices)) if choices else f"of type {getattr(target, '__name__', target)}"
