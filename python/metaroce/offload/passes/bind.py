"""NICs: engine e reaches peer p through NIC (e + p) mod those of the network that p is in, by one QP a peer and NIC."""

from __future__ import annotations

import numpy as np

from ...errors import ConfigError
from ..ir import Module, Target


def bind(module: Module) -> Module:
    """Checks QPs against the NICs' limit and notes the most of any NIC."""
    target = module.target
    most, limit = qps(module), target.hardware.network.qps.value
    if most > limit:
        raise ConfigError.of("ranks", target.ranks, f"{most} QPs on one NIC, of {limit}")
    return module.but(notes=module.notes | {"qps": most, "qp_limit": limit, "nics": target.nics})


def qps(module: Module) -> int:
    """QPs on the busiest NIC, were all nodes' peers reached from all their engines."""
    target = module.target
    used: set[tuple[int, int, bool, int]] = set()
    domains = np.array(target.domains)
    for node in module.nodes:
        members = node.members(target.ranks)
        rank, peer = int(members[0]), members[1:]
        ring = node.algorithm == "ring"
        for p in (peer[:1].tolist() + peer[-1:].tolist()) if ring else peer.tolist():
            inside = bool(domains[p] == domains[rank])
            nics = max(target.nics[0 if inside else 1], 1)
            used |= {(rank, p, inside, (e + p) % nics) for e in range(min(node.lanes, nics))}
    counts: dict[tuple[int, bool, int], int] = {}
    for rank, _, inside, nic in used:
        counts[rank, inside, nic] = counts.get((rank, inside, nic), 0) + 1
    return max(counts.values(), default=0)


def nic(target: Target, rank: int, engine: int, peer: int) -> int:
    """The NIC through which an engine of a rank reaches a peer."""
    inside = target.domains[rank] == target.domains[peer]
    return (engine + peer) % max(target.nics[0 if inside else 1], 1)
