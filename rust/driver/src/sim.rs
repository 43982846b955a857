//! The run: the virtual clock, and the loop over all events in the order of their times.
//!
//! Between two events every endpoint is settled: its completions have gone to the engine, what the
//! engine started is posted, each free port with something to send has pulled a packet, and the
//! timer stands at the endpoint's next timeout.

use metaroce_engine::pattern::{Expect, Fill, Pattern};
use metaroce_engine::{Engine, Memory};
use metaroce_fabric::{End, Fabric, MAX_PLANES, Step, Target};
use metaroce_proto::{Endpoint, Stage};
use metaroce_wire::{Class, HostId, Packet, PlaneId, Time};

use crate::event::{self, Kind};
use crate::networks::{Connections, other_host};
use crate::offload::Devices;
use crate::packets::Packets;
use crate::parallel::Part;
use crate::record::Recorder;
use crate::spec::{DriverError, OnError};
use crate::telemetry::Sampler;
use crate::upcoming::Upcoming;
use crate::windows::Schedule;

/// The node of what happens everywhere, which no queue by nodes takes.
pub(crate) const ANY: u32 = 0;

/// Where in [`Simulation::ports`] the bits of paused ports begin.
pub(crate) const PAUSED: u32 = 1 << MAX_PLANES;
/// Planes take three bits of a port's number.
const PLANE_BITS: u32 = MAX_PLANES.trailing_zeros();

/// Which of the next events at hosts the state is asked for: the message of the first, and so on.
const STAGES: [Stage; 3] = [Stage::Message, Stage::Path, Stage::Connection];

/// Events between two questions whether to go on: some milliseconds.
pub(crate) const BETWEEN_SIGNALS: u64 = 1 << 14;

/// Iterations, and how the run stands.
#[derive(Debug)]
pub(crate) struct Progress {
    warmup: u32,
    left: u32,
    begun: Time,
    /// Start and end of each timed iteration.
    pub spans: Vec<(Time, Time)>,
    /// Set when the run is over, and since when: what else happens in that window still does.
    pub ended: Option<Ending>,
    pub finished: Time,
    /// When the last entry ended, and the last event.
    pub last_end: Time,
    pub now: Time,
    pub events: u64,
    /// Sum over all events, so that it does not depend on the order of those that do not touch each other.
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
            finished: Time::NEVER,
            last_end: Time::ZERO,
            now: Time::ZERO,
            events: 0,
            digest: 0,
        }
    }

    #[inline]
    pub(crate) fn note(&mut self, now: Time, name: u64) {
        self.now = self.now.max(now);
        self.events += 1;
        self.digest = self.digest.wrapping_add(fold(now.0, event::trace(name)));
    }

    /// The same for `events`, the last of them now, whose digests add up to `digest`.
    #[inline]
    pub(crate) fn note_all(&mut self, now: Time, events: u64, digest: u64) {
        self.now = self.now.max(now);
        self.events += events;
        self.digest = self.digest.wrapping_add(digest);
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
    pub queue: Schedule,
    pub packets: Packets,
    pub fabric: Fabric,
    pub endpoints: Vec<Endpoint>,
    pub engine: Engine,
    /// If there are any, they start the entries, not the engine.
    pub devices: Devices,
    /// Until the first iteration is over: the others would move the same bytes.
    pub verify: Option<Verify>,
    /// After it.
    pub verified: Option<Verify>,
    pub recorder: Recorder,
    pub sampler: Option<Sampler>,
    pub progress: Progress,
    pub connections: Connections,
    /// Entries that each connection sends and has not completed, in the order of `connections`; empty if none is
    /// retired.
    pub unsent: Vec<Vec<u32>>,
    pub hosts_of_ranks: Vec<u32>,
    pub rank_of_host: Vec<u32>,
    /// See [`other_host`].
    pub other_hosts: Vec<u32>,
    /// By host: ports of which it is known when they will be free, and from bit [`PAUSED`] on those that may send no
    /// data.
    pub ports: Vec<u32>,
    /// Switch ports are explicit.
    pub explicit: bool,
    /// Time of the one timer event of each host that counts.
    pub timer_at: Vec<Time>,
    pub faults: Vec<(Time, Target, bool)>,
    pub on_error: OnError,
    pub limit: Time,
    /// See [`Simulation::next_pause`].
    pub pause: Time,
    /// What happens in a window at one node reaches no other in it: the least delay of a link.
    pub window: u64,
    /// Connections and routes are too many for the cache: what packets lead to is asked for as well.
    pub far_state: bool,
    /// Names of the next events at hosts, for that.
    pub upcoming: Upcoming,
    /// Which part of the run this is, if it has been divided.
    pub part: Option<Part>,
}

impl Simulation {
    /// Runs to an end.
    pub(crate) fn run(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), DriverError> {
        self.begin();
        loop {
            self.proceed(interrupted)?;
            if !self.pass_pause()? {
                break;
            }
        }
        match self.progress.ended {
            Some(Ending::TimeLimit) => {}
            Some(_) => self.progress.now = self.progress.finished,
            None => self.progress.ended = Some(Ending::Stalled),
        }
        match &mut self.sampler {
            Some(sampler) => sampler.finish(self.progress.now, &self.endpoints, &self.rank_of_host),
            None => Ok(()),
        }
    }

    /// What happens at time 0, and the schedule of faults.
    pub(crate) fn begin(&mut self) {
        for (index, &(at, ..)) in self.faults.iter().enumerate() {
            self.queue.push(at, ANY, event::other(Kind::Fault, index as u32));
        }
        self.begin_iteration(Time::ZERO);
        self.pause = self.next_pause();
    }

    /// Runs to the end of the instant `pause`.
    pub(crate) fn proceed(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), DriverError> {
        if matches!(self.queue, Schedule::ByNode(_)) {
            return self.proceed_by_node(interrupted);
        }
        while let Schedule::Strict(queue) = &mut self.queue
            && let Some((now, name)) = queue.pop(self.pause)
        {
            if queue.has_fresh() {
                self.look_ahead();
            }
            if self.far_state {
                self.look_further(name);
            }
            if let Some(slot) = event::arriving(name) {
                self.progress.note(now, name);
                self.arrive(now, slot);
            } else {
                self.happen(now, name);
            }
            if self.progress.events.is_multiple_of(BETWEEN_SIGNALS) && interrupted() {
                return Err(DriverError::Interrupted);
            }
        }
        Ok(())
    }

    /// Something happens that is no arrival.
    #[inline(always)]
    pub(crate) fn happen(&mut self, now: Time, name: u64) {
        let (kind, index) = event::kind(name);
        if kind >= Kind::Dequeue {
            return self.called(now, kind, index);
        }
        // Every part sees a fault: one counts it.
        if !matches!(kind, Kind::Fault | Kind::Reroute) || self.part.as_ref().is_none_or(|part| part.index == 0) {
            self.progress.note(now, name);
        }
        self.handle(now, kind, index as usize);
    }

    /// The run is over. What else happens in this window still does, or its end would depend on the order in which
    /// nodes that know nothing of each other are looked at.
    #[cold]
    pub(crate) fn finish(&mut self, now: Time, ending: Ending) {
        // Of failures the first counts, in whatever order nodes are looked at.
        let earlier = self.progress.ended == Some(Ending::Stalled) && now < self.progress.finished;
        if self.progress.ended.is_none() || earlier {
            (self.progress.ended, self.progress.finished) = (Some(ending), now);
            self.pause = self.next_pause();
        }
    }

    /// When something that is no event is due: a sample, the limit, or the end.
    fn next_pause(&self) -> Time {
        let limit = self.limit.min(self.last_instant());
        match &self.sampler {
            // What happens after the end is not sampled.
            Some(sampler) if self.progress.finished == Time::NEVER => limit.min(sampler.next),
            _ => limit,
        }
    }

    /// The last instant of the window in which the run was over.
    fn last_instant(&self) -> Time {
        match self.progress.finished {
            Time::NEVER => Time::NEVER,
            Time(finished) => Time(finished - finished % self.window + self.window - 1),
        }
    }

    /// Nothing more happens up to `pause`: takes the samples due before the next event. Answers whether the run goes on.
    #[cold]
    #[inline(never)]
    fn pass_pause(&mut self) -> Result<bool, DriverError> {
        let Some(next) = self.queue.next_time() else { return Ok(false) };
        if let Some(sampler) = &mut self.sampler {
            let until = next.min(self.limit).min(self.progress.finished);
            sampler.catch_up(until, &self.endpoints, &self.rank_of_host)?;
        }
        self.pause = self.next_pause();
        if next > self.limit && self.progress.ended.is_none() {
            self.progress.now = self.limit;
            self.progress.ended = Some(Ending::TimeLimit);
        }
        Ok(next <= self.limit.min(self.last_instant()))
    }

    /// Asks for what the next events will touch: packets of those that follow the open ones, and if there is too much
    /// of it for the cache, ports and bodies of the open ones. No effect on results.
    fn look_ahead(&mut self) {
        let Schedule::Strict(queue) = &mut self.queue else { return };
        queue.coming(|name| {
            if let Some(slot) = event::arriving(name) {
                self.packets.prefetch_envelope(slot);
            }
        });
        for name in queue.fresh().filter(|_| self.far_state) {
            let Some(slot) = event::arriving(name) else {
                if let (Kind::PortFree, port) = event::kind(name) {
                    self.endpoints[port_of(port).0].prefetch_self();
                    self.upcoming.push(name);
                }
                continue;
            };
            let (envelope, _) = self.packets.get(slot);
            match self.fabric.end(envelope) {
                End::Host(host) => {
                    self.endpoints[host.index()].prefetch_self();
                    self.packets.prefetch_body(slot);
                    self.upcoming.push(name);
                }
                End::Switch => self.fabric.prefetch_port(envelope),
                End::Nowhere => {}
            }
        }
    }

    /// The event `name` at a host is due: asks for what the next ones at hosts will touch.
    #[inline]
    fn look_further(&mut self, name: u64) {
        if !self.upcoming.pop(name) {
            return;
        }
        for (ahead, stage) in STAGES.into_iter().enumerate() {
            let Some(name) = self.upcoming.get(ahead) else { return };
            if let Some(slot) = event::arriving(name) {
                let (envelope, body) = self.packets.get(slot);
                self.endpoints[envelope.dst.index()].prefetch(body, stage);
            } else if let (Kind::PortFree, port) = event::kind(name) {
                let (host, plane) = port_of(port);
                self.endpoints[host].prefetch_port(plane, stage);
            }
        }
    }

    #[inline(always)]
    fn handle(&mut self, now: Time, kind: Kind, index: usize) {
        if kind == Kind::PortFree {
            let (host, plane) = port_of(index as u32);
            self.ports[host] &= !(1 << plane.0);
            self.pull(now, host);
        } else {
            self.handle_other(now, kind, index);
        }
    }

    #[inline(never)]
    fn handle_other(&mut self, now: Time, kind: Kind, index: usize) {
        match kind {
            Kind::Timer
                // Only the latest arming counts; events that it overtook do nothing.
                if self.timer_at[index] == now => {
                    self.timer_at[index] = Time::NEVER;
                    self.endpoints[index].handle_timeout(now);
                    self.settle(now, index);
                }
            Kind::Start => {
                self.execute(now, index as u32);
                // It may be complete already.
                self.start_ready(now);
                let rank = self.engine.program().rank_of(index as u32);
                self.settle(now, self.hosts_of_ranks[rank as usize] as usize);
            }
            Kind::Fault => self.fault(now, index),
            Kind::Reroute => {
                self.fabric.reroute();
                self.reconsider();
            }
            Kind::Device if self.device_timeout(now, index) => {
                self.settle(now, self.hosts_of_ranks[index] as usize);
            }
            _ => {}
        }
    }

    /// A packet has reached the end of its link.
    #[inline]
    fn arrive(&mut self, now: Time, slot: u32) {
        let envelope = self.packets.envelope(slot);
        match self.fabric.end(envelope) {
            End::Switch if self.explicit => self.enqueue(now, slot),
            End::Switch => match self.fabric.forward(now, envelope) {
                Step::Arrives(at) if self.part.is_some() => self.hand_over(at, slot),
                Step::Arrives(at) => {
                    let (link, node) = (envelope.link, self.fabric.far_end(envelope.link));
                    self.queue.push_away(at, node, event::arrival(at, link, slot));
                }
                Step::Dropped(_) => self.packets.discard(slot),
            },
            End::Host(host) => {
                self.fabric.deliver();
                self.deliver(now, host, slot);
            }
            End::Nowhere => {
                self.fabric.drop_on_dead_link();
                self.packets.discard(slot);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn deliver(&mut self, now: Time, host: HostId, slot: u32) {
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

    /// Restores the invariant of this module for one host, and for the other one of its rank.
    #[inline(always)]
    pub(crate) fn settle(&mut self, now: Time, host: usize) {
        self.take_completions(now, host);
        if !self.other_hosts.is_empty() {
            self.settle_other(now, host);
        }
        self.pull(now, host);
    }

    /// What completes at one host of a rank may post at the other one, where that may complete something at once.
    #[inline(never)]
    fn settle_other(&mut self, now: Time, host: usize) {
        let Some(other) = other_host(&self.other_hosts, host) else { return };
        let (mut next, mut after) = (other, host);
        while self.take_completions(now, next) {
            (next, after) = (after, next);
        }
        self.pull(now, other);
    }

    /// Hands what is complete at `host` to the engine, and starts what waits for it. Answers whether there was any.
    #[inline(always)]
    fn take_completions(&mut self, now: Time, host: usize) -> bool {
        let mut any = false;
        loop {
            // Before what completes with them: whoever waits for that sees their effect.
            while let Some(atomic) = self.endpoints[host].poll_atomic() {
                self.atomic(host, &atomic);
            }
            let Some(completion) = self.endpoints[host].poll_completion() else {
                return any;
            };
            any = true;
            self.complete(now, &completion);
            self.start_ready(now);
        }
    }

    fn begin_iteration(&mut self, now: Time) {
        if let Some(verify) = &mut self.verify {
            verify.pattern.fill(&mut verify.memory, &verify.fills);
        }
        self.progress.begun = now;
        if self.devices.run_it() {
            self.begin_devices(now);
        } else {
            self.engine.begin();
        }
        self.start_ready(now);
        for host in 0..self.endpoints.len() {
            self.pull(now, host);
        }
    }

    /// All entries are complete.
    pub(crate) fn end_iteration(&mut self, now: Time) {
        if let Some(mut verify) = self.verify.take() {
            verify.result = Some(verify.pattern.check(&verify.memory, &verify.expects));
            self.verified = Some(verify);
        }
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
        self.finish(now, Ending::Done);
    }

    /// Executes all entries that may start.
    fn start_ready(&mut self, now: Time) {
        if self.devices.run_it() {
            return self.run_devices(now);
        }
        while let Some(wqe) = self.engine.start_next() {
            if self.is_foreign(wqe) {
                continue;
            }
            let start = Time(self.progress.begun.0 + self.engine.program().start(wqe));
            if start > now {
                let host = self.hosts_of_ranks[self.engine.program().rank_of(wqe) as usize];
                self.queue.push(start, host, event::other(Kind::Start, wqe));
            } else {
                self.execute(now, wqe);
            }
        }
    }

    // [F4.free-port-pulls]
    /// Lets each free port of a host that has something to send pull a packet; sets the timer.
    #[inline(always)]
    pub(crate) fn pull(&mut self, now: Time, host: usize) {
        if self.ports[host] >= PAUSED {
            return self.pull_paused(now, host);
        }
        // A pull for one port may make another ready.
        while let ports @ 1.. = self.endpoints[host].ports_ready() & !self.ports[host] {
            self.use_port::<false>(now, host, PlaneId(ports.trailing_zeros() as u8));
        }
        let endpoint = &self.endpoints[host];
        // A timeout that has passed is due now, or the event would not be known as the one that counts.
        let due = endpoint.poll_timeout().max(now);
        if due < self.timer_at[host] {
            self.timer_at[host] = due;
            self.queue.push(due, host as u32, event::other(Kind::Timer, host as u32));
        }
    }

    /// A port that has something to send does so if it is free, one data packet at most; else it is known from now on
    /// when it will be.
    #[inline(never)]
    pub(crate) fn use_port<const CONTROL: bool>(&mut self, now: Time, host: usize, plane: PlaneId) {
        let endpoint = &mut self.endpoints[host];
        let link = self.fabric.uplink(HostId(host as u32), plane);
        let mut free = self.fabric.port_free(link);
        if free <= now {
            loop {
                let polled = if CONTROL { endpoint.poll_control(plane) } else { endpoint.poll_transmit(now, plane) };
                let Some(Packet { mut envelope, ref body }) = polled else { break };
                let step = self.fabric.inject_into(now, link, &mut envelope);
                free = self.fabric.port_free(link);
                if let Step::Arrives(at) = step
                    && !self.part.as_mut().is_some_and(|part| part.takes(&self.fabric, at, (&envelope, body)))
                {
                    let slot = self.packets.insert(&envelope, body);
                    self.queue.push_away(at, self.fabric.far_end(link), event::arrival(at, link, slot));
                }
                // A control packet is a few nanoseconds long: what follows it lines up behind it.
                if envelope.class == Class::Data {
                    break;
                }
            }
            if endpoint.ports_ready() & 1 << plane.0 == 0 || free <= now {
                return;
            }
        }
        self.ports[host] |= 1 << plane.0;
        let port = (host as u32) << PLANE_BITS | u32::from(plane.0);
        self.queue.push(free, host as u32, event::other(Kind::PortFree, port));
    }

    /// Links or routes have changed under the packets on their way.
    fn reconsider(&mut self) {
        self.packets.each(|envelope| self.fabric.reconsider(envelope));
        if let Some(part) = &mut self.part {
            part.each(|envelope| self.fabric.reconsider(envelope));
        }
    }

    fn fault(&mut self, now: Time, index: usize) {
        let (_, target, up) = self.faults[index];
        let delay = self.fabric.set(target, up);
        self.reconsider();
        self.queue.push(now + delay, ANY, event::other(Kind::Reroute, 0));
        self.follow(now);
    }
}

/// Host and plane of a port.
#[inline]
const fn port_of(port: u32) -> (usize, PlaneId) {
    ((port >> PLANE_BITS) as usize, PlaneId((port & (MAX_PLANES - 1)) as u8))
}
