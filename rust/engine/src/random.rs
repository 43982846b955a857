//! Random times of rehearsals.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;

/// One time in so many is drawn from the whole range, the others from its first part.
const LONG: u32 = 4;
/// Which is one of so many.
const PARTS: u64 = 16;

/// A stream of times from a range, most of them short and some long, so that what is usually first comes last now and
/// then. Ours.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    random: Pcg32,
    least: u64,
    most: u64,
}

impl Random {
    /// The stream number `stream` of `seed`.
    pub(crate) fn new(seed: u64, stream: u64, (least, most): (u64, u64)) -> Random {
        let random = Pcg32::seed_from_u64(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Random { random, least, most }
    }

    /// A time, ps.
    pub(crate) fn time(&mut self) -> u64 {
        let span = self.most - self.least;
        let span = if self.random.next_u32().is_multiple_of(LONG) { span } else { span / PARTS };
        self.least + ((u128::from(self.random.next_u64()) * (u128::from(span) + 1)) >> u64::BITS) as u64
    }

    /// Yes or no.
    pub(crate) fn coin(&mut self) -> bool {
        self.random.next_u32() & 1 == 0
    }
}
