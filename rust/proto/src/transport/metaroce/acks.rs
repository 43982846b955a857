//! What an acknowledgement changes at the sender: packets land or are lost, windows move, the
//! receiver's hint is obeyed.

use std::collections::VecDeque;

use metaroce_wire::{Bytes, ConnId, MrAck, RateHint, Time, Verdict};

use super::connection::{Connection, MAX_PATHS, Resend};
use super::flight::Sent;
use super::ledger::SACK_BITS;
use super::path::{Acked, PathState, SendPath};
use super::serials::Serials;
use super::{LOSSY_RTTS, MetaRoce, Shared};
use crate::config::{Hints, Spray};
use crate::verbs::{Completion, CompletionStatus};

/// A window grows by so many times what has landed, until it is what the hint grants. Ours: a lone sender
/// never waits for it, while the first senders of an incast do not jump to what is not theirs.
pub const RAISE: u64 = 32;

/// Doublings of the wait for a receiver that is not ready. Ours: from 10 us to 10 ms.
pub const RNR_DOUBLINGS: u32 = 10;

/// Unmarked acknowledgements of a plane that `Spray::Recycled` remembers. Ours: as many as there may be paths.
pub const RECYCLED: usize = MAX_PATHS;

impl MetaRoce {
    #[inline(never)]
    pub(super) fn handle_ack(&mut self, now: Time, ack: &MrAck) {
        let id = ack.connection.index();
        let MetaRoce { connections, shared } = self;
        let Some(connection) = connections.get_mut(id) else { return };
        let Some(path) = connection.paths.get(ack.path as usize) else { return };
        if connection.failed {
            return;
        }
        // The other packet that it tells of, most likely: its turn comes when that of the path's own is over.
        connection.order.prefetch_sent(ack.serial.wrapping_sub(1), &shared.flight);
        let before = connection.in_flight;
        let mut nearer = false;
        // [I27]
        if path.epoch == ack.epoch && path.state == PathState::Up {
            let (acked, lost) = match shared.land_reported(id, connection, ack) {
                (acked, lost, None) => (acked, lost),
                (acked, lost, Some(refused)) => {
                    self.take_refusal(now, id, &refused, ack.verdict);
                    (acked, lost)
                }
            };
            nearer = self.shared.take_path_report(now, (id, &mut self.connections[id]), ack, (acked, lost));
        }
        let (shared, connection) = (&mut self.shared, &mut self.connections[id]);
        shared.land_serials(now, id, connection, ack);
        // [I23]
        if ack.serial == connection.landed.max() {
            let landed = before.saturating_sub(connection.in_flight);
            shared.take_hint(now, connection, (ack.hint, nearer), landed);
        }
        shared.wake_after(id, connection, 0, false);
    }

    /// The receiver did not take a packet.
    fn take_refusal(&mut self, now: Time, id: usize, sent: &Sent, verdict: Verdict) {
        if verdict == Verdict::NotReady {
            self.wait_for_receiver(now, id, sent);
            return;
        }
        let status = match verdict {
            Verdict::AccessError => CompletionStatus::AccessError,
            Verdict::LengthError => CompletionStatus::LengthError,
            _ => CompletionStatus::PeerFailed,
        };
        let completions = &mut self.shared.completions;
        self.connections[id].outbox.refuse(sent.piece.message, status, |ended, status| {
            completions.push_back(Completion::of_request(ConnId(id as u32), &ended, status));
        });
    }

    /// A Send found no receive: later again, less and less often, and not for ever.
    fn wait_for_receiver(&mut self, now: Time, id: usize, sent: &Sent) {
        // [F2.send-waits-for-receive]
        let doubled = |attempt: u32| self.shared.common.config.rnr_delay_ps << attempt.min(RNR_DOUBLINGS);
        let waited: u64 = (0..u32::from(sent.attempts)).map(doubled).fold(0, u64::saturating_add);
        if waited >= self.shared.common.config.dead_after_ps || sent.attempts == u8::MAX {
            self.fail(id, CompletionStatus::RnrRetryExceeded);
            return;
        }
        let due = now + Time(doubled(u32::from(sent.attempts)));
        let connection = &mut self.connections[id];
        if connection.outbox.is_open(sent.piece.message) {
            connection.waiting.push((due, sent.again()));
            self.arm(id, due);
        }
    }

    /// Pieces whose wait for the receiver is over may leave on any path. Answers when the next is.
    pub(super) fn resume_waiting(&mut self, now: Time, id: usize) -> Time {
        let connection = &mut self.connections[id];
        let mut next = Time::NEVER;
        let mut resumed = false;
        let waiting: Vec<(Time, Resend)> = std::mem::take(&mut connection.waiting);
        for (due, resend) in waiting {
            if due > now {
                next = next.min(due);
                connection.waiting.push((due, resend));
            } else {
                resumed = true;
                connection.lost += 1;
                connection.resend_anywhere.push_back(resend);
            }
        }
        if resumed {
            let planes = self.all_planes();
            self.wake(id, planes);
        }
        next
    }
}

impl Shared {
    /// Takes what an acknowledgement reports out of flight. Answers how many packets were placed, their
    /// bytes, how many are lost, and what the receiver did not take.
    #[inline]
    fn land_reported(
        &mut self,
        id: usize,
        connection: &mut Connection,
        ack: &MrAck,
    ) -> ((u32, u32), u64, Option<Sent>) {
        let index = ack.path as usize;
        let (mut acked, mut bytes, mut lost) = (0, 0, 0);
        let mut refused = None;
        while let Some(pps) = connection.paths[index].oldest_pps() {
            let behind = i64::from(ack.max_pps) - i64::from(pps);
            if behind < 0 {
                break;
            }
            let newest = behind == 0;
            let arrived = if newest {
                ack.verdict == Verdict::Placed
            } else {
                let k = behind as u32 - 1;
                k < SACK_BITS && ack.sack[(k >> 5) as usize] >> (k & 31) & 1 == 1
            };
            // [F6.gap-threshold]
            if !arrived && !newest && behind <= i64::from(self.common.config.gap_threshold) {
                // It may still be on its way, on a fabric that reorders inside a path.
                break;
            }
            let sent = connection.land(&mut self.flight, index);
            if arrived {
                acked += 1;
                bytes += sent.len;
                landed(ConnId(id as u32), connection, &sent, &mut self.completions);
            } else if newest && ack.verdict != Verdict::Trimmed {
                refused = Some(sent);
            } else {
                // [F6.gap-is-loss] [F6.exactly-the-missing] [F6.at-once] [I11]
                // A path is FIFO: a later number has arrived, so this one is lost (F6).
                lost += 1;
                let plane = connection.paths[index].plane as usize;
                connection.lose(&sent, plane, self.common.config.same_path_attempts);
            }
        }
        ((acked, bytes), lost, refused)
    }

    /// The state of one path: what has landed, what is lost, and what that says of its window. Answers
    /// whether the round trip was the least one so far.
    #[inline]
    fn take_path_report(
        &mut self,
        now: Time,
        (id, connection): (usize, &mut Connection),
        ack: &MrAck,
        ((packets, bytes), lost): ((u32, u32), u64),
    ) -> bool {
        let index = ack.path as usize;
        let paths = connection.paths.len() as u32 - u32::from(connection.paths_down);
        let path = &mut connection.paths[index];
        let plane = path.plane as usize;
        let rtt = ack.echo.until(now);
        connection.variation.on_error(path.on_rtt(rtt));
        let nearer = rtt < connection.least_rtt;
        connection.least_rtt = connection.least_rtt.min(rtt);
        let (window, marks) = (path.cwnd, path.marks());
        if lost > 0 {
            self.note_losses(now, (id, index), path, lost);
        }
        let (max_pps, ce) = (ack.max_pps, ack.ce_count);
        path.on_ack(&self.common.controller, Acked { packets, bytes, max_pps, ce, rtt, paths });
        let (resized, bit, unmarked) = (path.cwnd, path.bit, path.marks() == marks);
        if resized != window {
            connection.resize(plane, window, resized);
        }
        if self.common.shape.spray == Spray::Recycled && unmarked && connection.recycled[plane].len() < RECYCLED {
            connection.recycled[plane].push_back(bit);
        }
        if ack.verdict == Verdict::Placed {
            connection.last_progress = now;
        }
        connection.refresh_open(index, &self.common.shape);
        self.wake_after(id, connection, plane, lost > 0);
        nearer
    }

    #[cold]
    #[inline(never)]
    fn note_losses(&mut self, now: Time, (id, index): (usize, usize), path: &mut SendPath, lost: u64) {
        self.counters.gap_detections += lost;
        path.on_loss(&self.common.controller);
        self.lossy_until = now + Time(LOSSY_RTTS * self.common.shape.base_rtt.0);
        self.counts.count(id, index, |c| c.lost_gap += lost);
    }

    // [F6.ack-names-serials]
    /// Packets that are known to have been placed, whatever their paths.
    #[inline(always)]
    fn land_serials(&mut self, now: Time, id: usize, connection: &mut Connection, ack: &MrAck) {
        let told = Serials::of(ack.serial, ack.serials);
        let old = connection.landed.out_of_reach(&told);
        if old != 0 {
            self.land_overtaken(now, id, connection, (ack.serial, old));
        }
        let (max, mut newest, mut fresh) = connection.landed.learn(&told);
        loop {
            let serial = if std::mem::take(&mut newest) {
                max
            } else if fresh != 0 {
                let below = fresh.trailing_zeros() + 1;
                fresh &= fresh - 1;
                max.wrapping_sub(below)
            } else {
                break;
            };
            self.land_serial(now, id, connection, serial);
        }
    }

    /// Of what an overtaken acknowledgement alone tells.
    #[cold]
    #[inline(never)]
    fn land_overtaken(&mut self, now: Time, id: usize, connection: &mut Connection, (newest, mut old): (u32, u128)) {
        while old != 0 {
            self.land_serial(now, id, connection, newest.wrapping_sub(old.trailing_zeros()));
            old &= old - 1;
        }
    }

    /// One packet is known to have been placed. Of earlier ones of its path this says nothing.
    #[inline(always)]
    fn land_serial(&mut self, now: Time, id: usize, connection: &mut Connection, serial: u32) {
        let Some(slot) = connection.order.slot(serial) else { return };
        let sent = connection.land_aside(now, &mut self.flight, slot, &self.common.shape);
        landed(ConnId(id as u32), connection, &sent, &mut self.completions);
    }

    /// Lets the connection back into the ready queues that it left for want of window.
    #[inline]
    fn wake_after(&mut self, id: usize, connection: &mut Connection, plane: usize, lost: bool) {
        let mut planes = connection.unblocked(self.common.shape.mtu);
        if lost {
            planes |= if connection.resend_anywhere.is_empty() { 1 << plane } else { self.all_planes() };
        }
        if planes != 0 {
            self.wake(id, connection, planes);
        }
    }

    /// The receiver's share for this sender becomes its connection window, and its pace (F8). A smaller
    /// one is obeyed at once; towards a larger one the window grows with what lands, since the first
    /// senders of an incast are granted a share before the receiver has heard of the others.
    #[inline]
    fn take_hint(&mut self, now: Time, connection: &mut Connection, hint: (RateHint, bool), landed: u64) {
        let (hint, nearer) = hint;
        connection.hint_at = now;
        if hint != connection.last_hint || nearer || hint == RateHint::NONE {
            connection.last_hint = hint;
            self.grant(connection, hint);
        }
        let grown = connection.window + RAISE * landed;
        connection.window = connection.granted.min(grown);
    }

    #[inline(never)]
    fn grant(&self, connection: &mut Connection, hint: RateHint) {
        let mtu = u64::from(self.common.shape.mtu);
        let Some(rate) = hint.decode() else {
            (connection.granted, connection.pace) = (self.common.window_cap, 0);
            return;
        };
        let headroom = self.common.shape.base_rtt.0 / 100 * u64::from(self.common.config.hint_headroom_percent);
        let Bytes(granted) = rate.bytes_in(Time(connection.least_rtt.0 + headroom));
        // Less than a packet a round trip cannot be said by a window: one packet at a time, paced.
        let small = granted < mtu;
        // [F8.hint-as-window] [F8.incast-in-two-rtts]
        connection.granted = if small { mtu } else { (granted + mtu).min(self.common.window_cap) };
        connection.pace =
            if small || self.common.config.hints == Hints::Pace { rate.time_for(Bytes(mtu)).0 } else { 0 };
    }
}

/// `sent` was placed: its message may be complete, and others of its stream with it.
#[inline]
fn landed(id: ConnId, connection: &mut Connection, sent: &Sent, completions: &mut VecDeque<Completion>) {
    connection.outbox.acknowledge(sent.piece.message, |ended, status| {
        completions.extend(Completion::to_report(id, &ended, status));
    });
}
