//! Selective repeat as IRN has it (Mittal et al., SIGCOMM 2018): the receiver places what comes out of order
//! and says so, the sender resends only what is missing.
//!
//! On the one route of a QP, out of order means lost, so a packet is lost as soon as a later one is known to
//! have arrived. It is inferred so once: a lost resend waits for the timer, which is short when few packets
//! are in flight, since then no later one may tell. The window bounds the span of sequence numbers (IRN's BDP
//! cap), new data in recovery included, and with it both bitmaps; no lossless class is needed.

use std::collections::VecDeque;

use metaroce_wire::{RoceSack, Time};

use super::requester::Requester;
use super::{LADDER, RoceV2, psn};
use crate::config::{Environment, Recovery, RoceConfig};

/// With fewer packets in flight than this the short timer runs (IRN).
pub const FEW: u32 = 3;
/// Least timer, in base round trips; a sender is silent after half of the short one. Ours: IRN's values are for round trips of 24 us; on a longer route they
/// would expire before an acknowledgement can be back.
pub const LEAST_RTTS: u64 = 2;
/// Sequence numbers that the bits of a selective acknowledgement cover.
const BITS: u32 = u64::BITS;

/// IRN's two timers.
#[derive(Clone, Copy, Debug)]
pub struct Timers {
    low: Time,
    high: Time,
}

impl Timers {
    /// Those of `config`; none with go-back-N.
    pub fn new(config: &RoceConfig, environment: &Environment) -> Option<Timers> {
        let least = environment.base_rtt.0 * LEAST_RTTS;
        let timer = |ps: u64| Time(ps.max(least));
        (config.recovery == Recovery::SelectiveRepeat)
            .then(|| Timers { low: timer(config.rto_low_ps), high: timer(config.rto_high_ps) })
    }

    /// A sender that has sent nothing for this long has heard of all that it sent.
    pub fn silence(&self) -> Time {
        Time(self.low.0 / LEAST_RTTS)
    }

    /// How long the timer runs with `in_flight` packets after `timeouts` expiries in a row. Doubling is
    /// ours: IRN never gives up, but a QP with a retry count has to outlive a rerouting.
    pub fn after(&self, in_flight: u32, timeouts: u32) -> Time {
        let Time(first) = if in_flight < FEW { self.low } else { self.high };
        Time(first << timeouts.min(LADDER))
    }
}

/// What a sender knows of the packets between the oldest that is not acknowledged and the newest.
#[derive(Debug, Default)]
pub struct Scoreboard {
    /// Sequence number of `arrived[0]`.
    base: u32,
    /// Selectively acknowledged; nothing behind the end is.
    arrived: VecDeque<bool>,
    /// To be sent again, in order. The front is still missing.
    lost: VecDeque<u32>,
    /// What is missing below was declared lost once.
    seen: u32,
}

impl Scoreboard {
    /// Nothing is known; `psn` is the oldest that is not acknowledged.
    pub fn new(psn: u32) -> Scoreboard {
        Scoreboard { base: psn, seen: psn, ..Scoreboard::default() }
    }

    fn has(&self, psn: u32) -> bool {
        psn < self.base || self.arrived.get((psn - self.base) as usize).is_some_and(|&arrived| arrived)
    }

    /// Everything below `una` has arrived.
    pub fn acknowledged(&mut self, una: u32) {
        let gone = (una.saturating_sub(self.base) as usize).min(self.arrived.len());
        self.arrived.drain(..gone);
        self.base = self.base.max(una);
        self.settle();
    }

    /// Packet `psn` has arrived, and of those before it the ones in `bits`. Returns how many others are
    /// thereby lost.
    pub fn sacked(&mut self, psn: u32, bits: u64) -> u32 {
        if psn < self.base {
            return 0;
        }
        let width = (psn - self.base) as usize + 1;
        if self.arrived.len() < width {
            self.arrived.resize(width, false);
        }
        self.arrived[width - 1] = true;
        for k in (0..BITS).filter(|k| bits >> k & 1 == 1) {
            if let Some(below) = psn.checked_sub(k + 1 + self.base) {
                self.arrived[below as usize] = true;
            }
        }
        let from = self.seen.max(self.base);
        let before = self.lost.len();
        self.lost.extend((from..psn).filter(|lost| !self.arrived[(lost - self.base) as usize]));
        let found = self.lost.len() - before;
        self.seen = self.seen.max(psn);
        self.settle();
        found as u32
    }

    /// What is missing below `end` is lost, whatever became of its resends.
    pub fn lose_below(&mut self, end: u32) {
        let mut lost: VecDeque<u32> = (self.base..end).filter(|&psn| !self.has(psn)).collect();
        lost.extend(self.lost.iter().filter(|&&psn| psn >= end));
        self.seen = self.seen.max(end);
        self.lost = lost;
    }

    /// The first to send again.
    pub fn first_lost(&self) -> Option<u32> {
        self.lost.front().copied()
    }

    /// Takes the next packet to send again.
    pub fn take(&mut self) -> Option<u32> {
        let psn = self.lost.pop_front();
        self.settle();
        psn
    }

    fn settle(&mut self) {
        while self.lost.front().is_some_and(|&psn| self.has(psn)) {
            self.lost.pop_front();
        }
    }
}

/// What a receiver has beyond the packet that it expects.
#[derive(Debug, Default)]
pub struct Early {
    /// Bit k: that of `expected + 1 + k` has arrived. Empty, or the last one has.
    arrived: VecDeque<bool>,
    /// Those that wait to be acknowledged: each one is.
    owed: VecDeque<u32>,
}

impl Early {
    /// Whether packet `psn` has arrived, `expected` being the oldest that has not.
    pub fn has(&self, expected: u32, psn: u32) -> bool {
        psn > expected && self.arrived.get((psn - expected - 1) as usize).is_some_and(|&arrived| arrived)
    }

    /// It has now.
    pub fn insert(&mut self, expected: u32, psn: u32) {
        let width = (psn - expected) as usize;
        if self.arrived.len() < width {
            self.arrived.resize(width, false);
        }
        self.arrived[width - 1] = true;
    }

    /// It is to be acknowledged on its own.
    pub fn owe(&mut self, psn: u32) {
        self.owed.push_back(psn);
    }

    /// Whether something has arrived.
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// The expected packet has arrived: how many there are in order behind it.
    pub fn advance(&mut self) -> u32 {
        let mut more = 0;
        while self.arrived.pop_front() == Some(true) {
            more += 1;
        }
        more
    }

    /// Whether a selective acknowledgement is owed.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// The next of them: a packet that is still early, and the bits of those before it.
    pub fn take(&mut self, expected: u32) -> Option<(u32, u64)> {
        while let Some(psn) = self.owed.pop_front() {
            if psn > expected {
                let before = (0..BITS).take_while(|k| *k < psn);
                let has = |k: &u32| psn - 1 - k < expected || self.has(expected, psn - 1 - k);
                return Some((psn, before.filter(has).fold(0, |bits, k| bits | 1 << k)));
            }
        }
        None
    }

    /// Owes nothing any more.
    pub fn clear(&mut self) {
        self.owed.clear();
    }
}

impl RoceV2 {
    /// A selective acknowledgement: both its parts.
    pub(super) fn handle_sack(&mut self, now: Time, sack: &RoceSack) {
        let Some(index) = self.find(sack.connection, sack.qp) else {
            return;
        };
        let una = self.qps[index as usize].requester.una();
        let (expected, arrived) = (psn::nearest(una, sack.expected), psn::nearest(una, sack.arrived));
        let progress = self.acknowledge(index, expected);
        let requester = &mut self.qps[index as usize].requester;
        let known = requester.has_lost_oldest();
        let lost = requester.sacked(arrived, sack.bits);
        let found_oldest = !known && requester.has_lost_oldest();
        if lost > 0 {
            self.counters.gap_detections += u64::from(lost);
            self.counts.count(0, index as usize, |c| c.lost_gap += u64::from(lost));
        }
        // Later losses leave the timer alone: it is the oldest packet that it watches.
        if progress || found_oldest {
            self.restart_timer(now, index);
        }
        if found_oldest {
            self.slow_down(now, index);
        }
        self.queue_data(index);
    }

    /// How long the timer of a QP runs after `timeouts` expiries in a row.
    pub(super) fn timeout(&self, requester: &Requester, timeouts: u32) -> Time {
        match &self.selective {
            Some(timers) => timers.after(requester.in_flight(), timeouts),
            None => super::timeout(&self.config, timeouts),
        }
    }
}
