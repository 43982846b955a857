//! The MetaRoCE-style transport: packets sprayed over paths, placed on arrival, acknowledged per
//! path, resent on the path that lost them, under a window per path and one per connection.
//!
//! Follows F1–F8 and F10 of the public article. [`sender`] builds what ports pull, [`acks`] takes
//! acknowledgements, [`repair`] runs the timers, [`receiver`] places and acknowledges; this file
//! holds the state and the [`Transport`] face.

mod acks;
mod connection;
mod flight;
mod hint;
mod ledger;
mod observe;
pub(in crate::transport) mod path;
mod receiver;
mod repair;
mod retire;
mod sender;
mod serials;
pub(crate) mod settings;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem::offset_of;
use std::sync::Arc;

use metaroce_wire::{
    Body, Class, ConnId, Envelope, HostId, MrProbe, Packet, PlaneId, Rate, Request, Time, lengths, prefetch,
};

use self::connection::{Connection, MAX_PATHS, Shape};
use self::flight::Flight;
use self::hint::FairShare;
use self::ledger::SACK_BITS;
use super::cc::{Controller, Place};
use super::ports::Ports;
use super::{Half, LINE, MAX_PLANES, Stage, Stuck, Transport};
use crate::config::{Environment, Hints, MetaRoceConfig};
use crate::counters::Counters;
use crate::reciprocal::Reciprocal;
use crate::telemetry::PathTable;
use crate::verbs::{Atomic, Completion, CompletionStatus, Placement, PostError, ReceiveRequest, Regions, WorkRequest};

/// A loss tells for so many base round trips that others are likely. Ours.
const LOSSY_RTTS: u64 = 64;

/// Bandwidth-delay products of a plane that its paths may have in flight: together at the start, and
/// any one of them at most. Ours: one is on its way, one may wait in a queue.
const PLANE_WINDOW_BDPS: u64 = 2;
/// Least cap of a path's window, packets. Ours: where the network is short, room to grow.
const LEAST_PATH_CAP: u64 = 4;
/// Least first window of a path, packets. Ours: the second shows the loss of the first.
const LEAST_FIRST_WINDOW: u64 = 2;

/// State of one endpoint.
#[derive(Debug)]
#[repr(C)]
pub struct MetaRoce {
    connections: Vec<Connection>,
    shared: Shared,
}

/// What the connections of an endpoint share: apart from them, so that the packet path borrows a connection once. The
/// order of the fields is that of use, a cache line a group: all three of sending, receiving and acknowledgements take
/// the first four, receiving the shares as well.
#[derive(Debug)]
#[repr(C)]
struct Shared {
    common: Arc<Common>,
    ports: Ports,

    /// Acknowledgements that wait for company: when they leave at the latest, connection, and which of
    /// its acknowledgements it is; void once that has left.
    delayed: VecDeque<(Time, u32, u32)>,
    atomics: VecDeque<Atomic>,

    completions: VecDeque<Completion>,
    flight: Flight,

    /// The first entry of `timers`.
    next_timer: Time,
    host: HostId,
    counters: Counters,
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// Packets get lost these days, on whatever connection.
    lossy_until: Time,

    shares: FairShare,
    /// Requests whose turn has come while a packet is handled; empty in between.
    released: Vec<Request>,
    counts: PathTable,
}

/// The groups of [`Shared`] begin at cache lines, where a transport begins one and its tag comes before it.
const _: () = {
    const fn at(offset: usize) -> usize {
        size_of::<u64>() + offset_of!(MetaRoce, shared) + offset
    }
    assert!(at(offset_of!(Shared, delayed)) == LINE && at(offset_of!(Shared, completions)) == 2 * LINE);
    assert!(at(offset_of!(Shared, next_timer)) == 3 * LINE && at(offset_of!(Shared, shares)) == 6 * LINE);
};

/// What is the same at all hosts of one place in the world, and so in the cache once.
#[derive(Debug)]
struct Common {
    config: MetaRoceConfig,
    /// Of the first such host.
    environment: Environment,
    shape: Shape,
    /// Largest connection window, bytes.
    window_cap: u64,
    hint_life: u64,
    controller: Controller,
}

impl Common {
    fn new(config: &MetaRoceConfig, environment: Environment) -> Common {
        let planes = environment.ports.len().min(MAX_PLANES);
        let total = Rate(environment.ports.iter().map(|r| r.0).sum());
        let widest = environment.ports.iter().max().copied().unwrap_or_default();
        let bdp = total.bytes_in(environment.base_rtt).0;
        let plane_window = PLANE_WINDOW_BDPS * widest.bytes_in(environment.base_rtt).0;
        let mtu = u64::from(config.mtu);
        // What one SACK vector can describe.
        let described = u64::from(SACK_BITS) * mtu;
        let most = MAX_PATHS as u32;
        let paths_per_plane = match config.paths_per_plane {
            // [F3.path-for-each-route]
            // One for each route, or equally many where it takes more SACK vectors to describe what is in flight.
            0 => {
                let routes = u64::from(environment.routes.clamp(1, most));
                routes * plane_window.div_ceil(described * routes).clamp(1, u64::from(most) / routes)
            }
            n => u64::from(n.min(most)),
        } as usize;
        let cap = plane_window.clamp(LEAST_PATH_CAP * mtu, described);
        let path_window = (plane_window / paths_per_plane as u64).clamp(LEAST_FIRST_WINDOW * mtu, cap) as u32;
        let place = Place {
            base_rtt: path::ticks(environment.base_rtt),
            bdp,
            paths: (planes * paths_per_plane) as u64,
            cap: cap as u32,
        };
        let controller = Controller::new(config, place);
        // [I26]
        let window_cap = (bdp * u64::from(config.window_cap_percent) / 100).max(mtu);
        let start = (bdp * u64::from(config.start_window_percent) / 100).max(mtu);
        let shape = Shape {
            mtu: config.mtu,
            planes,
            paths_per_plane,
            spray: config.spray,
            window_of_all_planes: planes as u64 * mtu,
            packets: Reciprocal::new(mtu),
            base_rtt: environment.base_rtt,
            path_window: path_window.min(controller.cap()),
            congestion: controller.start(),
            // Without hints nothing would ever raise a small start: ECN alone governs.
            start_window: if config.hints == Hints::Off { window_cap } else { start },
            rate: total,
        };
        let hint_life = u64::from(config.hint_life_rtts) * environment.base_rtt.0;
        Common { config: config.clone(), environment, shape, window_cap, hint_life, controller }
    }
}

impl MetaRoce {
    /// An endpoint at the place that `environment` describes.
    pub fn new(config: &MetaRoceConfig, environment: Environment) -> MetaRoce {
        let host = environment.host;
        MetaRoce::at(host, Arc::new(Common::new(config, environment)))
    }

    /// Another endpoint of the same configuration, which shares with this one what is the same.
    pub fn beside(&self, environment: Environment) -> MetaRoce {
        let common = &self.shared.common;
        let like = Environment { host: common.environment.host, ..environment.clone() };
        if like == common.environment {
            MetaRoce::at(environment.host, common.clone())
        } else {
            MetaRoce::new(&common.config, environment)
        }
    }

    fn at(host: HostId, common: Arc<Common>) -> MetaRoce {
        let Common { config, shape, .. } = &*common;
        let target = Rate(shape.rate.0 / 100 * u64::from(config.hint_target_percent));
        let shared = Shared {
            host,
            lossy_until: Time::ZERO,
            flight: Flight::new(),
            shares: FairShare::new(target, config.mtu, shape.base_rtt),
            ports: Ports::new(shape.planes),
            next_timer: Time::NEVER,
            timers: BinaryHeap::new(),
            delayed: VecDeque::new(),
            released: Vec::new(),
            completions: VecDeque::new(),
            atomics: VecDeque::new(),
            counters: Counters::default(),
            counts: PathTable::default(),
            common,
        };
        MetaRoce { connections: Vec::new(), shared }
    }

    /// Queues a control packet back along the plane and entropy that `envelope` came by.
    fn reply(&mut self, envelope: &Envelope, len: u32, body: Body) {
        let back = Envelope {
            src: envelope.dst,
            dst: envelope.src,
            hash: Envelope::address_hash(envelope.dst, envelope.src),
            len,
            entropy: envelope.entropy,
            plane: envelope.plane,
            class: Class::Control,
            ..Envelope::default()
        };
        self.shared.ports.push_control(envelope.plane, Packet { envelope: back, body });
    }

    /// Puts a connection into the ready queues of `planes`.
    fn wake(&mut self, id: usize, planes: u8) {
        self.shared.wake(id, &mut self.connections[id], planes);
    }

    /// Calls the timer of a connection at `due`, if nothing does before.
    fn arm(&mut self, id: usize, due: Time) {
        self.shared.arm(id, &mut self.connections[id], due);
    }

    fn all_planes(&self) -> u8 {
        self.shared.all_planes()
    }

    /// Hints the processor at what the next pulls of `plane` will touch, where connections take turns: what the next
    /// one leads to, and the one behind it.
    #[inline]
    fn prefetch_turns(&self, plane: PlaneId) {
        let Some(second) = self.shared.ports.peek_behind(plane, 1) else { return };
        self.connections[second].prefetch_sender();
        if let Some(next) = self.shared.ports.peek_ready(plane) {
            self.connections[next].prefetch_next(plane.index(), &self.shared.common.shape);
        }
    }
}

impl Shared {
    fn all_planes(&self) -> u8 {
        ((1u16 << self.common.shape.planes) - 1) as u8
    }

    #[inline]
    fn wake(&mut self, id: usize, connection: &mut Connection, planes: u8) {
        let new = planes & !connection.queued;
        connection.queued |= new;
        connection.blocked &= !planes;
        self.ports.line_up(id, new);
    }

    fn arm(&mut self, id: usize, connection: &mut Connection, due: Time) {
        if due < connection.armed {
            connection.armed = due;
            self.timers.push(Reverse((due, id as u32)));
            self.next_timer = self.next_timer.min(due);
        }
    }
}

impl Transport for MetaRoce {
    fn connect(&mut self, peer: HostId) -> ConnId {
        self.connections.push(Connection::new(&self.shared.common.shape, self.shared.host, peer));
        self.shared.shares.add_sender();
        ConnId(self.connections.len() as u32 - 1)
    }

    fn bind(&mut self, connection: ConnId, remote: ConnId) {
        let connection = &mut self.connections[connection.index()];
        (connection.remote, connection.back.1) = (remote, remote);
    }

    // [F8.small-start]
    fn crowd(&mut self, connection: ConnId, size: u32) {
        if self.shared.common.config.hints == Hints::Off {
            return;
        }
        let start = self.shared.common.shape.start_window(size);
        let connection = &mut self.connections[connection.index()];
        (connection.crowd, connection.window, connection.granted) = (size, start, start);
    }

    fn has_settled(&self, connection: ConnId, half: Half) -> bool {
        self.half_settled(connection, half)
    }

    fn retire(&mut self, connection: ConnId, half: Half) {
        self.drop_half(connection, half);
    }

    fn post(&mut self, now: Time, connection: ConnId, request: WorkRequest) -> Result<(), PostError> {
        let state = &mut self.connections[connection.index()];
        if state.failed {
            return Err(PostError::Failed(connection.0));
        }
        if state.in_flight == 0 {
            state.last_progress = now;
        }
        // Else they are made when it is its turn to send: of thousands that wait, few have sent yet.
        if state.paths.is_empty() && (self.shared.common.config.denied_planes != 0 || self.shared.counts.is_kept()) {
            state.open_paths(&self.shared.common.shape, &self.shared.common.config);
        }
        if state.outbox.post(request).is_none() {
            let completions = &mut self.shared.completions;
            state.outbox.flush(request.stream, &mut |ended, status| {
                completions.push_back(Completion::of_request(connection, &ended, status));
            });
        }
        if state.paths_down > 0 {
            self.arm(connection.index(), now);
        }
        let planes = self.all_planes();
        self.wake(connection.index(), planes);
        Ok(())
    }

    fn post_receive(&mut self, connection: ConnId, request: ReceiveRequest) {
        let state = &mut self.connections[connection.index()];
        if state.failed {
            self.shared.completions.push_back(Completion::of_receive(connection, &request, CompletionStatus::Flushed));
            return;
        }
        self.shared.with_inbox(connection.index(), state, |inbox, effect| inbox.post(request, effect));
    }

    #[inline(always)]
    fn handle_packet(&mut self, now: Time, packet: (&Envelope, &Body), regions: &Regions) -> Option<Placement> {
        let (envelope, body) = packet;
        match body {
            Body::MrData(data) => return self.handle_data(now, envelope, data, regions),
            Body::MrRequest(request) => self.handle_request(now, envelope, request, regions),
            Body::MrAck(ack) => self.handle_ack(now, ack),
            Body::MrProbe(probe) => {
                let remote = self.connections.get(probe.connection.index())?.remote;
                let answer = MrProbe { connection: remote, ..*probe };
                self.reply(envelope, lengths::mr_probe(), Body::MrProbeReply(answer));
            }
            Body::MrProbeReply(probe) => self.handle_probe_reply(now, probe),
            // Of another transport.
            _ => {}
        }
        None
    }

    fn poll_atomic(&mut self) -> Option<Atomic> {
        self.shared.atomics.pop_front()
    }

    fn answer_atomic(&mut self, atomic: &Atomic, before: u64) {
        self.answer(atomic.connection.index(), &atomic.request, 8, before);
    }

    fn deny(&mut self, now: Time, connection: ConnId, plane: PlaneId, denied: bool) -> Result<(), PostError> {
        self.set_denied(now, connection.index(), plane.index(), denied)
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some(&Reverse((due, id))) = self.shared.timers.peek() {
            if due > now {
                break;
            }
            self.shared.timers.pop();
            // An entry that was overtaken by an earlier one stands for nothing.
            if self.connections[id as usize].armed == due {
                self.connections[id as usize].armed = Time::NEVER;
                self.on_timer(now, id as usize);
            }
        }
        self.shared.next_timer = self.shared.timers.peek().map_or(Time::NEVER, |&Reverse((due, _))| due);
        self.send_delayed(now);
    }

    #[inline(always)]
    fn poll_transmit(&mut self, now: Time, plane: PlaneId) -> Option<Packet> {
        let MetaRoce { connections, shared } = self;
        if let Some(packet) = shared.ports.next_control(plane) {
            return Some(packet);
        }
        loop {
            let id = shared.ports.first_ready(plane)?;
            let connection = &mut connections[id];
            if let Some(chosen) = shared.choose(now, id, connection, plane) {
                shared.ports.rotate(plane);
                let packet = shared.build(now, (id, plane), connection, chosen);
                self.prefetch_turns(plane);
                return packet;
            }
            shared.ports.leave(plane);
            connection.queued &= !(1 << plane.0);
        }
    }

    fn poll_control(&mut self, plane: PlaneId) -> Option<Packet> {
        self.shared.ports.next_control(plane)
    }

    fn poll_timeout(&self) -> Time {
        self.shared.delayed.front().map_or(self.shared.next_timer, |&(due, ..)| due.min(self.shared.next_timer))
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.shared.completions.pop_front()
    }

    fn ports_ready(&self) -> u32 {
        self.shared.ports.open()
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    fn stuck(&self) -> Vec<Stuck> {
        let open = |c: &Connection| {
            let (stream, bytes_left) = c.abandoned.or_else(|| c.outbox.open_bytes())?;
            Some(Stuck { peer: c.peer, stream, bytes_left, reason: c.explain() })
        };
        self.connections.iter().filter_map(open).collect()
    }

    #[inline]
    fn prefetch_self(&self) {
        prefetch(&self.shared.delayed);
        prefetch(&self.shared.completions);
        prefetch(&self.shared.next_timer);
    }

    #[inline]
    fn prefetch_port(&self, plane: PlaneId, stage: Stage) {
        if stage == Stage::Connection {
            return self.shared.ports.prefetch(plane);
        }
        let front = self.shared.ports.peek_ready(plane);
        let Some(connection) = front.and_then(|id| self.connections.get(id)) else { return };
        if stage == Stage::Path {
            return connection.prefetch_sender();
        }
        connection.prefetch_next(plane.index(), &self.shared.common.shape);
        self.shared.flight.prefetch_free();
    }

    #[inline]
    fn prefetch(&self, body: &Body, stage: Stage) {
        match body {
            Body::MrData(data) => {
                let Some(connection) = self.connections.get(data.header.connection.index()) else { return };
                match stage {
                    Stage::Connection => {
                        connection.prefetch_receiver();
                        prefetch(&self.shared.shares);
                    }
                    Stage::Path => {
                        self.shared.shares.prefetch(data.header.connection.index());
                        connection.ledgers.get(data.header.path as usize).map(prefetch).unwrap_or_default();
                        connection.inbox.prefetch_stream(&data.segment);
                    }
                    Stage::Message => connection.inbox.prefetch_message(&data.segment),
                }
            }
            Body::MrAck(ack) => {
                let Some(connection) = self.connections.get(ack.connection.index()) else { return };
                match (stage, connection.paths.get(ack.path as usize)) {
                    (Stage::Connection, _) => connection.prefetch_acked(),
                    (Stage::Path, Some(path)) => {
                        prefetch(path);
                        connection.order.prefetch(ack.serial);
                        connection.outbox.prefetch_oldest();
                    }
                    (Stage::Message, Some(path)) => self.shared.flight.prefetch(path.flight.first),
                    _ => {}
                }
            }
            _ => {}
        }
    }
}
