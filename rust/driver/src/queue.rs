//! The event queue: a time wheel with a total order (time, name).
//!
//! Events at the same time pop in the order of their names, whoever pushed them and when: what the order is does not
//! depend on how a run is divided. Near events are 8 bytes, their offset in a bucket of the wheel above their name, and
//! lie unsorted until their bucket becomes current; far events wait in a heap. Buckets are chains of chunks, a cache
//! line each, from one free list, so that what is pending, not the wheel, decides how much cache is used.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use metaroce_wire::{Time, prefetch};

/// Bits of a name.
pub const NAME_BITS: u32 = 52;
/// Widest buckets: 2^12 ps, so that an offset fits above a name.
pub const MAX_SHIFT: u32 = u64::BITS - NAME_BITS;

/// Most buckets: 2^15, of which one word each 64 tells what is in them, and 8 words which of those to read.
pub const MAX_BUCKET_BITS: u32 = 15;
const SUMMARY: usize = 1 << (MAX_BUCKET_BITS - 12);
const CHUNK: usize = 7;
const NIL: u32 = u32::MAX;
const NAME: u64 = (1 << NAME_BITS) - 1;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Chunk {
    events: [u64; CHUNK],
    next: u32,
    len: u32,
}

/// Pending events.
#[derive(Debug)]
pub struct EventQueue {
    /// Bucket width is 2^shift ps.
    shift: u32,
    /// Events of the current bucket, and the first of them that has not popped.
    current: Vec<u64>,
    next: usize,
    /// Number of the current bucket since time 0.
    cursor: u64,
    /// Their number, a power of two, less one.
    mask: usize,
    heads: Box<[u32]>,
    /// Bit b of word w: bucket 64 w + b holds something; and in the same way which words are not 0.
    occupied: Box<[u64]>,
    summary: [u64; SUMMARY],
    chunks: Vec<Chunk>,
    free: u32,
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
            current: Vec::new(),
            next: 0,
            cursor: 0,
            mask: (1 << bits) - 1,
            heads: vec![NIL; 1 << bits].into(),
            occupied: vec![0; 1 << (bits - 6)].into(),
            summary: [0; SUMMARY],
            chunks: Vec::new(),
            free: NIL,
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

    /// Adds an event of the current bucket, or beyond the wheel.
    #[cold]
    #[inline(never)]
    fn push_aside(&mut self, time: Time, name: u64) {
        if time.0 >> self.shift <= self.cursor {
            let key = self.key(time, name);
            let at = self.next + self.current[self.next..].partition_point(|&k| k < key);
            self.current.insert(at, key);
        } else {
            self.far.push(Reverse(u128::from(time.0) << u64::BITS | u128::from(name)));
        }
    }

    #[inline]
    fn put(&mut self, slot: usize, key: u64) {
        let head = self.heads[slot];
        if let Some(chunk) = self.chunks.get_mut(head as usize) {
            let len = chunk.len as usize;
            if len < CHUNK {
                chunk.events[len] = key;
                chunk.len += 1;
                return;
            }
        }
        self.put_in_new(slot, key);
    }

    #[inline(never)]
    fn put_in_new(&mut self, slot: usize, key: u64) {
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.summary[slot / 4096] |= 1 << (slot / 64 % 64);
        let next = self.heads[slot];
        if let Some(chunk) = self.chunks.get_mut(self.free as usize) {
            self.heads[slot] = self.free;
            self.free = chunk.next;
            chunk.events[0] = key;
            (chunk.next, chunk.len) = (next, 1);
        } else {
            self.heads[slot] = self.chunks.len() as u32;
            let mut events = [0; CHUNK];
            events[0] = key;
            self.chunks.push(Chunk { events, next, len: 1 });
        }
    }

    /// The next event, if it is due by `last`.
    #[inline]
    pub fn pop(&mut self, last: Time) -> Option<(Time, u64)> {
        if self.next == self.current.len() && !self.advance(last) {
            return None;
        }
        let key = self.current[self.next];
        let time = self.time(self.cursor, key);
        if time > last {
            return None;
        }
        self.next += 1;
        Some((time, key & NAME))
    }

    /// When the next event is due. Moves nothing, so that what is pushed next may still come before it.
    pub fn next_time(&self) -> Option<Time> {
        if let Some(&key) = self.current.get(self.next) {
            return Some(self.time(self.cursor, key));
        }
        let near = self.next_occupied().and_then(|bucket| {
            let first = self.chunks.get(self.heads[bucket as usize & self.mask] as usize);
            let chain = std::iter::successors(first, |chunk| self.chunks.get(chunk.next as usize));
            let keys = chain.flat_map(|chunk| &chunk.events[..chunk.len as usize]);
            keys.min().map(|&key| self.time(bucket, key))
        });
        let far = self.far.peek().map(|&Reverse(event)| Time((event >> u64::BITS) as u64));
        near.into_iter().chain(far).min()
    }

    #[inline]
    const fn time(&self, bucket: u64, key: u64) -> Time {
        Time(bucket << self.shift | key >> NAME_BITS)
    }

    /// The name of the event that will pop `ahead` pops from now, if it is in the current bucket.
    #[inline]
    pub fn peek(&self, ahead: usize) -> Option<u64> {
        self.current.get(self.next + ahead).map(|key| key & NAME)
    }

    /// Whether no event of the current bucket has popped but one.
    #[inline]
    pub const fn has_opened(&self) -> bool {
        self.next == 1
    }

    /// Shows the names of events that follow those of the current bucket, not all of them and in no order.
    #[inline]
    pub fn coming(&self, mut show: impl FnMut(u64)) {
        let Some(bucket) = self.next_occupied() else { return };
        if let Some(chunk) = self.chunks.get(self.heads[bucket as usize & self.mask] as usize) {
            chunk.events.iter().take(chunk.len as usize).for_each(|key| show(key & NAME));
            if let Some(next) = self.chunks.get(chunk.next as usize) {
                prefetch(next);
            }
        }
    }

    /// Moves on to the next bucket that holds something. False if none begins by `last`.
    #[inline(never)]
    fn advance(&mut self, last: Time) -> bool {
        let near = self.next_occupied();
        let far = self.far.peek().map(|&Reverse(key)| (key >> u64::BITS) as u64 >> self.shift);
        let Some(bucket) = near.into_iter().chain(far).min().filter(|bucket| bucket << self.shift <= last.0) else {
            return false;
        };
        self.current.clear();
        (self.next, self.cursor) = (0, bucket);
        if near == Some(self.cursor) {
            self.open(self.cursor as usize & self.mask);
        }
        if far == Some(self.cursor) {
            self.open_far();
        }
        self.current.sort_unstable();
        true
    }

    /// Moves a bucket's events to `current` and its chunks to the free list.
    #[inline]
    fn open(&mut self, slot: usize) {
        let mut at = self.heads[slot];
        while let Some(chunk) = self.chunks.get_mut(at as usize) {
            self.current.extend_from_slice(&chunk.events[..chunk.len as usize]);
            let next = chunk.next;
            chunk.next = self.free;
            self.free = at;
            at = next;
        }
        self.heads[slot] = NIL;
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        self.summary[slot / 4096] &= !(u64::from(self.occupied[slot / 64] == 0) << (slot / 64 % 64));
    }

    /// Moves far events whose bucket has become current there.
    #[cold]
    fn open_far(&mut self) {
        while let Some(&Reverse(event)) = self.far.peek() {
            let time = Time((event >> u64::BITS) as u64);
            if time.0 >> self.shift > self.cursor {
                break;
            }
            self.far.pop();
            self.current.push(self.key(time, event as u64));
        }
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
