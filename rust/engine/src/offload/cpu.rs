//! CPU-M of one engine: what it may do next, and what it has done.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use metaroce_wire::Time;

/// What an engine has done, over all iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Entries issued.
    pub issued: u64,
    /// CPU busy.
    pub cpu: u64,
    /// Unit busy.
    pub unit: u64,
    /// Operations waiting for the unit, summed up.
    pub unit_wait: u64,
    /// A subgraph had entries left to issue, but none could.
    pub stall: u64,
}

/// (priority, ticket, subgraph): the least goes first.
pub(super) type Ready = (u8, u64, u32);

/// An engine.
#[derive(Debug, Default)]
pub(super) struct Cpu {
    /// Subgraphs whose next entry is a transfer and may issue if there is room for another one.
    transfers: BinaryHeap<Reverse<Ready>>,
    /// All others that may go on.
    others: BinaryHeap<Reverse<Ready>>,
    /// Subgraph that the CPU works for.
    pub running: Option<u32>,
    /// Subgraphs that have started and have entries to issue.
    open: u32,
    /// Since when the two above have been as they are.
    since: Time,
    /// Transfers on their way to the NIC: when they are there.
    pub posts: VecDeque<(Time, u32)>,
    /// Operations of the unit, the one at work first: since when they have been there.
    pub queue: VecDeque<(Time, u32)>,
    /// Since when the first is at work.
    pub begun: Time,
    pub usage: Usage,
}

impl Cpu {
    pub(super) fn reset(&mut self, now: Time) {
        *self = Cpu { since: now, begun: now, usage: self.usage, ..Cpu::default() };
    }

    /// Time that passes with work to do and nothing to issue is a stall.
    fn note(&mut self, now: Time) {
        if self.running.is_none() && self.open > 0 {
            self.usage.stall += now.0 - self.since.0;
        }
        self.since = now;
    }

    pub(super) fn usage_at(&self, now: Time) -> Usage {
        let stalls = self.running.is_none() && self.open > 0;
        Usage { stall: self.usage.stall + if stalls { now.0 - self.since.0 } else { 0 }, ..self.usage }
    }

    pub(super) fn opened(&mut self, now: Time) {
        self.note(now);
        self.open += 1;
    }

    pub(super) fn closed(&mut self, now: Time) {
        self.note(now);
        self.open -= 1;
    }

    pub(super) fn run(&mut self, now: Time, subgraph: u32) {
        self.note(now);
        self.running = Some(subgraph);
    }

    /// The CPU has worked for `cost`.
    pub(super) fn rest(&mut self, now: Time, cost: Time) -> Option<u32> {
        self.note(now);
        self.usage.cpu += cost.0;
        self.running.take()
    }

    pub(super) fn push(&mut self, is_transfer: bool, ready: Ready) {
        if is_transfer { &mut self.transfers } else { &mut self.others }.push(Reverse(ready));
    }

    /// The first transfer that waits for room, if there is nothing else to do.
    pub(super) fn starved(&self) -> Option<Ready> {
        let idle = self.running.is_none() && self.others.is_empty();
        self.transfers.peek().filter(|_| idle).map(|&Reverse(ready)| ready)
    }

    /// The subgraph that goes on next, if any may; transfers only if there is `room`.
    pub(super) fn next(&mut self, room: bool) -> Option<u32> {
        let transfer = self.transfers.peek().filter(|_| room).map(|&Reverse(ready)| ready);
        let other = self.others.peek().map(|&Reverse(ready)| ready);
        let from = match (transfer, other) {
            (Some(transfer), Some(other)) if other < transfer => &mut self.others,
            (Some(_), _) => &mut self.transfers,
            _ => &mut self.others,
        };
        from.pop().map(|Reverse((.., subgraph))| subgraph)
    }
}
