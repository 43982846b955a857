//! What acknowledgements change at the sender: numbers land or are lost, the window moves, routes are judged.

use std::collections::VecDeque;

use metaroce_wire::{MrcNack, MrcSack, Reflected, Stamp, Time, Verdict};

use super::Mrc;
use super::board::Sent;
use super::connection::{Asked, Connection};
use super::window::Heard;
use crate::verbs::{Completion, CompletionStatus};

/// Least number of packets out of order that shows loss (UEC simulators).
pub const LEAST_REORDER: u64 = 5;
/// Base round trips without an acknowledgement before the first probe, while there is more to send (UEC simulators).
pub const FIRST_PROBE: u64 = 3;
/// Base round trips between probes that stay unanswered (UEC simulators).
pub const NEXT_PROBE: u64 = 5;
/// Doublings of the wait for a receiver that is not ready. Ours: from 10 us to 10 ms.
pub const RNR_DOUBLINGS: u32 = 10;
/// A receiver that is not ready for so long fails the QP, picoseconds. Ours: 2 s.
pub const RNR_LIMIT: u64 = 2_000_000_000_000;

impl Mrc {
    pub(super) fn handle_sack(&mut self, now: Time, sack: &MrcSack) {
        let id = sack.connection.index();
        let Some(connection) = self.connections.get_mut(id) else { return };
        if connection.failed {
            return;
        }
        let in_flight = connection.board.in_flight();
        let (packets, bytes) = land(sack, connection, &mut self.completions);
        let rtt = sack.echo.until(now);
        if packets > 0 {
            connection.last_progress = now;
            connection.expiries = 0;
        }
        self.judge(now, id, &sack.reflected, sack.of_probe);
        let connection = &mut self.connections[id];
        let heard = Heard { packets, bytes, marked: sack.reflected.marked, rtt, in_flight };
        if sack.of_probe {
            let delay = rtt.since(connection.window.least_rtt);
            let asked = connection.asked.take_if(|asked| Stamp::of(asked.at) == sack.echo);
            if let Some(asked) = asked.filter(|_| delay < self.rule.target) {
                self.infer_silent(now, id, asked);
            }
        } else {
            self.rule.on_ack(&mut connection.window, now, &heard);
        }
        self.wait_for_acknowledgement(now, id);
        self.infer_losses(now, id);
        self.arm_timer(now, id);
        self.wake_all(id);
    }

    /// What an answer tells of the route that the packet took.
    #[inline]
    fn judge(&mut self, now: Time, id: usize, reflected: &Reflected, of_probe: bool) {
        let Reflected { entropy, plane, marked } = *reflected;
        let plane = plane.index();
        let Some(profile) = self.connections[id].profile.as_mut() else { return };
        let Some(ev) = profile.find(plane, entropy) else { return };
        if marked {
            profile.skip(plane, ev);
            let index = profile.index(plane, ev);
            self.counts.count(id, index, |counts| counts.marked += 1);
        }
        if of_probe && profile.trust(plane, ev, marked) {
            self.counters.paths_revived += 1;
            self.probe_more(now, id, plane);
        }
    }

    /// From when on silence is worth a question: sooner where nothing more is to be sent.
    #[inline]
    pub(super) fn wait_for_acknowledgement(&mut self, now: Time, id: usize) {
        let connection = &mut self.connections[id];
        let wait = if connection.has_no_backlog() {
            self.base_rtt + self.rule.target
        } else {
            Time(FIRST_PROBE * self.base_rtt.0)
        };
        connection.probe_at = if connection.board.is_empty() { Time::NEVER } else { now + wait };
    }

    /// Infers losses from what has overtaken a packet: more than a window and a half of it is no reordering. The
    /// threshold is that of SLEEK in UEC simulators; that it is applied to each packet, sent again or not, is ours: there
    /// the first to pass it makes all others suspect that are missing, late ones too.
    #[inline]
    fn infer_losses(&mut self, now: Time, id: usize) {
        let connection = &self.connections[id];
        if connection.board.overtakers() < LEAST_REORDER {
            return;
        }
        // What is in flight left under a larger window, if that has just fallen (ours).
        let reach = connection.board.in_flight().max(connection.window.bytes.into());
        let bytes = (reach * u64::from(self.config.reorder_percent) / 100).min(self.rule.cap.into());
        // Rounded down.
        let packets = self.packets.div_ceil((bytes + 1).saturating_sub(self.config.mtu.into()));
        let threshold = packets.max(LEAST_REORDER);
        while let Some(number) = self.connections[id].board.overtaken(threshold) {
            self.lose(now, id, number, false);
        }
    }

    /// A probe was answered without delay: what left before it and is not here is lost, not late, or the probe would
    /// have been queued with it.
    fn infer_silent(&mut self, now: Time, id: usize, asked: Asked) {
        for number in self.connections[id].board.base()..asked.until {
            if self.connections[id].board.get(number).is_some_and(|sent| sent.at < asked.at) {
                self.lose(now, id, number, true);
            }
        }
    }

    /// `number` is lost without a word: its route is assumed bad.
    pub(super) fn lose(&mut self, now: Time, id: usize, number: u64, by_timer: bool) {
        let connection = &mut self.connections[id];
        let Some(Sent { plane, ev, .. }) = connection.board.lose(number) else { return };
        connection.window.on_loss();
        let Some(profile) = connection.profile.as_mut() else { return };
        let (plane, index) = (usize::from(plane), profile.index(plane.into(), ev));
        self.counters.paths_died += u64::from(profile.distrust(plane, ev));
        if by_timer {
            self.counters.timer_detections += 1;
            self.counts.count(id, index, |counts| counts.lost_tail += 1);
        } else {
            self.counters.gap_detections += 1;
            self.counts.count(id, index, |counts| counts.lost_gap += 1);
        }
        if connection.ev_probe_at[plane] == Time::NEVER {
            // At once.
            connection.probe_plane(plane, now);
        }
    }

    pub(super) fn handle_nack(&mut self, now: Time, nack: &MrcNack) {
        let id = nack.connection.index();
        let Some(connection) = self.connections.get_mut(id) else { return };
        if connection.failed {
            return;
        }
        let number = nack.psn.expand(connection.board.base());
        // One that was sent again since has an answer of its own coming.
        let current = |sent: &&Sent| Stamp::of(sent.at) == nack.echo;
        if let Some(&Sent { piece, .. }) = connection.board.get(number).filter(current) {
            match nack.reason {
                Verdict::Trimmed => self.take_trim(id, number, &nack.reflected),
                Verdict::NotReady => self.wait_for_receiver(now, id, number),
                reason => {
                    // What is left of the message has nothing to carry, but for its numbers.
                    connection.board.lose(number);
                    let (completions, connection_id) = (&mut self.completions, nack.connection);
                    connection.outbox.refuse(piece.message, status(reason), |ended, status| {
                        completions.push_back(Completion::of_request(connection_id, &ended, status));
                    });
                }
            }
        }
        let connection = &mut self.connections[id];
        connection.last_progress = now;
        connection.expiries = 0;
        self.wait_for_acknowledgement(now, id);
        self.arm_timer(now, id);
        self.wake_all(id);
    }

    /// A switch cut off the payload: the route is congested, not broken.
    fn take_trim(&mut self, id: usize, number: u64, reflected: &Reflected) {
        let connection = &mut self.connections[id];
        connection.board.lose(number);
        connection.window.on_loss();
        self.counters.gap_detections += 1;
        let plane = reflected.plane.index();
        if let Some(profile) = connection.profile.as_mut()
            && let Some(ev) = profile.find(plane, reflected.entropy)
        {
            profile.skip(plane, ev);
            let index = profile.index(plane, ev);
            self.counts.count(id, index, |counts| {
                counts.lost_gap += 1;
                counts.marked += 1;
            });
        }
    }

    /// A Send found no receive: later again, less and less often, and not for ever.
    fn wait_for_receiver(&mut self, now: Time, id: usize, number: u64) {
        let connection = &mut self.connections[id];
        let Some(Sent { resends, .. }) = connection.board.wait(number) else { return };
        let doubled = |resends: u32| self.config.rnr_delay_ps << resends.min(RNR_DOUBLINGS);
        let waited: u64 = (0..u32::from(resends)).map(doubled).fold(0, u64::saturating_add);
        if waited >= RNR_LIMIT {
            self.fail(id, CompletionStatus::RnrRetryExceeded);
            return;
        }
        let due = now + Time(doubled(resends.into()));
        connection.waiting.push((due, number));
        connection.waits = true;
        self.arm(id, due);
    }
}

const fn status(reason: Verdict) -> CompletionStatus {
    match reason {
        Verdict::AccessError => CompletionStatus::AccessError,
        Verdict::LengthError => CompletionStatus::LengthError,
        _ => CompletionStatus::PeerFailed,
    }
}

/// Takes what an acknowledgement names off the board. Answers how many packets that was, and their bytes.
fn land(sack: &MrcSack, connection: &mut Connection, completions: &mut VecDeque<Completion>) -> (u32, u32) {
    let base = connection.board.base();
    let cumulative = sack.cumulative.expand(base);
    let (mut packets, mut bytes) = (0, 0);
    let mut one = |number: u64| {
        if let Some(sent) = connection.board.acknowledge(number) {
            packets += 1;
            bytes += sent.len;
            connection.outbox.acknowledge(sent.piece.message, |ended, status| {
                completions.extend(Completion::to_report(sack.connection, &ended, status));
            });
        }
    };
    (base..cumulative).for_each(&mut one);
    let start = cumulative.wrapping_add_signed(sack.offset.into());
    let mut bits = sack.bitmap;
    while bits != 0 {
        one(start + u64::from(bits.trailing_zeros()));
        bits &= bits - 1;
    }
    connection.board.shed();
    (packets, bytes)
}
