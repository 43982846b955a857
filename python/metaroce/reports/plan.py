"""What a comparison is asked to compare, lowered to jobs; refuses bad input before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..collectives import ALGORITHMS
from ..config import TRANSPORTS, TransportChoice
from ..engine import Collective
from ..errors import ConfigError
from ..scenario import Scenario
from ..units import format_size, parse_probability, parse_size
from .compare import BOUND_FACTOR, Job
from .strongest import PROFILE, Found, Task
from .topology import headline

GROUPS: Mapping[str, tuple[str, ...]] = {"rocev2": ("rocev2-adaptive", "rocev2-67ms")}
"""Names that stand for several transports."""
DEFAULT = ("metaroce", "mrc", "rocev2-sr", "rocev2-adaptive")
"""What is compared unless told otherwise: docs/decisions/0005 says why these."""
LOSSES = ("0", "0.1%", "1%", "10%")
COLLECTIVES = ("all_reduce", "alltoall")
CHECK_MEMORY = "512MiB"
"""Less than a scenario's own, so that the default comparison takes less than two minutes."""
COMPARABLE = tuple(kind for kind in ALGORITHMS if kind != "alltoallv")  # that one has a matrix, no size


@dataclass(frozen=True)
class Plan:
    """A comparison, in the words of the command line; `options` are further arguments of `Scenario`."""

    collectives: Sequence[str] = COLLECTIVES
    size: str = "64MiB"
    dtype: str = "float32"
    losses: Sequence[str] = LOSSES
    transports: Sequence[str] = DEFAULT
    loss_options: Mapping[str, str] = field(default_factory=dict)
    check_memory: str = CHECK_MEMORY
    options: Mapping[str, Any] = field(default_factory=dict)

    def jobs(self) -> list[Job]:
        """Every cell in the order of the tables, and after them the loss-free references that were not asked for.

        Raises
        ------
        ConfigError
            For the first thing that cannot be run.
        """
        if unknown := [kind for kind in self.collectives if kind not in COMPARABLE]:
            raise ConfigError.unknown("collective", unknown[0], COMPARABLE)
        losses, choices = self._losses(), self.choices()
        bases = {kind: self._base(kind) for kind in dict.fromkeys(self.collectives)}
        checked = {kind: base.sized_for_check() for kind, base in bases.items()}
        cells = [
            self._job(bases[kind], checked[kind], choice, loss)
            for kind in bases
            for choice in choices
            for loss in losses
        ]
        if 0.0 in losses:
            return cells
        return cells + [self._job(bases[kind], None, choice, 0.0, shown=False) for kind in bases for choice in choices]

    def tasks(self) -> list[Task]:
        """The searches for a strongest baseline: every collective without loss, the reference, and at every loss."""
        bases = [self._base(kind) for kind in dict.fromkeys(self.collectives)]
        losses = dict.fromkeys([0.0, *self._losses()])
        return [Task.of(base.replace(loss={"probability": p, **self.loss_options})) for base in bases for p in losses]

    def baseline_jobs(self, found: Sequence[Found]) -> list[Job]:
        """The cells of what the searches found."""
        jobs = []
        for each in found:
            full, loss = each.task.full, each.task.loss
            shown = loss in self._losses()
            checked = full.sized_for_check() if shown else None
            jobs.append(self._job(full, checked, each.choice._replace(profile=PROFILE), loss, shown))
        return jobs

    def _losses(self) -> list[float]:
        return list(dict.fromkeys(parse_probability(loss, "loss") for loss in self.losses))

    def choices(self) -> list[TransportChoice]:
        """The transports with groups spelt out, each once."""
        names = dict.fromkeys(name for given in self.transports for name in GROUPS.get(given, (given,)))
        if unknown := [name for name in names if name not in TRANSPORTS]:
            raise ConfigError.unknown("transport", unknown[0], {*TRANSPORTS, *GROUPS})
        return [TRANSPORTS[name] for name in names]

    def scenario_dict(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """What defines the comparison, for `compare.json`; enough to make it again."""
        first = jobs[0].timed
        return {
            "model": "MetaRoCE-style, independent",
            "topology": first.topology.name,
            "hosts": first.topology.accelerators,
            "planes": first.topology.fabric.planes,
            "ranks": first.rank_count,
            "placement": first.placed,
            "seed": first.seed,
            "size": _size(first),
            "dtype": self.dtype,
            "loss_definition": loss_definition(self.loss_options),
            "losses": list(dict.fromkeys(job.loss for job in jobs if job.shown)),
            "transports": {f"{c.kind} {c.profile}": _spec(c) for c in self.choices()},
            "bound_factor": BOUND_FACTOR,
            "check_memory": format_size(first.check_memory),
            "checked_size": {job.collective: _size(job.checked) for job in jobs if job.shown},
        }

    def header(self, jobs: Sequence[Job], version: str) -> list[str]:
        """The lines above the tables."""
        s = self.scenario_dict(jobs)
        checked = ", ".join(
            f"{name} {size or 'none (nothing fits)'}" for name, size in sorted(s["checked_size"].items())
        )
        return [
            f"metaroce {version} compare: MetaRoCE-style model, independent, not affiliated with Meta",
            f"topology   {headline(jobs[0].timed.topology)}",
            f"workload   {s['size']} a rank, {s['dtype']}, {s['ranks']} ranks, {s['placement']}, seed {s['seed']}",
            f"loss       {s['loss_definition']}",
            f"time       without payload; stopped at {BOUND_FACTOR} x the loss-free time of the same transport",
            f"#wrong     one more run with payload: {checked} a rank (ranks x memory within {s['check_memory']})",
        ]

    def _base(self, kind: str) -> Scenario:
        """The scenario all cells of a collective start from; compiled once here, so that it is refused here."""
        size, memory = parse_size(self.size, "size"), parse_size(self.check_memory, "check_memory")
        workload = Collective(kind=kind, size=size, dtype=self.dtype)
        base = Scenario(workload=workload, check_memory=memory, **self.options)
        base.program()
        return base

    def _job(
        self, base: Scenario, checked: Scenario | None, choice: TransportChoice, loss: float, shown: bool = True
    ) -> Job:
        cell = {"transport": choice, "loss": {"probability": loss, **self.loss_options}}
        return Job(
            base.workload.name,
            choice.kind,
            choice.profile,
            loss,
            timed=base.replace(**cell),
            checked=checked.replace(check=True, **cell) if checked else None,
            shown=shown,
        )


def _spec(choice: TransportChoice) -> dict[str, Any]:
    return choice.spec() | ({"fabric": choice.fabric} if choice.fabric else {})


def loss_definition(options: Mapping[str, str]) -> str:
    """The meaning of a loss probability in words; the defaults are the core's."""
    per = "once a link crossing" if options.get("per") == "link" else "once a packet, end to end"
    on = "data only" if options.get("on") == "data" else "data and acknowledgements"
    return f"random, drawn {per}; {on}"


def _size(scenario: Scenario | None) -> str | None:
    return format_size(scenario.program().size_bytes) if scenario else None
