//! Bernoulli loss: one stream of random numbers for each directed link and purpose, so that adding
//! a link changes no other link's losses. Draws are integers; thresholds are in 2⁻³².

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use crate::spec::{LossConfig, LossOn, LossPer};

/// Purposes of random streams.
pub(crate) const LOSS: u64 = 1;
pub(crate) const ECN: u64 = 2;
pub(crate) const ECMP: u64 = 3;
pub(crate) const BALANCE: u64 = 4;

/// The stream of (seed, entity, purpose).
pub(crate) fn stream(seed: u64, entity: u64, purpose: u64) -> Pcg32 {
    Pcg32::seed_from_u64(mix(mix(mix(seed) ^ entity) ^ purpose))
}

/// SplitMix64 finaliser.
pub(crate) const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bits of a draw. Ours: probabilities are exact to 2⁻³².
pub const DRAW_BITS: u32 = u32::BITS;

/// True with probability `threshold` × 2⁻³².
#[inline]
pub(crate) fn draw(rng: &mut Pcg32, threshold: u32) -> bool {
    rng.next_u32() < threshold
}

/// Loss settings as the hop path wants them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub threshold: u32,
    pub on_hosts_only: bool,
    pub data_only: bool,
}

impl Loss {
    pub(crate) fn new(config: LossConfig) -> Loss {
        Loss {
            threshold: threshold(config.probability),
            on_hosts_only: config.per == LossPer::Packet,
            data_only: config.on == LossOn::Data,
        }
    }
}

/// `probability` in 2⁻³², rounded down; saturates just below 1.
#[expect(clippy::float_arithmetic, reason = "the one place where a probability given as a float becomes an integer")]
pub fn threshold(probability: f64) -> u32 {
    (probability * (1u64 << DRAW_BITS) as f64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequency_lies_within_four_standard_errors() {
        for (seed, permille) in [(1, 1), (2, 10), (3, 100), (4, 500)] {
            let threshold = (u64::from(u32::MAX) * permille / 1000) as u32;
            let mut rng = stream(seed, 7, LOSS);
            let n = 1_000_000u64;
            let hits = (0..n).filter(|_| draw(&mut rng, threshold)).count() as u64;
            let expected = n * permille / 1000;
            let variance = n * permille * (1000 - permille) / 1_000_000;
            let error = hits.abs_diff(expected);
            assert!(error * error <= 16 * variance, "seed {seed}: {hits} of {n}, expected {expected}");
        }
    }

    #[test]
    fn streams_of_different_entities_and_purposes_differ() {
        let first = |entity, purpose| stream(1, entity, purpose).next_u64();
        assert_ne!(first(1, LOSS), first(2, LOSS));
        assert_ne!(first(1, LOSS), first(1, ECN));
        assert_eq!(first(1, LOSS), first(1, LOSS));
    }
}
