//! RoCEv2 endpoints in a [`Pair`], and what its log says of them.

use metaroce_proto::{DcqcnPreset, Endpoint, Environment, ReceiveRequest, RoceConfig, TransportConfig, WorkRequest};
use metaroce_wire::{Body, HostId, Opcode, Packet, Rate, RoceAck, RoceData, RoceRequest, RoceResponse, StreamId, Time};

use super::{Fate, Pair};

pub const RATE: Rate = Rate::from_gbps(200);
pub const DELAY: Time = Time::from_us(2);
pub const MTU: u64 = 4096;

/// One QP with a window that fills the link, so that a script sees one sequence.
pub fn single() -> RoceConfig {
    RoceConfig { qps_per_plane: 1, window_percent: 200, dcqcn: DcqcnPreset::Off, ..RoceConfig::default() }
}

pub fn pair(config: &RoceConfig, planes: usize) -> Pair {
    let make = |host| {
        let environment =
            Environment { host: HostId(host), ports: vec![RATE; planes], base_rtt: Time::from_us(5), routes: 8 };
        Endpoint::new(&TransportConfig::RoceV2(config.clone()), environment)
    };
    Pair::new([make(0), make(1)], planes, RATE, DELAY)
}

pub fn write(wr_id: u32, at: u64, len: u64) -> WorkRequest {
    WorkRequest { wr_id, local: at, len, remote: at, ..WorkRequest::default() }
}

pub fn send(wr_id: u32, at: u64, len: u64) -> WorkRequest {
    WorkRequest { opcode: Opcode::Send, ..write(wr_id, at, len) }
}

pub fn read(wr_id: u32, at: u64, len: u64) -> WorkRequest {
    WorkRequest { opcode: Opcode::Read, ..write(wr_id, at, len) }
}

/// Adds to the first word of the peer; the answer goes to word `wr_id`, from the second on.
pub fn add(wr_id: u32, addend: u64) -> WorkRequest {
    let local = 8 + 8 * u64::from(wr_id);
    WorkRequest { opcode: Opcode::FetchAdd, wr_id, local, len: 8, operands: [addend, 0], ..WorkRequest::default() }
}

pub fn on(stream: u16, request: WorkRequest) -> WorkRequest {
    WorkRequest { stream: StreamId(stream), ..request }
}

pub fn receive(wr_id: u32, at: u64, len: u64) -> ReceiveRequest {
    ReceiveRequest { wr_id, stream: StreamId(0), local: at, len }
}

pub fn data(packet: &Packet) -> Option<&RoceData> {
    match &packet.body {
        Body::RoceData(data) => Some(data),
        _ => None,
    }
}

pub fn request(packet: &Packet) -> Option<&RoceRequest> {
    match &packet.body {
        Body::RoceRequest(asked) => Some(asked),
        _ => None,
    }
}

pub fn response(packet: &Packet) -> Option<&RoceResponse> {
    match &packet.body {
        Body::RoceResponse(response) => Some(response),
        _ => None,
    }
}

pub fn ack(packet: &Packet) -> Option<&RoceAck> {
    match &packet.body {
        Body::RoceAck(ack) => Some(ack),
        _ => None,
    }
}

/// What `which` makes of the packets of a run, with the time at which each began.
pub fn sent<T>(pair: &Pair, which: impl Fn(&Packet) -> Option<T>) -> Vec<(Time, T)> {
    pair.log.iter().filter_map(|(at, packet)| which(packet).map(|what| (*at, what))).collect()
}

/// Loses the first `times` packets for which `which` holds.
pub fn lose(mut times: u32, which: impl Fn(&Packet) -> bool + 'static) -> impl FnMut(&Packet) -> Fate {
    move |packet| {
        let lost = times > 0 && which(packet);
        times -= u32::from(lost);
        if lost { Fate::Lost } else { Fate::Arrives }
    }
}
