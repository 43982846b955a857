//! What the flow model knows of a transport: lengths on the wire, acknowledgements, and how a connection is spread.

use metaroce_proto::{RoceConfig, TransportConfig};
use metaroce_wire::lengths;

/// Lengths of a transport's packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// Payload of a full packet, bytes.
    pub mtu: u64,
    /// What a packet has around its payload.
    overhead: u64,
    /// What the first packet of each part has beyond that.
    first: u64,
    /// An acknowledgement, and how many data packets it covers.
    pub ack: u64,
    ack_every: u64,
    /// The request of a Read.
    pub request: u64,
}

impl Framing {
    pub(crate) fn of(transport: &TransportConfig) -> Framing {
        let (frame, first, ack, ack_every, request) = match transport {
            TransportConfig::MetaRoce(c) => {
                (lengths::mr_data(c.mtu), 0, lengths::mr_ack(0), c.ack_every, lengths::mr_request())
            }
            TransportConfig::RoceV2(c) => (
                lengths::roce_data(c.mtu, false),
                lengths::RETH,
                lengths::roce_ack(),
                c.ack_every,
                lengths::roce_read(),
            ),
            TransportConfig::Mrc(c) => {
                (lengths::mrc_data(c.mtu, false), 0, lengths::mrc_sack(), c.ack_every, lengths::mrc_probe())
            }
        };
        let mtu = transport.mtu();
        Framing {
            mtu: mtu.into(),
            overhead: (frame - mtu).into(),
            first: first.into(),
            ack: ack.into(),
            ack_every: ack_every.max(1).into(),
            request: request.into(),
        }
    }

    /// Packets of a message or part of `bytes`.
    pub(crate) fn packets(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.mtu).max(1)
    }

    /// `bytes` in their packets, on the wire.
    pub(crate) fn on_wire(&self, bytes: u64) -> u64 {
        bytes + self.packets(bytes) * self.overhead + self.first
    }

    /// A full packet on the wire.
    pub(crate) fn full(&self) -> u64 {
        self.mtu + self.overhead
    }

    /// For a message of `bytes` over `ports.0` ports, each `ports.1` ps a byte: what whole packets take longer than a
    /// fluid on all ports, picoseconds, and the length on the wire of the packet that leaves last.
    pub(crate) fn rest(&self, bytes: u64, ports: (u64, f64)) -> (f64, f64) {
        let packets = self.packets(bytes);
        let last = bytes - (packets - 1) * self.mtu + self.overhead;
        let full_rounds = (packets - 1) / ports.0;
        let end = if packets % ports.0 == 1 || ports.0 == 1 { last } else { self.full() };
        let alone = (full_rounds * self.full() + end) as f64;
        (ports.1 * (alone - ((packets - 1) * self.full() + last) as f64 / ports.0 as f64), end as f64)
    }

    /// Share of a link that acknowledgements of a full reverse direction take beside data.
    pub(crate) fn ack_share(&self) -> f64 {
        self.ack as f64 / (self.ack_every * self.full()) as f64
    }
}

/// Parts of a RoCEv2 message of `bytes`: as many QPs as the sender splits it over.
pub(crate) fn parts(config: &RoceConfig, qps: u32, framing: &Framing, bytes: u64) -> u64 {
    (bytes / config.split_bytes.max(1)).clamp(1, u64::from(qps).min(framing.packets(bytes)))
}

/// QPs of a connection.
pub(crate) fn qps(config: &RoceConfig, planes: u32) -> u32 {
    if config.qps == 0 { config.qps_per_plane.max(1) * planes } else { config.qps }
}
