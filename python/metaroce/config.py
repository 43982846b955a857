"""What every description of a run shares: strict models, the transports by name, loss and faults.

A model refuses unknown keys and turns pydantic's report into one line (`ConfigError`). Defaults of the transports live
in the Rust core; a field left unset here is left out of the specification, so there is one place to read and change
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .errors import ConfigError
from .units import parse_probability, parse_rate, parse_size, parse_time


def _parsed(parse: Callable[[object, str], object]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value, ""))  # the model adds the field's name


Size = Annotated[int, _parsed(parse_size)]
"""Bytes; parses "64MiB"."""
Time = Annotated[int, _parsed(parse_time)]
"""Picoseconds; parses "10us"."""
Rate = Annotated[int, _parsed(parse_rate), Field(gt=0)]
"""Bits per second; parses "200Gbps"."""
Probability = Annotated[float, _parsed(parse_probability)]
"""In [0, 1); parses "1%"."""


class Config(BaseModel):
    """A frozen model whose errors are one line each (`ConfigError`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise _one_line(type(self), error) from None

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and (unknown := [k for k in value if k not in cls.model_fields]):
            raise ConfigError.unknown("key", unknown[0], cls.model_fields)
        return value

    def replace(self, **changes: Any) -> Any:
        """A copy with some fields changed, validated again."""
        return type(self)(**{**{k: getattr(self, k) for k in self.model_fields_set}, **changes})


class TransportChoice(NamedTuple):
    """One named transport: its Rust kind, the profile a table names it by, the keys that it overrides.

    ``fabric`` are settings of the switches that it needs, over those of the topology, under their names in the
    specification.
    """

    kind: str
    profile: str
    overrides: dict[str, Any]
    fabric: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it

    def spec(self) -> dict[str, Any]:
        """The ``transport`` object of the specification."""
        return {"kind": self.kind, **self.overrides}


TRANSPORTS: dict[str, TransportChoice] = {
    "metaroce": TransportChoice("metaroce", "default", {}),
    "rocev2-adaptive": TransportChoice("rocev2", "adaptive", {"timer": "adaptive"}),
    "rocev2-67ms": TransportChoice("rocev2", "67ms", {"timer": "fixed"}),
    "rocev2-1qp": TransportChoice("rocev2", "1qp", {"qps": 1, "window_percent": 200}),
    "rocev2-pfc": TransportChoice("rocev2", "pfc", {}, {"lossless": True}),
    "rocev2-sr": TransportChoice("rocev2", "sr", {"recovery": "selective-repeat"}),
    "mrc": TransportChoice("mrc", "default", {}),
}
"""Transports by name. RoCEv2 comes in both its timer settings, because its result under loss is that choice, with the
one QP a pair of many published baselines, whose window lets it send at line rate (*ours*), on a lossless class, and
with selective repeat (IRN)."""


def resolve_transport(value: object) -> TransportChoice:
    """Resolve a name in `TRANSPORTS`, a `TransportChoice`, or a dict ``{"kind": name, **overrides}``.

    ``kind`` is a name in `TRANSPORTS` or a kind of the Rust core; the overrides' keys are checked by the core.
    """
    if isinstance(value, TransportChoice):
        return value
    if isinstance(value, str):
        if value not in TRANSPORTS:
            raise ConfigError.unknown("transport", value, TRANSPORTS)
        return TRANSPORTS[value]
    if not isinstance(value, dict) or "kind" not in value:
        raise ConfigError.of(
            "transport", value, 'must be a name or {"kind": name, ...}; names: ' + ", ".join(TRANSPORTS)
        )
    overrides = {k: v for k, v in value.items() if k != "kind"}
    kinds = {choice.kind for choice in TRANSPORTS.values()}
    named = TRANSPORTS.get(value["kind"]) if isinstance(value["kind"], str) else None
    if named is None and value["kind"] not in kinds:
        raise ConfigError.unknown("transport.kind", value["kind"], kinds | set(TRANSPORTS))
    base = named or TransportChoice(value["kind"], "default", {})
    profile = "custom" if overrides else base.profile
    return TransportChoice(base.kind, profile, {**base.overrides, **overrides}, base.fabric)


class Loss(Config):
    """Random loss, drawn once ``per`` packet end to end or per link crossed; ``on`` says which packets."""

    probability: Probability = 0.0
    per: Literal["packet", "link"] | None = None
    on: Literal["data_and_ack", "data"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return value if isinstance(value, (dict, Loss)) else {"probability": value}

    def spec(self) -> dict[str, Any]:
        """The ``loss`` object of the specification, defaults left out."""
        return self.model_dump(exclude_none=True)


class Fault(Config):
    """At a time, a link, switch or plane goes down (or comes up).

    A link is named by its ends ``a`` and ``b`` ("p0.leaf0", "p0.spine3", "host5") or by its row ``id``; a switch by its
    name or number, a plane by its number.
    """

    at: Time
    target: Literal["link", "switch", "plane"]
    id: int | str | None = None
    a: str | None = None
    b: str | None = None
    up: bool = False

    @model_validator(mode="after")
    def _names_one_thing(self) -> Fault:
        ends = (self.a is not None) + (self.b is not None)
        if ends != (0 if self.id is not None else 2) or (ends and self.target != "link"):
            raise ConfigError.of(
                "id", self.id, f"a {self.target} is named by id, or a link by both a and b, never both ways"
            )
        return self


def _one_line(model: type[BaseModel], error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    where, value = ".".join(str(part) for part in first["loc"]), first["input"]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        inner = "" if where == cause.field else cause.field
        return ConfigError.of(".".join(filter(None, (where, inner))), cause.value, cause.allowed)
    if first["type"] == "missing" and len(first["loc"]) == 1:
        required = [name for name, field in model.model_fields.items() if field.is_required()]
        return ConfigError.of(where, None, "missing; required keys: " + ", ".join(required))
    allowed = first["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    return ConfigError.of(where or model.__name__, value, allowed)
