//! What is recorded, and what goes out.

use std::iter;

use metaroce_engine::Engine;
use metaroce_fabric::Pauses;
use metaroce_proto::{Completion, CompletionStatus, Counters, Placement};
use metaroce_wire::{PlaneId, Time};

use crate::networks::other_host;
use crate::sim::{Ending, Simulation, fold};
use crate::spec::Spec;
use crate::telemetry::Tables;
use crate::world::{keep, payload_line_rate};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All iterations are complete.
    Done,
    /// The time limit came first.
    Bound,
    /// A request failed, or nothing could happen any more.
    Stalled,
    /// Links of a lossless class waited for each other in a cycle.
    Deadlock,
}

/// Messages that did not finish.
#[derive(Clone, Debug)]
pub struct StalledFlow {
    /// Sending rank.
    pub src: u32,
    /// Receiving rank.
    pub dst: u32,
    /// Stream of the oldest.
    pub stream: u16,
    /// Bytes not acknowledged.
    pub bytes_left: u64,
    /// Why.
    pub reason: String,
}

/// How an entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WqeResult {
    /// 0 success, 1 retries exceeded, 2 receiver-not-ready retries exceeded, 3 flushed, 4 access error, 5 length
    /// error, 6 failed at the peer, 7 not complete, 8 success of an unsignaled entry.
    pub status: u8,
    /// Bytes of the message.
    pub bytes: u64,
    /// Immediate data that came with it; `u64::MAX` = none.
    pub imm: u64,
}

impl WqeResult {
    pub(crate) const SUCCESS: WqeResult = WqeResult { status: 0, bytes: 0, imm: u64::MAX };
    const OPEN: WqeResult = WqeResult { status: 7, ..WqeResult::SUCCESS };
    const UNSIGNALED: u8 = 8;

    pub(crate) const fn failed(status: CompletionStatus) -> WqeResult {
        let status = match status {
            CompletionStatus::Success => 0,
            CompletionStatus::RetryExceeded => 1,
            CompletionStatus::RnrRetryExceeded => 2,
            CompletionStatus::Flushed => 3,
            CompletionStatus::AccessError => 4,
            CompletionStatus::LengthError => 5,
            CompletionStatus::PeerFailed => 6,
        };
        WqeResult { status, ..WqeResult::SUCCESS }
    }

    pub(crate) fn of(completion: &Completion) -> WqeResult {
        let imm = completion.imm.map_or(u64::MAX, u64::from);
        WqeResult { bytes: completion.bytes, imm, ..WqeResult::failed(completion.status) }
    }
}

/// What is recorded on the way.
#[derive(Debug)]
pub(crate) struct Recorder {
    done: Vec<u64>,
    placed: Vec<u64>,
    results: Vec<WqeResult>,
    plane_bytes: Vec<u64>,
    bins: Vec<Vec<u64>>,
    bin: Option<u64>,
}

impl Recorder {
    pub(crate) fn new(wqes: usize, planes: usize, bin: Option<u64>) -> Recorder {
        Recorder {
            done: vec![u64::MAX; wqes],
            placed: vec![u64::MAX; wqes],
            results: vec![WqeResult::OPEN; wqes],
            plane_bytes: vec![0; planes],
            bins: vec![Vec::new(); planes],
            bin,
        }
    }

    /// Entry `wqe` has ended, and is complete if there is a time.
    pub(crate) fn ended(&mut self, now: Option<Time>, wqe: u32, result: WqeResult, engine: &Engine) {
        let Some(at) = self.done.get_mut(wqe as usize) else {
            return;
        };
        *at = now.map_or(u64::MAX, |now| now.0);
        let quiet = result.status == 0 && engine.program().details(wqe).unsignaled;
        let status = if quiet { WqeResult::UNSIGNALED } else { result.status };
        self.results[wqe as usize] = WqeResult { status, ..result };
    }

    /// Adds what another part of the run has recorded: of each entry, one part knows the end.
    pub(crate) fn absorb(&mut self, other: &Recorder) {
        for (own, other) in [(&mut self.done, &other.done), (&mut self.placed, &other.placed)] {
            own.iter_mut().zip(other).for_each(|(own, &other)| *own = other.min(*own));
        }
        let ended = other.results.iter().enumerate().filter(|(_, result)| **result != WqeResult::OPEN);
        ended.for_each(|(wqe, &result)| self.results[wqe] = result);
        self.plane_bytes.iter_mut().zip(&other.plane_bytes).for_each(|(own, other)| *own += other);
        for (own, other) in self.bins.iter_mut().zip(&other.bins) {
            own.resize(own.len().max(other.len()), 0);
            own.iter_mut().zip(other).for_each(|(own, other)| *own += other);
        }
    }

    /// Payload has arrived by `plane`.
    #[inline(always)]
    pub(crate) fn placement(&mut self, now: Time, plane: PlaneId, placement: &Placement) {
        self.plane_bytes[plane.index()] += u64::from(placement.len);
        if placement.message_done
            && let Some(at) = self.placed.get_mut(placement.tag as usize)
        {
            *at = now.0;
        }
        if let Some(width) = self.bin {
            let (bins, bin) = (&mut self.bins[plane.index()], (now.0 / width) as usize);
            if bins.len() <= bin {
                bins.resize(bin + 1, 0);
            }
            bins[bin] += u64::from(placement.len);
        }
    }
}

/// What engines have done, over all iterations: columns, a row for each engine of each rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineTable {
    /// Rank.
    pub rank: Vec<u32>,
    /// Engine.
    pub engine: Vec<u32>,
    /// Entries issued.
    pub issued: Vec<u64>,
    /// CPU busy, ps.
    pub cpu_ps: Vec<u64>,
    /// Near-memory unit busy, ps.
    pub unit_ps: Vec<u64>,
    /// Operations waiting for the unit, summed up, ps.
    pub unit_wait_ps: Vec<u64>,
    /// A started subgraph had entries left to issue, but none could, ps.
    pub stall_ps: Vec<u64>,
    /// Of each rank: most transfers that were issued and not complete at once.
    pub outstanding_most: Vec<u64>,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// When.
    pub time: Time,
    /// Start and end of each timed iteration.
    pub iterations: Vec<(Time, Time)>,
    /// Of all events and results.
    pub digest: u64,
    /// Wrong elements and elements compared, where payload was checked.
    pub check: Option<(u64, u64)>,
    /// The specification with every default filled in, without columns.
    pub resolved: serde_json::Value,
    /// Totals by name.
    pub counters: Vec<(&'static str, u64)>,
    /// Payload bytes delivered, by plane.
    pub plane_bytes: Vec<u64>,
    /// The same by plane and bin, if asked for.
    pub plane_bins: Vec<Vec<u64>>,
    /// Messages that did not finish, at most 64 of them.
    pub stalled: Vec<StalledFlow>,
    /// When each entry completed, ps, if asked for; `u64::MAX` = never.
    pub wqe_done: Vec<u64>,
    /// When message engines issued each entry; empty without them.
    pub wqe_issued: Vec<u64>,
    /// What those did.
    pub engines: Option<EngineTable>,
    /// When the last byte of each entry's message was placed.
    pub wqe_placed: Vec<u64>,
    /// How each entry ended.
    pub wqe_results: Vec<WqeResult>,
    /// Final memory, if it came from outside.
    pub memory: Option<Vec<u8>>,
    /// Links of a lossless class that were paused.
    pub pauses: Vec<Pauses>,
    /// Links that wait, each for the next and the last for the first, if there is a deadlock that nothing ends.
    pub deadlock: Vec<u32>,
    /// Time series of connections and paths, if asked for.
    pub telemetry: Option<Tables>,
    /// Payload rate of the fastest host, bits per second.
    pub payload_line_rate: u64,
}

/// Collects the results of a run that is over.
pub(crate) fn outcome(spec: &Spec, mut simulation: Simulation) -> Outcome {
    let verify = simulation.verified.take().or_else(|| simulation.verify.take());
    let counters = counters(&simulation);
    let done = simulation.progress.ended == Some(Ending::Done);
    let deadlock = if done || simulation.fabric.has_watchdog() { Vec::new() } else { simulation.fabric.deadlock() };
    let pauses = simulation.fabric.pauses(simulation.progress.now);
    let status = match simulation.progress.ended {
        Some(Ending::Done) => Status::Done,
        _ if !deadlock.is_empty() => Status::Deadlock,
        Some(Ending::TimeLimit) => Status::Bound,
        Some(Ending::Stalled | Ending::Deadlock) | None => Status::Stalled,
    };
    let check = verify.as_ref().filter(|v| !v.expects.is_empty()).and_then(|v| v.result);
    let mut digest = fold(simulation.progress.digest, simulation.progress.now.0);
    for &(_, value) in &counters {
        digest = fold(digest, value);
    }
    let stalled = if matches!(status, Status::Stalled | Status::Deadlock) { stalled(&simulation) } else { Vec::new() };
    let rate = payload_line_rate(spec, &simulation.fabric).0;
    let memory = verify.and_then(|verify| {
        let out = verify.give_back.then(|| verify.memory.to_vec());
        keep(verify.memory);
        out
    });
    Outcome {
        status,
        time: simulation.progress.now,
        iterations: simulation.progress.spans,
        digest,
        check,
        resolved: resolved(spec),
        counters,
        plane_bytes: simulation.recorder.plane_bytes,
        plane_bins: equal_bins(simulation.recorder.bins),
        stalled,
        wqe_done: simulation.recorder.done,
        wqe_issued: simulation.devices.issued(),
        engines: simulation.devices.table(simulation.progress.now),
        wqe_placed: simulation.recorder.placed,
        wqe_results: simulation.recorder.results,
        memory,
        pauses,
        deadlock,
        telemetry: simulation.sampler.map(|sampler| sampler.tables),
        payload_line_rate: rate,
    }
}

/// As many bins for each plane.
fn equal_bins(mut planes: Vec<Vec<u64>>) -> Vec<Vec<u64>> {
    let most = planes.iter().map(Vec::len).max().unwrap_or(0);
    planes.iter_mut().for_each(|bins| bins.resize(most, 0));
    planes
}

fn resolved(spec: &Spec) -> serde_json::Value {
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    value["fabric"] = serde_json::json!({
        "hosts": spec.fabric.hosts,
        "planes": spec.fabric.planes,
        "switches": spec.fabric.switches.tier.len(),
        "links": spec.fabric.links.a.len(),
        "ecmp": spec.fabric.ecmp,
        "reroute_delay_ps": spec.fabric.reroute_delay_ps,
        "trim": spec.fabric.trim,
        "control_priority": spec.fabric.control_priority,
        "last_hop_ecn": spec.fabric.last_hop_ecn,
        "explicit_queues": spec.fabric.explicit_queues,
        "lossless": spec.fabric.lossless,
    });
    if spec.fabric.lossless {
        value["fabric"]["pfc"] = serde_json::json!(spec.fabric.pfc);
    }
    if spec.fabric.islands {
        value["fabric"]["islands"] = serde_json::json!(true);
    }
    value
}

fn counters(simulation: &Simulation) -> Vec<(&'static str, u64)> {
    let mut total = Counters::default();
    simulation.endpoints.iter().for_each(|e| total.add(e.counters()));
    let fabric = simulation.fabric.counters();
    let mut totals = vec![
        ("packets_injected", fabric.injected),
        ("packets_delivered", fabric.delivered),
        ("dropped_loss", fabric.lost),
        ("dropped_queue", fabric.queue),
        ("dropped_link_down", fabric.link_down),
        ("dropped_no_route", fabric.no_route),
        ("packets_trimmed", fabric.trimmed),
        ("packets_in_flight", simulation.packets.len()),
        ("data_packets_sent", total.data_packets),
        ("retransmitted_packets", total.resent),
        ("ack_packets", total.acks),
        ("duplicate_packets", total.duplicates),
        ("placed_packets", total.placed),
        ("placed_bytes", total.placed_bytes),
        ("ecn_marks", total.marked),
        ("timeouts", total.timeouts),
        ("gap_detections", total.gap_detections),
        ("timer_detections", total.timer_detections),
        ("paths_died", total.paths_died),
        ("paths_revived", total.paths_revived),
        ("probes", total.probes),
        ("naks", total.naks),
        ("cnps", total.cnps),
        ("rnr", total.rnr),
        ("refused", total.refused),
        ("link_hops", fabric.link_hops),
        ("data_link_hops", fabric.data_link_hops),
        ("events", simulation.progress.events),
        ("max_queue_bytes", simulation.fabric.max_queue()),
    ];
    if simulation.fabric.is_lossless() {
        let paused = simulation.fabric.pauses(simulation.progress.now);
        totals.extend([
            ("dropped_headroom", fabric.headroom),
            ("dropped_watchdog", fabric.watchdog),
            ("watchdog_storms", fabric.storms),
            ("pauses_sent", fabric.xoffs),
            ("paused_ps", paused.iter().map(|pauses| pauses.time.0).sum()),
        ]);
    }
    totals
}

fn stalled(simulation: &Simulation) -> Vec<StalledFlow> {
    let mut flows = Vec::new();
    for (rank, &host) in simulation.hosts_of_ranks.iter().enumerate() {
        let hosts = iter::once(host as usize).chain(other_host(&simulation.other_hosts, host as usize));
        for stuck in hosts.flat_map(|host| simulation.endpoints[host].stuck()) {
            flows.push(StalledFlow {
                src: rank as u32,
                dst: simulation.rank_of_host[stuck.peer.index()],
                stream: stuck.stream.0,
                bytes_left: stuck.bytes_left,
                reason: stuck.reason,
            });
        }
    }
    flows.splice(0..0, simulation.devices.blocked());
    // A connection that failed says more than those that wait for it.
    flows.sort_by_key(|f| !f.reason.starts_with("connection failed"));
    flows.truncate(64);
    flows
}
