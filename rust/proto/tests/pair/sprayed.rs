//! MetaRoCE-style endpoints in a [`Pair`], and what its log says of them.

use std::collections::BTreeMap;

use metaroce_proto::{Counters, Endpoint, Environment, MetaRoceConfig, ReceiveRequest, TransportConfig, WorkRequest};
use metaroce_wire::{Body, HostId, MrAck, MrData, Opcode, Packet, PlaneId, Rate, StreamId, Time};

use super::{Fate, Pair};

pub const RATE: Rate = Rate::from_gbps(200);
pub const DELAY: Time = Time::from_us(2);
pub const RTT: Time = Time::from_us(5);
pub const MTU: u64 = 4096;
pub const ROUTES: u32 = 8;

pub fn pair_with(config: &MetaRoceConfig, planes: usize, delay: Time) -> Pair {
    let make = |host| {
        let environment = Environment { host: HostId(host), ports: vec![RATE; planes], base_rtt: RTT, routes: ROUTES };
        Endpoint::new(&TransportConfig::MetaRoce(config.clone()), environment)
    };
    Pair::new([make(0), make(1)], planes, RATE, delay)
}

pub fn pair(planes: usize) -> Pair {
    pair_with(&MetaRoceConfig::default(), planes, DELAY)
}

/// One path, so that a script sees one sequence.
pub fn single() -> Pair {
    pair_with(&MetaRoceConfig { paths_per_plane: 1, ..MetaRoceConfig::default() }, 1, DELAY)
}

pub fn write(wr_id: u32, stream: u16, at: u64, len: u64) -> WorkRequest {
    WorkRequest { wr_id, stream: StreamId(stream), local: at, len, remote: at, ..WorkRequest::default() }
}

pub fn send(wr_id: u32, stream: u16, at: u64, len: u64) -> WorkRequest {
    WorkRequest { opcode: Opcode::Send, ..write(wr_id, stream, at, len) }
}

pub fn receive(wr_id: u32, stream: u16, at: u64, len: u64) -> ReceiveRequest {
    ReceiveRequest { wr_id, stream: StreamId(stream), local: at, len }
}

pub fn data(packet: &Packet) -> Option<&MrData> {
    match &packet.body {
        Body::MrData(data) => Some(data),
        _ => None,
    }
}

pub fn ack(packet: &Packet) -> Option<&MrAck> {
    match &packet.body {
        Body::MrAck(ack) => Some(ack),
        _ => None,
    }
}

/// Loses the first `times` copies of packet `packet` of each message for which `which` holds.
pub fn lose(which: impl Fn(&MrData) -> bool + 'static, times: u32) -> impl FnMut(&Packet) -> Fate {
    let mut lost: BTreeMap<(StreamId, u32, u32), u32> = BTreeMap::new();
    move |packet| match data(packet) {
        Some(data) if which(data) => {
            let segment = &data.segment;
            let copies = lost.entry((segment.stream, segment.message, segment.packet)).or_default();
            *copies += 1;
            if *copies <= times { Fate::Lost } else { Fate::Arrives }
        }
        _ => Fate::Arrives,
    }
}

pub fn totals(pair: &Pair) -> Counters {
    let mut totals = *pair.ends[0].counters();
    totals.add(pair.ends[1].counters());
    totals
}

/// Data packets in the order in which they began.
pub fn sent(pair: &Pair) -> Vec<(Time, MrData)> {
    pair.log.iter().filter_map(|(at, packet)| data(packet).map(|data| (*at, *data))).collect()
}

pub fn sent_into(pair: &Pair, plane: u8) -> Vec<Time> {
    let of_plane = pair.log.iter().filter(|(_, p)| p.envelope.plane == PlaneId(plane) && data(p).is_some());
    of_plane.map(|(at, _)| *at).collect()
}

/// The longest time between the starts of neighbouring packets.
pub fn longest_gap(starts: &[Time]) -> Time {
    starts.windows(2).map(|w| w[1].since(w[0])).max().unwrap_or_default()
}
