//! A subgraph under way: how far it is, and what its flow fields make it wait for.

use super::plan::{FENCE, RX_SYNC, SYNC, TX_SYNC};
use crate::program::Op;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not released yet.
    Idle,
    /// In the queue of its engine.
    Ready,
    /// The CPU works for it.
    Running,
    /// Waits for entries of its own.
    Blocked,
    /// Waits for a word.
    Waiting,
    /// Has issued all its entries.
    Issued,
}

/// A subgraph.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Entry to issue next.
    pub head: u32,
    /// Issued and not complete: all, receives, and what is sent.
    open: u32,
    receives: u32,
    sends: u32,
    pub phase: Phase,
    pub started: bool,
    fenced: bool,
}

impl State {
    /// Nothing is issued; `head` is the first entry.
    pub(super) const fn new(head: u32) -> State {
        State { head, open: 0, receives: 0, sends: 0, phase: Phase::Idle, started: false, fenced: false }
    }

    /// The entry at the head issues.
    pub(super) const fn issue(&mut self, op: Op, flow: u64) {
        self.head += 1;
        self.open += 1;
        self.receives += is_received(op) as u32;
        self.sends += is_sent(op) as u32;
        self.fenced |= flow & FENCE != 0;
    }

    /// An entry that has issued is complete.
    pub(super) const fn end(&mut self, op: Op, flow: u64) {
        self.open -= 1;
        self.receives -= is_received(op) as u32;
        self.sends -= is_sent(op) as u32;
        // Nothing issues behind a fence: there is one at most.
        self.fenced &= flow & FENCE == 0;
    }

    /// Whether what is open keeps an entry with this flow field from issuing.
    pub(super) const fn keeps(&self, flow: u64) -> bool {
        self.fenced
            || flow & SYNC != 0 && self.open > 0
            || flow & RX_SYNC != 0 && self.receives > 0
            || flow & TX_SYNC != 0 && self.sends > 0
    }
}

pub(super) const fn is_received(op: Op) -> bool {
    matches!(op, Op::Recv)
}

pub(super) const fn is_sent(op: Op) -> bool {
    op.has_peer() && !is_received(op)
}
