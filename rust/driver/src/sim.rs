//! The run: the only event queue, the virtual clock, and the loop.
//!
//! Between two events every endpoint is settled: its completions have gone to the engine, what the
//! engine started is posted, each free port with something to send has pulled a packet, and the
//! timer stands at the endpoint's next timeout.

use metaroce_engine::pattern::{Expect, Fill, Pattern};
use metaroce_engine::{Engine, Memory};
use metaroce_fabric::{End, Fabric, Step, Target};
use metaroce_proto::{Endpoint, Stage};
use metaroce_wire::{Class, HostId, PlaneId, Time, prefetch};

use crate::packets::Packets;
use crate::queue::EventQueue;
use crate::record::Recorder;
use crate::spec::{DriverError, OnError};
use crate::telemetry::Sampler;
use crate::world::Connections;

/// An event is a kind in the top 4 bits and an index below.
pub(crate) const KIND_SHIFT: u32 = 28;
pub(crate) const INDEX: u32 = (1 << KIND_SHIFT) - 1;
const ARRIVE: u32 = 0;
pub(crate) const PORT_FREE: u32 = 1;
const TIMER: u32 = 2;
const START: u32 = 3;
const FAULT: u32 = 4;
const REROUTE: u32 = 5;
/// From here on, calls of the fabric's explicit ports: no events of the model, so neither counted nor in the digest.
pub(crate) const CALLS: u32 = 6 << KIND_SHIFT;
/// Planes take three bits of a port's index.
pub(crate) const PLANE_BITS: u32 = 3;
/// Where in [`Simulation::idle`] the bits of paused ports begin.
pub(crate) const PAUSED: u32 = 1 << PLANE_BITS;

/// How many events ahead the state of an arriving packet is asked for: its envelope; its body, at a
/// host; the connection there, or the route at a switch; the path, or the port; and the message.
const AHEAD: [usize; 5] = [14, 10, 7, 4, 2];

/// Iterations, and how the run stands.
#[derive(Debug)]
pub(crate) struct Progress {
    warmup: u32,
    left: u32,
    begun: Time,
    /// Start and end of each timed iteration.
    pub spans: Vec<(Time, Time)>,
    /// Set when the run is over.
    pub ended: Option<Ending>,
    pub now: Time,
    pub events: u64,
    pub digest: u64,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Done,
    TimeLimit,
    /// A request failed, or nothing is left that could happen.
    Stalled,
    /// Links wait for each other in a cycle.
    Deadlock,
}

impl Progress {
    pub(crate) fn new(warmup: u32, iterations: u32) -> Progress {
        Progress {
            warmup,
            left: warmup + iterations,
            begun: Time::ZERO,
            spans: Vec::new(),
            ended: None,
            now: Time::ZERO,
            events: 0,
            digest: 0,
        }
    }

    #[inline]
    fn note(&mut self, now: Time, event: u32) {
        self.now = now;
        self.events += 1;
        self.digest = fold(self.digest, now.0 ^ u64::from(event) << 32);
    }
}

/// One step of the digest.
pub(crate) const fn fold(digest: u64, value: u64) -> u64 {
    (digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Payload of a run, and what it is checked against.
#[derive(Debug)]
pub(crate) struct Verify {
    pub memory: Memory,
    pub pattern: Pattern,
    pub fills: Vec<Fill>,
    pub expects: Vec<Expect>,
    pub flip_at: u64,
    pub placements: u64,
    /// (wrong, checked), once known.
    pub result: Option<(u64, u64)>,
    /// The memory came from outside and goes back there.
    pub give_back: bool,
}

/// A run.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub queue: EventQueue,
    pub packets: Packets,
    pub fabric: Fabric,
    pub endpoints: Vec<Endpoint>,
    pub engine: Engine,
    pub verify: Option<Verify>,
    pub recorder: Recorder,
    pub sampler: Option<Sampler>,
    pub progress: Progress,
    pub connections: Connections,
    /// Entries that each connection sends and has not completed, in the order of `connections`; empty if none is
    /// retired.
    pub unsent: Vec<Vec<u32>>,
    pub hosts_of_ranks: Vec<u32>,
    pub rank_of_host: Vec<u32>,
    /// Ports that send nothing now, by host, and from bit [`PAUSED`] on those that may send no data.
    pub idle: Vec<u32>,
    /// Switch ports are explicit.
    pub explicit: bool,
    /// Time of the one timer event of each host that counts.
    pub timer_at: Vec<Time>,
    pub faults: Vec<(Time, Target, bool)>,
    pub on_error: OnError,
    pub limit: Time,
    /// See [`Simulation::next_pause`].
    pub pause: Time,
    /// Connections and routes are too many for the cache: look further ahead.
    pub far_state: bool,
}

impl Simulation {
    /// Runs to an end.
    pub(crate) fn run(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), DriverError> {
        for (index, &(at, ..)) in self.faults.iter().enumerate() {
            self.queue.push(at, FAULT << KIND_SHIFT | index as u32);
        }
        self.begin_iteration(Time::ZERO);
        self.pause = self.next_pause();
        while self.progress.ended.is_none() {
            if self.progress.events & 0xFFFF == 0xFFFF && interrupted() {
                return Err(DriverError::Interrupted);
            }
            let Some((now, event)) = self.queue.pop() else {
                self.progress.ended = Some(Ending::Stalled);
                break;
            };
            if now > self.pause {
                self.pause_before(now)?;
                if self.progress.ended.is_some() {
                    break;
                }
            }
            if event >= CALLS {
                self.called(now, event);
                continue;
            }
            self.progress.note(now, event);
            self.look_ahead();
            self.handle(now, event);
        }
        match &mut self.sampler {
            Some(sampler) => sampler.finish(self.progress.now, &self.endpoints, &self.rank_of_host),
            None => Ok(()),
        }
    }

    /// When something that is no event is due: a sample, or the limit.
    fn next_pause(&self) -> Time {
        self.sampler.as_ref().map_or(self.limit, |sampler| self.limit.min(sampler.next))
    }

    /// The next event is at `now`: takes the samples due before it, and ends the run at its limit.
    #[cold]
    #[inline(never)]
    fn pause_before(&mut self, now: Time) -> Result<(), DriverError> {
        if let Some(sampler) = &mut self.sampler {
            sampler.catch_up(now.min(self.limit), &self.endpoints, &self.rank_of_host)?;
        }
        self.pause = self.next_pause();
        if now > self.limit {
            self.progress.now = self.limit;
            self.progress.ended = Some(Ending::TimeLimit);
        }
        Ok(())
    }

    /// Asks for what the next events will touch. No effect on results.
    #[inline]
    fn look_ahead(&mut self) {
        let first = if self.queue.take_opened() { 0 } else { AHEAD[0] };
        for ahead in first..=AHEAD[0] {
            if let Some((ARRIVE, slot)) = self.event_in(ahead) {
                self.packets.prefetch_envelope(slot);
            }
        }
        if self.far_state {
            self.look_further();
        }
    }

    /// The same for state that does not fit the cache.
    fn look_further(&self) {
        if let Some((PORT_FREE, port)) = self.event_in(AHEAD[0]) {
            prefetch(&self.endpoints[(port >> PLANE_BITS) as usize]);
        }
        if let Some((ARRIVE, slot)) = self.event_in(AHEAD[1])
            && let End::Host(_) = self.fabric.end(self.packets.get(slot).0)
        {
            self.packets.prefetch_body(slot);
        }
        for (at, stage) in [(AHEAD[2], Stage::Connection), (AHEAD[3], Stage::Path), (AHEAD[4], Stage::Message)] {
            match self.event_in(at) {
                Some((ARRIVE, slot)) => {
                    let (envelope, body) = self.packets.get(slot);
                    match self.fabric.end(envelope) {
                        End::Host(host) => self.endpoints[host.index()].prefetch(body, stage),
                        End::Switch if stage == Stage::Connection => self.fabric.prefetch_choice(envelope),
                        End::Switch if stage == Stage::Path => self.fabric.prefetch_port(envelope),
                        End::Switch => {}
                    }
                }
                Some((PORT_FREE, port)) => {
                    let plane = PlaneId((port & ((1 << PLANE_BITS) - 1)) as u8);
                    self.endpoints[(port >> PLANE_BITS) as usize].prefetch_port(plane, stage);
                }
                _ => {}
            }
        }
    }

    /// Kind and index of the event that pops `ahead` pops from now.
    #[inline]
    fn event_in(&self, ahead: usize) -> Option<(u32, u32)> {
        self.queue.peek(ahead).map(|event| (event >> KIND_SHIFT, event & INDEX))
    }

    #[inline]
    fn handle(&mut self, now: Time, event: u32) {
        let index = (event & INDEX) as usize;
        match event >> KIND_SHIFT {
            ARRIVE => self.arrive(now, event),
            PORT_FREE => {
                self.idle[index >> PLANE_BITS] |= 1 << (index & ((1 << PLANE_BITS) - 1));
                self.pull(now, index >> PLANE_BITS);
            }
            TIMER
                // Only the latest arming counts; events that it overtook do nothing.
                if self.timer_at[index] == now => {
                    self.timer_at[index] = Time::NEVER;
                    self.endpoints[index].handle_timeout(now);
                    self.settle(now, index);
                }
            START => {
                self.execute(now, index as u32);
                // It may be complete already.
                self.start_ready(now);
                let rank = self.engine.program().rank_of(index as u32);
                self.settle(now, self.hosts_of_ranks[rank as usize] as usize);
            }
            FAULT => self.fault(now, index),
            REROUTE => self.fabric.reroute(),
            _ => {}
        }
    }

    /// A packet has reached the end of its link.
    #[inline]
    fn arrive(&mut self, now: Time, slot: u32) {
        if self.packets.take_doom(slot) {
            self.fabric.drop_on_dead_link();
            self.packets.discard(slot);
            return;
        }
        let envelope = self.packets.envelope(slot);
        match self.fabric.end(envelope) {
            End::Switch if self.explicit => self.enqueue(now, slot),
            End::Switch => match self.fabric.forward(now, envelope) {
                Step::Arrives(at) => self.queue.push(at, slot),
                Step::Dropped(_) => self.packets.discard(slot),
            },
            End::Host(host) => {
                self.fabric.deliver();
                self.deliver(now, host, slot);
            }
        }
    }

    fn deliver(&mut self, now: Time, host: HostId, slot: u32) {
        let (envelope, body) = self.packets.get(slot);
        let plane = envelope.plane;
        let placement = self.endpoints[host.index()].handle_packet(now, envelope, body);
        self.packets.discard(slot);
        if let Some(placement) = placement {
            self.recorder.placement(now, plane, &placement);
            if self.verify.is_some() {
                self.place(host, &placement);
            }
        }
        self.settle(now, host.index());
    }

    /// Restores the invariant of this module for one host.
    #[inline]
    fn settle(&mut self, now: Time, host: usize) {
        loop {
            // Before what completes with them: whoever waits for that sees their effect.
            while let Some(atomic) = self.endpoints[host].poll_atomic() {
                self.atomic(host, &atomic);
            }
            let Some(completion) = self.endpoints[host].poll_completion() else {
                break;
            };
            self.complete(now, &completion);
            self.start_ready(now);
        }
        self.pull(now, host);
    }

    fn begin_iteration(&mut self, now: Time) {
        if let Some(verify) = &mut self.verify {
            verify.pattern.fill(&mut verify.memory, &verify.fills);
        }
        self.progress.begun = now;
        self.engine.begin();
        self.start_ready(now);
        for host in 0..self.endpoints.len() {
            self.pull(now, host);
        }
    }

    /// All entries are complete.
    pub(crate) fn end_iteration(&mut self, now: Time) {
        self.progress.left -= 1;
        if self.progress.warmup > 0 {
            self.progress.warmup -= 1;
        } else {
            self.progress.spans.push((self.progress.begun, now));
        }
        if self.progress.left > 0 {
            self.begin_iteration(now);
            return;
        }
        self.progress.ended = Some(Ending::Done);
        if let Some(verify) = &mut self.verify {
            verify.result = Some(verify.pattern.check(&verify.memory, &verify.expects));
        }
    }

    /// Executes all entries that may start.
    fn start_ready(&mut self, now: Time) {
        while let Some(wqe) = self.engine.start_next() {
            let start = Time(self.progress.begun.0 + self.engine.program().start(wqe));
            if start > now {
                self.queue.push(start, START << KIND_SHIFT | wqe);
            } else {
                self.execute(now, wqe);
            }
        }
    }

    // [F4.free-port-pulls]
    /// Lets each free port of a host that has something to send pull a packet; sets the timer.
    #[inline]
    pub(crate) fn pull(&mut self, now: Time, host: usize) {
        if self.idle[host] >= 1 << PAUSED {
            return self.pull_paused(now, host);
        }
        let endpoint = &mut self.endpoints[host];
        // A pull for one port may make another ready.
        while let ports @ 1.. = endpoint.ports_ready() & self.idle[host] {
            let plane = PlaneId(ports.trailing_zeros() as u8);
            let mut sent = false;
            while let Some(mut packet) = endpoint.poll_transmit(now, plane) {
                sent = true;
                if let Step::Arrives(at) = self.fabric.inject(now, &mut packet.envelope) {
                    let slot = self.packets.insert(packet);
                    self.queue.push(at, slot);
                }
                // A control packet is a few nanoseconds long: what follows it lines up behind it.
                if packet.envelope.class == Class::Data {
                    break;
                }
            }
            if sent {
                self.idle[host] &= !(1 << plane.0);
                let free = self.fabric.port_free(HostId(host as u32), plane);
                self.queue.push(free, PORT_FREE << KIND_SHIFT | (host as u32) << PLANE_BITS | u32::from(plane.0));
            }
        }
        // A timeout that has passed is due now, or the event would not be known as the one that counts.
        let due = endpoint.poll_timeout().max(now);
        if due < self.timer_at[host] {
            self.timer_at[host] = due;
            self.queue.push(due, TIMER << KIND_SHIFT | host as u32);
        }
    }

    fn fault(&mut self, now: Time, index: usize) {
        let (_, target, up) = self.faults[index];
        let delay = self.fabric.set(target, up);
        let fabric = &self.fabric;
        self.packets.doom(|link| !fabric.is_up(link));
        self.queue.push(now + delay, REROUTE << KIND_SHIFT);
        self.follow(now);
    }
}
