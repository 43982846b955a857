//! The receiver's record of one path: the 256-bit selective acknowledgement (F6).
//!
//! It is anchored at the highest sequence number seen, so that numbers given up by the sender need
//! no message to move on. It decides nothing about messages.

/// Bits of the selective acknowledgement (F6).
pub const SACK_BITS: u32 = 256;

// [F6.sack-256]
/// What has arrived on a path in its current epoch.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct PathLedger {
    /// Bit k: `max - 1 - k` has arrived.
    bits: [u64; SACK_BITS as usize / 64],
    max: u32,
    arrived: u32,
    ce: u32,
    epoch: u8,
}

impl PathLedger {
    // [F3.epoch] [I12] [I27]
    /// Notes packet `pps` of `epoch`. False if the epoch is over: the ledger stays as it is.
    #[inline]
    pub fn note(&mut self, epoch: u8, pps: u32, marked: bool) -> bool {
        if epoch != self.epoch {
            if (epoch.wrapping_sub(self.epoch) as i8) < 0 {
                return false;
            }
            *self = PathLedger { epoch, ..PathLedger::default() };
        }
        if self.arrived == 0 {
            self.max = pps;
        } else if pps > self.max {
            self.advance(pps - self.max);
            self.max = pps;
        } else if pps < self.max && self.max - pps <= SACK_BITS {
            let k = self.max - pps - 1;
            self.bits[(k >> 6) as usize] |= 1 << (k & 63);
        }
        self.arrived += 1;
        self.ce += u32::from(marked);
        true
    }

    // [I13]
    /// Moves the anchor up by `steps`, at least 1.
    #[inline]
    fn advance(&mut self, steps: u32) {
        if steps == 1 {
            let [a, b, c, d] = self.bits;
            self.bits = [a << 1 | 1, b << 1 | a >> 63, c << 1 | b >> 63, d << 1 | c >> 63];
            return;
        }
        let (words, shift) = ((steps >> 6) as usize, steps & 63);
        for i in (0..4).rev() {
            let high = if i >= words { self.bits[i - words] << shift } else { 0 };
            let low = if shift > 0 && i > words { self.bits[i - words - 1] >> (64 - shift) } else { 0 };
            self.bits[i] = high | low;
        }
        if steps <= SACK_BITS {
            self.bits[((steps - 1) >> 6) as usize] |= 1 << ((steps - 1) & 63);
        }
    }

    /// The vector.
    pub const fn sack(&self) -> [u64; 4] {
        self.bits
    }

    /// Highest number seen.
    pub const fn max(&self) -> u32 {
        self.max
    }

    /// Cumulative CE marks.
    pub const fn ce(&self) -> u32 {
        self.ce
    }

    /// SACK words that an acknowledgement needs to reach the oldest hole; 0 asserts that there is none.
    #[inline]
    pub fn words(&self) -> u32 {
        for word in (0..4u32).rev() {
            let known = self.max.saturating_sub(64 * word).min(64);
            let mask = if known == 64 { u64::MAX } else { (1 << known) - 1 };
            if !self.bits[word as usize] & mask != 0 {
                return word + 1;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        // [F6.sack-256] [I13]
        #[test]
        fn vector_equals_the_set_of_arrivals(steps in prop::collection::vec(1u32..300, 1..60)) {
            let (mut ledger, mut seen, mut pps) = (PathLedger::default(), BTreeSet::new(), 0);
            for step in steps {
                pps += step - 1;
                ledger.note(0, pps, false);
                seen.insert(pps);
                for k in 0..256u32 {
                    let bit = ledger.sack()[(k >> 6) as usize] >> (k & 63) & 1;
                    prop_assert_eq!(bit == 1, pps > k && seen.contains(&(pps - 1 - k)), "pps {} bit {}", pps, k);
                }
                let oldest_hole = (0..256u32).filter(|&k| k < pps && !seen.contains(&(pps - 1 - k))).max();
                prop_assert_eq!(ledger.words(), oldest_hole.map_or(0, |k| k / 64 + 1));
                pps += 1;
            }
        }
    }

    // [F3.epoch] [I12] [I27]
    #[test]
    fn an_older_epoch_is_not_noted() {
        let mut ledger = PathLedger::default();
        assert!(ledger.note(1, 0, false));
        assert!(!ledger.note(0, 7, true));
        assert_eq!((ledger.max(), ledger.ce()), (0, 0));
    }
}
