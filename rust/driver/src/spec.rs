//! What comes in: the specification as JSON, with unknown keys refused, and the columns.

use metaroce_engine::pattern::{Expect, Fill};
use metaroce_engine::{Columns, Dtype};
use metaroce_fabric::{Balance, Cable, Ecmp, FabricSpec, LossConfig, Lossless, PfcConfig, Switch, Switching};
use metaroce_proto::TransportConfig;
use metaroce_proto::settings::{METAROCE, MRC, ROCEV2, misfit};
use metaroce_wire::{Bytes, Rate, Time};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::networks::ScaleOut;
use crate::offload::Offload;

/// Why a run gives no outcome.
#[derive(Debug, Error)]
pub enum DriverError {
    /// The specification is refused: field, value, what is allowed.
    #[error("{0}")]
    Config(String),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl DriverError {
    pub(crate) fn config(field: &str, value: impl std::fmt::Display, allowed: impl std::fmt::Display) -> DriverError {
        DriverError::Config(format!("{field}: {value} is not allowed; allowed: {allowed}"))
    }
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Seed of all random streams.
    pub seed: u64,
    /// Fabric.
    #[serde(skip_serializing)]
    pub fabric: Fabric,
    /// Transport.
    pub transport: TransportConfig,
    /// Random loss.
    #[serde(default)]
    pub loss: LossConfig,
    /// Schedule of failures and repairs.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// Host of each rank.
    pub hosts_of_ranks: Vec<u32>,
    /// Ranks of different domains talk by hosts of their own; all by those of `hosts_of_ranks`, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_out: Option<ScaleOut>,
    /// Registered bytes a rank.
    pub memory_bytes: u64,
    /// Timed iterations.
    #[serde(default = "one")]
    pub iterations: u32,
    /// Iterations before them that no result counts.
    #[serde(default)]
    pub warmup: u32,
    /// Stop here, picoseconds.
    #[serde(default)]
    pub time_limit_ps: Option<u64>,
    /// Move payload in the first iteration, warm-up included, and check it at its end.
    #[serde(default)]
    pub payload: Option<Payload>,
    /// Threads that share the run; results do not depend on it.
    #[serde(default = "one", skip_serializing)]
    pub threads: u32,
    /// Record when each entry completed and was placed.
    #[serde(default)]
    pub record_wqes: bool,
    /// Record delivered bytes per plane in bins of this width, picoseconds.
    #[serde(default)]
    pub record_bin_ps: Option<u64>,
    /// Record connections and paths at every multiple of this and at the end, picoseconds.
    #[serde(default)]
    pub record_paths_ps: Option<u64>,
    /// Those that these ranks send on; all, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_paths_ranks: Option<Vec<u32>>,
    /// Message engines that run the program, which then has subgraphs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
    /// What a completion with an error does.
    #[serde(default)]
    pub on_error: OnError,
    /// Test hook.
    #[serde(default)]
    pub inject: Option<Inject>,
}

/// What a completion with an error does to the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// Ends it.
    #[default]
    Stop,
    /// Completes its entry.
    Continue,
}

const fn one() -> u32 {
    1
}

impl Spec {
    /// Reads a specification.
    ///
    /// # Errors
    /// [`DriverError::Config`] for the first thing that is not as it should be.
    pub fn parse(json: &str) -> Result<Spec, DriverError> {
        serde_json::from_str(json).map_err(|error| {
            // Of a transport's settings we know better what they may be than the parser does.
            let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
            let settings = match value["transport"]["kind"].as_str() {
                Some("metaroce") => METAROCE,
                Some("rocev2") => ROCEV2,
                Some("mrc") => MRC,
                _ => &[],
            };
            DriverError::Config(misfit(settings, &value["transport"]).unwrap_or_else(|| format!("spec: {error}")))
        })
    }
}

/// Fabric as columns.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Hosts.
    pub hosts: u32,
    /// Planes.
    pub planes: u32,
    /// Switches.
    pub switches: Switches,
    /// Cables.
    pub links: Links,
    /// How the source port enters the ECMP choice.
    #[serde(default)]
    pub ecmp: Ecmp,
    /// From a change until all switches know, picoseconds. Ours: 1 ms.
    #[serde(default = "reroute_delay")]
    pub reroute_delay_ps: u64,
    /// Full queues cut data packets down to their headers.
    #[serde(default = "trim")]
    pub trim: bool,
    /// Control packets overtake queued data.
    #[serde(default = "control_priority")]
    pub control_priority: bool,
    /// Switch ports that lead to hosts mark.
    #[serde(default = "last_hop_ecn")]
    pub last_hop_ecn: bool,
    /// Choice among several ports that lead closer.
    #[serde(default)]
    pub balance: Balance,
    /// Pause after which a flow may take another port, picoseconds; with flowlets only.
    #[serde(default)]
    pub flowlet_gap_ps: Option<u64>,
    /// Rows of a switch's flowlet table; with flowlets only.
    #[serde(default)]
    pub flowlet_entries: Option<u32>,
    /// Switch ports keep packets in queues, at an event more for each that waits.
    #[serde(default)]
    pub explicit_queues: bool,
    /// Data is a lossless class (PFC); its ports are explicit.
    #[serde(default)]
    pub lossless: bool,
    /// Settings of the lossless class, used where there is one.
    #[serde(default)]
    pub pfc: PfcConfig,
    /// Hosts need not reach each other, nor have a port in every plane: in the first ones.
    #[serde(default)]
    pub islands: bool,
}

fn trim() -> bool {
    Switching::default().trim
}

fn control_priority() -> bool {
    Switching::default().control_priority
}

fn last_hop_ecn() -> bool {
    Switching::default().last_hop_ecn
}

pub(crate) const fn reroute_delay() -> u64 {
    1_000_000_000
}

/// Switch columns.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switches {
    /// Plane of each.
    pub plane: Vec<u32>,
    /// Tier of each.
    pub tier: Vec<u32>,
}

/// Cable columns.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// One end.
    pub a: Vec<u32>,
    /// Other end.
    pub b: Vec<u32>,
    /// Bits per second.
    pub rate_bps: Vec<u64>,
    /// Propagation, picoseconds.
    pub delay_ps: Vec<u64>,
    /// Bound of an output queue.
    pub queue_bytes: Vec<u64>,
    /// RED: marking starts.
    pub ecn_kmin_bytes: Vec<u64>,
    /// RED: everything is marked.
    pub ecn_kmax_bytes: Vec<u64>,
    /// RED: probability below kmax.
    pub ecn_pmax: Vec<f64>,
}

/// A failure or repair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When, picoseconds.
    pub at_ps: u64,
    /// What kind of thing.
    pub target: FaultTarget,
    /// Which.
    pub id: u32,
    /// Comes up, or goes down.
    pub up: bool,
}

/// Kinds of things that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultTarget {
    /// A cable, by row.
    Link,
    /// A switch, by number.
    Switch,
    /// A plane.
    Plane,
}

/// Payload settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// Element type.
    pub dtype: String,
}

impl Payload {
    pub(crate) fn dtype(&self) -> Result<Dtype, DriverError> {
        let known = Dtype::NAMES.iter().find(|(name, _)| *name == self.dtype);
        let names = || Dtype::NAMES.map(|(name, _)| name).join(", ");
        known.map(|&(_, dtype)| dtype).ok_or_else(|| DriverError::config("payload.dtype", &self.dtype, names()))
    }
}

/// What a test may do to a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inject {
    /// The n-th placement, from 1, writes one flipped byte.
    pub flip_byte_at: u64,
}

/// Columns that come with a specification.
#[derive(Clone, Debug)]
pub struct Data<'a> {
    /// The program.
    pub program: Columns,
    /// Inputs to write before each iteration.
    pub fills: Vec<Fill>,
    /// Outputs to check in the end.
    pub expects: Vec<Expect>,
    /// Or: initial memory of all ranks.
    pub memory: Option<&'a [u8]>,
    /// Regions that peers reach. Empty: region 0 of each rank, all of its memory, open to peers. Otherwise region 0
    /// is for local use, and those of a rank are numbered from 1 in the order of this list.
    pub regions: Vec<Region>,
    /// Planes that ranks do not use.
    pub denied: Vec<Denied>,
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Owner.
    pub rank: u32,
    /// First byte of its memory.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What peers may do, bits: 1 write, 2 read, 4 atomics.
    pub access: u8,
}

/// A plane that one side of a connection does not use.
#[derive(Clone, Copy, Debug)]
pub struct Denied {
    /// That side.
    pub rank: u32,
    /// The other side.
    pub peer: u32,
    /// Plane.
    pub plane: u32,
}

impl Fabric {
    /// What switches do, checked as far as it takes knowing what was left out.
    fn switching(&self, frame: u32) -> Result<Switching, DriverError> {
        let usual = Switching::default();
        let given = [
            ("fabric.flowlet_gap_ps", self.flowlet_gap_ps),
            ("fabric.flowlet_entries", self.flowlet_entries.map(u64::from)),
        ];
        if let Some((field, Some(value))) = given.into_iter().find(|(_, value)| value.is_some())
            && !self.balance.has_flowlets()
        {
            return Err(DriverError::config(field, value, "with balance flowlet or flowlet-random only"));
        }
        Ok(Switching {
            trim: self.trim,
            control_priority: self.control_priority,
            last_hop_ecn: self.last_hop_ecn,
            explicit_queues: self.explicit_queues,
            lossless: self.lossless.then_some(Lossless { pfc: self.pfc, frame }),
            balance: self.balance,
            flowlet_gap: self.flowlet_gap_ps.map_or(usual.flowlet_gap, Time),
            flowlet_entries: self.flowlet_entries.unwrap_or(usual.flowlet_entries),
        })
    }

    /// `frame` is the length on the wire of the longest data packet.
    pub(crate) fn lower(&self, seed: u64, loss: LossConfig, frame: u32) -> Result<FabricSpec, DriverError> {
        let (switches, links) = (&self.switches, &self.links);
        if switches.tier.len() != switches.plane.len() {
            return Err(DriverError::config(
                "fabric.switches.tier",
                format!("length {}", switches.tier.len()),
                format!("length {}", switches.plane.len()),
            ));
        }
        let rows = links.a.len();
        let lengths = [
            ("b", links.b.len()),
            ("rate_bps", links.rate_bps.len()),
            ("delay_ps", links.delay_ps.len()),
            ("queue_bytes", links.queue_bytes.len()),
            ("ecn_kmin_bytes", links.ecn_kmin_bytes.len()),
            ("ecn_kmax_bytes", links.ecn_kmax_bytes.len()),
            ("ecn_pmax", links.ecn_pmax.len()),
        ];
        for (name, length) in lengths {
            if length != rows {
                return Err(DriverError::config(
                    &format!("fabric.links.{name}"),
                    format!("length {length}"),
                    format!("length {rows}"),
                ));
            }
        }
        if let Some(i) = links.ecn_pmax.iter().position(|p| !(0.0..=1.0).contains(p)) {
            return Err(DriverError::config(&format!("fabric.links.ecn_pmax[{i}]"), links.ecn_pmax[i], "0 to 1"));
        }
        let cable = |i: usize| Cable {
            a: links.a[i],
            b: links.b[i],
            rate: Rate(links.rate_bps[i]),
            delay: Time(links.delay_ps[i]),
            queue: Bytes(links.queue_bytes[i]),
            kmin: Bytes(links.ecn_kmin_bytes[i]),
            kmax: Bytes(links.ecn_kmax_bytes[i]),
            pmax: metaroce_fabric::probability(links.ecn_pmax[i]),
        };
        Ok(FabricSpec {
            hosts: self.hosts,
            planes: self.planes,
            switches: switches.plane.iter().zip(&switches.tier).map(|(&plane, &tier)| Switch { plane, tier }).collect(),
            cables: (0..rows).map(cable).collect(),
            ecmp: self.ecmp,
            switching: self.switching(frame)?,
            reroute_delay: Time(self.reroute_delay_ps),
            loss,
            seed,
            islands: self.islands,
        })
    }
}
