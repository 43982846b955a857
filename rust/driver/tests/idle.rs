//! An idle network is an exact oracle: one Write of any size arrives at the time that link rates
//! and delays alone dictate, to the picosecond, over all transports in their default settings.
//!
//! The oracle knows: lengths on the wire; that a free port pulls the next packet; that switches store
//! and forward; that MetaRoCE-style sending starts with a part of the bandwidth-delay product until the
//! first acknowledgement is back; that RoCEv2 splits a message over QPs with a window each and serves them in turn.

mod common;

use std::collections::VecDeque;

use common::{GBPS, Job, MTU, Net, SMALL};
use metaroce_driver::Status;
use proptest::prelude::*;

/// 8 bits, in picoseconds × bits per second.
const BYTE_PS: u128 = 8 * 1_000_000_000_000;

/// A directed link: a transmitter that sends one packet after the other, and a cable.
#[derive(Clone)]
struct Link {
    rate: u64,
    delay: u64,
    free: u64,
    bytes: u128,
}

impl Link {
    fn new(net: &Net) -> Link {
        Link { rate: net.rate, delay: net.delay, free: 0, bytes: 0 }
    }

    /// Picoseconds that all bytes so far have taken.
    fn taken(&self) -> u64 {
        (self.bytes * BYTE_PS / u128::from(self.rate)) as u64
    }

    /// A packet is at the transmitter at `at`: when has its last bit reached the far end?
    fn send(&mut self, at: u64, len: u64) -> u64 {
        let before = self.taken();
        self.bytes += u128::from(len);
        self.free = self.free.max(at) + (self.taken() - before);
        self.free + self.delay
    }
}

/// A UDP payload in its frame of at least 64 bytes, with preamble and gap.
const fn on_wire(udp: u64) -> u64 {
    let frame = 14 + 20 + 8 + udp + 4;
    20 + if frame < 64 { 64 } else { frame }
}

fn metaroce_data(payload: u64) -> u64 {
    on_wire(52 + payload)
}

fn roce_data(payload: u64, first: bool) -> u64 {
    on_wire(if first { 32 } else { 16 } + payload)
}

fn mrc_data(payload: u64) -> u64 {
    on_wire(44 + payload)
}

/// Acknowledgement with nothing missing.
const METAROCE_ACK: u64 = on_wire(52);
/// Selective, as all of MRC are.
const MRC_ACK: u64 = on_wire(48);
const ROCE_ACK: u64 = on_wire(20);

/// Payload of packet `k` of a message.
fn payload(bytes: u64, k: u64) -> u64 {
    (bytes - k * MTU).min(MTU)
}

/// Links on the way from host 0 to host `to`.
fn hops(net: &Net, to: u32) -> u64 {
    if to / net.hosts_per_leaf == 0 { 2 } else { 4 }
}

/// Picoseconds of `len` bytes on one link, rounded up.
fn alone(net: &Net, len: u64) -> u64 {
    (u128::from(len) * BYTE_PS).div_ceil(u128::from(net.rate)) as u64
}

/// Round trip of a full packet and its acknowledgement between the farthest hosts.
fn base_rtt(net: &Net, full: u64) -> u64 {
    let hops = if net.leaves == 1 { 2 } else { 4 };
    hops * (alone(net, full) + alone(net, METAROCE_ACK) + 2 * net.delay)
}

/// Arrival of the last packet at host `to`, given when packets of which length leave a plane's host port.
/// Consecutive packets take consecutive spines.
fn arrival(net: &Net, to: u32, departures: &[(u64, u64)]) -> u64 {
    let at_leaf = departures.iter().copied();
    let mut last = Link::new(net);
    if hops(net, to) == 2 {
        return at_leaf.map(|(at, len)| last.send(at, len)).max().unwrap_or(0);
    }
    let mut up = vec![Link::new(net); net.spines as usize];
    let mut down = up.clone();
    let mut at_far_leaf: Vec<(u64, u64)> = at_leaf
        .enumerate()
        .map(|(k, (at, len))| {
            let spine = k % up.len();
            let at = up[spine].send(at, len);
            (down[spine].send(at, len), len)
        })
        .collect();
    // A short last packet may overtake: the last queue is served in order of arrival.
    at_far_leaf.sort_by_key(|&(at, _)| at);
    at_far_leaf.into_iter().map(|(at, len)| last.send(at, len)).max().unwrap_or(0)
}

/// When the first acknowledgement is back: the second packet to arrive sets it off, or the only one
/// that the start window allows, or the end of the first one's wait. It is alone on its way.
fn first_acknowledgement(net: &Net, to: u32, bytes: u64, start: u64) -> u64 {
    let every = default("metaroce", "ack_every").min(start).min(bytes.div_ceil(MTU)) as usize;
    let mut arrivals = Vec::new();
    for plane in 0..net.planes as u64 {
        let mut port = Link::new(net);
        let mut departures = Vec::new();
        for k in (plane..start.min(bytes.div_ceil(MTU))).step_by(net.planes as usize) {
            let len = metaroce_data(payload(bytes, k));
            departures.push((port.send(0, len), len));
            arrivals.push(arrival(net, to, &departures));
        }
    }
    arrivals.sort_unstable();
    let waited = arrivals[0] + default("metaroce", "ack_delay_ps");
    (0..hops(net, to)).fold(arrivals[every - 1].min(waited), |at, _| Link::new(net).send(at, METAROCE_ACK))
}

/// Only the first few packets leave before the first acknowledgement.
fn metaroce(net: &Net, to: u32, bytes: u64) -> u64 {
    let rtt = base_rtt(net, metaroce_data(MTU));
    let product = (u128::from(net.rate) * u128::from(net.planes) * u128::from(rtt) / BYTE_PS) as u64;
    let start = (product * default("metaroce", "start_window_percent") / 100 / MTU).max(1);
    sprayed((net, to, metaroce_data), bytes, (start, first_acknowledgement(net, to, bytes, start)))
}

/// The first window lasts until acknowledgements are back.
fn mrc(net: &Net, to: u32, bytes: u64) -> u64 {
    sprayed((net, to, mrc_data), bytes, (u64::MAX, 0))
}

/// Free ports pull packet after packet: `start` of them before `first_ack`.
fn sprayed(on: (&Net, u32, fn(u64) -> u64), bytes: u64, (start, first_ack): (u64, u64)) -> u64 {
    let (net, to, on_wire) = on;
    let planes = net.planes as usize;
    let packets = bytes.div_ceil(MTU);
    let mut ports = vec![Link::new(net); planes];
    let mut departures = vec![Vec::new(); planes];
    // Ports that become free together pull in the order in which they pulled before.
    let mut order: Vec<usize> = (0..planes).collect();
    for k in 0..packets {
        if k == start {
            order.sort_unstable();
        }
        let earliest = if k < start { 0 } else { first_ack };
        let free = |plane: usize| ports[plane].free.max(earliest);
        let turn = (0..planes).min_by_key(|&i| free(order[i])).expect("a plane");
        let plane = order.remove(turn);
        order.push(plane);
        let len = on_wire(payload(bytes, k));
        departures[plane].push((ports[plane].send(earliest, len), len));
    }
    departures.iter().map(|d| arrival(net, to, d)).max().unwrap_or(0)
}

/// A QP that sends a part of a message.
struct Qp {
    /// Packets of the message that it has not sent yet.
    left: std::ops::Range<u64>,
    first: u64,
    in_flight: u64,
    /// In order at the receiver since its last acknowledgement.
    unacknowledged: u64,
    /// When it last asked for one.
    asked: u64,
}

/// Parts of the message on the QPs of each plane, which its port serves in turn as windows allow.
/// An acknowledgement may arrive at the very instant at which the port becomes free; whether the
/// next packet still asks for one depends on which of the two is taken `first`. Both are right.
fn rocev2(net: &Net, to: u32, bytes: u64) -> [u64; 2] {
    [First::Acknowledgement, First::Port].map(|first| rocev2_with(net, to, bytes, first))
}

#[derive(Clone, Copy, PartialEq)]
enum First {
    Acknowledgement,
    Port,
}

fn rocev2_with(net: &Net, to: u32, bytes: u64, first: First) -> u64 {
    let (planes, packets) = (u64::from(net.planes), bytes.div_ceil(MTU));
    let qps = planes * default("rocev2", "qps_per_plane");
    let parts = (bytes / default("rocev2", "split_bytes")).clamp(1, qps.min(packets));
    let part = |i: u64| i * packets / parts..(i + 1) * packets / parts;
    let of_plane = |plane| (plane..parts).step_by(net.planes as usize).map(part).collect();
    (0..planes).map(|plane| rocev2_plane((net, to, first), bytes, of_plane(plane))).max().unwrap_or(0)
}

fn rocev2_plane(on: (&Net, u32, First), bytes: u64, parts: Vec<std::ops::Range<u64>>) -> u64 {
    let (net, to, first) = on;
    let rtt = base_rtt(net, roce_data(MTU, false));
    let product = (u128::from(net.rate) * u128::from(rtt) / BYTE_PS) as u64;
    let window = (product * default("rocev2", "window_percent") / 100 / MTU).max(2);
    let (every, patience) = (default("rocev2", "ack_every"), default("rocev2", "adaptive_base_ps") / 4);
    let mut way = vec![Link::new(net); hops(net, to) as usize];
    let mut back = way.clone();
    let qp = |left: std::ops::Range<u64>| Qp { first: left.start, left, in_flight: 0, unacknowledged: 0, asked: 0 };
    let mut qps: Vec<Qp> = parts.into_iter().map(qp).collect();
    let mut turn: VecDeque<usize> = (0..qps.len()).collect();
    // (when, QP, packets that it covers): in order, as all of them take the same way.
    let mut acks: VecDeque<(u64, usize, u64)> = VecDeque::new();
    let (mut now, mut latest) = (0, 0);
    while !turn.is_empty() || !acks.is_empty() {
        let free = if turn.is_empty() { u64::MAX } else { now.max(way[0].free) };
        if let Some(&(at, i, covered)) = acks.front()
            && (at < free || at == free && first == First::Acknowledgement)
        {
            acks.pop_front();
            now = now.max(at);
            let could = qps[i].in_flight < window;
            qps[i].in_flight -= covered;
            if !could && !qps[i].left.is_empty() {
                turn.push_back(i);
            }
            continue;
        }
        now = free;
        let i = turn.pop_front().expect("not empty");
        let qp = &mut qps[i];
        let k = qp.left.next().expect("something to send");
        qp.in_flight += 1;
        qp.unacknowledged += 1;
        let asks = qp.left.is_empty() || qp.in_flight == window || now - qp.asked >= patience;
        if asks {
            qp.asked = now;
        }
        let len = roce_data(payload(bytes, k), k == qp.first);
        let arrived = way.iter_mut().fold(now, |at, link| link.send(at, len));
        latest = latest.max(arrived);
        if asks || qp.unacknowledged == every {
            let at = back.iter_mut().fold(arrived, |at, link| link.send(at, ROCE_ACK));
            acks.push_back((at, i, std::mem::take(&mut qp.unacknowledged)));
        }
        if qp.in_flight < window && !qp.left.is_empty() {
            turn.push_back(i);
        }
    }
    latest
}

/// A default, as results report it.
fn default(transport: &str, field: &str) -> u64 {
    metaroce_driver::defaults()[transport][field].as_u64().unwrap_or_else(|| panic!("no number {field}"))
}

fn placed_at(net: &Net, kind: &str, to: u32, bytes: u64) -> u64 {
    let outcome = Job::write(net.hosts(), to, bytes).run(&net.spec(kind, net.hosts()));
    assert_eq!(outcome.status, Status::Done);
    outcome.wqe_placed[0]
}

const SIZES: [u64; 9] = [1, 4095, 4096, 4097, 8193, 100_000, 1 << 20, (1 << 20) + 1, (64 << 20) + 1];

/// One spine, so that the route of a QP is certain.
fn one_route(net: Net) -> Net {
    Net { spines: 1, ..net }
}

// [F2.no-lookup-round-trip]
#[test]
fn a_single_packet_takes_the_textbook_time() {
    // Four links of 600 ns; 1 byte in 119 on the wire at 40 ps a byte, or 99 with RETH.
    assert_eq!(placed_at(&SMALL, "metaroce", 7, 1), 4 * (600_000 + 119 * 40));
    assert_eq!(placed_at(&one_route(SMALL), "rocev2", 7, 1), 4 * (600_000 + 99 * 40));
    // Two links; full packets.
    assert_eq!(placed_at(&SMALL, "metaroce", 1, 4096), 2 * (600_000 + 4214 * 40));
    assert_eq!(placed_at(&SMALL, "rocev2", 1, 4096), 2 * (600_000 + 4194 * 40));
    // 1 byte in 111, RETH in every packet.
    assert_eq!(placed_at(&SMALL, "mrc", 7, 1), 4 * (600_000 + 111 * 40));
    assert_eq!(placed_at(&SMALL, "mrc", 1, 4096), 2 * (600_000 + 4206 * 40));
}

// [F3.path-for-each-route] [I26]
#[test]
fn a_long_plane_with_few_routes_is_filled() {
    // More in flight than one SACK vector can describe.
    for (leaves, spines) in [(1, 0), (2, 1), (2, 2)] {
        let net = Net { planes: 2, leaves, spines, rate: 800 * GBPS, delay: 5_000_000, ..SMALL };
        let to = net.hosts() - 1;
        assert_eq!(placed_at(&net, "metaroce", to, 16 << 20), metaroce(&net, to, 16 << 20), "{net:?}");
        assert_eq!(placed_at(&net, "mrc", to, 16 << 20), mrc(&net, to, 16 << 20), "{net:?}");
    }
}

// [F3.packet-spray] [F3.consecutive-ports] [F4.free-port-pulls] [I26]
#[test]
fn a_metaroce_write_of_any_size_arrives_at_the_closed_form_time() {
    for planes in [1, 2, 4] {
        for rate in [30, 100, 200, 400, 800] {
            let net = Net { planes, rate: rate * GBPS, ..SMALL };
            for to in [1, 7] {
                for bytes in SIZES.into_iter().filter(|b| *b < 64 << 20 || rate == 200) {
                    let expected = metaroce(&net, to, bytes);
                    assert_eq!(placed_at(&net, "metaroce", to, bytes), expected, "{net:?} to {to}: {bytes} bytes");
                }
            }
        }
    }
}

#[test]
fn an_mrc_write_of_any_size_arrives_at_the_closed_form_time() {
    for planes in [1, 2, 4] {
        for rate in [30, 100, 200, 400, 800] {
            let net = Net { planes, rate: rate * GBPS, ..SMALL };
            for to in [1, 7] {
                for bytes in SIZES.into_iter().filter(|b| *b < 64 << 20 || rate == 200) {
                    let (expected, placed) = (mrc(&net, to, bytes), placed_at(&net, "mrc", to, bytes));
                    assert_eq!(placed, expected, "{net:?} to {to}: {bytes} bytes");
                }
            }
        }
    }
}

#[test]
fn a_short_way_has_a_window_that_waits_for_an_acknowledgement() {
    // 1.5 x 13.6 kB: five packets. The byte behind them leaves when the first is acknowledged, after its wait: it
    // ends before four have arrived.
    let net = Net { planes: 1, leaves: 1, spines: 0, rate: 100 * GBPS, delay: 100_000, ..SMALL };
    let way = |at, len| (0..2).fold(at, |at, _| Link::new(&net).send(at, len));
    let acknowledged = way(way(0, mrc_data(MTU)) + default("mrc", "ack_delay_ps"), MRC_ACK);
    assert_eq!(placed_at(&net, "mrc", 1, 5 * MTU + 1), way(acknowledged, mrc_data(1)));
}

#[test]
fn a_rocev2_write_of_any_size_arrives_at_the_closed_form_time() {
    for planes in [1, 2, 4] {
        for rate in [30, 100, 200, 400, 800] {
            let net = one_route(Net { planes, rate: rate * GBPS, ..SMALL });
            for to in [1, 7] {
                for bytes in SIZES.into_iter().filter(|b| *b < 64 << 20 || rate == 200) {
                    let (expected, placed) = (rocev2(&net, to, bytes), placed_at(&net, "rocev2", to, bytes));
                    assert!(expected.contains(&placed), "{net:?} to {to}: {bytes} bytes at {placed}, not {expected:?}");
                }
            }
        }
    }
}

/// Hosts near and far, with the delay of an in-rack to a campus cable.
fn net() -> impl Strategy<Value = (Net, u32)> {
    let rate = prop::sample::select(vec![30, 100, 200, 400, 800]);
    (1..5u32, rate, 100_000..5_000_000u64, 0..4u32, any::<bool>()).prop_map(|(planes, rate, delay, spines, far)| {
        // No spine: a single switch a plane.
        let leaves = if spines == 0 { 1 } else { 2 };
        let net = Net { planes, leaves, spines, rate: rate * GBPS, delay, ..SMALL };
        (net, if far { net.hosts() - 1 } else { 1 })
    })
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![1..20_000u64, 1..2_000_000u64, (1..300u64).prop_map(|packets| packets * MTU)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    // [F4.free-port-pulls] [I26]
    #[test]
    fn any_metaroce_write_is_exact((net, to) in net(), bytes in size()) {
        prop_assert_eq!(placed_at(&net, "metaroce", to, bytes), metaroce(&net, to, bytes));
    }

    #[test]
    fn any_mrc_write_is_exact((net, to) in net(), bytes in size()) {
        let (every, percent) = (default("mrc", "ack_every"), default("mrc", "start_window_percent"));
        let product = (u128::from(net.rate) * u128::from(net.planes) * u128::from(base_rtt(&net, mrc_data(MTU))) / BYTE_PS) as u64;
        // Else ports wait for acknowledgements, which are one in several packets.
        let covers = product * (percent - 100) / 100 >= (every + 1) * MTU * u64::from(net.planes);
        prop_assume!(covers || bytes <= product * percent / 100);
        prop_assert_eq!(placed_at(&net, "mrc", to, bytes), mrc(&net, to, bytes));
    }

    #[test]
    fn any_rocev2_write_is_exact((net, to) in net(), bytes in size()) {
        let net = one_route(net);
        let (expected, placed) = (rocev2(&net, to, bytes), placed_at(&net, "rocev2", to, bytes));
        prop_assert!(expected.contains(&placed), "{} is not one of {:?}", placed, expected);
    }
}
