"""What the ranks do: a collective, a list of Writes, a random permutation, an incast.

A workload is a description; `Workload.program` compiles it for a number of ranks and a seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Integral
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from .. import collectives
from ..config import Config, Size
from ..errors import ConfigError
from ..units import ELEMENT_BYTES, parse_size, parse_time
from . import draws
from .compile import tiled, writes_program


class Workload(Config, ABC):
    """What all workloads offer. ``name`` is what tables print; factors follow it (`metaroce.metrics`)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The collective's kind, or ``flows``, ``permutation``, ``incast``."""

    @abstractmethod
    def program(self, ranks: int, seed: int) -> collectives.Program:
        """The program over ``ranks`` ranks; raises `ConfigError` where it cannot be compiled."""

    def default_ranks(self, hosts: int) -> int:
        """Ranks when the scenario does not say."""
        return hosts


class Collective(Workload):
    """A collective of ``size`` bytes a rank as in nccl-tests, or ``count`` elements of the call, or a ``matrix``.

    ``chunks`` a shard (ring algorithms; None: 8, fewer where they would be under 4096 bytes); ``peers_at_a_time`` for
    the direct exchange (0: all). alltoallv takes a square ``matrix``, bytes from row to column. ``inplace`` does not
    apply to alltoall and alltoallv.
    """

    kind: str
    size: Size | None = None
    dtype: str = "float32"
    count: int | None = Field(default=None, ge=1)
    chunks: int | None = Field(default=None, ge=1, le=collectives.MAX_CHUNKS)
    inplace: bool = True
    peers_at_a_time: int = Field(default=0, ge=0)
    matrix: Any = None

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        if kind not in collectives.ALGORITHMS:
            raise ConfigError.unknown("", kind, collectives.ALGORITHMS)
        return kind

    @field_validator("dtype")
    @classmethod
    def _known_dtype(cls, dtype: str) -> str:
        if dtype not in ELEMENT_BYTES:
            raise ConfigError.unknown("", dtype, ELEMENT_BYTES)
        return dtype

    @field_validator("size")
    @classmethod
    def _above_zero(cls, size: int | None) -> int | None:
        if size == 0:
            raise ConfigError.of("", size, "must be above 0")
        return size

    @model_validator(mode="after")
    def _one_size(self) -> Collective:
        given = [name for name in ("size", "count", "matrix") if getattr(self, name) is not None]
        wanted = ["matrix"] if self.kind == "alltoallv" else ["size", "count"]
        if len(given) != 1 or given[0] not in wanted:
            allowed = f"{self.kind} takes exactly one of: " + ", ".join(wanted)
            raise ConfigError.of("size", " and ".join(given) or None, allowed)
        if self.kind == "alltoallv":
            collectives.elements_of(self.matrix, self.dtype)
        return self

    @property
    def name(self) -> str:
        """The kind."""
        return self.kind

    def default_ranks(self, hosts: int) -> int:
        """All hosts; for alltoallv as many as the matrix has rows."""
        return len(self.matrix) if self.kind == "alltoallv" else hosts

    def program(self, ranks: int, seed: int) -> collectives.Program:
        """The verified program; ``seed`` is not used."""
        return collectives.compile(
            self.kind,
            ranks,
            self.size or 0,
            self.dtype,
            count=self.count,
            matrix=self.matrix,
            chunks=self.chunks,
            inplace=self.inplace,
            peers_at_a_time=self.peers_at_a_time,
        )


def _write(row: object) -> tuple[int, int, int, int]:
    if not isinstance(row, (list, tuple)) or len(row) not in (3, 4):
        raise ConfigError.of("", row, "must be (source, target, bytes) or (source, target, bytes, start_ps)")
    source, target, size, start = (*row, 0)[:4]
    if not isinstance(source, Integral) or not isinstance(target, Integral):
        raise ConfigError.of("", row, "source and target must be ranks, whole numbers")
    return int(source), int(target), parse_size(size, "bytes"), parse_time(start, "start_ps")


class Flows(Workload):
    """Writes between ranks, all independent: rows of (source, target, bytes) or (source, target, bytes, start_ps)."""

    writes: tuple[Annotated[tuple[int, int, int, int], BeforeValidator(_write)], ...]

    @property
    def name(self) -> str:
        """``flows``."""
        return "flows"

    def program(self, ranks: int, seed: int) -> collectives.Program:
        """One WRITE a row; ``seed`` is not used."""
        return writes_program(self.writes, ranks)


class Permutation(Workload):
    """Every rank writes ``bytes`` to one other and is written to by one other, drawn from the seed."""

    bytes: Size = Field(gt=0)

    @property
    def name(self) -> str:
        """``permutation``."""
        return "permutation"

    def program(self, ranks: int, seed: int) -> collectives.Program:
        """A random derangement of the ranks."""
        targets = draws.derangement(ranks, seed, "permutation")
        return writes_program([(source, target, self.bytes, 0) for source, target in enumerate(targets)], ranks)


class Incast(Workload):
    """Ranks 1 .. ``senders`` write ``bytes`` each to rank 0, all at once."""

    senders: int = Field(ge=1)
    bytes: Size = Field(gt=0)

    @property
    def name(self) -> str:
        """``incast``."""
        return "incast"

    def program(self, ranks: int, seed: int) -> collectives.Program:
        """``senders`` WRITEs; needs one rank more."""
        if self.senders >= ranks:
            raise ConfigError.of("senders", self.senders, f"must be below the {ranks} ranks")
        return writes_program([(source, 0, self.bytes, 0) for source in range(1, self.senders + 1)], ranks)


class Groups(Workload):
    """The same ``collective`` in every ``group`` of consecutive ranks at once, as data and tensor parallel groups do.

    Nothing is compared in a checked run: expectations are written for collectives of all ranks.
    """

    collective: Collective
    group: int = Field(ge=2)

    @property
    def name(self) -> str:
        """``groups``."""
        return "groups"

    def default_ranks(self, hosts: int) -> int:
        """As many whole groups as there are hosts for."""
        return hosts // self.group * self.group

    def program(self, ranks: int, seed: int) -> collectives.Program:
        """The collective's program once a group."""
        if ranks % self.group:
            raise ConfigError.of("group", self.group, f"must divide the {ranks} ranks")
        return tiled(self.collective.program(self.group, seed), ranks // self.group)
