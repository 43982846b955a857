//! The receiver's record of one path: the 256-bit selective acknowledgement (F6).
//!
//! It is anchored at the highest sequence number seen, so that numbers given up by the sender need
//! no message to move on. It decides nothing about messages.

use metaroce_wire::Verdict;

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
    /// What became of `max` itself. Refused, it becomes a hole.
    newest: Verdict,
    /// The last packet was marked.
    marked: bool,
    /// Packets since the last acknowledgement that reported this path.
    untold: u8,
}

/// What a packet was to its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// It shows that earlier ones are missing, or came late, or began an epoch.
    pub gap: bool,
    /// It was marked and the one before not, or the other way round.
    pub mark_changed: bool,
}

impl PathLedger {
    /// Notes packet `pps` of `epoch`, which was placed or refused. `None` if the epoch is over: the
    /// ledger stays as it is.
    #[inline]
    pub fn note(&mut self, epoch: u8, pps: u32, marked: bool, verdict: Verdict) -> Option<Noted> {
        let placed = verdict == Verdict::Placed;
        if epoch != self.epoch {
            if (epoch.wrapping_sub(self.epoch) as i8) < 0 {
                return None;
            }
            *self = PathLedger { epoch, ..PathLedger::default() };
        }
        let first = self.arrived == 0;
        let noted = Noted {
            gap: if first { pps > 0 || epoch > 0 } else { pps != self.max.wrapping_add(1) },
            mark_changed: marked != self.marked,
        };
        self.marked = marked;
        if first {
            self.max = pps;
            self.newest = verdict;
        } else if pps > self.max {
            self.advance(pps - self.max);
            self.max = pps;
            self.newest = verdict;
        } else if pps == self.max {
            // A copy: what was placed stays placed.
            // [F6.refusal-is-a-hole] [I12]
            self.newest = if self.newest == Verdict::Placed { self.newest } else { verdict };
        } else if placed && self.max - pps <= SACK_BITS {
            let k = self.max - pps - 1;
            self.bits[(k >> 6) as usize] |= 1 << (k & 63);
        }
        self.arrived += 1;
        self.untold = self.untold.saturating_add(1);
        self.ce += u32::from(marked);
        Some(noted)
    }

    // [I13]
    /// Moves the anchor up by `steps`, at least 1.
    #[inline]
    fn advance(&mut self, steps: u32) {
        let own = u64::from(self.newest == Verdict::Placed);
        if steps == 1 {
            let [a, b, c, d] = self.bits;
            self.bits = [a << 1 | own, b << 1 | a >> 63, c << 1 | b >> 63, d << 1 | c >> 63];
            return;
        }
        let (words, shift) = ((steps >> 6) as usize, steps & 63);
        for i in (0..4).rev() {
            let high = if i >= words { self.bits[i - words] << shift } else { 0 };
            let low = if shift > 0 && i > words { self.bits[i - words - 1] >> (64 - shift) } else { 0 };
            self.bits[i] = high | low;
        }
        if steps <= SACK_BITS {
            self.bits[((steps - 1) >> 6) as usize] |= own << ((steps - 1) & 63);
        }
    }

    /// The vector.
    #[inline]
    pub fn sack(&self) -> [u32; 8] {
        let [a, b, c, d] = self.bits;
        let high = |word: u64| (word >> 32) as u32;
        [a as u32, high(a), b as u32, high(b), c as u32, high(c), d as u32, high(d)]
    }

    /// Highest number seen.
    pub const fn max(&self) -> u32 {
        self.max
    }

    /// Packets that no acknowledgement has reported.
    pub const fn untold(&self) -> u8 {
        self.untold
    }

    /// An acknowledgement leaves that reports this path.
    pub const fn tell(&mut self) {
        self.untold = 0;
    }

    /// What became of the highest number seen.
    pub const fn newest(&self) -> Verdict {
        self.newest
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
                ledger.note(0, pps, false, Verdict::Placed);
                seen.insert(pps);
                for k in 0..256u32 {
                    let bit = ledger.sack()[(k >> 5) as usize] >> (k & 31) & 1;
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
    fn a_refused_packet_is_a_hole_as_soon_as_it_is_not_the_newest() {
        let mut ledger = PathLedger::default();
        let note = |ledger: &mut PathLedger, pps, verdict| ledger.note(0, pps, false, verdict);
        note(&mut ledger, 0, Verdict::Placed);
        note(&mut ledger, 1, Verdict::NotReady);
        assert_eq!((ledger.max(), ledger.sack()[0]), (1, 0b1));
        note(&mut ledger, 2, Verdict::Placed);
        note(&mut ledger, 5, Verdict::Placed);
        assert_eq!((ledger.max(), ledger.sack()[0]), (5, 0b10100));
    }

    #[test]
    fn an_older_epoch_is_not_noted() {
        let mut ledger = PathLedger::default();
        assert!(ledger.note(1, 0, false, Verdict::Placed).is_some());
        assert!(ledger.note(0, 7, true, Verdict::Placed).is_none());
        assert_eq!((ledger.max(), ledger.ce()), (0, 0));
    }
}
