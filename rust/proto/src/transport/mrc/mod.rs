//! An MRC-like transport, independent of any implementation: what public text tells of OCP Multipath Reliable Connection
//! 1.0, so that a MetaRoCE-style transport can be compared with its peer.
//!
//! A connection is one QP with one sequence of 24-bit numbers, sprayed packet by packet over many entropy values in all
//! planes. The receiver places every packet where it belongs and answers with selective acknowledgements: a cumulative
//! number, 64 bits around what has just come, the reflected entropy value and its mark. The sender has one NSCC window for
//! the QP, infers losses from how much overtakes a packet, asks by probes where that says nothing, and has a timer as
//! the last resort. An entropy value that swallowed a packet is left at once and probed until it answers.
//!
//! [`entropy`] chooses routes, [`window`] says how much, [`board`] and [`tracker`] remember numbers, [`sender`] builds
//! what ports pull, [`acks`] takes acknowledgements, [`receiver`] places and acknowledges, [`repair`] runs the timers.
//!
//! MRC itself has Write and Write with immediate alone. A Send here stands for what libraries make of it, a Write with
//! immediate to a buffer that the receiver has told of: it carries the receive's index, and costs no clear-to-send.
//!
//! Left out: explicit source routes and the IPv6 headers they need (entropy is the UDP source port, as in the ECMP mode),
//! transport acknowledgements beside the selective ones (they would say the same), a reverse set of entropy values
//! (acknowledgements go back the way the packet came), port status messages, the receiver's window penalty, the difference
//! between a trim at the last hop and elsewhere (the fabric does not tell), and the bound on Writes with immediate.

mod acks;
mod board;
mod connection;
mod entropy;
mod observe;
mod receiver;
mod repair;
mod sender;
pub(crate) mod settings;
mod tracker;
mod window;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use metaroce_wire::{Body, ConnId, Envelope, HostId, Opcode, Packet, PlaneId, Rate, Time, prefetch};

use self::connection::Connection;
use self::entropy::{Numbers, Profile};
use self::window::Rule;
use super::ports::Ports;
use super::{MAX_PLANES, Stage, Stuck, Transport};
use crate::config::{Environment, MrcConfig};
use crate::counters::Counters;
use crate::reciprocal::Reciprocal;
use crate::telemetry::PathTable;
use crate::verbs::{Completion, Placement, PostError, ReceiveRequest, Regions, WorkRequest};

/// Sequence numbers are granted in such units (public).
pub const MPR_UNIT: u64 = 128;
/// Largest windows that a QP may have on the way beyond its cumulative number, where the setting leaves it open. Ours.
pub const MPR_WINDOWS: u64 = 4;
/// Most units: eight bits (public).
pub const MPR_MOST: u64 = 255;

/// All QPs of one host. What every packet touches is first.
#[derive(Debug)]
#[repr(C)]
pub struct Mrc {
    connections: Vec<Connection>,
    ports: Ports,
    /// When the first of `timers` is due.
    next_timer: Time,
    /// Acknowledgements that wait for company: when they leave at the latest, connection, and which of its
    /// acknowledgements it is; void once that has left.
    delayed: VecDeque<(Time, u32, u32)>,
    completions: VecDeque<Completion>,
    /// Acknowledgements sent, by connection.
    told: Vec<u32>,
    /// Numbers that a QP may have on the way beyond its cumulative one.
    mpr: u64,
    /// Turns bytes into packets.
    packets: Reciprocal,
    host: HostId,
    base_rtt: Time,
    /// How long a packet may be on its way at first.
    first_timeout: Time,
    rule: Rule,
    numbers: Numbers,
    config: MrcConfig,
    counters: Counters,
    counts: PathTable,
    timers: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Mrc {
    /// A host without connections.
    pub fn new(config: &MrcConfig, environment: Environment) -> Mrc {
        let planes = environment.ports.len().min(MAX_PLANES);
        let total = Rate(environment.ports.iter().map(|rate| rate.0).sum());
        let rule = Rule::new(config, total.bytes_in(environment.base_rtt).0, environment.base_rtt);
        let of_plane = |all: u32| all.div_ceil(planes.max(1) as u32) as u16;
        let active = of_plane(config.entropy_count);
        let numbers = Numbers {
            planes,
            active,
            backup: of_plane(config.backup_count),
            // A plane at least may die.
            least: config.min_active.min(active.into()),
            ports: config.entropies,
        };
        let windows = (MPR_WINDOWS * u64::from(rule.cap)).div_ceil(MPR_UNIT * u64::from(config.mtu));
        let units = if config.mpr == 0 { windows } else { config.mpr.into() };
        Mrc {
            host: environment.host,
            base_rtt: environment.base_rtt,
            first_timeout: repair::first_timeout(config, environment.base_rtt),
            packets: Reciprocal::new(config.mtu.into()),
            told: Vec::new(),
            next_timer: Time::NEVER,
            numbers,
            rule,
            mpr: units.clamp(1, MPR_MOST) * MPR_UNIT,
            connections: Vec::new(),
            ports: Ports::new(planes),
            timers: BinaryHeap::new(),
            delayed: VecDeque::new(),
            completions: VecDeque::new(),
            counters: Counters::default(),
            counts: PathTable::default(),
            config: config.clone(),
        }
    }

    /// Puts a connection into the ready queues of `planes`, if it can send.
    #[inline]
    fn wake(&mut self, id: usize, planes: u8) {
        let connection = &mut self.connections[id];
        let new = planes & connection.open_planes() & !connection.queued;
        if new == 0 || !connection.can_send(self.mpr) {
            return;
        }
        connection.queued |= new;
        self.ports.line_up(id, new);
    }

    #[inline]
    fn arm(&mut self, id: usize, due: Time) {
        let connection = &mut self.connections[id];
        if due < connection.armed {
            connection.armed = due;
            self.timers.push(Reverse((due, id as u32)));
            self.next_timer = self.next_timer.min(due);
        }
    }

    #[inline]
    fn at(&self, id: Option<usize>) -> Option<&Connection> {
        self.connections.get(id?)
    }

    /// Asks for what the pulls of `plane` after the next will touch: what a connection whose lines have been asked for
    /// leads to, and the lines of the one behind it.
    #[inline]
    fn prefetch_turns(&self, plane: PlaneId) {
        if let Some(second) = self.at(self.ports.peek_behind(plane, 1)) {
            second.prefetch_next(plane);
        }
        if let Some(third) = self.at(self.ports.peek_behind(plane, 2)) {
            third.prefetch_sender();
        }
    }

    /// Asks for the connection whose timer is next.
    #[inline]
    fn prefetch_timer(&self) {
        let first = self.timers.peek().map(|&Reverse((_, id))| id as usize);
        if let Some(connection) = self.at(first) {
            connection.prefetch_sender();
        }
    }

    /// Asks for the connection whose acknowledgement has waited longest.
    #[inline]
    fn prefetch_delayed(&self) {
        let first = self.delayed.front().map(|&(_, id, _)| id as usize);
        if let Some(connection) = self.at(first) {
            connection.prefetch_receiver();
        }
    }
}

/// All planes.
const ALL: u8 = u8::MAX;

impl Transport for Mrc {
    fn connect(&mut self, peer: HostId) -> ConnId {
        let first = u64::from(self.config.first_psn);
        self.connections.push(Connection::new(self.config.mtu, first, &self.rule, (self.host, peer)));
        self.told.push(0);
        ConnId(self.connections.len() as u32 - 1)
    }

    fn bind(&mut self, connection: ConnId, remote: ConnId) {
        let connection = &mut self.connections[connection.index()];
        (connection.remote, connection.back.remote) = (remote, remote);
    }

    fn supports(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Write | Opcode::WriteImm | Opcode::Send)
    }

    fn post(&mut self, now: Time, connection: ConnId, request: WorkRequest) -> Result<(), PostError> {
        let id = connection.index();
        let state = &mut self.connections[id];
        if state.failed {
            return Err(PostError::Failed(connection.0));
        }
        if state.board.is_empty() {
            state.last_progress = now;
        }
        if state.outbox.post(request).is_none() {
            let completions = &mut self.completions;
            state.outbox.flush(request.stream, &mut |ended, status| {
                completions.push_back(Completion::of_request(connection, &ended, status));
            });
        }
        self.open(id);
        self.resume_probing(now, id);
        self.wake(id, ALL);
        Ok(())
    }

    fn post_receive(&mut self, connection: ConnId, request: ReceiveRequest) {
        let state = &mut self.connections[connection.index()];
        if state.failed {
            let status = crate::verbs::CompletionStatus::Flushed;
            self.completions.push_back(Completion::of_receive(connection, &request, status));
            return;
        }
        let completions = &mut self.completions;
        state.inbox.post(request, |effect| completions.extend(effect.completion(connection)));
    }

    fn handle_packet(&mut self, now: Time, packet: (&Envelope, &Body), regions: &Regions) -> Option<Placement> {
        let (envelope, body) = packet;
        match body {
            Body::MrcData(data) => return self.handle_data(now, envelope, data, regions),
            Body::MrcSack(sack) => self.handle_sack(now, sack),
            Body::MrcNack(nack) => self.handle_nack(now, nack),
            Body::MrcProbe(probe) => self.handle_probe(envelope, probe),
            // Of another transport.
            _ => {}
        }
        None
    }

    fn deny(&mut self, now: Time, connection: ConnId, plane: PlaneId, denied: bool) -> Result<(), PostError> {
        let id = connection.index();
        self.open(id);
        let profile = self.connections[id].profile.as_mut();
        if !profile.is_some_and(|profile| profile.deny(plane.index(), denied)) {
            return Err(PostError::NoPlaneLeft(plane.0));
        }
        self.resume_probing(now, id);
        self.wake(id, ALL);
        Ok(())
    }

    fn handle_timeout(&mut self, now: Time) {
        while self.next_timer <= now
            && let Some(Reverse((due, id))) = self.timers.pop()
        {
            self.next_timer = self.timers.peek().map_or(Time::NEVER, |&Reverse((due, _))| due);
            self.prefetch_timer();
            // An entry that was overtaken by an earlier one stands for nothing.
            if self.connections[id as usize].armed == due {
                self.connections[id as usize].armed = Time::NEVER;
                self.on_timer(now, id as usize);
            }
        }
        self.send_delayed(now);
    }

    fn poll_transmit(&mut self, now: Time, plane: PlaneId) -> Option<Packet> {
        if let Some(packet) = self.ports.next_control(plane) {
            return Some(packet);
        }
        while let Some(id) = self.ports.first_ready(plane) {
            if let Some(packet) = self.pull(now, id, plane) {
                self.ports.rotate(plane);
                self.prefetch_turns(plane);
                return Some(packet);
            }
            self.ports.leave(plane);
            self.connections[id].queued &= !(1 << plane.0);
        }
        None
    }

    fn poll_control(&mut self, plane: PlaneId) -> Option<Packet> {
        self.ports.next_control(plane)
    }

    fn poll_timeout(&self) -> Time {
        self.delayed.front().map_or(self.next_timer, |&(due, ..)| due.min(self.next_timer))
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn ports_ready(&self) -> u32 {
        self.ports.open()
    }

    fn counters(&self) -> &Counters {
        &self.counters
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
        prefetch(&self.delayed);
        prefetch(&self.told);
        prefetch(&self.first_timeout);
        prefetch(&self.rule);
        prefetch(&self.numbers);
        prefetch(&self.config);
        prefetch(&self.counters);
    }

    #[inline]
    fn prefetch(&self, body: &Body, stage: Stage) {
        match body {
            Body::MrcData(data) => {
                let Some(connection) = self.connections.get(data.connection.index()) else { return };
                match stage {
                    Stage::Connection => connection.prefetch_receiver(),
                    Stage::Path => connection.inbox.prefetch_stream(&data.segment),
                    Stage::Message => connection.inbox.prefetch_message(&data.segment),
                }
            }
            Body::MrcSack(sack) => {
                let Some(connection) = self.connections.get(sack.connection.index()) else { return };
                match stage {
                    Stage::Connection => connection.prefetch_acknowledged(),
                    Stage::Path => connection.prefetch_landing(sack),
                    Stage::Message => {}
                }
            }
            _ => {}
        }
    }

    /// Port 0 stands for all, and for the timers.
    #[inline]
    fn prefetch_port(&self, plane: PlaneId, stage: Stage) {
        if plane.0 > 0 {
            return;
        }
        match stage {
            Stage::Connection => {
                self.timers.peek().map(prefetch).unwrap_or_default();
                self.delayed.front().map(prefetch).unwrap_or_default();
            }
            Stage::Path => {
                self.prefetch_timer();
                self.prefetch_delayed();
            }
            Stage::Message => {
                let first = self.timers.peek().map(|&Reverse((_, id))| id as usize);
                self.at(first).map(Connection::prefetch_oldest).unwrap_or_default();
            }
        }
        for plane in (0..self.numbers.planes as u8).map(PlaneId) {
            let first = || self.at(self.ports.peek_ready(plane));
            match stage {
                Stage::Connection => self.ports.prefetch(plane),
                Stage::Path => {
                    first().map(Connection::prefetch_sender).unwrap_or_default();
                    self.at(self.ports.peek_behind(plane, 1)).map(Connection::prefetch_sender).unwrap_or_default();
                }
                Stage::Message => {
                    first().map(|first| first.prefetch_next(plane)).unwrap_or_default();
                    self.prefetch_turns(plane);
                }
            }
        }
    }
}

impl Mrc {
    /// Gives a connection that is to send its entropy values.
    fn open(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        if connection.profile.is_none() {
            connection.profile = Some(Profile::new(self.numbers, connection.hash));
            connection.ev_probe_at = vec![Time::NEVER; self.numbers.planes].into();
            connection.turn = (connection.hash as usize % self.numbers.planes.max(1)) as u8;
        }
    }
}
