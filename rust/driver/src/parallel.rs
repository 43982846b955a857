//! One run on several threads: nodes are divided into parts, which go on together from window to window.
//!
//! Planes meet at hosts alone, so a part is some planes' switches and some of the hosts. What happens at a node in a
//! window reaches no other node in it: a window is the least delay of a link. So each part runs through a window on its
//! own (conservative, nothing is ever taken back), and what leaves it changes hands at the end. The order of events that
//! meet at a node does not depend on who pushed them ([`crate::event`]), so the results are those of one thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use metaroce_fabric::{Balance, Fabric};
use metaroce_proto::Endpoint;
use metaroce_wire::{Body, Envelope, Packet, Time};

use crate::event;
use crate::networks;
use crate::sim::{Ending, Simulation};
use crate::spec::{DriverError, Spec};
use crate::world;

/// Events of a window that each thread is to have at full speed, or handing over costs more than it brings. Ours:
/// 64 take a few microseconds, a meeting of threads about one.
const LEAST_WORK: u64 = 64;
/// Looks at a barrier before a thread offers its core to others.
const SPINS: u32 = 1 << 8;

/// A part of a run.
#[derive(Debug)]
pub(crate) struct Part {
    pub index: usize,
    /// Part of each node: hosts first, then switches.
    of_node: Arc<[u8]>,
    /// What leaves for each part.
    out: Vec<Vec<Parcel>>,
    /// Entries of ranks in other parts.
    pub foreign: usize,
}

/// A packet that arrives in another part.
#[derive(Debug)]
struct Parcel {
    at: Time,
    packet: Packet,
}

impl Part {
    fn owns(&self, node: u32) -> bool {
        usize::from(self.of_node[node as usize]) == self.index
    }

    /// Takes a packet if it arrives in another part.
    pub(crate) fn takes(&mut self, fabric: &Fabric, at: Time, (envelope, body): (&Envelope, &Body)) -> bool {
        let to = usize::from(self.of_node[fabric.far_end(envelope.link) as usize]);
        if to != self.index {
            self.out[to].push(Parcel { at, packet: Packet { envelope: *envelope, body: *body } });
        }
        to != self.index
    }

    /// Shows what is about to leave.
    pub(crate) fn each(&mut self, mut show: impl FnMut(&mut Envelope)) {
        self.out.iter_mut().flatten().for_each(|parcel| show(&mut parcel.packet.envelope));
    }
}

impl Simulation {
    /// A packet of a divided run goes on: in this part or in another.
    #[inline(never)]
    pub(crate) fn hand_over(&mut self, at: Time, slot: u32) {
        let packet = self.packets.get(slot);
        if self.part.as_mut().is_some_and(|part| part.takes(&self.fabric, at, packet)) {
            self.packets.discard(slot);
        } else {
            self.queue.push(at, self.fabric.far_end(packet.0.link), event::arrival(at, packet.0.link, slot));
        }
    }

    /// Whether an entry is of a rank in another part.
    pub(crate) fn is_foreign(&self, wqe: u32) -> bool {
        self.part.as_ref().is_some_and(|part| {
            let rank = self.engine.program().rank_of(wqe);
            !part.owns(self.hosts_of_ranks[rank as usize])
        })
    }

    fn take_in(&mut self, parcels: &mut Vec<Parcel>) {
        for Parcel { at, packet } in parcels.drain(..) {
            let slot = self.packets.insert(&packet.envelope, &packet.body);
            let link = packet.envelope.link;
            self.queue.push(at, self.fabric.far_end(link), event::arrival(at, link, slot));
        }
    }

    /// Adds what another part has done.
    fn absorb(&mut self, mut other: Simulation) {
        for host in 0..self.endpoints.len() {
            if other.part.as_ref().is_some_and(|part| part.owns(host as u32)) {
                std::mem::swap(&mut self.endpoints[host], &mut other.endpoints[host]);
            }
        }
        self.fabric.absorb(&other.fabric);
        self.packets.adopt(other.packets);
        self.recorder.absorb(&other.recorder);
        self.progress.events += other.progress.events;
        self.progress.digest = self.progress.digest.wrapping_add(other.progress.digest);
    }
}

/// What a part says at the end of a window.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// When its next event is due, or that of what it hands over.
    next: Time,
    /// Its last event.
    now: Time,
    /// Entries that it has not completed.
    left: usize,
    /// When it completed the last, or an entry failed.
    finished: Time,
    failed: bool,
}

/// Where parts meet.
struct Shared {
    waiting: AtomicUsize,
    round: AtomicUsize,
    /// A part has left without an end: nobody is to wait for it.
    broken: AtomicBool,
    /// Of this window and the one before, by part.
    reports: [Vec<Mutex<Option<Report>>>; 2],
    /// What each part is to take in.
    mail: Vec<Mutex<Vec<Parcel>>>,
}

/// Marks the run as broken unless the part that holds it comes to an end.
struct Alive<'a>(&'a Shared);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.broken.store(true, Ordering::Release);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(parts: usize) -> Shared {
        let reports = || (0..parts).map(|_| Mutex::new(None)).collect();
        Shared {
            waiting: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            reports: [reports(), reports()],
            mail: (0..parts).map(|_| Mutex::new(Vec::new())).collect(),
        }
    }

    /// Waits until all parts have come here. False if one never will.
    fn meet(&self) -> bool {
        let round = self.round.load(Ordering::Acquire);
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.mail.len() {
            self.waiting.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            return true;
        }
        let mut looks = 0u32;
        while self.round.load(Ordering::Acquire) == round {
            if self.broken.load(Ordering::Acquire) {
                return false;
            }
            looks = looks.saturating_add(1);
            if looks < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
        true
    }

    /// Runs one part to the end of the whole.
    fn run_part(
        &self,
        mut simulation: Simulation,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Simulation, DriverError> {
        let alive = Alive(self);
        let (index, window) = (simulation.part.as_ref().map_or(0, |part| part.index), simulation.window);
        simulation.begin();
        let mut start = Time::ZERO;
        for round in 0.. {
            let last = Time((start.0 - start.0 % window).saturating_add(window - 1));
            simulation.pause = last.min(simulation.limit);
            simulation.proceed(interrupted)?;
            *lock(&self.reports[round % 2][index]) = Some(self.hand_out(&mut simulation));
            // A part with little to do hardly asks by itself.
            if !self.meet() || (round % (1 << 12) == 0 && interrupted()) {
                return Err(DriverError::Interrupted);
            }
            simulation.take_in(&mut lock(&self.mail[index]));
            let reports = self.reports[round % 2].iter().filter_map(|report| *lock(report));
            match verdict(reports.collect(), simulation.limit) {
                Ok(next) => start = next,
                Err((ending, at)) => {
                    (simulation.progress.ended, simulation.progress.finished) = (Some(ending), at);
                    simulation.progress.now = at;
                    break;
                }
            }
        }
        std::mem::forget(alive);
        Ok(simulation)
    }

    /// Gives what leaves a part to the others.
    fn hand_out(&self, simulation: &mut Simulation) -> Report {
        let mut next = simulation.queue.next_time().unwrap_or(Time::NEVER);
        let mut left = simulation.engine.unfinished();
        if let Some(part) = &mut simulation.part {
            left -= part.foreign;
            for (mail, out) in self.mail.iter().zip(&mut part.out).filter(|(_, out)| !out.is_empty()) {
                next = out.iter().map(|parcel| parcel.at).min().map_or(next, |at| at.min(next));
                lock(mail).append(out);
            }
        }
        let progress = &simulation.progress;
        let failed = progress.ended.is_some_and(|ending| ending != Ending::Done);
        let finished = if progress.ended.is_some() { progress.finished } else { Time::ZERO };
        Report { next, now: progress.now, left, finished, failed }
    }
}

/// When the next window begins, or how and when the run has ended.
fn verdict(reports: Vec<Report>, limit: Time) -> Result<Time, (Ending, Time)> {
    let next = reports.iter().map(|report| report.next).min().unwrap_or(Time::NEVER);
    let failed = reports.iter().filter(|report| report.failed).map(|report| report.finished).min();
    let latest = |of: fn(&Report) -> Time| reports.iter().map(of).max().unwrap_or_default();
    if let Some(at) = failed {
        Err((Ending::Stalled, at))
    } else if reports.iter().all(|report| report.left == 0) {
        Err((Ending::Done, latest(|report| report.finished)))
    } else if next == Time::NEVER {
        Err((Ending::Stalled, latest(|report| report.now)))
    } else if next > limit {
        Err((Ending::TimeLimit, limit))
    } else {
        Ok(next)
    }
}

/// Runs `simulation`, which has not started, on `spec.threads` threads.
///
/// # Errors
/// [`DriverError::Config`] where that cannot be done or does not pay.
pub(crate) fn run(
    mut simulation: Simulation,
    spec: &Spec,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Simulation, DriverError> {
    check(&simulation, spec)?;
    // It would look into other parts.
    simulation.unsent = Vec::new();
    let mut parts = divide(simulation, spec).into_iter();
    let shared = Shared::new(parts.len());
    let (shared, own) = (&shared, parts.next());
    let ended: Result<Vec<Simulation>, DriverError> = thread::scope(|scope| {
        let others: Vec<_> = parts.map(|part| scope.spawn(|| shared.run_part(part, &mut || false))).collect();
        let own = own.map(|part| shared.run_part(part, interrupted));
        let others = others.into_iter().map(|other| match other.join() {
            Ok(part) => part,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        own.into_iter().chain(others).collect()
    });
    let mut ended = ended?.into_iter();
    let mut whole = ended.next().ok_or(DriverError::Interrupted)?;
    ended.for_each(|part| whole.absorb(part));
    whole.progress.spans = match whole.progress.ended {
        Some(Ending::Done) => vec![(Time::ZERO, whole.progress.finished)],
        _ => Vec::new(),
    };
    Ok(whole)
}

/// Refuses what cannot be divided with equal results, or would not be faster.
fn check(simulation: &Simulation, spec: &Spec) -> Result<(), DriverError> {
    let refuse = |allowed: String| Err(DriverError::config("threads", spec.threads, allowed));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let work = world::events_per_s(spec, &simulation.fabric) * u128::from(simulation.window)
        / u128::from(metaroce_wire::units::PS_PER_S);
    let needed = u64::from(spec.threads) * LEAST_WORK;
    let alone = [
        (spec.payload.is_some(), "payload"),
        (spec.offload.is_some(), "offload"),
        ((spec.iterations, spec.warmup) != (1, 0), "more than one iteration"),
        (simulation.sampler.is_some(), "telemetry (record_paths)"),
        (simulation.explicit, "explicit queues"),
        (spec.fabric.control_priority, "control_priority"),
        (spec.fabric.islands || spec.scale_out.is_some(), "islands or scale_out"),
        (spec.fabric.balance != Balance::Ecmp, "a balance other than ecmp"),
    ];
    if let Some((_, what)) = alone.iter().find(|(found, _)| *found) {
        return refuse(format!("1 with {what}"));
    }
    if spec.threads == 0 || spec.threads > spec.fabric.planes || spec.threads as usize > cores {
        return refuse(format!(
            "1 to {}: planes are divided, and a thread needs a core",
            cores.min(spec.fabric.planes as usize)
        ));
    }
    if work < u128::from(needed) {
        let allowed =
            format!("1, since it would not pay: {work} events in the least delay of a link, of {needed} needed");
        return refuse(allowed);
    }
    Ok(())
}

/// The parts: planes in turn, hosts in order.
fn divide(mut simulation: Simulation, spec: &Spec) -> Vec<Simulation> {
    let (parts, hosts) = (spec.threads as usize, simulation.endpoints.len());
    let of_hosts = (0..hosts).map(|host| (host * parts / hosts) as u8);
    let of_switches = simulation.fabric.planes_of_switches().iter().map(|&plane| (plane as usize % parts) as u8);
    let of_node: Arc<[u8]> = of_hosts.chain(of_switches).collect();
    let program = simulation.engine.program().clone();
    let mut endpoints = std::mem::take(&mut simulation.endpoints);
    let mut split = |index: usize, of: &mut Simulation| {
        let own = |host: usize| usize::from(of_node[host]) == index;
        of.endpoints = Endpoint::of_hosts(&spec.transport, networks::environments(spec, &of.fabric));
        (0..hosts)
            .filter(|&host| own(host))
            .for_each(|host| std::mem::swap(&mut of.endpoints[host], &mut endpoints[host]));
        let ranks = spec.hosts_of_ranks.iter().enumerate();
        let foreign =
            ranks.filter(|&(_, &host)| !own(host as usize)).map(|(rank, _)| program.entries(rank).len()).sum();
        let out = (0..parts).map(|_| Vec::new()).collect();
        of.part = Some(Part { index, of_node: of_node.clone(), out, foreign });
    };
    let mut all: Vec<Simulation> = (1..parts).map(|_| world::twin(spec, &simulation)).collect();
    all.insert(0, simulation);
    all.iter_mut().enumerate().for_each(|(index, part)| split(index, part));
    all
}
