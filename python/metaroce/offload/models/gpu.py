"""Collectives of a GPU as kernels on some of its SMs, and the switch that frees them for two kinds.

Latencies, bandwidths a channel and efficiencies are the constants of NCCL's tuner (NVIDIA/nccl, src/graph/tuning.cc,
Hopper rows); they are figures that its authors measured, not choices of this model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import ConfigError
from .comm import Cost, Links, checked
from .kernels import Load

SM_FREE = ("all_gather", "alltoall")
"""What NCCL moves without any CTA (copy engine in the domain, zero-CTA across): it lists no reduction."""

BASE_US = {"LL": 6.6, "LL128": 14.0, "Simple": 8.4}
HOP_US = {"LL": 0.6, "LL128": 1.9, "Simple": 3.4}
HOP_NET_US = {"LL": 2.7, "LL128": 4.0, "Simple": 14.0}
"""Ring: base latency, a hop on NVLink, a hop on the network, us."""
TREE_US = {"LL": (6.8, 0.6, 5.0), "LL128": (14.0, 1.25, 8.5)}
"""Tree: base, NVLink hop, network hop, us."""
NVLS_US = 23.0
POST_US = {"LL": 1.0, "LL128": 1.0, "Simple": 3.0}
"""Least time of a step of a ring over hosts: posting."""
LL_GBS = (87.7, 22.5, 19.0)
"""Most that LL carries in 1, 2 and more hosts."""
SHARE = {"LL": 0.25, "LL128": 0.92, "Simple": 1.0}
"""Payload's share of the links' bandwidth: flags of LL, 120 of 128 bytes of LL128."""
CHANNEL_LIMIT = 64
NVLS_CHANNELS = 16
"""Most channels at all, and those of NVLS on Hopper."""


@dataclass(frozen=True, kw_only=True)
class NcclModel:
    """NCCL on a GPU with ``sms`` SMs, a CTA a channel.

    ``step_us`` is launch and base latency as a training step sees it (15 to 90, *ours*); None: the tuner's latencies.
    ``channels`` caps the SMs (defaults of NCCL: 16 NVLS, 24 or 32 else; DeepSeek-V3 reserves 20), ``channel_gbs`` is
    what a channel carries. ``memory`` is HBM bytes a byte of the network, 2 to 3. ``nvls`` is NVLS's efficiency
    (None: not used). ``sm_free`` are kinds moved by copy engines.
    """

    links: Links
    sms: int = 132
    step_us: float | None = None
    channels: int = 24
    channel_gbs: float = 36.7
    memory: float = 2.5
    nvls: float | None = 0.85
    sm_free: tuple[str, ...] = ()
    stretch: float = 1.0

    def __post_init__(self) -> None:
        for kind in self.sm_free:
            if kind not in SM_FREE:
                raise ConfigError.of("sm_free", kind, "must be of " + ", ".join(SM_FREE) + ": reductions need SMs")
        if not 1 <= self.channels <= CHANNEL_LIMIT:
            raise ConfigError.of("channels", self.channels, f"must be in 1..{CHANNEL_LIMIT}")

    def held(self, kind: str, rate_gbs: float) -> int:
        """SMs that a collective at ``rate_gbs`` holds: two channels for each that its rate fills, up to the cap."""
        if kind in self.sm_free:
            return 0
        return min(self.channels, 2 * math.ceil(rate_gbs / self.channel_gbs))

    def load(self, cost: Cost) -> Load:
        """SMs of its channels and 2-3 bytes of memory a byte of the network."""
        held = self.held(cost.kind, cost.rate_gbs)
        if cost.algorithm == "NVLS":
            held = min(held, NVLS_CHANNELS)
        return Load(held, self.memory * cost.rate_gbs, self.stretch)

    def time(self, kind: str, bytes_in: float, domains: Sequence[int]) -> Cost:
        """The fastest of what NCCL would choose among; with ``step_us`` its large-message links only."""
        n = checked(kind, domains, bytes_in)
        options = list(self._options(kind, bytes_in, domains, n))
        if self.step_us is not None:
            best = min(options, key=lambda cost: cost.link_us)
            return Cost(kind, bytes_in, self.step_us, best.parts_us, best.algorithm)
        return min(options, key=lambda cost: cost.time_us)

    def _options(self, kind: str, bytes_in: float, domains: Sequence[int], n: int) -> Iterator[Cost]:
        hosts = len(domains)
        if kind == "alltoall":
            base = BASE_US["Simple"] + (HOP_NET_US["Simple"] if hosts > 1 else HOP_US["Simple"])
            yield Cost(kind, bytes_in, base, self.links.parts(kind, bytes_in, domains), "pairwise")
            return
        line = self._ring(domains)
        phases = 2 if kind == "all_reduce" else 1
        steps, across = phases * (n - 1), 0 if hosts == 1 else 2 * hosts if kind == "all_reduce" else hosts - 1
        for protocol in BASE_US:
            rates = {part: rate * SHARE[protocol] for part, rate in line.items()}
            if protocol == "LL":
                rates["LL"] = LL_GBS[min(hosts, 3) - 1]
            hop = max(HOP_US[protocol], POST_US[protocol] if hosts > 1 else 0.0)
            fixed = BASE_US[protocol] + (steps - across) * hop + across * HOP_NET_US[protocol]
            yield Cost(kind, bytes_in, fixed, _times(bytes_in, rates), f"ring {protocol}")
        if kind != "all_reduce":
            return
        for protocol, (base, hop, net) in TREE_US.items():
            rates = {part: 0.92 * rate * (1 / 3.8 if protocol == "LL" else 0.915) for part, rate in line.items()}
            if protocol == "LL":
                rates["LL"] = LL_GBS[min(hosts, 3) - 1]
            fixed = base + 2 * ((max(domains) - 1) * hop + math.ceil(math.log2(hosts)) * net)
            yield Cost(kind, bytes_in, fixed, _times(bytes_in, rates), f"tree {protocol}")
        if hosts == 1 and self.nvls is not None:
            # A rank sends its vector once and the sum of its part once: 1 + 1/n of the vector each way.
            moved = bytes_in * n / (2 * (n - 1)) * (1 + 1 / n)
            yield Cost(kind, bytes_in, NVLS_US, _times(moved, {"scale-up": self.links.up * self.nvls}), "NVLS")

    def _ring(self, domains: Sequence[int]) -> dict[str, float]:
        """GB/s of a ring: through each host's GPUs, and out of it by all of its NICs."""
        rates = {"scale-up": self.links.up} if max(domains) > 1 else {}
        if len(domains) > 1:
            if not self.links.out_gbs:
                raise ConfigError.of("domains", list(domains), "one domain only: there is no scale-out link")
            rates["scale-out"] = min(domains) * self.links.out
        return rates


def _times(moved: float, rates: dict[str, float]) -> dict[str, float]:
    return {part: moved / rate / 1e3 for part, rate in rates.items()}
