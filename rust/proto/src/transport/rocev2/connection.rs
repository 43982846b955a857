//! One side of a peer pair: its messages, how they are split over the QPs, and how it fails.

use std::mem::offset_of;

use metaroce_wire::{ConnId, Envelope, HostId, PlaneId, StreamId, Time, prefetch};

use crate::config::{QpPlanes, QpPorts, RoceConfig};
use crate::inbox::Inbox;
use crate::outbox::{Order, Outbox};
use crate::transport::{FIRST_PORT, Stuck};
use crate::verbs::WorkRequest;

/// Peer pair with all its QPs, which live in the transport's table. What all packets touch is in the first cache line,
/// and what is sent in the one behind it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Connection {
    pub peer: HostId,
    /// The peer's number for this connection.
    pub remote: ConnId,
    /// Address part of the ECMP hash.
    pub hash: u32,
    /// Number of the first message that no QP has.
    assigned: u32,
    pub inbox: Inbox,
    pub failure: Option<Box<Failure>>,
    /// QP that gets the first part of the next message.
    next_qp: u32,

    pub outbox: Outbox,
}

const _: () = assert!(offset_of!(Connection, outbox) == 64);

/// Why a connection is in the error state, and what it had left to do.
#[derive(Clone, Debug)]
pub struct Failure {
    pub reason: String,
    /// Stream of the oldest unfinished message, and bytes not acknowledged.
    pub left: Option<(StreamId, u64)>,
}

/// Packets `[packet, packet + packets)` of a message for QP number `qp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub qp: u32,
    pub packet: u32,
    pub packets: u32,
}

impl Connection {
    /// A connection of `qps` QPs: one keeps the order of a stream, several do not.
    pub fn new(config: &RoceConfig, qps: u32, host: HostId, peer: HostId) -> Connection {
        let order = if qps == 1 { Order::Transport } else { Order::Sender };
        Connection {
            peer,
            remote: ConnId(0),
            hash: Envelope::address_hash(host, peer),
            outbox: Outbox::ordered(config.mtu, order),
            inbox: Inbox::new(config.mtu, peer),
            failure: None,
            next_qp: 0,
            assigned: 0,
        }
    }

    /// The next message that no QP has.
    pub fn next_message(&mut self) -> Option<(u32, WorkRequest)> {
        while self.assigned != self.outbox.end() {
            let message = self.assigned;
            self.assigned += 1;
            if let Some(request) = self.outbox.request(message) {
                return Some((message, *request));
            }
        }
        None
    }

    /// Splits a message of `len` bytes over at most `qps` QPs: one contiguous part for every
    /// `split_bytes`, packet-aligned and equal to within a packet. The first QP rotates, so that
    /// small messages use all of them, and with them all planes.
    pub fn split(&mut self, config: &RoceConfig, qps: u32, len: u64) -> impl Iterator<Item = Share> + use<> {
        let packets = len.div_ceil(u64::from(config.mtu)).max(1);
        let parts = (len / config.split_bytes.max(1)).clamp(1, u64::from(qps).min(packets));
        let first = self.next_qp;
        self.next_qp = (first + parts as u32) % qps;
        (0..parts).map(move |part| {
            let (from, to) = (part * packets / parts, (part + 1) * packets / parts);
            Share { qp: (first + part as u32) % qps, packet: from as u32, packets: (to - from) as u32 }
        })
    }

    /// Asks for the lines that sending touches.
    #[inline]
    pub fn prefetch_sender(&self) {
        prefetch(self);
        prefetch(&self.outbox);
    }

    /// A report, if requests are unfinished; `reason` tells why of a connection that still works.
    pub fn stuck(&self, reason: impl FnOnce() -> String) -> Option<Stuck> {
        let peer = self.peer;
        if let Some(Failure { reason, left }) = self.failure.as_deref() {
            let (stream, bytes_left) = (*left)?;
            return Some(Stuck { peer, stream, bytes_left, reason: reason.clone() });
        }
        let (stream, bytes_left) = self.outbox.open_bytes()?;
        Some(Stuck { peer, stream, bytes_left, reason: reason() })
    }
}

/// The QP of all atomics of a stream.
pub fn home(stream: StreamId, qps: u32) -> u32 {
    u32::from(stream.0) % qps
}

/// When a timer that is nominally `span` long really expires: up to `percent` of that, by `draw`.
pub fn spread(span: Time, percent: u32, draw: u64) -> Time {
    let most = u128::from(span.0) * u128::from(percent.saturating_sub(100)) / 100;
    let part = (most * u128::from(mix(draw) >> 32)) >> 32;
    Time(span.0.saturating_add(part as u64))
}

/// UDP source port of QP `qp` at `host` towards `peer`, constant for its life. [`QpPorts::Hashed`]: QPs
/// collide on ECMP routes as they do in real fabrics.
pub fn entropy(ports: QpPorts, host: HostId, peer: HostId, qp: u32) -> u16 {
    let pair = u64::from(host.0) << 32 | u64::from(peer.0);
    let mixed = mix(mix(pair) ^ u64::from(qp));
    match ports {
        QpPorts::Hashed => FIRST_PORT | (mixed >> (u64::BITS - FIRST_PORT.trailing_zeros())) as u16,
        QpPorts::Same => FIRST_PORT,
    }
}

/// Plane of QP `qp` between two hosts, the same at both: of `qps_per_plane`, one after the other.
pub fn plane(config: &RoceConfig, hosts: (HostId, HostId), qp: u32, planes: u32) -> PlaneId {
    let (a, b) = (hosts.0.0.min(hosts.1.0), hosts.0.0.max(hosts.1.0));
    let number = match config.qp_planes {
        _ if config.qps == 0 => u64::from(qp),
        // Even over the peers of a host, and over pairs of neighbours.
        QpPlanes::InTurn => u64::from(a + b) + u64::from((a + b) / planes) + u64::from(qp),
        // Not the hash that the port is drawn from.
        QpPlanes::Hashed => mix(mix(!(u64::from(a) << 32 | u64::from(b))) ^ u64::from(qp)),
    };
    PlaneId((number % u64::from(planes)) as u8)
}

/// The splitmix64 step.
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A span for people: in ms, or in us below 1 ms.
pub fn readable(span: Time) -> String {
    match span.0 / 1_000_000 {
        us @ 0..1_000 => format!("{us} us"),
        us => format!("{} ms", us / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn striping_covers_each_message_exactly_once_and_rotates() {
        let config = RoceConfig::default();
        let mut connection = Connection::new(&config, 16, HostId(0), HostId(1));
        let mut used = [0u32; 16];
        for len in (1..400_000).step_by(1_777).chain([4096, 16_384, 65_536, 1 << 20]) {
            let mut next = 0;
            let mut parts = 0;
            for share in connection.split(&config, 16, len) {
                assert_eq!(share.packet, next);
                assert!(share.packets > 0);
                next += share.packets;
                parts += 1;
                used[share.qp as usize] += 1;
            }
            assert_eq!(u64::from(next), len.div_ceil(4096));
            assert_eq!(parts, (len / 16_384).clamp(1, 16));
        }
        assert!(used.iter().max() <= used.iter().min().map(|n| n + 1).as_ref(), "{used:?}");
    }

    #[test]
    fn entropies_are_ephemeral_ports_and_spread_evenly() {
        let mut buckets = [0u32; 8];
        for peer in 0..512 {
            for qp in 0..16 {
                let port = entropy(QpPorts::Hashed, HostId(3), HostId(peer), qp);
                assert!(port >= 0xC000);
                buckets[usize::from(port) % 8] += 1;
            }
        }
        assert!(buckets.iter().all(|&n| (900..1150).contains(&n)), "{buckets:?}");
    }

    #[test]
    fn the_planes_of_a_pair_are_alike_at_both_ends_and_even_over_pairs() {
        for (qps, qp_planes, tolerance) in
            [(1, QpPlanes::InTurn, 10), (6, QpPlanes::InTurn, 10), (1, QpPlanes::Hashed, 90)]
        {
            let config = RoceConfig { qps, qp_planes, ..RoceConfig::default() };
            let mut used = [0u32; 4];
            for (a, b) in (0..40).flat_map(|a| (0..a).map(move |b| (HostId(a), HostId(b)))) {
                for qp in 0..qps {
                    let chosen = plane(&config, (a, b), qp, 4);
                    assert_eq!(chosen, plane(&config, (b, a), qp, 4));
                    used[chosen.index()] += 1;
                }
            }
            let mean = 40 * 39 / 2 * qps / 4;
            assert!(used.iter().all(|&n| n.abs_diff(mean) <= tolerance), "{qps} {qp_planes:?}: {used:?}");
        }
        let usual = RoceConfig { qp_planes: QpPlanes::Hashed, ..RoceConfig::default() };
        let planes = (0..8).map(|qp| plane(&usual, (HostId(3), HostId(4)), qp, 4).index());
        assert_eq!(planes.collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3], "of qps_per_plane");
    }

    #[test]
    fn spans_read_well() {
        assert_eq!(readable(Time(67_108_864_000)), "67 ms");
        assert_eq!(readable(Time::from_us(250)), "250 us");
    }
}
