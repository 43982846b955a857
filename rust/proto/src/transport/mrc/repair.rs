//! What time reveals: silence that is worth a question, packets that are overdue, routes that may be back.

use metaroce_wire::{ConnId, Time};

use super::Mrc;
use super::acks::NEXT_PROBE;
use super::entropy::NEXT_PROBES;
use crate::config::MrcConfig;
use crate::transport::give_up;
use crate::verbs::CompletionStatus;

/// Unit of the retransmission timer, picoseconds (public): 1.024 us × 2^t.
pub const TIMEOUT_PS: u64 = 1_024_000;
/// Greatest t, of the setting and of a timer that doubles (public for the setting: 17 s).
pub const MOST_EXPONENT: u32 = 24;
/// Where nothing moves at all, probes thin out: one in this part of the silence. Ours.
pub const SILENCE_SHARE: u64 = 8;
/// The timer is at least so many base round trips. Ours: one t has to do for fabrics of every length.
pub const LEAST_RTTS: u64 = 8;

/// How long a packet may be on its way at first.
pub fn first_timeout(config: &MrcConfig, base_rtt: Time) -> Time {
    Time((TIMEOUT_PS << config.timeout_exponent).max(LEAST_RTTS * base_rtt.0))
}

impl Mrc {
    /// How long a packet may be on its way after `expiries` in a row: the same at first, then doubling.
    fn timeout(&self, expiries: u32) -> Time {
        let shortest = self.first_timeout.0;
        let doublings = expiries.saturating_sub(self.config.linear_retries);
        let longest = (TIMEOUT_PS << MOST_EXPONENT).max(shortest);
        Time(shortest.checked_shl(doublings.min(MOST_EXPONENT)).map_or(longest, |span| span.min(longest)))
    }

    /// Sets the timer to what comes first.
    #[inline]
    pub(super) fn arm_timer(&mut self, now: Time, id: usize) {
        let connection = &self.connections[id];
        let mut due = connection.ev_probe_due;
        if let Some((at, _)) = connection.board.oldest() {
            let timeout = if connection.expiries == 0 { self.first_timeout } else { self.timeout(connection.expiries) };
            due = due.min(at + timeout);
        }
        if !connection.board.is_empty() {
            due = due.min(connection.probe_at);
        }
        if due != Time::NEVER {
            // Progress shortens the timer, perhaps to what is over.
            self.arm(id, due.max(now));
        }
    }

    pub(super) fn on_timer(&mut self, now: Time, id: usize) {
        if self.connections[id].failed {
            return;
        }
        self.expire(now, id);
        if self.connections[id].failed {
            return;
        }
        let connection = &mut self.connections[id];
        if !connection.board.is_empty() && connection.probe_at <= now {
            connection.probe_at = now + connection.thinned(now, Time(NEXT_PROBE * self.base_rtt.0));
            // Nothing on its way, nothing to ask for.
            if connection.board.in_flight() > 0 {
                self.ask(now, id);
            }
        }
        self.probe_entropies(now, id);
        self.resume_waiting(now, id);
        self.arm_timer(now, id);
        self.wake_all(id);
    }

    /// Declares what is overdue lost, and gives up when that has happened too often in a row.
    fn expire(&mut self, now: Time, id: usize) {
        let connection = &self.connections[id];
        let timeout = self.timeout(connection.expiries);
        if connection.board.oldest().is_none_or(|(at, _)| at + timeout > now) {
            return;
        }
        // What left within a round trip of it is overdue too: one timer for all.
        while let Some((at, number)) = self.connections[id].board.oldest()
            && at + timeout <= now + self.base_rtt
        {
            self.lose(now, id, number, true);
        }
        self.counters.timeouts += 1;
        let connection = &mut self.connections[id];
        if connection.expiries == 0 || connection.expired_at + timeout <= now {
            // [I15] [I16]
            connection.expiries += 1;
            connection.expired_at = now;
            if connection.expiries > self.config.linear_retries + self.config.exponential_retries {
                self.fail(id, CompletionStatus::RetryExceeded);
            }
        }
    }

    /// Probes values that are assumed bad, one in each plane. Who has nothing to send needs none of them.
    fn probe_entropies(&mut self, now: Time, id: usize) {
        let interval = Time(self.config.probe_interval_ps);
        if self.connections[id].ev_probe_due > now {
            return;
        }
        for plane in 0..self.numbers.planes {
            let connection = &mut self.connections[id];
            if connection.ev_probe_at[plane] > now {
                continue;
            }
            let idle = connection.outbox.is_idle();
            let later = now + connection.thinned(now, interval);
            let busy = !idle && connection.profile.as_ref().is_some_and(|profile| profile.has_bad(plane));
            connection.probe_plane(plane, if busy { later } else { Time::NEVER });
            if busy && let Some(profile) = connection.profile.as_mut() {
                for ev in profile.probes_due(now, plane, 1, interval) {
                    self.send_probe(now, id, (plane as u8, ev));
                }
            }
        }
    }

    /// A value of `plane` answered: others may be back too.
    pub(super) fn probe_more(&mut self, now: Time, id: usize, plane: usize) {
        let interval = Time(self.config.probe_interval_ps);
        let Some(profile) = self.connections[id].profile.as_mut() else { return };
        for ev in profile.probes_due(now, plane, NEXT_PROBES, interval) {
            self.send_probe(now, id, (plane as u8, ev));
        }
    }

    /// There is something to send again: values that are assumed bad are worth a probe.
    pub(super) fn resume_probing(&mut self, now: Time, id: usize) {
        let connection = &mut self.connections[id];
        let Some(profile) = connection.profile.as_ref() else { return };
        for (plane, at) in connection.ev_probe_at.iter_mut().enumerate() {
            if *at == Time::NEVER && profile.has_bad(plane) {
                *at = now;
                connection.ev_probe_due = connection.ev_probe_due.min(now);
            }
        }
        self.arm_timer(now, id);
    }

    /// Numbers whose wait for the receiver is over may leave.
    fn resume_waiting(&mut self, now: Time, id: usize) {
        let connection = &mut self.connections[id];
        if !connection.waits {
            return;
        }
        let (over, still): (Vec<_>, Vec<_>) =
            std::mem::take(&mut connection.waiting).into_iter().partition(|&(due, _)| due <= now);
        (connection.waits, connection.waiting) = (!still.is_empty(), still);
        over.into_iter().for_each(|(_, number)| connection.board.resume(number));
        if let Some(due) = self.connections[id].waiting.iter().map(|&(due, _)| due).min() {
            self.arm(id, due);
        }
    }

    /// The QP goes to the error state: every open request ends, the first with the reason.
    pub(super) fn fail(&mut self, id: usize, why: CompletionStatus) {
        let connection = &mut self.connections[id];
        if connection.failed {
            return;
        }
        (connection.failed, connection.back.failed) = (true, true);
        connection.abandoned = connection.outbox.open_bytes();
        let messages = (&mut connection.outbox, &mut connection.inbox);
        give_up(&mut self.completions, ConnId(id as u32), messages, why);
        connection.waiting.clear();
        connection.board.clear();
    }
}
