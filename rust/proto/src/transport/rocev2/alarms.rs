//! Pending timers of a host, earliest first.

use std::cmp::Reverse;

use dary_heap::QuaternaryHeap;
use metaroce_wire::{Time, prefetch};

/// A heap of (when, what), when above what. Of four children each: its depth is half of the usual one.
#[derive(Debug, Default)]
pub struct Alarms(QuaternaryHeap<Reverse<u128>>);

#[inline]
fn join(at: Time, what: u32) -> Reverse<u128> {
    Reverse(u128::from(at.0) << u32::BITS | u128::from(what))
}

impl Alarms {
    /// The earliest; of those of one instant, that with the smallest `what`.
    #[inline]
    pub fn first(&self) -> Option<(Time, u32)> {
        self.0.peek().map(|&Reverse(first)| (Time((first >> u32::BITS) as u64), first as u32))
    }

    /// When that is due; `NEVER` if there is none.
    #[inline]
    pub fn time(&self) -> Time {
        self.first().map_or(Time::NEVER, |(at, _)| at)
    }

    /// Adds one.
    pub fn push(&mut self, at: Time, what: u32) {
        self.0.push(join(at, what));
    }

    /// Takes the first one out.
    pub fn pop(&mut self) {
        self.0.pop();
    }

    /// Takes the first one out and adds one.
    pub fn replace_first(&mut self, at: Time, what: u32) {
        if let Some(mut first) = self.0.peek_mut() {
            *first = join(at, what);
        }
    }

    /// Hints the processor at the first ones.
    #[inline]
    pub fn prefetch(&self) {
        self.0.as_slice().iter().take(2).for_each(prefetch);
    }
}
