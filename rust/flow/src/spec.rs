//! What comes in: the specification as JSON, with unknown keys refused, and columns; what is refused, in one line.

use metaroce_engine::Columns;
use metaroce_fabric::Ecmp;
use metaroce_proto::TransportConfig;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why there is no estimate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FlowError {
    /// Refused: field, value, what is allowed.
    #[error("{0}")]
    Config(String),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl FlowError {
    pub(crate) fn of(field: &str, value: impl std::fmt::Display, allowed: impl std::fmt::Display) -> FlowError {
        FlowError::Config(format!("{field}: {value} is not allowed; allowed: {allowed}"))
    }
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowSpec {
    /// Seed of ECMP and of the draws of messages' recovery times.
    pub seed: u64,
    /// How the source port enters the ECMP choice; for transports that do not spray.
    #[serde(default)]
    pub ecmp: Ecmp,
    /// Planes of the fabric.
    pub planes: u32,
    /// Transport.
    pub transport: TransportConfig,
    /// Registered bytes a rank.
    pub memory_bytes: u64,
    /// Timed iterations.
    pub iterations: u32,
    /// Iterations before them that no result counts.
    #[serde(default)]
    pub warmup: u32,
    /// Stop here, picoseconds.
    #[serde(default)]
    pub time_limit_ps: Option<u64>,
    /// Record when each entry completed and was placed.
    #[serde(default)]
    pub record_wqes: bool,
    /// What loss does to messages; none without loss.
    #[serde(default)]
    pub curve: Option<Curve>,
}

/// Loss and recovery of one transport at one loss, as measured in the packet model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Goodput of a connection that always has something to send, of its goodput without loss.
    pub rate_factor: f64,
    /// Message sizes of the rows, in bandwidth-delay products, rising.
    pub bdp: Vec<f64>,
    /// Ranks of the columns, from 0, the quickest of all messages, to 1, the slowest.
    pub ranks: Vec<f64>,
    /// A row a size, a column a rank: what a message takes longer than its bytes at the lowered rate.
    pub added: Vec<Vec<f64>>,
    /// What `added` counts in.
    pub unit: Unit,
    /// Full packets in a bandwidth-delay product that the measurement stands for, least and most.
    pub bdp_packets: (f64, f64),
}

/// Units of recovery times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Base round trips: recovery is driven by acknowledgements.
    Rtt,
    /// Picoseconds: recovery is driven by timers.
    Ps,
}

/// Fabric as columns: hosts 0.., then switches; one row a cable.
#[derive(Clone, Copy, Debug, Default)]
pub struct FabricColumns<'a> {
    /// Hosts.
    pub hosts: u32,
    /// Plane of each switch.
    pub switch_plane: &'a [u32],
    /// Tier of each switch.
    pub switch_tier: &'a [u32],
    /// One end.
    pub a: &'a [u32],
    /// Other end.
    pub b: &'a [u32],
    /// Bits per second.
    pub rate_bps: &'a [u64],
    /// Propagation, picoseconds.
    pub delay_ps: &'a [u64],
}

/// Columns that come with a specification.
#[derive(Clone, Debug)]
pub struct FlowData<'a> {
    /// Fabric.
    pub fabric: FabricColumns<'a>,
    /// Host of each rank.
    pub hosts_of_ranks: &'a [u32],
    /// The program.
    pub program: Columns,
}

impl FlowSpec {
    /// Reads a specification.
    ///
    /// # Errors
    /// [`FlowError::Config`] for the first thing that is not as it should be.
    pub fn parse(json: &str) -> Result<FlowSpec, FlowError> {
        serde_json::from_str(json).map_err(|error| FlowError::Config(format!("spec: {error}")))
    }

    pub(crate) fn check(&self, data: &FlowData) -> Result<(), FlowError> {
        self.transport.check().map_err(|e| FlowError::Config(e.to_string()))?;
        if self.iterations == 0 {
            return Err(FlowError::of("iterations", 0, "at least 1"));
        }
        if !(1..=metaroce_fabric::MAX_PLANES).contains(&self.planes) {
            return Err(FlowError::of("planes", self.planes, format!("1 to {}", metaroce_fabric::MAX_PLANES)));
        }
        self.curve.as_ref().map_or(Ok(()), Curve::check)?;
        data.fabric.check(self.planes)?;
        let mut taken = vec![false; data.fabric.hosts as usize];
        for (rank, &host) in data.hosts_of_ranks.iter().enumerate() {
            if taken.get(host as usize).is_none_or(|&taken| taken) {
                let allowed = format!("distinct hosts below {}", data.fabric.hosts);
                return Err(FlowError::of(&format!("hosts_of_ranks[{rank}]"), host, allowed));
            }
            taken[host as usize] = true;
        }
        Ok(())
    }
}

impl Curve {
    fn check(&self) -> Result<(), FlowError> {
        let rising = |column: &[f64]| column.windows(2).all(|pair| pair[0] < pair[1]);
        let ends = (self.ranks.first(), self.ranks.last()) == (Some(&0.0), Some(&1.0));
        let columns = self.ranks.len() >= 2 && self.added.iter().all(|row| row.len() == self.ranks.len());
        let rows = !self.bdp.is_empty() && self.added.len() == self.bdp.len();
        if !rows || !columns || !ends || !rising(&self.bdp) || !rising(&self.ranks) {
            let value = format!("{} sizes, {} ranks, {} rows", self.bdp.len(), self.ranks.len(), self.added.len());
            return Err(FlowError::of(
                "curve.added",
                value,
                "a row for each of rising sizes, a column for each rank 0 to 1",
            ));
        }
        if !(self.rate_factor > 0.0 && self.rate_factor <= 1.0) {
            return Err(FlowError::of("curve.rate_factor", self.rate_factor, "above 0, at most 1"));
        }
        Ok(())
    }
}

impl FabricColumns<'_> {
    fn check(&self, planes: u32) -> Result<(), FlowError> {
        let switches = self.switch_plane.len();
        let rows = self.a.len();
        let lengths = [
            ("switch_tier", self.switch_tier.len(), switches),
            ("link_b", self.b.len(), rows),
            ("link_rate_bps", self.rate_bps.len(), rows),
            ("link_delay_ps", self.delay_ps.len(), rows),
        ];
        if let Some((name, length, wanted)) = lengths.into_iter().find(|(_, length, wanted)| length != wanted) {
            return Err(FlowError::of(name, format!("length {length}"), format!("length {wanted}")));
        }
        if let Some(i) = self.switch_plane.iter().position(|&plane| plane >= planes) {
            return Err(FlowError::of(&format!("switch_plane[{i}]"), self.switch_plane[i], format!("below {planes}")));
        }
        let nodes = u64::from(self.hosts) + switches as u64;
        for row in 0..rows {
            let (low, high) = (self.a[row].min(self.b[row]), self.a[row].max(self.b[row]));
            if u64::from(high) >= nodes || high < self.hosts || low == high {
                let allowed = format!("two nodes below {nodes}, one of them a switch at least");
                return Err(FlowError::of(&format!("link_b[{row}]"), self.b[row], allowed));
            }
            let rate = self.rate_bps[row];
            if rate == 0 || rate > metaroce_fabric::MAX_RATE {
                let allowed = format!("1 to {}", metaroce_fabric::MAX_RATE);
                return Err(FlowError::of(&format!("link_rate_bps[{row}]"), rate, allowed));
            }
        }
        Ok(())
    }
}
