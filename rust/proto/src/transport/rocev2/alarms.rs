//! Pending timers of a host, earliest first.

use metaroce_wire::{Time, prefetch};

/// Children of an entry.
const ARITY: usize = 4;
/// Place of an entry that is not there: behind all others.
const NONE: u128 = u128::MAX;

/// Children of one entry, in one cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Family([u128; ARITY]);

/// A heap of (when, what). Of four children each, so that its depth is half of the usual one; the first entry is in
/// place.
#[derive(Debug)]
pub struct Alarms {
    first: u128,
    /// Entry k + 1 is child k mod 4 of entry k ÷ 4; entry 0 is the first.
    families: Vec<Family>,
    len: usize,
}

#[inline]
fn join(at: Time, what: u32) -> u128 {
    u128::from(at.0) << u32::BITS | u128::from(what)
}

impl Alarms {
    /// None.
    pub const fn new() -> Alarms {
        Alarms { first: NONE, families: Vec::new(), len: 0 }
    }

    /// The earliest; of those of one instant, that with the smallest `what`.
    #[inline]
    pub fn first(&self) -> Option<(Time, u32)> {
        (self.len > 0).then_some((self.time(), self.first as u32))
    }

    /// When that is due; `NEVER` if there is none.
    #[inline]
    pub fn time(&self) -> Time {
        if self.len > 0 { Time((self.first >> u32::BITS) as u64) } else { Time::NEVER }
    }

    #[inline]
    fn entry(&mut self, index: usize) -> &mut u128 {
        match index.checked_sub(1) {
            None => &mut self.first,
            Some(below) => &mut self.families[below / ARITY].0[below % ARITY],
        }
    }

    /// Adds one.
    pub fn push(&mut self, at: Time, what: u32) {
        let (new, mut index) = (join(at, what), self.len);
        self.len += 1;
        if self.families.len() * ARITY < index {
            self.families.push(Family([NONE; ARITY]));
        }
        while let Some(below) = index.checked_sub(1) {
            let parent = *self.entry(below / ARITY);
            if parent <= new {
                break;
            }
            *self.entry(index) = parent;
            index = below / ARITY;
        }
        *self.entry(index) = new;
    }

    /// Takes the first one out.
    pub fn pop(&mut self) {
        let Some(last) = self.len.checked_sub(1) else { return };
        let moved = std::mem::replace(self.entry(last), NONE);
        self.len = last;
        if last > 0 {
            self.settle(moved);
        }
    }

    /// Takes the first one out and adds one.
    pub fn replace_first(&mut self, at: Time, what: u32) {
        self.settle(join(at, what));
    }

    /// Finds the place of `entry`, the first one's being free.
    fn settle(&mut self, entry: u128) {
        let mut index = 0;
        while let Some(&Family([a, b, c, d])) = self.families.get(index) {
            let (left, right) = (if b < a { (b, 1) } else { (a, 0) }, if d < c { (d, 3) } else { (c, 2) });
            let (least, child) = if right.0 < left.0 { right } else { left };
            if entry <= least {
                break;
            }
            *self.entry(index) = least;
            index = index * ARITY + 1 + child;
        }
        *self.entry(index) = entry;
    }

    /// Hints the processor at what comes behind the first.
    #[inline]
    pub fn prefetch(&self) {
        self.families.first().map(prefetch).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn alarms_go_off_in_order(steps in prop::collection::vec((0u8..5, 0u64..200, 0u32..4), 1..300)) {
            let (mut alarms, mut heap) = (Alarms::new(), BinaryHeap::new());
            for (step, at, what) in steps {
                let at = Time(at);
                match step {
                    0 => {
                        alarms.pop();
                        heap.pop();
                    }
                    1 if heap.pop().is_some() => {
                        alarms.replace_first(at, what);
                        heap.push(Reverse((at, what)));
                    }
                    _ => {
                        alarms.push(at, what);
                        heap.push(Reverse((at, what)));
                    }
                }
                let first = heap.peek().map(|&Reverse(first)| first);
                prop_assert_eq!(alarms.first(), first);
                prop_assert_eq!(alarms.time(), first.map_or(Time::NEVER, |(at, _)| at));
            }
        }
    }
}
