"""A run as one value: fabric, workload, transport, loss, faults, seed.

A `Scenario` is checked when it is made; `Scenario.spec` lowers it to the plain numbers that cross to the core. What is
left unset stays unset there, so the defaults of transports and switches live in the core alone. Random placement is
drawn from the seed, so a scenario and its seed say everything.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from . import flow
from . import topology as topologies
from .collectives import Program
from .config import Config, Fault, Loss, Size, Time, TransportChoice, resolve_transport
from .engine import Collective, Workload, draws
from .errors import ConfigError
from .topology import Topology

DEFAULT_TOPOLOGY = "multiplane-4x64"


@cache
def _default_topology() -> Topology:
    return topologies.load(DEFAULT_TOPOLOGY)


def _topology(value: object) -> object:
    return topologies.load(value) if isinstance(value, (str, Path)) else value


class Scenario(Config):
    """One run. Text with units parses anywhere: ``loss="1%"``, ``time_limit="10ms"``, ``{"at": "100us", ...}``.

    Raises `ConfigError` for anything that cannot be run. Only the workload must be given. ``topology`` is a name, a
    file or a model. ``placement`` puts ranks on random hosts (from the seed) or on hosts in order. ``check`` moves real
    bytes and compares every element, where all ranks' memory fits ``check_memory``. ``fidelity="flow"`` estimates the
    run from fluid rates (`metaroce.flow`) and refuses what only packets show.

    ``threads`` share this one run, with the same result: planes are divided among them. It pays on fabrics with events
    enough in the least delay of a link, and on cores that nothing else needs: seeds or cells at once (`run_many`) gain
    more. Where it cannot give the same bytes or would not pay, it is refused: ``check`` or other payload, more than one
    iteration, ``record_paths``, explicit queues (or PFC), a class for control packets, a balance other than ECMP, more
    threads than planes or cores.
    """

    topology: Annotated[Topology, BeforeValidator(_topology)] = Field(default_factory=_default_topology)
    workload: Workload
    ranks: int | None = None
    placement: Literal["random", "packed"] = "random"
    transport: Annotated[TransportChoice, BeforeValidator(resolve_transport)] = resolve_transport("metaroce")
    loss: Loss = Loss()
    faults: tuple[Fault, ...] = ()
    seed: int = Field(default=1, ge=0, lt=2**64)
    iterations: int = Field(default=1, ge=1)
    warmup: int = Field(default=0, ge=0)
    time_limit: Time | None = Field(default=None, gt=0)
    check: bool = False
    check_memory: Size = 2 << 30
    fidelity: Literal["packet", "flow"] = "packet"
    threads: int = Field(default=1, ge=1, lt=2**32)
    record_wqes: bool = False
    record_bin: Time | None = Field(default=None, gt=0)
    record_paths: Time | None = Field(default=None, gt=0)
    """Sample connections and paths at every multiple of this, and at the end; changes no result."""
    record_paths_ranks: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Only what these ranks send; all ranks if left out."""
    flip_byte_at: int | None = Field(default=None, ge=1)
    """Test hook of checked runs: the placement with this number, from 1, flips one byte; the check must find it."""

    @field_validator("workload", mode="before")
    @classmethod
    def _is_workload(cls, value: Any) -> Any:
        if not isinstance(value, Workload):
            raise ConfigError.of("", value, "must be a Collective, Flows, Groups, Permutation or Incast")
        return value

    @field_validator("topology", mode="after")
    @classmethod
    def _is_sound(cls, value: Topology) -> Topology:
        value.fabric  # noqa: B018 - builds and checks it
        return value

    @model_validator(mode="after")
    def _fits(self) -> Scenario:
        hosts, ranks = self.topology.fabric.hosts, self.rank_count
        if not 2 <= ranks <= hosts:
            raise ConfigError.of(
                "ranks", ranks, f"must be 2 .. {hosts}, the hosts of {self.topology.name or 'the topology'}"
            )
        self._fault_rows()
        if self.fidelity == "flow":
            flow.refuse(self)
        if self.check and self.threads > 1:
            raise ConfigError.of("check", True, f"must be off (-c 0) with threads = {self.threads}: payload takes one")
        return self

    @property
    def rank_count(self) -> int:
        """Ranks n of the run."""
        return self.workload.default_ranks(self.topology.fabric.hosts) if self.ranks is None else self.ranks

    def hosts_of_ranks(self) -> list[int]:
        """The host of every rank."""
        hosts = range(self.topology.fabric.hosts)
        order = draws.permutation(len(hosts), self.seed, "placement") if self.placement == "random" else hosts
        return list(order[: self.rank_count])

    def program(self) -> Program:
        """The compiled workload."""
        return self.workload.program(self.rank_count, self.seed)

    def check_note(self, program: Program) -> str | None:
        """Why a checked run is not possible, or None when it is."""
        needed = program.ranks * program.memory_bytes
        if needed <= self.check_memory:
            return None
        return f"not checked: needs {needed / 2**20:.0f} MiB, check memory is {self.check_memory / 2**20:.0f} MiB"

    def sized_for_check(self) -> Scenario | None:
        """This scenario, or the same with its size halved until a checked run fits; None when no size fits."""
        scenario = self
        while scenario.check_note(scenario.program()) is not None:
            workload = scenario.workload
            if not isinstance(workload, Collective) or not workload.size:
                return None
            try:
                scenario = scenario.replace(workload=workload.replace(size=workload.size // 2))
                scenario.program()
            except ConfigError:
                return None
        return scenario

    def spec(self, program: Program) -> dict[str, Any]:
        """The specification that crosses to the core, without payload."""
        spec: dict[str, Any] = {
            "seed": self.seed,
            "fabric": _switched(self.topology.spec(), self.transport.fabric),
            "transport": self.transport.spec(),
            "hosts_of_ranks": self.hosts_of_ranks(),
            "memory_bytes": program.memory_bytes,
            "iterations": self.iterations,
            "warmup": self.warmup,
        }
        optional = {
            "loss": self.loss.spec() if self.loss != Loss() else None,
            "faults": self._fault_rows() or None,
            "time_limit_ps": self.time_limit,
            "offload": program.offload,
            "threads": self.threads if self.threads > 1 else None,
            "record_wqes": self.record_wqes or None,
            "record_bin_ps": self.record_bin,
            "record_paths_ps": self.record_paths,
            "record_paths_ranks": self.record_paths_ranks,
            "inject": None if self.flip_byte_at is None else {"flip_byte_at": self.flip_byte_at},
        }
        return spec | {key: value for key, value in optional.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """The scenario as JSON-ready values, for a report's header."""
        return {
            "topology": self.topology.name or self.topology.kind,
            "workload": {"name": self.workload.name, **_plain(self.workload)},
            "ranks": self.rank_count,
            "placement": self.placement,
            "transport": self.transport.spec(),
            "profile": self.transport.profile,
            **({"fabric": self.transport.fabric} if self.transport.fabric else {}),
            "loss": self.loss.model_dump(exclude_none=True),
            "faults": [fault.model_dump(exclude_none=True) for fault in self.faults],
            "seed": self.seed,
            "iterations": self.iterations,
            "warmup": self.warmup,
            **({"fidelity": self.fidelity} if self.fidelity != "packet" else {}),
        }

    def _fault_rows(self) -> list[dict[str, Any]]:
        fabric = self.topology.fabric
        rows = []
        for fault in self.faults:
            if fault.target == "link":
                ids = fabric.link_rows(fault.a, fault.b) if fault.a and fault.b else [_within(fault, len(fabric.a))]
            elif fault.target == "switch":
                ids = [fabric.switch_id(fault.id if fault.id is not None else "")]
            else:
                ids = [_within(fault, fabric.planes)]
            rows += [{"at_ps": fault.at, "target": fault.target, "id": i, "up": fault.up} for i in ids]
        return rows


def _switched(fabric: dict[str, Any], needed: dict[str, Any]) -> dict[str, Any]:
    """A fabric with the settings that a transport needs; with another balance, flowlets of the old one go."""
    dropped = ("flowlet_gap_ps", "flowlet_entries") if "balance" in needed else ()
    return {k: v for k, v in fabric.items() if k not in dropped} | needed


def _within(fault: Fault, count: int) -> int:
    if not isinstance(fault.id, int) or not 0 <= fault.id < count:
        raise ConfigError.of(f"{fault.target}.id", fault.id, f"must be 0 .. {count - 1}")
    return fault.id


def _plain(workload: Workload) -> dict[str, Any]:
    fields = {name: getattr(workload, name) for name in type(workload).model_fields}
    return {k: v.tolist() if hasattr(v, "tolist") else v for k, v in fields.items() if v is not None}
