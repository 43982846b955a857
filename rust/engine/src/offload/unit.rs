//! Near-memory units under processor sharing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use metaroce_wire::Time;
use metaroce_wire::units::PS_PER_S;

/// The units of a rank. All that are at work have the same rate: the least of what one can do and of an equal share
/// of what all can, rounded down to a bit per second. So an operation ends when the service that each unit has had
/// since the start reaches a mark that is known when the operation begins; ends are rounded up to a picosecond.
#[derive(Debug)]
pub(super) struct Units {
    one: u64,
    all: u64,
    /// Service that a unit which was always at work would have had, in bits x 10^12.
    served: u128,
    /// Up to when.
    at: Time,
    /// Marks, and whose engine's operation ends at each.
    marks: BinaryHeap<Reverse<(u128, u32)>>,
    /// When the first is reached.
    due: Time,
}

impl Units {
    pub(super) fn new(one: u64, all: u64) -> Units {
        Units { one, all, served: 0, at: Time::ZERO, marks: BinaryHeap::new(), due: Time::NEVER }
    }

    /// All idle, from now on.
    pub(super) fn reset(&mut self, now: Time) {
        *self = Units { at: now, ..Units::new(self.one, self.all) };
    }

    fn rate(&self) -> u128 {
        self.one.min(self.all / self.marks.len().max(1) as u64).into()
    }

    fn advance(&mut self, now: Time) {
        if !self.marks.is_empty() {
            self.served += self.rate() * u128::from(now.0 - self.at.0);
        }
        self.at = now;
    }

    fn settle(&mut self) {
        self.due = self.marks.peek().map_or(Time::NEVER, |Reverse((mark, _))| {
            let wait = mark.saturating_sub(self.served).div_ceil(self.rate());
            Time(u64::try_from(wait).map_or(u64::MAX, |wait| self.at.0.saturating_add(wait)))
        });
    }

    /// When [`Units::pop`] has something.
    pub(super) const fn due(&self) -> Time {
        self.due
    }

    /// The unit of `engine`, which is idle, begins an operation on `bytes`, and on what takes it `extra` alone.
    pub(super) fn start(&mut self, now: Time, engine: u32, bytes: u64, extra: Time) {
        self.advance(now);
        let work = 8 * u128::from(bytes) * u128::from(PS_PER_S) + u128::from(extra.0) * u128::from(self.one);
        self.marks.push(Reverse((self.served + work, engine)));
        self.settle();
    }

    /// An engine whose operation has ended by now.
    pub(super) fn pop(&mut self, now: Time) -> Option<u32> {
        self.advance(now);
        let ended = self.marks.peek().is_some_and(|Reverse((mark, _))| *mark <= self.served);
        let engine = if ended { self.marks.pop().map(|Reverse((_, engine))| engine) } else { None };
        self.settle();
        engine
    }
}
