"""Flow fidelity: what it can be asked, and what crosses to the core for it.

Messages are fluid and links are shared max-min fairly; what loss does to a message is measured with the packet model
(``flow_curves.json``, made by ``benches/make_flow_curves.py``) and looked up. A scenario that asks for what only
packets show is refused here, in one line. What the estimate is worth: ``docs/flow.md``.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from .config import TRANSPORTS, Loss, TransportChoice
from .errors import ConfigError

if TYPE_CHECKING:
    from .collectives import Array
    from .scenario import Scenario
    from .topology import Fabric

PACKETS_ONLY = "packet fidelity only"
NOTE = "flow-level estimate; error against packet level: docs/flow.md"


def refuse(scenario: Scenario) -> None:
    """Raise `ConfigError` for the first thing that a fluid does not show."""
    unset = {"check": False, "faults": (), "record_bin": None, "record_paths": None, "flip_byte_at": None, "threads": 1}
    for name, usual in unset.items():
        given = getattr(scenario, name)
        if given != usual:
            raise ConfigError.of(name, len(given) if isinstance(given, tuple) else given, PACKETS_ONLY)
    topology = scenario.topology
    if topology.lossless or scenario.transport.fabric.get("lossless"):
        raise ConfigError.of("lossless", True, f"{PACKETS_ONLY}; a fluid knows no pauses")
    if topology.balance not in (None, "ecmp"):
        raise ConfigError.of("balance", topology.balance, f"{PACKETS_ONLY}; with flow fidelity ecmp")
    if topology.fabric.islands:
        raise ConfigError.of("topology", topology.name or topology.kind, f"{PACKETS_ONLY}; a rank has two hosts there")
    curve(scenario.transport, scenario.loss)


def curve(transport: TransportChoice, loss: Loss) -> dict[str, Any] | None:
    """What ``loss`` does to messages of ``transport``, between the two measured losses; None without loss."""
    p = loss.probability
    if p == 0:
        return None
    for name, usual in (("per", "packet"), ("on", "data_and_ack")):
        if getattr(loss, name) not in (None, usual):
            raise ConfigError.of(f"loss.{name}", getattr(loss, name), f"{PACKETS_ONLY}; with flow fidelity {usual}")
    measured = curves()
    name = next((n for n, choice in TRANSPORTS.items() if choice == transport), transport.profile)
    if name not in measured["transports"]:
        allowed = "with loss and flow fidelity: " + ", ".join(measured["transports"])
        raise ConfigError.of("transport", name, f"{allowed}; packet fidelity for others")
    table = measured["transports"][name]
    losses = table["loss"]
    if p > losses[-1]:
        raise ConfigError.of("loss", p, f"must be at most {losses[-1]} with flow fidelity, the most measured")
    above = int(np.searchsorted(losses, p))
    rates, added = np.array([1.0, *table["rate_factor"]]), np.array(table["added"])
    added = np.concatenate((np.zeros_like(added[:1]), added))
    low, high = ([0.0, *losses][above + k] for k in (0, 1))
    part = (p - low) / (high - low)
    return {
        "rate_factor": float(rates[above] + (rates[above + 1] - rates[above]) * part),
        "bdp": table["bdp"],
        "ranks": measured["ranks"],
        "added": (added[above] + (added[above + 1] - added[above]) * part).tolist(),
        "unit": table["unit"],
        "bdp_packets": measured["bdp_packets"],
    }


@cache
def curves() -> dict[str, Any]:
    """The measured curves; keys as written by ``benches/make_flow_curves.py``."""
    loaded: dict[str, Any] = json.loads((resources.files("metaroce") / "flow_curves.json").read_text("utf-8"))
    return loaded


def spec(scenario: Scenario, memory_bytes: int) -> dict[str, Any]:
    """The specification that crosses to the core."""
    optional = {
        "ecmp": scenario.topology.ecmp,
        "time_limit_ps": scenario.time_limit,
        "curve": curve(scenario.transport, scenario.loss),
    }
    return {
        "seed": scenario.seed,
        "planes": scenario.topology.fabric.planes,
        "transport": scenario.transport.spec(),
        "memory_bytes": memory_bytes,
        "iterations": scenario.iterations,
        "warmup": scenario.warmup,
        "record_wqes": scenario.record_wqes,
        **{key: value for key, value in optional.items() if value is not None},
    }


def columns(fabric: Fabric, hosts_of_ranks: list[int]) -> dict[str, Array]:
    """The fabric and the placement as columns: text for 100,000 hosts would take longer than the estimate."""
    keys = np.fromiter(map(id, fabric.links), np.int64, len(fabric.links))  # few cables differ
    _, first, rows = np.unique(keys, return_index=True, return_inverse=True)
    kinds = np.array([(fabric.links[k].rate, fabric.links[k].delay) for k in first], np.uint64).reshape(-1, 2)
    return {
        "switch_plane": np.array(fabric.switch_planes, np.uint32),
        "switch_tier": np.array(fabric.switch_tiers, np.uint32),
        "link_a": np.array(fabric.a, np.uint32),
        "link_b": np.array(fabric.b, np.uint32),
        "link_rate_bps": np.ascontiguousarray(kinds[rows, 0]),
        "link_delay_ps": np.ascontiguousarray(kinds[rows, 1]),
        "hosts_of_ranks": np.array(hosts_of_ranks, np.uint32),
    }
