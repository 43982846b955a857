//! Runs whose entries message engines start: what that takes, and rehearsals of such programs.

use std::sync::Arc;

use metaroce_engine::offload::{Device, Effect, EngineCosts, Hardware, Plan};
use metaroce_engine::rehearse::{Delays, Payload, Rehearsal, Verdict};
use metaroce_engine::{Dtype, Program};
use metaroce_wire::Time;
use serde::{Deserialize, Serialize};

use crate::event::{self, Kind};
use crate::record::{EngineTable, StalledFlow, WqeResult};
use crate::sim::Simulation;
use crate::spec::{Data, DriverError, OnError, Spec};

/// Blocked subgraphs that are reported of a rank, and in all.
const BLOCKED_OF_RANK: usize = 4;
const BLOCKED: usize = 32;
/// Longest random time of a rehearsal, ps: a second.
const LONGEST: u64 = metaroce_wire::units::PS_PER_S;

/// What message engines cost and share: the same for each rank. Times are picoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offload {
    /// By engine: CPU time of an entry.
    pub issue_ps: Vec<u64>,
    /// By engine: CPU time before the first entry of a subgraph.
    pub start_ps: Vec<u64>,
    /// By engine: from the issue of a transfer until the NIC has it.
    pub post_ps: Vec<u64>,
    /// By engine: its subgraphs start at their release, without dispatch.
    pub direct: Vec<bool>,
    /// From the trigger of a packet until CPU-C knows.
    pub event_ps: u64,
    /// CPU-C time of a packet.
    pub dispatch_ps: u64,
    /// Near-memory unit alone, bits per second.
    pub unit_bps: u64,
    /// All units of a rank together.
    pub units_bps: u64,
    /// Transfers of a rank that are posted and not complete, at most.
    pub outstanding: u32,
    /// Words of a rank.
    pub words: u32,
    /// What is sent passes the unit of its engine first.
    pub copies_sends: bool,
}

impl Offload {
    fn hardware(&self) -> Result<Hardware, DriverError> {
        let engines = self.issue_ps.len();
        for (name, length) in
            [("start_ps", self.start_ps.len()), ("post_ps", self.post_ps.len()), ("direct", self.direct.len())]
        {
            if length != engines {
                let allowed = format!("length {engines}, that of issue_ps");
                return Err(DriverError::config(&format!("offload.{name}"), format!("length {length}"), allowed));
            }
        }
        let engine = |i: usize| EngineCosts {
            issue: Time(self.issue_ps[i]),
            start: Time(self.start_ps[i]),
            post: Time(self.post_ps[i]),
            direct: self.direct[i],
        };
        Ok(Hardware {
            engines: (0..engines).map(engine).collect(),
            event: Time(self.event_ps),
            dispatch: Time(self.dispatch_ps),
            unit_bps: self.unit_bps,
            units_bps: self.units_bps,
            outstanding: self.outstanding,
            words: self.words,
            copies_sends: self.copies_sends,
        })
    }

    fn plan(&self, program: &Arc<Program>) -> Result<Arc<Plan>, DriverError> {
        let plan = Plan::new(program.clone(), self.hardware()?);
        plan.map(Arc::new).map_err(|e| DriverError::Config(e.to_string()))
    }
}

/// The devices of a run; none if dependencies start its entries.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    ranks: Vec<Device>,
    /// Time of the one timer event of each that counts.
    at: Vec<Time>,
    /// Those that may have done something.
    busy: Vec<u32>,
    /// Entries that are not complete.
    left: usize,
}

impl Devices {
    /// Devices for `program`, which are there if and only if it has subgraphs.
    pub(crate) fn new(spec: &Spec, program: &Arc<Program>) -> Result<Devices, DriverError> {
        let Some(offload) = &spec.offload else {
            if program.graph().is_empty() {
                return Ok(Devices::default());
            }
            return Err(DriverError::config("offload", "nothing", "the engines of a program with subgraphs"));
        };
        if program.graph().is_empty() {
            return Err(DriverError::config("offload", "engines", "nothing for a program without subgraphs"));
        }
        if spec.on_error == OnError::Continue {
            return Err(DriverError::config("on_error", "continue", "stop with offload: engines have no way to go on"));
        }
        let plan = offload.plan(program)?;
        let mut ranks: Vec<Device> = (0..plan.ranks()).map(|rank| Device::new(plan.clone(), rank)).collect();
        if spec.record_wqes {
            ranks.iter_mut().for_each(Device::record);
        }
        Ok(Devices { at: vec![Time::NEVER; ranks.len()], ranks, ..Devices::default() })
    }

    /// Whether there are any.
    #[inline]
    pub(crate) const fn run_it(&self) -> bool {
        !self.ranks.is_empty()
    }

    /// Entry `wqe` of `rank`, which the transport has carried out if `is_transfer`, is complete. Answers what is left.
    pub(crate) fn complete(&mut self, now: Time, (rank, wqe): (u32, u32), is_transfer: bool) -> usize {
        self.left -= 1;
        if is_transfer {
            self.ranks[rank as usize].complete(now, wqe);
            self.busy.push(rank);
        }
        self.left
    }

    /// A row for each engine of each rank, up to now.
    pub(crate) fn table(&self, now: Time) -> Option<EngineTable> {
        let mut table = EngineTable::default();
        for (rank, device) in self.ranks.iter().enumerate() {
            for (engine, usage) in device.usage(now).enumerate() {
                table.rank.push(rank as u32);
                table.engine.push(engine as u32);
                table.issued.push(usage.issued);
                table.cpu_ps.push(usage.cpu);
                table.unit_ps.push(usage.unit);
                table.unit_wait_ps.push(usage.unit_wait);
                table.stall_ps.push(usage.stall);
            }
            table.outstanding_most.push(device.outstanding_most().into());
        }
        self.run_it().then_some(table)
    }

    /// When each entry was issued, ps; empty unless recorded.
    pub(crate) fn issued(&self) -> Vec<u64> {
        self.ranks.iter().flat_map(Device::issued).copied().collect()
    }

    /// Subgraphs that cannot go on.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = StalledFlow> {
        let of_rank = |(rank, device): (usize, &Device)| {
            let rank = rank as u32;
            device.blocked(BLOCKED_OF_RANK).into_iter().map(move |blocked| StalledFlow {
                src: rank,
                dst: blocked.peer.unwrap_or(rank),
                stream: 0,
                bytes_left: 0,
                reason: blocked.reason,
            })
        };
        self.ranks.iter().enumerate().flat_map(of_rank).take(BLOCKED)
    }
}

impl Simulation {
    /// All devices start an iteration.
    pub(crate) fn begin_devices(&mut self, now: Time) {
        let devices = &mut self.devices;
        devices.left = self.engine.program().len();
        for (rank, device) in devices.ranks.iter_mut().enumerate() {
            device.begin(now);
            devices.busy.push(rank as u32);
        }
        devices.at.fill(Time::NEVER);
    }

    /// The timer of the device of `rank` is due. Answers whether it was the one that counts: then hosts of the rank may
    /// have got something to do.
    pub(crate) fn device_timeout(&mut self, now: Time, rank: usize) -> bool {
        if self.devices.at[rank] != now {
            return false;
        }
        self.devices.at[rank] = Time::NEVER;
        self.devices.ranks[rank].handle_timeout(now);
        self.devices.busy.push(rank as u32);
        self.run_devices(now);
        true
    }

    /// Carries out what devices have done.
    pub(crate) fn run_devices(&mut self, now: Time) {
        while let Some(rank) = self.devices.busy.pop() {
            let rank = rank as usize;
            while let Some(effect) = self.devices.ranks[rank].poll_effect() {
                let (Effect::Post(id) | Effect::Done(id)) = effect;
                let wqe = self.engine.program().wqe(id as usize);
                if matches!(effect, Effect::Post(_)) {
                    self.post(now, id, rank, &wqe);
                } else {
                    self.work(rank, &wqe);
                    self.end(now, id, WqeResult::SUCCESS);
                }
            }
            let due = self.devices.ranks[rank].poll_timeout();
            if due < self.devices.at[rank] {
                self.devices.at[rank] = due;
                self.queue.push(due, self.hosts_of_ranks[rank], event::other(Kind::Device, rank as u32));
            }
        }
    }
}

/// What is rehearsed, as JSON.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RehearsalSpec {
    /// Bytes a rank.
    pub memory_bytes: u64,
    /// Element type.
    pub dtype: String,
    /// Engines.
    pub offload: Offload,
    /// Least delay of a message, picoseconds.
    pub least_ps: u64,
    /// Most delay.
    pub most_ps: u64,
    /// Most that an operation of a unit takes longer; left out, `most_ps`.
    #[serde(default)]
    pub unit_ps: Option<u64>,
}

impl RehearsalSpec {
    /// Reads a specification.
    ///
    /// # Errors
    /// [`DriverError::Config`] for the first thing that is not as it should be.
    pub fn parse(json: &str) -> Result<RehearsalSpec, DriverError> {
        serde_json::from_str(json).map_err(|error| DriverError::Config(format!("spec: {error}")))
    }
}

/// Rehearses a program once with each of `seeds`, which give the delays of its messages.
///
/// # Errors
/// As [`crate::simulate`].
pub fn rehearse(
    spec: &RehearsalSpec,
    data: Data,
    seeds: &[u64],
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Vec<Verdict>, DriverError> {
    if !data.program.rkey.is_empty() {
        return Err(DriverError::config("rkey", "a column", "none in a rehearsal, which has no regions"));
    }
    let program = Program::new(data.program, spec.memory_bytes).map_err(|e| DriverError::Config(e.to_string()))?;
    if program.graph().is_empty() {
        return Err(DriverError::config("subgraph_start", "missing", "the columns of a program with subgraphs"));
    }
    if spec.least_ps > spec.most_ps || spec.most_ps > LONGEST {
        let allowed = format!("{} (least_ps) to {LONGEST}", spec.least_ps);
        return Err(DriverError::config("most_ps", spec.most_ps, allowed));
    }
    let unit = spec.unit_ps.unwrap_or(spec.most_ps);
    if unit > LONGEST {
        return Err(DriverError::config("unit_ps", unit, format!("0 to {LONGEST}")));
    }
    let delays = Delays { least: Time(spec.least_ps), most: Time(spec.most_ps), unit: Time(unit) };
    let dtype: Dtype = crate::spec::Payload { dtype: spec.dtype.clone() }.dtype()?;
    crate::world::check_ranges((&data.fills, &data.expects), (program.ranks(), spec.memory_bytes, dtype))?;
    let payload = Payload { dtype, memory: spec.memory_bytes as usize, fills: data.fills, expects: data.expects };
    let (ranks, plan) = (program.ranks(), spec.offload.plan(&Arc::new(program))?);
    let rehearsal = Rehearsal::new(plan, payload, delays);
    let mut rehearsal = rehearsal.map_err(|e| {
        let value = format!("{} bytes for each of {ranks} ranks ({e})", spec.memory_bytes);
        DriverError::config("memory_bytes", value, "what the machine has")
    })?;
    let run = |&seed: &u64| rehearsal.run(seed, interrupted).ok_or(DriverError::Interrupted);
    seeds.iter().map(run).collect()
}
