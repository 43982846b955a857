"""`metaroce offload`: collectives compiled for message engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from ..errors import ConfigError
from ..units import parse_size
from .options import NAME_OR_FILE, dtype_name, whole

app = App(name="offload", help="Message engines: compiled collectives, accelerators, and what both mean for a step.")
for _name, _help in {
    "hardware": "Accelerators: every figure with its source.",
    "isolation": "What a GEMM loses beside a collective, on message engines and on SMs.",
    "ratio": "Communication of a DLRM step, GPU over engines, in parts and as a band.",
    "step": "A DLRM training step: exposed communication, compute stretch, timelines.",
    "crossover": "From which size on message engines need less time than NCCL.",
}.items():
    app.command(f"{__package__}.accelerators:{_name}", name=_name, help=_help)

_Whole = Annotated[int | None, Parameter(converter=whole)]


@app.command(name="compile")
def compile_(
    kind: Annotated[str, Parameter(help="all_reduce, reduce_scatter, all_gather, alltoall or alltoallv.")],
    /,
    *,
    ranks: Annotated[_Whole, Parameter(help="Number of ranks. [default: the topology's, or a domain]")] = None,
    size: Annotated[str | None, Parameter(help="Bytes a rank as in nccl-tests, like 64MiB.")] = None,
    datatype: Annotated[str, Parameter(name=["--datatype", "-d"], help="Element type.")] = "float",
    matrix: Annotated[str | None, Parameter(help="alltoallv: file with a square matrix of bytes.")] = None,
    out_of_place: Annotated[bool, Parameter(negative=(), help="Input and output apart.")] = False,
    hardware: Annotated[str, Parameter(help="A named accelerator, or the path of a TOML file.")] = "mtia300",
    topology: Annotated[str | None, NAME_OR_FILE] = None,
    engines: Annotated[_Whole, Parameter(help="Message engines in use. [default: all]")] = None,
    algorithm: Annotated[str, Parameter(help="auto, put, recursive, ring, direct or hierarchical.")] = "auto",
    chunk: Annotated[str | None, Parameter(help="Bytes of a transfer at most.")] = None,
    slots: Annotated[_Whole, Parameter(help="Staging slots of a subgraph.")] = None,
    ready: Annotated[str, Parameter(help="Receivers say when they are: never, first or every.")] = "first",
    partition: Annotated[str | None, Parameter(help='NICs for scale-up and scale-out, as "8+2".')] = None,
    posters: Annotated[bool, Parameter(negative=(), help="One-shot collectives are posted without dispatch.")] = False,
    rank: Annotated[_Whole, Parameter(help="Dump this rank only.")] = None,
    dump: Annotated[bool, Parameter(negative=(), help="Print every entry.")] = False,
) -> int:
    """Compile a collective to work packets, verify it, and show what the passes decided."""
    from .. import offload
    from ..reports.sweep import read_matrix

    given: dict[str, Any] = {"engines": engines, "algorithm": algorithm, "chunk": chunk, "slots": slots, "ready": ready}
    given |= {"partition": partition, "posters": posters}
    options = offload.OffloadOptions(**{name: value for name, value in given.items() if value is not None})
    accelerator = offload.hardware.load(hardware)
    rows = read_matrix(_text(matrix), matrix) if matrix else None
    domains = _domains(len(rows) if rows else ranks, topology, accelerator)
    if kind == "alltoallv" and rows is None:
        raise ConfigError.of("--matrix", None, "missing; alltoallv needs one")
    if kind != "alltoallv" and size is None:
        raise ConfigError.of("--size", None, f"missing; {kind} needs one")
    if rank is not None and not 0 <= rank < len(domains):
        raise ConfigError.of("--rank", rank, f"must be 0 .. {len(domains) - 1}")
    compiled = offload.collective(
        domains,
        accelerator,
        options,
        kind=kind,
        size=parse_size(size, "--size") if size else 0,
        dtype=dtype_name(datatype),
        matrix=rows,
        inplace=not out_of_place,
    )
    print(compiled.dump(rank) if dump else compiled.headline())
    return 0


def _domains(ranks: int | None, topology: str | None, hardware: object) -> list[int]:
    from .. import topology as topologies
    from ..offload import Hardware

    assert isinstance(hardware, Hardware)
    if topology is not None:
        domains = topologies.load(topology).domains
        if ranks is not None and not 2 <= ranks <= len(domains):
            raise ConfigError.of("--ranks", ranks, f"must be 2 .. {len(domains)}, the accelerators of {topology}")
        return domains[:ranks]
    size = hardware.network.domain.value
    count = size if ranks is None else ranks
    if count < 2:
        raise ConfigError.of("--ranks", ranks, "must be at least 2")
    return [rank // size for rank in range(count)]


def _text(name: str) -> str:
    try:
        return Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError.of("--matrix", name, f"must be a readable file: {reason}") from None
