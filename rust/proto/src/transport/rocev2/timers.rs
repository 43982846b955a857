//! What a QP waits for by itself: acknowledgements, and the time of its next packet.

use metaroce_wire::Time;

use super::RoceV2;
use super::connection::spread;
use crate::config::RoceTimer;
use crate::verbs::CompletionStatus;

/// What a timer entry is for.
const RETRANSMIT: u32 = 0;
const WAKE: u32 = 1;

impl RoceV2 {
    /// Does what is due.
    pub(super) fn run_timers(&mut self, now: Time) {
        while let Some((at, key)) = self.timers.first()
            && at <= now
        {
            let index = key >> 1;
            let requester = &mut self.qps[index as usize].requester;
            let deadline = requester.deadline;
            if key & 1 == RETRANSMIT && requester.timer_entry == at && deadline > now && deadline != Time::NEVER {
                requester.timer_entry = deadline;
                self.timers.replace_first(deadline, key);
                continue;
            }
            self.timers.pop();
            if key & 1 == RETRANSMIT && requester.timer_entry == at {
                self.timer_due(now, index);
            } else if key & 1 == WAKE && requester.wake == at {
                requester.wake = Time::NEVER;
                self.queue_data(index);
            }
        }
    }

    /// Runs the timer from `now` if packets are in flight, and stops it otherwise.
    pub(super) fn restart_timer(&mut self, now: Time, index: u32) {
        let requester = &self.qps[index as usize].requester;
        let deadline = self.expires(now, index, self.timeout(requester, requester.timeouts));
        let requester = &mut self.qps[index as usize].requester;
        if requester.in_flight() == 0 || requester.silent_until > now {
            requester.deadline = Time::NEVER;
            return;
        }
        requester.deadline = deadline;
        requester.timer_started();
        // An earlier entry finds the moved deadline when it is due.
        if requester.timer_entry > deadline {
            requester.timer_entry = deadline;
            self.timers.push(deadline, index << 1 | RETRANSMIT);
        }
    }

    /// When a timer of a QP that is nominally `span` long expires: hardware may take its time with the fixed one,
    /// and never takes an exponent of 0 for one.
    fn expires(&self, now: Time, index: u32, span: Time) -> Time {
        let percent = self.config.timeout_spread_percent;
        if self.config.timer != RoceTimer::Fixed || self.selective.is_some() {
            return now + span;
        }
        if self.config.timeout_exponent == 0 {
            return Time::NEVER;
        }
        if percent <= 100 {
            return now + span;
        }
        let qp = &self.qps[index as usize];
        let draw = u64::from(self.host.0) << 48 ^ u64::from(index) << 32 ^ u64::from(qp.requester.una());
        now.saturating_add(spread(span, percent, draw ^ u64::from(qp.requester.timeouts) << 40))
    }

    fn timer_due(&mut self, now: Time, index: u32) {
        let requester = &mut self.qps[index as usize].requester;
        requester.timer_entry = Time::NEVER;
        if requester.deadline == Time::NEVER {
            return;
        }
        self.counters.timeouts += 1;
        self.counts.count(0, index as usize, |c| c.lost_tail += 1);
        requester.timeouts += 1;
        if requester.timeouts > self.config.retry_count {
            let oldest = requester.una();
            self.fail(index, CompletionStatus::RetryExceeded, oldest);
            return;
        }
        // The timer runs again from the moment that the resent packet is on the wire.
        requester.expired(now, self.selective.map_or(Time::ZERO, |timers| timers.silence()));
        requester.deadline = Time::NEVER;
        self.slow_down(now, index);
        self.queue_data(index);
    }

    pub(super) fn wake_at(&mut self, index: u32, at: Time) {
        let requester = &mut self.qps[index as usize].requester;
        if at < requester.wake {
            requester.wake = at;
            self.timers.push(at, index << 1 | WAKE);
        }
    }
}
