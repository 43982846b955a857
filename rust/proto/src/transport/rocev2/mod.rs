//! The RoCEv2 baseline: reliable-connection QPs with go-back-N and DCQCN on a lossy class.
//!
//! A connection is a bundle of QPs, each pinned to one plane and, by its constant UDP source port and its
//! number, to one ECMP route. Messages are split over the QPs as collective libraries do. Receiving is in order per QP;
//! a gap earns one NAK, after which only the missing packet or the sender's timer helps. Reads and atomics are in
//! [`reads`]; there is no Flush.
//!
//! Several QPs keep no order between them. Receives complete, and immediate data is handed over, in stream order, when
//! all parts are placed. What must see earlier messages placed, an atomic or a fenced Read, waits at the sender until
//! they are acknowledged, and with a fence until they are answered, as a library would have it wait; the atomics of a
//! stream use one QP, whose order they share. Where a connection has one QP, its order is enough and only fences
//! wait. A QP that ends in error ends its connection, streams and all, at both ends if the peer refused something: the
//! request that was refused, or that the timer gave up, is named, and all others are flushed.
//!
//! Where a choice was open, it favours this baseline: the parts of a message share its [`Segment`], so that
//! receives are known to the sender and no clear-to-send round trip is paid; every packet names its place, so
//! that parts of one message may arrive in any order; the retransmission timer expires at its
//! nominal time (hardware may take up to 4 times as long: `timeout_spread_percent`); NAKs do not count as retries,
//! expiries do; control packets are never delayed by data.
//!
//! [`Segment`]: metaroce_wire::Segment

mod ahead;
mod alarms;
mod answers;
mod connection;
pub mod dcqcn;
mod failure;
mod observe;
mod psn;
mod reads;
mod requester;
mod responder;
mod rnr;
mod selective;
mod sender;
pub(crate) mod settings;
mod slow_restart;
mod timers;

use std::collections::VecDeque;

use metaroce_wire::{
    Body, Bytes, Cnp, ConnId, Ecn, Envelope, HostId, Opcode, Packet, PlaneId, Rate, RoceAck, RoceAckKind, RoceData,
    Time, Verdict,
};

use self::alarms::Alarms;
use self::connection::{Connection, entropy, home, plane};
use self::dcqcn::Params;
use self::failure::{nak_of, status_of};
use self::requester::{Origin, Requester};
use self::responder::{Order, Responder};
use self::selective::Timers;
use self::slow_restart::Ramp;
use super::{Stage, Stuck, Transport};
use crate::config::{Environment, RoceConfig, RoceTimer};
use crate::counters::Counters;
use crate::inbox::{Effect, Placed};
use crate::telemetry::PathTable;
use crate::verbs::{Atomic, Completion, CompletionStatus, Placement, PostError, ReceiveRequest, Regions, WorkRequest};

/// Unit of the local ACK timeout, picoseconds: 4.096 us × 2^t (IBTA).
const ACK_TIMEOUT_PS: u64 = 4_096_000;
/// Steps of the adaptive timer ladder beyond the first, each doubling.
const LADDER: u32 = 3;
/// Requests for an acknowledgement in the shortest timeout, if packets are sent. Ours: several may be lost.
const REQUESTS_A_TIMEOUT: u64 = 4;
/// Least window of a QP, packets. Ours: with one, each packet would wait for the acknowledgement of the last.
pub const LEAST_WINDOW: u64 = 2;

/// All QPs of one host. What each packet touches is first.
#[derive(Debug)]
#[repr(C)]
pub struct RoceV2 {
    connections: Vec<Connection>,
    qps: Vec<Qp>,
    /// QPs of a connection; QP q of connection c is `qps[c × this + q]`.
    qps_per_connection: u32,
    ready: u32,

    ports: Box<[Port]>,
    /// (when, QP × 2 + what). An entry counts only if its QP still names its time.
    timers: Alarms,
    /// Longest time between two requests for an acknowledgement, if packets are sent.
    patience: Time,
    host: HostId,
    /// Some QP has had something to answer.
    answers: bool,

    completions: VecDeque<Completion>,
    atomics: VecDeque<Atomic>,

    counters: Counters,
    /// Selective repeat, and its timers.
    selective: Option<Timers>,
    /// By QP, as of connection 0.
    counts: PathTable,
    /// Slow restart of each QP, if it is on.
    ramps: Vec<Ramp>,
    config: RoceConfig,
    base_rtt: Time,
}

/// One QP: both directions.
#[derive(Debug)]
#[repr(C)]
struct Qp {
    requester: Requester,
    responder: Responder,
}

const _: () = assert!(size_of::<Qp>() == 256);

impl Qp {
    fn new(config: &RoceConfig, selective: bool, (origin, plane): (Origin, PlaneId)) -> Qp {
        let mut requester = Requester::new(config.first_psn, config.read_depth).selective(selective);
        let mut responder = Responder::new(config.first_psn).selective(selective);
        (requester.origin, requester.plane) = (origin, plane);
        (responder.origin, responder.plane) = (origin, plane);
        Qp { requester, responder }
    }

    const fn connection(&self) -> u32 {
        self.requester.origin.connection
    }

    const fn number(&self) -> u16 {
        self.requester.origin.number
    }
}

/// The port into one plane. Its queues are first, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Port {
    /// QPs that may send, served in turn.
    ring: VecDeque<u32>,
    /// QPs that owe a control packet.
    control: VecDeque<u32>,
    /// Packets that a QP may have in flight, each counted as a full one; 0 = no limit.
    window: u32,
    rate: Rate,
    dcqcn: Option<Params>,
}

impl RoceV2 {
    /// A host without connections.
    pub fn new(config: &RoceConfig, environment: Environment) -> RoceV2 {
        let port = |&rate: &Rate| Port {
            rate,
            window: window(config, rate, environment.base_rtt),
            dcqcn: Params::of(config, rate),
            ring: VecDeque::new(),
            control: VecDeque::new(),
        };
        let selective = Timers::new(config, &environment);
        let shortest = selective.map_or_else(|| timeout(config, 0), |timers| timers.after(0, 0));
        RoceV2 {
            config: config.clone(),
            host: environment.host,
            patience: Time(shortest.0 / REQUESTS_A_TIMEOUT),
            base_rtt: environment.base_rtt,
            selective,
            qps_per_connection: match config.qps {
                0 => config.qps_per_plane.max(1) * environment.ports.len() as u32,
                qps => qps,
            },
            connections: Vec::new(),
            qps: Vec::new(),
            ramps: Vec::new(),
            answers: false,
            ports: environment.ports.iter().map(port).collect(),
            timers: Alarms::default(),
            completions: VecDeque::new(),
            atomics: VecDeque::new(),
            counters: Counters::default(),
            counts: PathTable::default(),
            ready: 0,
        }
    }

    /// Index of QP `number` of `connection`, if both exist and work.
    fn find(&self, connection: ConnId, number: u16) -> Option<u32> {
        let works = self.connections.get(connection.index()).is_some_and(|c| c.failure.is_none());
        (works && u32::from(number) < self.qps_per_connection)
            .then(|| connection.0 * self.qps_per_connection + u32::from(number))
    }

    // --- receiving ---

    fn handle_data(&mut self, now: Time, ecn: Ecn, data: &RoceData, regions: &Regions) -> Option<Placement> {
        let index = self.find(data.connection, data.qp)?;
        self.note_mark(now, index, ecn);
        let responder = &mut self.qps[index as usize].responder;
        let number = psn::nearest(responder.expected(), data.psn);
        let placement = match responder.arrived(number) {
            Order::Expected | Order::Early => self.place(index, data, regions),
            Order::Duplicate => {
                self.counters.duplicates += 1;
                None
            }
            Order::Ahead => {
                self.counters.dropped_ahead += 1;
                None
            }
        };
        self.queue_control(index);
        placement
    }

    /// A data packet was marked on its way: notification point.
    fn note_mark(&mut self, now: Time, index: u32, ecn: Ecn) {
        if ecn == Ecn::Ce {
            self.counters.marked += 1;
            let responder = &mut self.qps[index as usize].responder;
            if let Some(params) = &self.ports[responder.plane.index()].dcqcn {
                responder.marked(now, params.cnp_gap);
            }
        }
    }

    fn place(&mut self, index: u32, data: &RoceData, regions: &Regions) -> Option<Placement> {
        let responder = &mut self.qps[index as usize].responder;
        let number = psn::nearest(responder.expected(), data.psn);
        let completions = &mut self.completions;
        let connection = data.connection;
        let inbox = &mut self.connections[connection.index()].inbox;
        let immediate = data.last && data.segment.opcode == Opcode::WriteImm;
        let effect = |effect: Effect| completions.extend(effect.completion(connection));
        let placed = match immediate && inbox.lacks_receive(&data.segment) {
            true => Placed::Refused(Verdict::NotReady),
            false => inbox.place(&data.segment, data.imm, regions, effect),
        };
        match placed {
            Placed::Fresh(placement) => {
                responder.accept_any(number, data.ack_request, self.config.ack_every);
                responder.completed(data.last);
                self.counters.placed += 1;
                self.counters.placed_bytes += u64::from(placement.len);
                Some(placement)
            }
            Placed::Duplicate | Placed::Taken => {
                responder.accept_any(number, data.ack_request, self.config.ack_every);
                responder.completed(data.last);
                self.counters.duplicates += 1;
                None
            }
            // Later than the one that would be refused in order: as if lost.
            Placed::Refused(Verdict::NotReady) if responder.is_early(number) => None,
            Placed::Refused(Verdict::NotReady) => {
                responder.nak(RoceAckKind::RnrNak(self.config.rnr_timer as u8));
                self.counters.rnr += 1;
                None
            }
            Placed::Refused(verdict) => {
                self.refuse(index, verdict);
                None
            }
        }
    }

    fn handle_ack(&mut self, now: Time, ack: &RoceAck) {
        let Some(index) = self.find(ack.connection, ack.qp) else {
            return;
        };
        let number = psn::nearest(self.qps[index as usize].requester.una(), ack.psn);
        let end = if ack.kind == RoceAckKind::Ack { number.wrapping_add(1) } else { number };
        let progress = self.acknowledge(index, end);
        let requester = &mut self.qps[index as usize].requester;
        let missing = requester.misses(end) && requester.rewind_missing();
        let rewound = match ack.kind {
            RoceAckKind::Ack => missing,
            RoceAckKind::SequenceNak => missing || requester.rewind(number),
            RoceAckKind::RnrNak(code) => {
                // It answers, so it is alive.
                requester.timeouts = 0;
                let back = missing || requester.rewind(number);
                if back && self.not_ready(now, index, code) {
                    return self.fail(index, CompletionStatus::RnrRetryExceeded, number);
                }
                back
            }
            kind => return self.fail(index, status_of(kind), number),
        };
        if missing || rewound && ack.kind == RoceAckKind::SequenceNak {
            self.note_gap(index);
            self.slow_down(now, index);
        }
        if progress || rewound {
            self.restart_timer(now, index);
        }
        self.assign(ack.connection);
        self.queue_data(index);
    }

    /// Packets of a QP, or of answers to it, are lost.
    fn note_gap(&mut self, index: u32) {
        self.counters.gap_detections += 1;
        self.counts.count(0, index as usize, |c| c.lost_gap += 1);
    }

    /// The receiver is not ready. True if that has been so too often.
    fn not_ready(&mut self, now: Time, index: u32, code: u8) -> bool {
        let requester = &mut self.qps[index as usize].requester;
        requester.not_ready = requester.not_ready.saturating_add(1);
        requester.silent_until = now + rnr::wait(code);
        self.config.rnr_retry < rnr::FOR_EVER && u32::from(requester.not_ready) > self.config.rnr_retry
    }

    fn acknowledge(&mut self, index: u32, end: u32) -> bool {
        let requester = &mut self.qps[index as usize].requester;
        let connection = ConnId(requester.origin.connection);
        let outbox = &mut self.connections[connection.index()].outbox;
        let completions = &mut self.completions;
        requester.acknowledge(end, |message| {
            outbox.acknowledge(message, |ended, status| {
                completions.extend(Completion::to_report(connection, &ended, status));
            });
        })
    }

    /// Hands messages that need not wait any more to QPs: payload and Reads in parts to several, an atomic to the one
    /// that keeps those of its stream in order.
    fn assign(&mut self, id: ConnId) {
        let qps = self.qps_per_connection;
        while let Some((message, request)) = self.connections[id.index()].next_message() {
            if request.opcode.is_atomic() {
                let index = id.0 * qps + home(request.stream, qps);
                self.qps[index as usize].requester.post(message, 0, 1, true);
                self.queue_data(index);
                continue;
            }
            for share in self.connections[id.index()].split(&self.config, qps, request.len) {
                let index = id.0 * qps + share.qp;
                let asks = request.opcode.is_request();
                self.qps[index as usize].requester.post(message, share.packet, share.packets, asks);
                self.queue_data(index);
            }
        }
    }

    fn handle_cnp(&mut self, now: Time, cnp: &Cnp) {
        let Some(index) = self.find(cnp.connection, cnp.qp) else {
            return;
        };
        self.counts.count(0, index as usize, |c| c.marked += 1);
        let requester = &mut self.qps[index as usize].requester;
        if let Some(params) = &self.ports[requester.plane.index()].dcqcn {
            requester.congested(params, now);
        }
    }
}

/// Plane and UDP source port of QP `qp` of `hosts.0` towards `hosts.1`: with the addresses, its ECMP route.
pub fn route(config: &RoceConfig, hosts: (HostId, HostId), qp: u32, planes: u32) -> (PlaneId, u16) {
    (plane(config, hosts, qp, planes), entropy(config.qp_ports, hosts.0, hosts.1, qp))
}

impl Transport for RoceV2 {
    fn connect(&mut self, peer: HostId) -> ConnId {
        let id = self.connections.len() as u32;
        self.connections.push(Connection::new(&self.config, self.qps_per_connection, self.host, peer));
        let planes = self.ports.len() as u32;
        let selective = self.selective.is_some();
        for number in 0..self.qps_per_connection {
            let plane = plane(&self.config, (self.host, peer), number, planes);
            let entropy = entropy(self.config.qp_ports, self.host, peer, number);
            let origin = Origin { connection: id, number: number as u16, entropy };
            self.qps.push(Qp::new(&self.config, selective, (origin, plane)));
            self.ramps.extend(Ramp::new(&self.config, self.ports[plane.index()].rate, self.base_rtt));
        }
        ConnId(id)
    }

    fn bind(&mut self, connection: ConnId, remote: ConnId) {
        self.connections[connection.index()].remote = remote;
    }

    fn supports(&self, opcode: Opcode) -> bool {
        // IBTA has had a Flush since 2021 only, and these NICs do not.
        // Answers of selective repeat would need a SACK of their own; IRN's is not modelled.
        let carries = matches!(opcode, Opcode::Write | Opcode::WriteImm | Opcode::Send);
        opcode != Opcode::Flush && (carries || self.selective.is_none())
    }

    fn post(&mut self, _now: Time, connection: ConnId, request: WorkRequest) -> Result<(), PostError> {
        let this = &mut self.connections[connection.index()];
        if this.failure.is_some() {
            return Err(PostError::Failed(connection.0));
        }
        this.outbox.post(request);
        self.assign(connection);
        Ok(())
    }

    fn post_receive(&mut self, connection: ConnId, request: ReceiveRequest) {
        let this = &mut self.connections[connection.index()];
        if this.failure.is_some() {
            self.completions.push_back(Completion::of_receive(connection, &request, CompletionStatus::Flushed));
        } else {
            let completions = &mut self.completions;
            this.inbox.post(request, |effect| completions.extend(effect.completion(connection)));
        }
    }

    fn handle_packet(&mut self, now: Time, packet: (&Envelope, &Body), regions: &Regions) -> Option<Placement> {
        let (envelope, body) = packet;
        if envelope.trimmed {
            return None;
        }
        match body {
            Body::RoceData(data) => return self.handle_data(now, envelope.ecn, data, regions),
            Body::RoceResponse(response) => return self.handle_response(now, envelope, response),
            Body::RoceRequest(asked) => self.handle_request(now, envelope.ecn, asked, regions),
            Body::RoceAck(ack) => self.handle_ack(now, ack),
            Body::RoceCnp(cnp) => self.handle_cnp(now, cnp),
            Body::RoceSack(sack) => self.handle_sack(now, sack),
            _ => {}
        }
        None
    }

    fn handle_timeout(&mut self, now: Time) {
        self.run_timers(now);
    }

    fn poll_transmit(&mut self, now: Time, plane: PlaneId) -> Option<Packet> {
        let packet = self.next_control(plane).or_else(|| self.next_data(now, plane));
        let port = &self.ports[plane.index()];
        if port.control.is_empty() && port.ring.is_empty() {
            self.ready &= !(1 << plane.0);
        }
        packet
    }

    fn poll_control(&mut self, plane: PlaneId) -> Option<Packet> {
        // What waits behind answers is of their class.
        for _ in 0..self.ports[plane.index()].control.len() {
            let control = &mut self.ports[plane.index()].control;
            match control.front() {
                Some(&index) if self.qps[index as usize].responder.answers() => control.rotate_left(1),
                _ => return self.next_control(plane),
            }
        }
        None
    }

    fn poll_timeout(&self) -> Time {
        self.timers.time()
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn poll_atomic(&mut self) -> Option<Atomic> {
        self.atomics.pop_front()
    }

    fn answer_atomic(&mut self, atomic: &Atomic, before: u64) {
        self.found(atomic, before);
    }

    fn ports_ready(&self) -> u32 {
        self.ready
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn prefetch_self(&self) {
        self.look_at_self();
    }

    #[inline]
    fn prefetch(&self, body: &Body, stage: Stage) {
        self.look_at(body, stage);
    }

    #[inline]
    fn prefetch_port(&self, plane: PlaneId, stage: Stage) {
        if plane.0 == 0 {
            self.look_at_rings(stage);
        }
    }

    fn stuck(&self) -> Vec<Stuck> {
        let connections = self.connections.iter().enumerate();
        connections.filter_map(|(id, connection)| connection.stuck(|| self.waiting_reason(id))).collect()
    }
}

/// How long the acknowledgement timer runs after `timeouts` expiries in a row.
fn timeout(config: &RoceConfig, timeouts: u32) -> Time {
    match config.timer {
        RoceTimer::Fixed => Time(ACK_TIMEOUT_PS << config.timeout_exponent),
        RoceTimer::Adaptive => Time(config.adaptive_base_ps << timeouts.min(LADDER)),
    }
}

/// Window of a QP in packets, from the bandwidth-delay product of its port.
fn window(config: &RoceConfig, rate: Rate, base_rtt: Time) -> u32 {
    let Bytes(product) = rate.bytes_in(base_rtt);
    match config.window_percent {
        0 => 0,
        percent => (product * u64::from(percent) / 100 / u64::from(config.mtu)).max(LEAST_WINDOW) as u32,
    }
}

#[cfg(test)]
mod tests {
    use metaroce_wire::StreamId;

    use super::*;

    #[test]
    fn first_sends_alone_reduce_the_unsent_bytes() {
        let environment =
            Environment { host: HostId(0), ports: vec![Rate::from_gbps(200)], base_rtt: Time::from_us(5), routes: 1 };
        let mut host = RoceV2::new(&RoceConfig { window_percent: 0, ..RoceConfig::default() }, environment);
        let id = host.connect(HostId(1));
        let (stream, len) = (StreamId(0), 100_000);
        let request = WorkRequest { wr_id: 1, stream, len, ..WorkRequest::default() };
        host.post(Time::ZERO, id, request).expect("a working connection");
        assert_eq!(host.connections[0].outbox.unsent(), len);
        for _ in 0..2 {
            let sent = std::iter::from_fn(|| host.poll_transmit(Time::ZERO, PlaneId(0))).count();
            assert_eq!((sent, host.ready, host.connections[0].outbox.unsent()), (25, 0, 0));
            host.handle_timeout(Time::from_us(2_000));
        }
        assert_eq!(host.counters.resent, 25);
    }
}
