//! The event queue: a time wheel with a total order (time, name).
//!
//! Events at the same time pop in the order of their names, whoever pushed them and when: what the order is does not
//! depend on how a run is divided. Near events are 8 bytes, their offset in a bucket of the wheel above their name, and
//! lie unsorted until their bucket is opened, a few events before the first of them is due, so that there is always
//! something to look ahead at; far events wait in a heap. Buckets are chains of cache lines.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use metaroce_wire::Time;

use crate::chains::{Chains, End};

/// Bits of a name.
pub const NAME_BITS: u32 = 52;
/// Widest buckets: 2^12 ps, so that an offset fits above a name.
pub const MAX_SHIFT: u32 = u64::BITS - NAME_BITS;

/// Most buckets: 2^15, of which one word each 64 tells what is in them, and 8 words which of those to read.
pub const MAX_BUCKET_BITS: u32 = 15;
const SUMMARY: usize = 1 << (MAX_BUCKET_BITS - 12);
/// So many events lie open, if they are due soon. Ours: what memory takes to answer, and a few more.
const OPEN: usize = 16;
/// Soon, in buckets. What is pushed into an open bucket is sorted in, so that not too much of the wheel may be.
const SOON: u64 = 32;
const NAME: u64 = (1 << NAME_BITS) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    time: Time,
    name: u64,
}

/// Pending events.
#[derive(Debug)]
pub struct EventQueue {
    /// Bucket width is 2^shift ps.
    shift: u32,
    /// Events of the open buckets, and the first of them that has not popped.
    due: Vec<Due>,
    next: usize,
    /// The first of those that have been opened since that was last asked.
    fresh: usize,
    /// Number of the last open bucket since time 0.
    cursor: u64,
    /// Before that it is too early to open another bucket.
    patient: Time,
    /// To sort a bucket in.
    bucket: Vec<u64>,
    /// Their number, a power of two, less one.
    mask: usize,
    ends: Box<[End]>,
    /// Bit b of word w: bucket 64 w + b holds something; and in the same way which words are not 0.
    occupied: Box<[u64]>,
    summary: [u64; SUMMARY],
    chains: Chains<8>,
    /// Times above names.
    far: BinaryHeap<Reverse<u128>>,
}

impl EventQueue {
    /// An empty queue with 2^`bits` buckets, each 2^`shift` ps wide: at most [`MAX_SHIFT`], and from 6 to
    /// [`MAX_BUCKET_BITS`].
    pub fn new(shift: u32, bits: u32) -> EventQueue {
        assert!(shift <= MAX_SHIFT && (6..=MAX_BUCKET_BITS).contains(&bits), "2^{bits} buckets of 2^{shift} ps");
        EventQueue {
            shift,
            due: Vec::new(),
            next: 0,
            fresh: 0,
            cursor: 0,
            patient: Time::ZERO,
            bucket: Vec::new(),
            mask: (1 << bits) - 1,
            ends: vec![End::default(); 1 << bits].into(),
            occupied: vec![0; 1 << (bits - 6)].into(),
            summary: [0; SUMMARY],
            chains: Chains::default(),
            far: BinaryHeap::new(),
        }
    }

    /// Adds an event. Its name must be below 2^[`NAME_BITS`]; its time not before that of the last event popped.
    #[inline]
    pub fn push(&mut self, time: Time, name: u64) {
        debug_assert!(name <= NAME);
        let bucket = time.0 >> self.shift;
        if bucket.wrapping_sub(self.cursor + 1) < self.mask as u64 {
            let key = self.key(time, name);
            self.put(bucket as usize & self.mask, key);
        } else {
            self.push_aside(time, name);
        }
    }

    #[inline]
    const fn key(&self, time: Time, name: u64) -> u64 {
        (time.0 & ((1 << self.shift) - 1)) << NAME_BITS | name
    }

    /// Adds an event of an open bucket, or beyond the wheel.
    #[cold]
    #[inline(never)]
    fn push_aside(&mut self, time: Time, name: u64) {
        if time.0 >> self.shift <= self.cursor {
            let event = Due { time, name };
            let at = self.next + self.due[self.next..].partition_point(|&other| other < event);
            self.due.insert(at, event);
            self.fresh = self.due.len();
        } else {
            self.far.push(Reverse(u128::from(time.0) << u64::BITS | u128::from(name)));
        }
    }

    #[inline]
    fn put(&mut self, slot: usize, key: u64) {
        if !self.chains.put(&mut self.ends[slot], key) {
            self.put_in_new(slot, key);
        }
    }

    #[inline(never)]
    fn put_in_new(&mut self, slot: usize, key: u64) {
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.summary[slot / 4096] |= 1 << (slot / 64 % 64);
        self.chains.put_in_new(&mut self.ends[slot], key);
    }

    /// The next event, if it is due by `last`.
    #[inline]
    pub fn pop(&mut self, last: Time) -> Option<(Time, u64)> {
        if self.due.len() - self.next < OPEN && self.due.get(self.next).is_none_or(|event| event.time >= self.patient) {
            self.refill(last);
        }
        let &Due { time, name } = self.due.get(self.next)?;
        if time > last {
            return None;
        }
        self.next += 1;
        Some((time, name))
    }

    /// When the next event is due. Moves nothing, so that what is pushed next may still come before it.
    pub fn next_time(&self) -> Option<Time> {
        if let Some(event) = self.due.get(self.next) {
            return Some(event.time);
        }
        let near = self.next_occupied().and_then(|bucket| {
            let keys = self.chains.iter(self.ends[bucket as usize & self.mask]);
            keys.min().map(|key| self.event(bucket, key).time)
        });
        near.into_iter().chain(self.first_far()).min()
    }

    #[inline]
    const fn event(&self, bucket: u64, key: u64) -> Due {
        Due { time: Time(bucket << self.shift | key >> NAME_BITS), name: key & NAME }
    }

    fn first_far(&self) -> Option<Time> {
        self.far.peek().map(|&Reverse(event)| Time((event >> u64::BITS) as u64))
    }

    /// The names of events that are due soon, in their order, and have not been shown before.
    #[inline]
    pub fn fresh(&mut self) -> impl Iterator<Item = u64> + '_ {
        let from = std::mem::replace(&mut self.fresh, self.due.len());
        self.due[from..].iter().map(|event| event.name)
    }

    /// Whether there are any.
    #[inline]
    pub const fn has_fresh(&self) -> bool {
        self.fresh < self.due.len()
    }

    /// Shows the names of events that follow those of the open buckets, not all of them and in no order.
    #[inline]
    pub fn coming(&self, mut show: impl FnMut(u64)) {
        let Some(bucket) = self.next_occupied() else { return };
        let end = self.ends[bucket as usize & self.mask];
        self.chains.last(end).iter().for_each(|key| show(key & NAME));
        self.chains.prefetch_others(end);
    }

    /// Opens buckets until enough events lie open: the next one if it begins by `last`, others if they are due soon.
    #[inline(never)]
    fn refill(&mut self, last: Time) {
        loop {
            let near = self.next_occupied();
            let far = self.first_far().map(|time| time.0 >> self.shift);
            let next = self.due.get(self.next).map(|event| event.time.0 >> self.shift);
            let Some(bucket) = near.into_iter().chain(far).min() else {
                self.patient = Time(next.map_or(0, |open| open + SOON) << self.shift);
                return;
            };
            let begins = match next {
                Some(open) => bucket <= open + SOON,
                None => bucket << self.shift <= last.0,
            };
            if !begins {
                self.patient = Time(bucket.saturating_sub(SOON) << self.shift);
                return;
            }
            self.due.drain(..self.next);
            self.fresh = self.fresh.saturating_sub(self.next);
            (self.next, self.cursor) = (0, bucket);
            if near == Some(bucket) {
                self.open(bucket as usize & self.mask);
            }
            if far == Some(bucket) {
                self.open_far();
            }
            if self.due.len() >= OPEN {
                return;
            }
        }
    }

    /// Moves a bucket's events, sorted, to those that lie open, and its chunks to the free list.
    #[inline]
    fn open(&mut self, slot: usize) {
        self.bucket.clear();
        self.chains.take(&mut self.ends[slot], &mut self.bucket);
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        self.summary[slot / 4096] &= !(u64::from(self.occupied[slot / 64] == 0) << (slot / 64 % 64));
        self.bucket.sort_unstable();
        let (cursor, shift) = (self.cursor, self.shift);
        let event = |&key: &u64| Due { time: Time(cursor << shift | key >> NAME_BITS), name: key & NAME };
        self.due.extend(self.bucket.iter().map(event));
    }

    /// Moves far events whose bucket is the last open one there.
    #[cold]
    fn open_far(&mut self) {
        while let Some(&Reverse(event)) = self.far.peek() {
            let time = Time((event >> u64::BITS) as u64);
            if time.0 >> self.shift > self.cursor {
                break;
            }
            self.far.pop();
            self.due.push(Due { time, name: event as u64 });
        }
        self.due.sort_unstable();
    }

    #[inline]
    fn next_occupied(&self) -> Option<u64> {
        let start = (self.cursor as usize + 1) & self.mask;
        let mut word = start / 64;
        let mut bits = self.occupied[word] & (u64::MAX << (start % 64));
        if bits == 0 {
            word = self.next_word(word)?;
            bits = self.occupied[word];
        }
        let slot = word * 64 + bits.trailing_zeros() as usize;
        let distance = slot.wrapping_sub(self.cursor as usize) & self.mask;
        Some(self.cursor + distance as u64)
    }

    /// The first word after `word` that is not 0, round to itself.
    fn next_word(&self, word: usize) -> Option<usize> {
        let (start, shift) = (word / 64, word % 64);
        // All bits above `word`, and when everything else has been seen those up to it.
        let above = (u64::MAX << shift) << 1;
        let parts = self.occupied.len().div_ceil(64);
        (0..=parts).find_map(|k| {
            let part = (start + k) % parts;
            let seen = match k {
                0 => above,
                k if k == parts => !above,
                _ => u64::MAX,
            };
            let bits = self.summary[part] & seen;
            (bits != 0).then(|| part * 64 + bits.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a sorted set: same events, same order, ties in the order of names.
        #[test]
        fn pops_in_order_of_time_and_name(
            shift in 0..=MAX_SHIFT,
            bits in 6..=MAX_BUCKET_BITS,
            steps in prop::collection::vec((0u64..1 << 30, prop::bool::ANY, 0u32..24, 0..1u64 << NAME_BITS), 1..400),
        ) {
            let (mut queue, mut oracle, mut now) = (EventQueue::new(shift, bits), BTreeSet::new(), 0);
            for (delay, pop, scale, name) in steps {
                let time = now + (delay >> scale);
                if oracle.insert((time, name)) {
                    queue.push(Time(time), name);
                }
                if pop {
                    let (time, name) = oracle.pop_first().expect("one was just added");
                    prop_assert_eq!(queue.next_time(), Some(Time(time)));
                    if let Some(before) = time.checked_sub(1) {
                        prop_assert_eq!(queue.pop(Time(before)), None);
                    }
                    prop_assert_eq!(queue.pop(Time(time)), Some((Time(time), name)));
                    now = time;
                }
            }
            while let Some((time, name)) = oracle.pop_first() {
                prop_assert_eq!(queue.pop(Time::NEVER), Some((Time(time), name)));
            }
            prop_assert_eq!(queue.pop(Time::NEVER), None);
        }
    }
}
