//! What a fabric is made of, as given by the user, with the defaults of its settings.

use metaroce_wire::{Bytes, Rate, Time};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A fabric before it is built. Hosts are nodes `0..hosts`, switch i is node `hosts + i`.
#[derive(Clone, Debug)]
pub struct FabricSpec {
    /// Hosts, each with one cable into every plane, or, with `islands`, into the first planes.
    pub hosts: u32,
    /// Planes.
    pub planes: u32,
    /// All switches.
    pub switches: Vec<Switch>,
    /// All cables; each carries both directions.
    pub cables: Vec<Cable>,
    /// How switches spread flows.
    pub ecmp: Ecmp,
    /// What else switches can do.
    pub switching: Switching,
    /// From a change until every switch of the plane has learnt of it. Ours.
    pub reroute_delay: Time,
    /// Random loss.
    pub loss: LossConfig,
    /// Seed of all streams of random numbers.
    pub seed: u64,
    /// Hosts need not reach each other ([`crate::Fabric::connects`]), nor have a port in every plane.
    pub islands: bool,
}

/// A switch.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// Its plane.
    pub plane: u32,
    /// 1 = leaf, 2 = spine or aggregation, 3 = core.
    pub tier: u32,
}

/// A cable between two nodes, and the output queues at its two ends.
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    /// One end.
    pub a: u32,
    /// Other end.
    pub b: u32,
    /// Rate of each direction.
    pub rate: Rate,
    /// Propagation.
    pub delay: Time,
    /// Bound of an output queue at a switch, the packet in service included.
    pub queue: Bytes,
    /// RED marking starts above this backlog; 0 with `kmax` 0 = no marking.
    pub kmin: Bytes,
    /// Everything is marked above this backlog.
    pub kmax: Bytes,
    /// Marking probability just below `kmax`, in 2⁻³².
    pub pmax: u32,
}

/// How the UDP source port enters a switch's ECMP choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ecmp {
    /// Seeded hash of the addresses plus the port: consecutive ports take consecutive links, as
    /// with the CRC and XOR hashes of switch silicon, which are linear in the port. Each tier reads
    /// its own bits of the port, as operators set them against polarisation.
    #[default]
    Linear,
    /// Seeded hash of addresses and port together: ports fall on links at random.
    Mixed,
    /// As [`Ecmp::Mixed`], with the number of the destination QP hashed too (E-ECMP, queue-pair hashing):
    /// QPs spread even where all of them have one port.
    Qp,
}

/// What a switch does where several ports lead closer to a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// The [`Ecmp`] hash: a flow has one route.
    #[default]
    Ecmp,
    /// A flow keeps its port until it pauses for [`Switching::flowlet_gap`]; then it takes the one with the
    /// shortest queue (dynamic load balancing of switch silicon; CONGA without what leaves tell each other).
    Flowlet,
    /// The same with a port at random (LetFlow).
    FlowletRandom,
    /// Each packet takes a port at random.
    Spray,
    /// Each packet takes the port with the shortest queue, one at random among several.
    SprayLeast,
    /// A controller has laid the routes ([`crate::Fabric::pin`]); packets without one, and those whose port has
    /// gone, are hashed.
    Pinned,
}

impl Balance {
    /// Whether flowlets matter.
    pub const fn has_flowlets(self) -> bool {
        matches!(self, Balance::Flowlet | Balance::FlowletRandom)
    }
}

/// What switches do beyond queueing, marking and dropping. Off by default: F9 asks for none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switching {
    /// A data packet that finds its output queue full is cut down to its headers
    /// ([`metaroce_wire::lengths::TRIMMED`]) and sent on, in a reserve of a quarter of the queue
    /// (ours) or, with `control_priority`, in that class; without room there it is dropped.
    pub trim: bool,
    /// Control packets and trimmed ones wait for each other and for the packet in service, not for
    /// queued data.
    pub control_priority: bool,
    /// Ports that lead to hosts mark like any other.
    pub last_hop_ecn: bool,
    /// Choice among several ports.
    pub balance: Balance,
    /// Pause of a flow after which it may take another port. 16 us: default of Junos.
    pub flowlet_gap: Time,
    /// Rows of a switch's flowlet table; flows that hash to one row share its port. 32768: the table of
    /// Junos, in whole (ours: all of it is for the one group of uplinks).
    pub flowlet_entries: u32,
    /// Switch ports keep their packets until the transmitter takes them, at an event more a packet that waits.
    /// Results are the same, to the last bit, but for `control_priority`: no data overlaps with what overtakes it.
    pub explicit_queues: bool,
    /// Data is a lossless class; its ports are explicit.
    pub lossless: Option<Lossless>,
}

impl Default for Switching {
    fn default() -> Switching {
        Switching {
            trim: false,
            control_priority: false,
            last_hop_ecn: true,
            explicit_queues: false,
            lossless: None,
            balance: Balance::Ecmp,
            flowlet_gap: Time::from_us(16),
            flowlet_entries: 32_768,
        }
    }
}

/// The lossless class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lossless {
    /// Its settings.
    pub pfc: PfcConfig,
    /// The longest data packet on the wire, bytes.
    pub frame: u32,
}

/// Settings of priority flow control (IEEE 802.1Qbb), used where data is lossless. Accounting is per link into a
/// switch, as in the HPCC simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PfcConfig {
    /// Packet buffer of a switch: reserves, what all ports share, and headroom.
    pub buffer_bytes: u64,
    /// A link may hold what is free of the shared buffer, shifted right by this; above, its sender is paused.
    pub xoff_shift: u32,
    /// It may go on when it holds so much less than it may.
    pub xon_offset_bytes: u64,
    /// What each link has for itself before it takes of the shared buffer.
    pub reserve_bytes: u64,
    /// For what still comes after the decision to pause, of each link; 0 = what its cable needs.
    pub headroom_bytes: u64,
    /// Taken of that headroom; below 100 the class is lossy, on purpose.
    pub headroom_percent: u32,
    /// Drops what a port holds that is paused for too long.
    pub watchdog: bool,
    /// Too long.
    pub watchdog_detect_ps: u64,
    /// From the end of the pause until the port forwards again.
    pub watchdog_restore_ps: u64,
}

impl Default for PfcConfig {
    fn default() -> PfcConfig {
        PfcConfig {
            buffer_bytes: 16 << 20,
            xoff_shift: 3,
            xon_offset_bytes: 3 << 10,
            reserve_bytes: 4 << 10,
            headroom_bytes: 0,
            headroom_percent: 100,
            watchdog: false,
            watchdog_detect_ps: 200_000_000_000,
            watchdog_restore_ps: 400_000_000_000,
        }
    }
}

/// What one draw of the loss decides about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossPer {
    /// One draw a packet, end to end (on its first link).
    #[default]
    Packet,
    /// One draw for each link that the packet crosses.
    Link,
}

/// Which packets can be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossOn {
    /// All of them.
    #[default]
    DataAndAck,
    /// Data packets only.
    Data,
}

/// Bernoulli loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossConfig {
    /// Probability of a draw, in [0, 1).
    pub probability: f64,
    /// What a draw is made for.
    pub per: LossPer,
    /// What can be lost.
    pub on: LossOn,
}

/// What a fault takes down or brings up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A cable, by its row.
    Link(u32),
    /// A switch, by its number.
    Switch(u32),
    /// All cables of a plane.
    Plane(u32),
}

/// Why a fabric cannot be built. Each names field, value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// A number out of range.
    #[error("{field}: {value} is not allowed; allowed: {allowed}")]
    Range {
        /// Where.
        field: String,
        /// What stands there.
        value: String,
        /// What may.
        allowed: String,
    },
    /// Two hosts without a route.
    #[error(
        "fabric.links: hosts {a} and {b} are not connected in plane {plane}; allowed: a route for every pair in every plane"
    )]
    Disconnected {
        /// Plane.
        plane: u32,
        /// A host.
        a: u32,
        /// Another.
        b: u32,
    },
}

impl SpecError {
    /// A value that is out of range.
    pub fn range(field: impl Into<String>, value: impl ToString, allowed: impl Into<String>) -> SpecError {
        SpecError::Range { field: field.into(), value: value.to_string(), allowed: allowed.into() }
    }
}
