//! What loss adds to a message: measured curves, looked up by size and drawn by seed.

use crate::spec::{Curve, FlowError, Unit};

/// A curve in the units of a run.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    curve: Curve,
    /// Bytes of a bandwidth-delay product, and picoseconds of the unit of `added`.
    bdp: f64,
    unit: f64,
    seed: u64,
}

impl Recovery {
    /// For hosts of `rate` bit/s, `rtt` ps apart, that send packets of `packet` bytes.
    pub(crate) fn new(curve: &Curve, rtt: f64, rate: f64, packet: f64, seed: u64) -> Result<Recovery, FlowError> {
        let bdp = rtt * rate / 8e12;
        let (least, most) = curve.bdp_packets;
        let packets = bdp / packet;
        if packets < least || packets > most {
            let allowed = format!("{least} to {most}, where loss was measured; packet fidelity for others");
            let value = format!("{packets:.0} packets");
            return Err(FlowError::of("bandwidth-delay product", value, allowed));
        }
        let unit = if curve.unit == Unit::Rtt { rtt } else { 1.0 };
        Ok(Recovery { curve: curve.clone(), bdp, unit, seed })
    }

    /// Refuses sizes that were not measured. A message below the least is one packet, as that is.
    pub(crate) fn check(&self, wqe: usize, wire: u64) -> Result<(), FlowError> {
        let most = self.curve.bdp.last().copied().unwrap_or(0.0) * self.bdp;
        if wire as f64 > most {
            let allowed = format!(
                "at most {most:.0} on the wire with loss, the largest message measured; packet fidelity beyond"
            );
            return Err(FlowError::of(&format!("bytes[{wqe}]"), format!("{wire} on the wire"), allowed));
        }
        Ok(())
    }

    /// Picoseconds that message `entry` of `iteration`, of `wire` bytes, takes longer; below zero where the curve has
    /// it so.
    pub(crate) fn added(&self, iteration: u64, entry: u32, wire: u64) -> f64 {
        let size = wire as f64 / self.bdp;
        let sizes = &self.curve.bdp;
        let above = sizes.partition_point(|&s| s < size).min(sizes.len() - 1);
        let below = above.saturating_sub(1);
        let part =
            if above == below { 0.0 } else { ((size - sizes[below]) / (sizes[above] - sizes[below])).clamp(0.0, 1.0) };
        let draw = mix(mix(mix(self.seed) ^ iteration) ^ u64::from(entry));
        let rank = (draw >> 11) as f64 / (1u64 << 53) as f64;
        let ranks = &self.curve.ranks;
        let next = ranks.partition_point(|&r| r <= rank).clamp(1, ranks.len() - 1);
        let between = (rank - ranks[next - 1]) / (ranks[next] - ranks[next - 1]);
        let at = |row: &[f64]| row[next - 1] + (row[next] - row[next - 1]) * between;
        let (small, large) = (at(&self.curve.added[below]), at(&self.curve.added[above]));
        (small + (large - small) * part) * self.unit
    }
}

/// SplitMix64 finaliser.
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
