//! The event queue: a time wheel with a total order (time, sequence of insertion).
//!
//! Near events lie unsorted in buckets of a fixed width and are sorted when their bucket becomes
//! current; far events wait in a heap. Buckets are chains of small chunks from one free list, so
//! that what is pending, not the wheel, decides how much cache is used.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use metaroce_wire::Time;

const BUCKETS: usize = 1 << 12;
const CHUNK: usize = 14;
const NIL: u32 = u32::MAX;

#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Chunk {
    events: [u128; CHUNK],
    next: u32,
    len: u32,
}

/// Pending events of 32 bits each.
#[derive(Debug)]
pub struct EventQueue {
    /// Bucket width is 2^shift ps.
    shift: u32,
    /// Events of the current bucket, latest first: the next one is popped off the end.
    current: Vec<u128>,
    /// Number of the current bucket since time 0.
    cursor: u64,
    heads: Box<[u32]>,
    occupied: Box<[u64]>,
    in_wheel: usize,
    chunks: Vec<Chunk>,
    free: u32,
    far: BinaryHeap<Reverse<u128>>,
    sequence: u32,
    /// The current bucket has been opened since this was last asked.
    opened: bool,
}

impl EventQueue {
    /// An empty queue whose buckets are 2^`shift` ps wide.
    pub fn new(shift: u32) -> EventQueue {
        EventQueue {
            shift,
            current: Vec::new(),
            cursor: 0,
            heads: vec![NIL; BUCKETS].into(),
            occupied: vec![0; BUCKETS / 64].into(),
            in_wheel: 0,
            chunks: Vec::new(),
            free: NIL,
            far: BinaryHeap::new(),
            sequence: 0,
            opened: false,
        }
    }

    /// Adds an event. Events of the same time pop in the order in which they were added.
    #[inline]
    pub fn push(&mut self, time: Time, event: u32) {
        let ticket = self.ticket();
        self.take_ticket();
        self.push_with(time, ticket, event);
    }

    /// The place among events of the same time that the next one pushed will have.
    #[inline]
    pub fn ticket(&self) -> u32 {
        self.sequence
    }

    /// Keeps that place for an event whose time is not known yet.
    #[inline]
    pub fn take_ticket(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Adds an event in a place that was kept for it.
    #[inline]
    pub fn push_with(&mut self, time: Time, ticket: u32, event: u32) {
        let key = u128::from(time.0) << 64 | u128::from(ticket) << 32 | u128::from(event);
        let bucket = time.0 >> self.shift;
        if bucket <= self.cursor {
            let at = self.current.partition_point(|&k| k > key);
            self.current.insert(at, key);
        } else if bucket - self.cursor < BUCKETS as u64 {
            self.put(bucket as usize & (BUCKETS - 1), key);
        } else {
            self.far.push(Reverse(key));
        }
    }

    #[inline]
    fn put(&mut self, slot: usize, key: u128) {
        let head = self.heads[slot];
        self.in_wheel += 1;
        if head != NIL {
            let chunk = &mut self.chunks[head as usize];
            if (chunk.len as usize) < CHUNK {
                chunk.events[chunk.len as usize] = key;
                chunk.len += 1;
                return;
            }
        } else {
            self.occupied[slot >> 6] |= 1 << (slot & 63);
        }
        let fresh = self.free;
        if fresh == NIL {
            self.heads[slot] = self.chunks.len() as u32;
            let mut events = [0; CHUNK];
            events[0] = key;
            self.chunks.push(Chunk { events, next: head, len: 1 });
        } else {
            let chunk = &mut self.chunks[fresh as usize];
            self.free = chunk.next;
            chunk.events[0] = key;
            chunk.next = head;
            chunk.len = 1;
            self.heads[slot] = fresh;
        }
    }

    /// The next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, u32)> {
        while self.current.is_empty() {
            if !self.advance() {
                return None;
            }
        }
        let key = self.current.pop()?;
        Some((Time((key >> 64) as u64), key as u32))
    }

    /// The event that will pop `ahead` pops from now, if it is known already.
    #[inline]
    pub fn peek(&self, ahead: usize) -> Option<u32> {
        let at = self.current.len().checked_sub(ahead + 1)?;
        Some(self.current[at] as u32)
    }

    /// Whether a new bucket has become current since the last call: none of its events was ahead before.
    #[inline]
    pub fn take_opened(&mut self) -> bool {
        std::mem::take(&mut self.opened)
    }

    /// Moves on to the next bucket that holds something. False if there is none.
    fn advance(&mut self) -> bool {
        let near = self.next_occupied();
        let far = self.far.peek().map(|&Reverse(key)| (key >> 64) as u64 >> self.shift);
        self.cursor = match (near, far) {
            (Some(a), Some(b)) => a.min(b),
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => return false,
        };
        if near == Some(self.cursor) {
            self.open(self.cursor as usize & (BUCKETS - 1));
        }
        while let Some(&Reverse(key)) = self.far.peek() {
            if (key >> 64) as u64 >> self.shift > self.cursor {
                break;
            }
            self.far.pop();
            self.current.push(key);
        }
        self.current.sort_unstable_by(|a, b| b.cmp(a));
        self.opened = true;
        true
    }

    /// Moves a bucket's events to `current` and its chunks to the free list.
    fn open(&mut self, slot: usize) {
        let mut at = self.heads[slot];
        while at != NIL {
            let chunk = &mut self.chunks[at as usize];
            self.current.extend_from_slice(&chunk.events[..chunk.len as usize]);
            self.in_wheel -= chunk.len as usize;
            let next = chunk.next;
            chunk.next = self.free;
            self.free = at;
            at = next;
        }
        self.heads[slot] = NIL;
        self.occupied[slot >> 6] &= !(1 << (slot & 63));
    }

    fn next_occupied(&self) -> Option<u64> {
        if self.in_wheel == 0 {
            return None;
        }
        let start = (self.cursor as usize + 1) & (BUCKETS - 1);
        let words = self.occupied.len();
        let mut word = start >> 6;
        let mut bits = self.occupied[word] & (u64::MAX << (start & 63));
        while bits == 0 {
            word = (word + 1) % words;
            bits = self.occupied[word];
        }
        let slot = (word << 6) + bits.trailing_zeros() as usize;
        let distance = slot.wrapping_sub(self.cursor as usize) & (BUCKETS - 1);
        Some(self.cursor + distance as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a sorted map: same events, same order, ties in order of insertion.
        #[test]
        fn pops_in_order_of_time_and_insertion(
            shift in 0u32..16,
            steps in prop::collection::vec((0u64..1 << 30, prop::bool::ANY, 0u32..24), 1..400),
        ) {
            let (mut queue, mut oracle, mut now) = (EventQueue::new(shift), BTreeMap::new(), 0);
            for (n, (delay, pop, scale)) in steps.into_iter().enumerate() {
                let time = now + (delay >> scale);
                queue.push(Time(time), n as u32);
                oracle.insert((time, n as u32), ());
                if pop {
                    let ((time, event), ()) = oracle.pop_first().expect("one was just added");
                    prop_assert_eq!(queue.pop(), Some((Time(time), event)));
                    now = time;
                }
            }
            while let Some(((time, event), ())) = oracle.pop_first() {
                prop_assert_eq!(queue.pop(), Some((Time(time), event)));
            }
            prop_assert_eq!(queue.pop(), None);
        }
    }
}
