//! The receiver's record of a QP's sequence numbers: all before one have arrived, and a bit for each beyond it.

use crate::transport::ring::Ring;

const WORD: u64 = u64::BITS as u64;

/// What has arrived.
#[derive(Debug)]
pub struct Tracker {
    /// All numbers before this one have arrived.
    cumulative: u64,
    /// Bits from the multiple of 64 at or below `cumulative` on: the first word, here since it is all that most need.
    near: u64,
    /// The words behind it.
    far: Ring<u64>,
}

impl Tracker {
    /// Nothing has arrived, and `first` is the first that will.
    pub fn new(first: u64) -> Tracker {
        Tracker { cumulative: first, near: 0, far: Ring::default() }
    }

    /// All numbers before this one have arrived.
    #[inline]
    pub const fn cumulative(&self) -> u64 {
        self.cumulative
    }

    #[inline]
    const fn index(&self, number: u64) -> usize {
        (number / WORD - self.cumulative / WORD) as usize
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        match index.checked_sub(1) {
            None => self.near,
            Some(index) => self.far.get(index).copied().unwrap_or(0),
        }
    }

    /// Whether `number` has arrived.
    #[inline]
    pub fn contains(&self, number: u64) -> bool {
        number < self.cumulative || self.word(self.index(number)) >> (number % WORD) & 1 == 1
    }

    /// Takes a number that has not arrived.
    #[inline]
    pub fn insert(&mut self, number: u64) {
        let bit = 1 << (number % WORD);
        match self.index(number).checked_sub(1) {
            None => self.near |= bit,
            Some(index) => {
                while self.far.len() <= index {
                    self.far.push_back(0);
                }
                if let Some(word) = self.far.get_mut(index) {
                    *word |= bit;
                }
                // What the first word lacks it lacks still.
                return;
            }
        }
        loop {
            let from = self.cumulative % WORD;
            let run = u64::from((self.near >> from).trailing_ones()).min(WORD - from);
            self.cumulative += run;
            if run < WORD - from {
                break;
            }
            self.near = self.far.pop_front().unwrap_or(0);
        }
    }

    /// Bits of the 64 numbers from `start` on, which is not before `cumulative`.
    #[inline]
    pub fn bitmap(&self, start: u64) -> u64 {
        let (index, shift) = (self.index(start), start % WORD);
        let high = if shift == 0 { 0 } else { self.word(index + 1) << (WORD - shift) };
        self.word(index) >> shift | high
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_knows_what_a_set_knows(first in 0..200u64, numbers in prop::collection::vec(0..400u64, 1..400)) {
            let (mut tracker, mut set) = (Tracker::new(first), BTreeSet::new());
            for number in numbers.into_iter().map(|n| first + n) {
                prop_assert_eq!(tracker.contains(number), set.contains(&number));
                if set.insert(number) {
                    tracker.insert(number);
                }
                let cumulative = (first..).find(|n| !set.contains(n)).expect("some gap");
                prop_assert_eq!(tracker.cumulative(), cumulative);
                for start in [cumulative, cumulative + 1, number.max(cumulative)] {
                    let bits = (0..64).filter(|k| set.contains(&(start + k))).fold(0u64, |bits, k| bits | 1 << k);
                    prop_assert_eq!(tracker.bitmap(start), bits);
                }
            }
        }
    }
}
