//! The receiver's record of one path: the 256-bit selective acknowledgement (F6).
//!
//! It is anchored at the highest sequence number seen, so that numbers given up by the sender need
//! no message to move on. It decides nothing about messages.

use metaroce_wire::Verdict;

/// Bits of the selective acknowledgement (F6).
pub const SACK_BITS: u32 = 256;

/// Words of the vector behind the first.
const FAR_WORDS: usize = (SACK_BITS / u64::BITS) as usize - 1;

// [F6.sack-256]
/// What has arrived on a path in its current epoch: half a cache line, as long as nothing is missing behind the 64
/// packets before the newest.
#[derive(Clone, Debug, Default)]
#[repr(align(32))]
pub struct PathLedger {
    /// Bit k: `max - 1 - k` has arrived.
    near: u64,
    /// The bits behind those. None: all have arrived that there are.
    far: Option<Box<[u64; FAR_WORDS]>>,
    max: u32,
    ce: u32,
    epoch: u8,
    /// What became of `max` itself. Refused, it becomes a hole.
    newest: Verdict,
    /// Some packet has arrived.
    begun: bool,
    /// The last packet was marked.
    marked: bool,
    /// Packets since the last acknowledgement that reported this path.
    untold: u8,
}

const _: () = assert!(size_of::<PathLedger>() == 32, "half a cache line");

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
        let next = epoch == self.epoch && self.begun && pps == self.max.wrapping_add(1);
        let gap = !next && self.note_gap(epoch, pps, verdict)?;
        if next {
            self.advance(1);
            self.max = pps;
            self.newest = verdict;
        }
        let noted = Noted { gap, mark_changed: marked != self.marked };
        self.marked = marked;
        self.untold = self.untold.saturating_add(1);
        self.ce += u32::from(marked);
        Some(noted)
    }

    /// Of a packet that is not the next one. Answers whether it shows a gap.
    #[cold]
    #[inline(never)]
    fn note_gap(&mut self, epoch: u8, pps: u32, verdict: Verdict) -> Option<bool> {
        if epoch != self.epoch {
            if (epoch.wrapping_sub(self.epoch) as i8) < 0 {
                return None;
            }
            *self = PathLedger { epoch, ..PathLedger::default() };
        }
        if !self.begun {
            self.begin(pps);
            self.newest = verdict;
            return Some(pps > 0 || epoch > 0);
        }
        if pps > self.max {
            self.advance(pps - self.max);
            self.max = pps;
            self.newest = verdict;
        } else if pps == self.max {
            // A copy: what was placed stays placed.
            // [F6.refusal-is-a-hole] [I12]
            self.newest = if self.newest == Verdict::Placed { self.newest } else { verdict };
        } else if verdict == Verdict::Placed {
            self.fill(self.max - pps - 1);
        }
        Some(true)
    }

    /// The first packet has arrived. Those before it are missing.
    fn begin(&mut self, pps: u32) {
        self.begun = true;
        self.max = pps;
        self.far = (pps > u64::BITS).then(Box::default);
    }

    /// `max - 1 - k` has arrived late.
    fn fill(&mut self, k: u32) {
        let bit = 1 << (k & 63);
        match ((k >> 6) as usize, &mut self.far) {
            (0, _) => self.near |= bit,
            (word @ ..=FAR_WORDS, Some(far)) => far[word - 1] |= bit,
            _ => {}
        }
    }

    // [I13]
    /// Moves the anchor up by `steps`, at least 1.
    #[inline]
    fn advance(&mut self, steps: u32) {
        let own = u64::from(self.newest == Verdict::Placed);
        // What falls out of the near bits has arrived, or there is no such packet.
        let whole = self.near >> 63 == 1 || self.max < u64::BITS;
        if steps == 1 && whole && self.far.is_none() {
            self.near = self.near << 1 | own;
        } else {
            self.advance_far(steps, own);
        }
    }

    #[inline(never)]
    fn advance_far(&mut self, steps: u32, own: u64) {
        let mut bits = self.bits();
        let (words, shift) = ((steps >> 6) as usize, steps & 63);
        for i in (0..=FAR_WORDS).rev() {
            let high = if i >= words { bits[i - words] << shift } else { 0 };
            let low = if shift > 0 && i > words { bits[i - words - 1] >> (64 - shift) } else { 0 };
            bits[i] = high | low;
        }
        if steps <= SACK_BITS {
            bits[((steps - 1) >> 6) as usize] |= own << ((steps - 1) & 63);
        }
        let [near, far @ ..] = bits;
        self.near = near;
        let whole = || (1..=FAR_WORDS).all(|word| far[word - 1] == known(self.max + steps, word));
        match &mut self.far {
            // What was needed once is kept: no packet allocates for long.
            Some(kept) => **kept = far,
            None if whole() => {}
            None => self.far = Some(Box::new(far)),
        }
    }

    /// The words of the vector.
    #[inline]
    fn bits(&self) -> [u64; FAR_WORDS + 1] {
        match self.far.as_deref() {
            Some(&[b, c, d]) => [self.near, b, c, d],
            None => [self.near, known(self.max, 1), known(self.max, 2), known(self.max, 3)],
        }
    }

    /// The vector.
    #[inline]
    pub fn sack(&self) -> [u32; 8] {
        let [a, b, c, d] = self.bits();
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
        match self.far.as_deref().and_then(|far| (1..=FAR_WORDS).rfind(|&w| !far[w - 1] & known(self.max, w) != 0)) {
            Some(word) => word as u32 + 1,
            None => u32::from(!self.near & known(self.max, 0) != 0),
        }
    }
}

/// The bits of word `word` that stand for packets, where `max` is the newest.
#[inline]
const fn known(max: u32, word: usize) -> u64 {
    match max.saturating_sub(u64::BITS * word as u32) {
        bits @ 0..64 => (1 << bits) - 1,
        _ => u64::MAX,
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
        fn vector_equals_the_set_of_arrivals(steps in prop::collection::vec((step(), 0u32..40, any::<bool>()), 1..400)) {
            let (mut ledger, mut seen, mut pps) = (PathLedger::default(), BTreeSet::new(), 0);
            for (step, kind, first) in steps {
                pps += if first { step - 1 } else { step };
                // Some are refused, some are followed by a late one.
                let verdict = if kind == 0 { Verdict::NotReady } else { Verdict::Placed };
                ledger.note(0, pps, false, verdict);
                if verdict == Verdict::Placed {
                    seen.insert(pps);
                }
                if kind == 1 {
                    let late = pps.saturating_sub(step % 300);
                    ledger.note(0, late, false, Verdict::Placed);
                    seen.insert(late);
                }
                for k in 0..256u32 {
                    let bit = ledger.sack()[(k >> 5) as usize] >> (k & 31) & 1;
                    prop_assert_eq!(bit == 1, pps > k && seen.contains(&(pps - 1 - k)), "pps {} bit {}", pps, k);
                }
                let oldest_hole = (0..256u32).filter(|&k| k < pps && !seen.contains(&(pps - 1 - k))).max();
                prop_assert_eq!(ledger.words(), oldest_hole.map_or(0, |k| k / 64 + 1));
            }
        }
    }

    /// Mostly the next packet.
    fn step() -> impl Strategy<Value = u32> {
        prop_oneof![20 => Just(1u32), 1 => 1u32..300]
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
