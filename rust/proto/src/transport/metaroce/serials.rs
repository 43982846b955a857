//! Which of a connection's packets have been placed, by serial: the highest, and the [`REACH`] before it.
//!
//! The receiver keeps one to tell with every acknowledgement, the sender one of what it was told: an
//! acknowledgement then covers packets of any path, and what lost ones before it said (ours).

/// Serials before the highest that a set knows. Ours: what one acknowledgement adds to those before it.
pub const REACH: u32 = u64::BITS;

/// A set of serials near its maximum. Serials wrap. Packed, so that two fit a line with what goes with each.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
pub struct Serials {
    max: u32,
    /// Bit k: `max - 1 - k` is in the set.
    before: u64,
}

impl Serials {
    /// Nothing yet; the first serial is 0.
    pub const NONE: Serials = Serials { max: u32::MAX, before: 0 };

    /// As an acknowledgement has it.
    pub const fn of(max: u32, before: [u32; 2]) -> Serials {
        Serials { max, before: (before[1] as u64) << 32 | before[0] as u64 }
    }

    /// As an acknowledgement has it.
    pub const fn parts(&self) -> (u32, [u32; 2]) {
        (self.max, [self.before as u32, (self.before >> 32) as u32])
    }

    /// Whether a serial is too old to be told by the set.
    #[inline]
    pub const fn is_beyond(&self, serial: u32) -> bool {
        self.max.wrapping_sub(serial) as i32 > u64::BITS as i32
    }

    /// Adds one.
    #[inline]
    pub fn insert(&mut self, serial: u32) {
        if serial == self.max.wrapping_add(1) {
            *self = Serials { max: serial, before: self.before << 1 | 1 };
        } else {
            self.learn(&Serials { max: serial, before: 0 });
        }
    }

    /// The highest.
    pub const fn max(&self) -> u32 {
        self.max
    }

    /// Of what `told` has, what is too old for the set: `told.max - k` where bit k is set. Planes differ in length,
    /// so an acknowledgement may be overtaken by more than the set reaches back.
    #[inline]
    pub fn out_of_reach(&self, told: &Serials) -> u128 {
        let late = self.max.wrapping_sub(told.max) as i32;
        if late <= 0 {
            return 0;
        }
        let reached = (1 << (REACH + 1).saturating_sub(late.unsigned_abs())) - 1;
        (u128::from(told.before) << 1 | 1) & !reached
    }

    /// Adds what `told` has, and answers what of it is new: the maximum and whether that is, and below it the bits as
    /// in the set itself.
    #[inline]
    pub fn learn(&mut self, told: &Serials) -> (u32, bool, u64) {
        let ahead = told.max.wrapping_sub(self.max) as i32;
        let below = |set: &Serials, by: u32| (set.before << 1 | 1).checked_shl(by - 1).unwrap_or(0);
        let (max, own, theirs) = match ahead {
            0 => (self.max, self.before, told.before),
            1.. => (told.max, below(self, ahead.unsigned_abs()), told.before),
            _ => (self.max, self.before, below(told, ahead.unsigned_abs())),
        };
        *self = Serials { max, before: own | theirs };
        (max, ahead > 0, theirs & !own)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_new_is_new_once(start in any::<u32>(), steps in prop::collection::vec(-70i32..90, 1..100)) {
            let mut told = Serials { max: start.wrapping_sub(1), before: 0 };
            let mut known = told;
            let (mut serial, mut seen) = (start, BTreeSet::new());
            for (position, step) in steps.into_iter().enumerate() {
                serial = serial.wrapping_add_signed(step);
                told.insert(serial);
                if position % 3 == 0 {
                    // Others are lost on their way.
                    let (max, newest, mut fresh) = known.learn(&told);
                    prop_assert!(!newest || seen.insert(max) || seen.len() > REACH as usize, "{max} twice");
                    while fresh != 0 {
                        let serial = max.wrapping_sub(fresh.trailing_zeros() + 1);
                        prop_assert!(seen.insert(serial) || seen.len() > REACH as usize, "{serial} twice");
                        fresh &= fresh - 1;
                    }
                }
            }
        }
    }

    #[test]
    fn an_acknowledgement_covers_lost_and_overtaken_ones() {
        let mut receiver = Serials::NONE;
        let mut sender = Serials::NONE;
        let mut told = Vec::new();
        for serial in 0..6 {
            receiver.insert(serial);
            told.push(receiver);
        }
        assert_eq!(sender.learn(&told[0]), (0, true, 0));
        assert_eq!(sender.learn(&told[4]), (4, true, 0b111));
        assert_eq!(sender.learn(&told[2]), (4, false, 0));
        assert_eq!(sender.learn(&told[5]), (5, true, 0));
    }

    #[test]
    fn what_an_overtaken_acknowledgement_alone_tells_is_not_lost() {
        let mut sender = Serials::NONE;
        sender.learn(&Serials::of(200, [0, 0]));
        for late in [0_u32, 1, 64, 65, 100, 200] {
            let told = Serials::of(200 - late, [u32::MAX; 2]);
            let old = sender.out_of_reach(&told);
            let (max, _, fresh) = Serials { ..sender }.learn(&told);
            let near = (0..REACH).filter(|k| fresh >> k & 1 == 1).map(|k| max - 1 - k);
            let far = (0..=REACH).filter(|k| old >> k & 1 == 1).map(|k| (200 - late).wrapping_sub(k));
            let all: BTreeSet<u32> = near.chain(far).chain([200]).collect();
            let expected: BTreeSet<u32> = (0..=REACH).map(|k| (200 - late).wrapping_sub(k)).chain([200]).collect();
            assert_eq!(all, expected, "{late} late");
        }
    }
}
