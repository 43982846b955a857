//! Slow restart of a QP: after a loss or an idle time it does not go back to line rate at once.
//!
//! NICs have it (`roce_slow_restart_en`, `roce_slow_restart_idle_en` of NVIDIA's ROCE_ACCL register); what it does
//! is not published. The model is *ours*: from an eighth of the line rate, doubled every base round trip,
//! and never faster than DCQCN lets the QP go.

use metaroce_wire::{Rate, Time};

use super::RoceV2;
use super::requester::serialisation;
use crate::config::RoceConfig;

/// A restart begins at the line rate, shifted right by this: 1/8. Ours.
pub const SHIFT: u32 = 3;
/// A QP is idle that has had nothing in flight for so many base round trips. Ours.
pub const IDLE_RTTS: u64 = 8;

/// How a QP comes back to its line rate.
#[derive(Debug)]
pub struct Ramp {
    line: Rate,
    /// The rate doubles in this.
    step: Time,
    after_loss: bool,
    after_idle: bool,
    /// Start of the last restart.
    started: Option<Time>,
    /// Start and length of the last packet.
    last: Option<(Time, u32)>,
}

impl Ramp {
    /// As `config` has it, for a port of rate `line`; none if it is off.
    pub fn new(config: &RoceConfig, line: Rate, base_rtt: Time) -> Option<Ramp> {
        let (after_loss, after_idle) = (config.slow_restart, config.slow_restart_idle);
        let step = base_rtt.max(Time(1));
        let ramp = Ramp { line, step, after_loss, after_idle, started: None, last: None };
        (after_loss || after_idle).then_some(ramp)
    }

    /// A loss has been found.
    fn lost(&mut self, now: Time) {
        if self.after_loss {
            self.started = Some(now);
        }
    }

    /// A packet of `len` bytes has gone out.
    pub fn sent(&mut self, now: Time, len: u32) {
        self.last = Some((now, len));
    }

    /// When the next packet may go; if that is later than `now`, the instant at which to look again.
    fn ready_at(&mut self, now: Time, in_flight: u32) -> Time {
        let Some((at, len)) = self.last else { return now };
        if self.after_idle && in_flight == 0 && now.since(at).0 >= IDLE_RTTS * self.step.0 {
            self.started = Some(now);
        }
        let Some(started) = self.started else { return now };
        let doubled = now.since(started).0 / self.step.0;
        if doubled >= u64::from(SHIFT) {
            self.started = None;
            return now;
        }
        let rate = Rate(self.line.0 >> (u64::from(SHIFT) - doubled));
        let next = at.saturating_add(serialisation(rate, len));
        if next > now { next.min(started + Time((doubled + 1) * self.step.0)) } else { now }
    }
}

impl RoceV2 {
    /// Something that a QP sent is lost.
    pub(super) fn slow_down(&mut self, now: Time, index: u32) {
        if let Some(ramp) = self.ramps.get_mut(index as usize) {
            ramp.lost(now);
        }
    }
}

/// Not before `at`, nor before slow restart, if it is on, lets a QP with `in_flight` packets.
#[inline]
pub(super) fn not_before(ramp: Option<&mut Ramp>, at: Time, now: Time, in_flight: u32) -> Time {
    ramp.map_or(at, |ramp| at.max(ramp.ready_at(now, in_flight)))
}
