"""Options that several commands share, as dataclasses which the parser flattens, and what they mean for a `Scenario`.

Values stay text here; `Scenario` parses and refuses them, so a command line and a Python call get the same answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter, Token

from ..config import TRANSPORTS
from ..errors import ConfigError

if TYPE_CHECKING:
    from ..topology import Topology

_SCENARIO = Group("Scenario", sort_key=2)
_NCCL = Group("Of nccl-tests", sort_key=1)
_IGNORED = Group("Accepted and ignored", sort_key=9, show=False)


def whole(_type: Any, tokens: Sequence[Token]) -> int:
    """A converter that takes whole numbers only."""
    return int(tokens[0].value)  # the parser's own conversion would cut 2.5 to 2


def _at_least_one(_type: Any, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError.of("--workers", value, "must be at least 1")


Whole = Annotated[int, Parameter(converter=whole)]
Workers = Annotated[
    int | None, Parameter(converter=whole, validator=_at_least_one, help="Runs at a time. [default: one a core]")
]
NAME_OR_FILE = Parameter(help="A named topology, or the path of a TOML file.")


@Parameter(name="*", group=_SCENARIO)
@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """Where a command runs."""

    topology: Annotated[str, Parameter(help="Name (see `metaroce topo list`) or path of a TOML file.")] = (
        "multiplane-4x64"
    )
    seed: Annotated[Whole, Parameter(help="Placement, losses and ECMP draw from it; same seed, same bytes.")] = 1
    ranks: Annotated[int | None, Parameter(converter=whole, help="Number of ranks; default: one a host.")] = None
    placement: Annotated[
        str, Parameter(help="random (over the hosts, from the seed) or packed (rank = host); racks are always packed.")
    ] = "random"
    loss_per: Annotated[str | None, Parameter(help="Loss is drawn per packet (end to end) or per link crossing.")] = (
        None
    )
    loss_on: Annotated[str | None, Parameter(help="Packets that may be lost: data_and_ack or data.")] = None
    balance: Annotated[
        str | None,
        Parameter(help="How switches choose among ports: ecmp flowlet flowlet-random spray spray-least pinned."),
    ] = None
    ecmp: Annotated[
        str | None, Parameter(help="What their hash reads: linear or mixed (the port), qp (port and QP number).")
    ] = None
    check_memory: Annotated[
        str | None,
        Parameter(
            help="Memory that a run with payload may take: ranks × memory of a rank. [default: 2GiB, compare 512MiB]"
        ),
    ] = None

    def scenario(self) -> dict[str, Any]:
        """Keyword arguments of `Scenario`; loss and memory for checks left out."""
        given = {name: getattr(self, name) for name in ("seed", "ranks", "placement")}
        return {"topology": self.fabric(), **given}

    def fabric(self) -> str | Topology:
        """The topology, with what else was said of its switches."""
        from .. import topology

        said = {"balance": self.balance, "ecmp": self.ecmp}
        changes = {key: value for key, value in said.items() if value is not None}
        if not changes:
            return self.topology
        changed: Topology = topology.load(self.topology).replace(**changes)
        return changed

    def loss_options(self) -> dict[str, str]:
        """What a loss is drawn for and on, as far as it was given."""
        given = {"per": self.loss_per, "on": self.loss_on}
        return {key: value for key, value in given.items() if value is not None}


@Parameter(name="*", group=_NCCL)
@dataclass(frozen=True, kw_only=True)
class PerfOptions:
    """The flags of nccl-tests that mean something here."""

    minbytes: Annotated[
        str, Parameter(name=["--minbytes", "-b"], help="Smallest size; K, M, G are powers of 1024.")
    ] = "32M"
    maxbytes: Annotated[str | None, Parameter(name=["--maxbytes", "-e"], help="Largest size. [default: 32M or -b]")] = (
        None
    )
    stepbytes: Annotated[str, Parameter(name=["--stepbytes", "-i"], help="Added from size to size.")] = "1M"
    stepfactor: Annotated[Whole, Parameter(name=["--stepfactor", "-f"], help="Multiplied instead, if more than 1.")] = 1
    iters: Annotated[Whole, Parameter(name=["--iters", "-n"], help="Timed iterations. One tells all without loss.")] = 1
    warmup_iters: Annotated[
        Whole, Parameter(name=["--warmup_iters", "-w"], help="Iterations before them, not timed.")
    ] = 0
    check: Annotated[
        Whole,
        Parameter(
            name=["--check", "-c"], help="1: the first iteration moves payload, every element compared; 0: none does."
        ),
    ] = 1
    datatype: Annotated[str, Parameter(name=["--datatype", "-d"], help="float double half bfloat16 int32 int8.")] = (
        "float"
    )
    op: Annotated[str, Parameter(name=["--op", "-o"], help="sum.")] = "sum"
    workers: Workers = None
    threads: Annotated[
        Whole,
        Parameter(
            help="Threads that share each run, with the same results; with -c 0 and one iteration, on free cores."
        ),
    ] = 1
    engine: Annotated[
        str | None,
        Parameter(
            group=_SCENARIO, help="Message engines of this accelerator (a name or TOML file) run the collective."
        ),
    ] = None
    json: Annotated[str | None, Parameter(name=["--json", "-J"], help="Also write the results to this file.")] = None
    telemetry: Annotated[
        str | None,
        Parameter(
            group=_SCENARIO,
            help="Also write time series of connections and paths, out of place, to FILE.npz or .csv[:INTERVAL, 10us]; "
            "of several sizes, each to FILE.SIZE.npz or .csv.",
        ),
    ] = None


@Parameter(name="*", group=_SCENARIO)
@dataclass(frozen=True, kw_only=True)
class TransportOptions:
    """What a single run is sent over."""

    transport: Annotated[str, Parameter(help=", ".join(TRANSPORTS) + ".")] = "metaroce"
    loss: Annotated[str, Parameter(help="Probability in [0, 1), as 0.01 or 1%.")] = "0"
    fidelity: Annotated[
        str, Parameter(help="packet, or flow: an estimate in a fraction of the time, nothing checked (docs/flow.md).")
    ] = "packet"
    fault: Annotated[
        tuple[str, ...],
        Parameter(
            help="TIME,plane|switch|link,WHICH[,up|down]; a link also by its two ends, A,B. Repeat for more.",
            negative=(),
            show_default=False,
        ),
    ] = ()


def _ignored(*names: str) -> Any:
    return Annotated[str | None, Parameter(name=list(names), group=_IGNORED, show=False)]


@Parameter(name="*", group=_IGNORED, show=False)
@dataclass(frozen=True, kw_only=True)
class IgnoredOptions:
    """Flags of nccl-tests about GPUs, processes and wall time, which a simulation has none of."""

    nthreads: _ignored("--nthreads", "-t") = None  # type: ignore[valid-type]
    ngpus: _ignored("--ngpus", "-g") = None  # type: ignore[valid-type]
    agg_iters: _ignored("--agg_iters", "-m") = None  # type: ignore[valid-type]
    root: _ignored("--root", "-r") = None  # type: ignore[valid-type]
    average: _ignored("--average", "-a") = None  # type: ignore[valid-type]
    blocking: _ignored("--blocking", "-z") = None  # type: ignore[valid-type]
    stream_null: _ignored("--stream_null", "-y") = None  # type: ignore[valid-type]
    timeout: _ignored("--timeout", "-T") = None  # type: ignore[valid-type]
    cudagraph: _ignored("--cudagraph", "-G") = None  # type: ignore[valid-type]
    report_cputime: _ignored("--report_cputime", "-C") = None  # type: ignore[valid-type]
    local_register: _ignored("--local_register", "-R") = None  # type: ignore[valid-type]
    parallel_init: _ignored("--parallel_init", "-p") = None  # type: ignore[valid-type]

    def report(self) -> None:
        """Say on stderr which flags were given for nothing."""
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if given:
            names = " ".join(f"--{name}" for name in given)
            print(f"metaroce: ignored: {names} (no meaning in a simulation; --ranks sets the ranks)", file=sys.stderr)


def dtype_name(name: str) -> str:
    """NumPy's name of an element type from nccl-tests' (`float`, `double`, `half`); others pass through unchecked."""
    return {"float": "float32", "double": "float64", "half": "float16"}.get(name, name)


def faults(texts: tuple[str, ...]) -> list[dict[str, Any]]:
    """The `faults` argument of `Scenario` from texts such as `100us,plane,1` or `1ms,link,host3,p0.leaf0,up`."""
    return [_fault(text) for text in texts]


def _fault(text: str) -> dict[str, Any]:
    words = text.replace(",", " ").split()
    state = words.pop() if words and words[-1] in ("up", "down") else "down"
    if len(words) not in (3, 4) or (len(words) == 4 and words[1] != "link"):
        raise ConfigError.of("--fault", text, "must be TIME,plane|switch|link,WHICH[,up|down], a link also by two ends")
    fault: dict[str, Any] = {"at": words[0], "target": words[1], "up": state == "up"}
    if len(words) == 4:
        return fault | {"a": words[2], "b": words[3]}
    return fault | {"id": int(words[2]) if words[2].isdigit() else words[2]}
