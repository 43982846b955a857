//! The receiver's record of a QP's sequence numbers: all before one have arrived, and a bit for each beyond it.

use std::collections::VecDeque;

const WORD: u64 = u64::BITS as u64;

/// What has arrived.
#[derive(Debug)]
pub struct Tracker {
    /// All numbers before this one have arrived.
    cumulative: u64,
    /// Bits from the multiple of 64 at or below `cumulative` on.
    words: VecDeque<u64>,
}

impl Tracker {
    /// Nothing has arrived, and `first` is the first that will.
    pub const fn new(first: u64) -> Tracker {
        Tracker { cumulative: first, words: VecDeque::new() }
    }

    /// All numbers before this one have arrived.
    pub const fn cumulative(&self) -> u64 {
        self.cumulative
    }

    const fn index(&self, number: u64) -> usize {
        (number / WORD - self.cumulative / WORD) as usize
    }

    /// Whether `number` has arrived.
    pub fn contains(&self, number: u64) -> bool {
        number < self.cumulative
            || self.words.get(self.index(number)).is_some_and(|word| word >> (number % WORD) & 1 == 1)
    }

    /// Takes a number that has not arrived.
    pub fn insert(&mut self, number: u64) {
        let index = self.index(number);
        if self.words.len() <= index {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (number % WORD);
        while let Some(&word) = self.words.front() {
            let from = self.cumulative % WORD;
            let run = u64::from((word >> from).trailing_ones()).min(WORD - from);
            self.cumulative += run;
            if run < WORD - from {
                break;
            }
            self.words.pop_front();
        }
    }

    /// Bits of the 64 numbers from `start` on, which is not before `cumulative`.
    pub fn bitmap(&self, start: u64) -> u64 {
        let (index, shift) = (self.index(start), start % WORD);
        let word = |index: usize| self.words.get(index).copied().unwrap_or(0);
        let high = if shift == 0 { 0 } else { word(index + 1) << (WORD - shift) };
        word(index) >> shift | high
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
