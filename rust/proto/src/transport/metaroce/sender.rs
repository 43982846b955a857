//! The sending side: what a free port pulls, what an acknowledgement changes, what time reveals.

use std::cmp::Reverse;
use std::collections::VecDeque;

use metaroce_wire::{
    Body, Class, ConnId, Ecn, Envelope, MrAck, MrData, MrProbe, Packet, PlaneId, RateHint, Time, lengths,
};

use super::connection::{Connection, Resend};
use super::flight::{NIL, Sent};
use super::path::PathState;
use super::{MetaRoce, completion, scaled_bytes};
use crate::outbox::Piece;
use crate::verbs::{CompletionKind, CompletionStatus};

/// A lost piece goes back to the path that lost it this many times, then to any.
const SAME_PATH_ATTEMPTS: u8 = 2;

impl MetaRoce {
    /// The packet that connection `id` sends into `plane` now, if it has one and windows allow.
    pub(super) fn pull(&mut self, now: Time, id: usize, plane: PlaneId) -> Option<Packet> {
        let mtu = self.shape.mtu;
        let connection = &mut self.connections[id];
        if connection.failed || !connection.has_work(plane.index()) {
            return None;
        }
        if connection.in_flight == 0 && now.since(connection.hint_at).0 > self.hint_life() {
            // An old hint has no effect: start small again.
            let connection = &mut self.connections[id];
            connection.window = self.shape.start_window;
            connection.last_hint = RateHint::NONE;
        }
        let connection = &mut self.connections[id];
        if connection.in_flight > 0 && connection.in_flight + u64::from(mtu) > connection.window {
            connection.blocked |= 1 << plane.0;
            return None;
        }
        let (piece, path, attempts) = match self.next_resend(id, plane.index()) {
            Some(resend) => resend,
            None => {
                let connection = &mut self.connections[id];
                if connection.outbox.next_len() == 0 {
                    connection.blocked |= 1 << plane.0;
                    return None;
                }
                let Some(path) = connection.choose_path(plane.index(), self.shape.paths_per_plane) else {
                    connection.blocked |= 1 << plane.0;
                    return None;
                };
                (connection.outbox.next_piece()?, path, 0)
            }
        };
        Some(self.build(now, id, plane, (piece, path, attempts)))
    }

    fn hint_life(&self) -> u64 {
        u64::from(self.config.hint_life_rtts) * self.shape.base_rtt.0
    }

    /// The next lost piece that may leave through `plane`, and the path it takes.
    fn next_resend(&mut self, id: usize, plane: usize) -> Option<(Piece, usize, u8)> {
        let paths_per_plane = self.shape.paths_per_plane;
        let connection = &mut self.connections[id];
        // The slot of a lost packet in its path's window is its own: no window check here (F6:
        // it is resent at once).
        if let Some(resend) = connection.resend[plane].pop_front() {
            return Some((resend.piece, resend.path as usize, resend.attempts));
        }
        if connection.resend_anywhere.is_empty() {
            return None;
        }
        let path = connection.choose_path(plane, paths_per_plane)?;
        let resend = connection.resend_anywhere.pop_front()?;
        Some((resend.piece, path, resend.attempts))
    }

    fn build(&mut self, now: Time, id: usize, plane: PlaneId, what: (Piece, usize, u8)) -> Packet {
        let (piece, index, attempts) = what;
        let connection = &mut self.connections[id];
        let segment = connection.outbox.segment(piece);
        let path = &mut connection.paths[index];
        let mut sent = Sent::new(now, piece, index as u16);
        sent.pps = path.next_pps;
        sent.len = segment.len;
        sent.attempts = attempts;
        path.next_pps += 1;
        path.in_flight += segment.len;
        connection.in_flight += u64::from(segment.len);
        self.flight.push(sent, &mut connection.order, &mut path.flight);
        let data = MrData {
            segment,
            sent_at: now,
            connection: connection.remote,
            pps: sent.pps,
            demand: u32::try_from(connection.outbox.unsent()).unwrap_or(u32::MAX),
            path: index as u16,
            epoch: path.epoch,
            resent: attempts > 0,
        };
        let envelope = Envelope {
            src: self.shape.host,
            dst: connection.peer,
            hash: connection.hash,
            len: lengths::mr_data(segment.len),
            link: 0,
            entropy: path.entropy,
            plane,
            ecn: Ecn::Ect0,
            class: Class::Data,
        };
        if connection.armed == Time::NEVER {
            let due = now + path.tail_timeout(&self.config);
            connection.armed = due;
            self.timers.push(Reverse((due, id as u32)));
        }
        self.refresh_open(id, index);
        self.counters.data_packets += 1;
        self.counters.resent += u64::from(attempts > 0);
        Packet { envelope, body: Body::MrData(data) }
    }

    /// Recomputes whether a path has room.
    #[inline]
    fn refresh_open(&mut self, id: usize, index: usize) {
        let connection = &mut self.connections[id];
        let path = &connection.paths[index];
        let oldest = (path.flight.first != NIL).then(|| self.flight.get(path.flight.first).pps);
        let (plane, bit) = (index / self.shape.paths_per_plane, index % self.shape.paths_per_plane);
        if path.is_open(self.shape.mtu, oldest) {
            connection.open[plane] |= 1 << bit;
        } else {
            connection.open[plane] &= !(1 << bit);
        }
    }

    pub(super) fn handle_ack(&mut self, now: Time, ack: &MrAck) {
        let id = ack.connection.index();
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        let index = ack.path as usize;
        let Some(path) = connection.paths.get_mut(index) else {
            return;
        };
        if path.epoch != ack.epoch || path.state == PathState::Down || connection.failed {
            return;
        }
        let plane = index / self.shape.paths_per_plane;
        let (mut acked, mut lost) = (0, 0u64);
        while path.flight.first != NIL {
            let behind = i64::from(ack.max_pps) - i64::from(self.flight.get(path.flight.first).pps);
            if behind < 0 {
                break;
            }
            let arrived = behind == 0 || {
                let k = behind as u32 - 1;
                k < 256 && ack.sack[(k >> 6) as usize] >> (k & 63) & 1 == 1
            };
            let sent = self.flight.pop(&mut connection.order, &mut path.flight);
            path.in_flight -= sent.len;
            connection.in_flight -= u64::from(sent.len);
            if arrived {
                acked += 1;
                let completions = &mut self.completions;
                connection.outbox.acknowledge(sent.piece.message, |wr_id| {
                    completions.push_back(completion(
                        ConnId(id as u32),
                        wr_id,
                        CompletionKind::Sent,
                        CompletionStatus::Success,
                    ));
                });
            } else {
                // A path is FIFO: a later number has arrived, so this one is lost (F6).
                lost += 1;
                queue_resend(&mut connection.resend, &mut connection.resend_anywhere, &sent, plane);
            }
        }
        self.counters.gap_detections += lost;
        path.on_rtt(now.since(ack.echo));
        path.on_ack(&self.config, self.max_path_window, acked, (ack.max_pps, ack.ce_count));
        connection.last_progress = now;
        self.take_hint(now, id, ack.hint);
        self.refresh_open(id, index);
        self.wake_after(id, plane, lost > 0);
    }

    /// Lets the connection back into the ready queues that it left for want of window.
    fn wake_after(&mut self, id: usize, plane: usize, lost: bool) {
        let connection = &self.connections[id];
        let mut planes = connection.unblocked(self.shape.mtu);
        if lost {
            planes |= if connection.resend_anywhere.is_empty() { 1 << plane } else { self.all_planes() };
        }
        if planes != 0 {
            self.wake(id, planes);
        }
    }

    /// The receiver's share for this sender becomes its connection window (F8).
    #[inline]
    fn take_hint(&mut self, now: Time, id: usize, hint: RateHint) {
        let connection = &mut self.connections[id];
        connection.hint_at = now;
        if hint == connection.last_hint && connection.last_hint != RateHint::NONE {
            return;
        }
        connection.last_hint = hint;
        connection.window = match hint.decode() {
            Some(rate) => {
                let granted = scaled_bytes(rate, self.shape.base_rtt, self.config.hint_window_percent);
                (granted + u64::from(self.shape.mtu)).min(self.window_cap)
            }
            None => self.window_cap,
        };
    }

    /// The connection's timer: declares what is overdue lost, probes paths that are down, and
    /// gives up when nothing has moved for too long.
    pub(super) fn on_timer(&mut self, now: Time, id: usize) {
        let dead_after = Time(self.config.dead_after_ps);
        if self.connections[id].failed {
            return;
        }
        let mut next = Time::NEVER;
        loop {
            let connection = &self.connections[id];
            if connection.order.first == NIL {
                break;
            }
            let oldest = *self.flight.get(connection.order.first);
            let path = &connection.paths[oldest.path as usize];
            let due = oldest.sent_at + path.tail_timeout(&self.config);
            if due > now {
                next = due;
                break;
            }
            if now.since(connection.last_progress) >= dead_after {
                self.fail(id);
                return;
            }
            self.expire(now, id, oldest.path as usize);
        }
        if self.connections[id].paths_down > 0 {
            next = next.min(self.probe_paths(now, id));
        }
        if next != Time::NEVER {
            self.arm(id, next);
        }
    }

    fn arm(&mut self, id: usize, due: Time) {
        let connection = &mut self.connections[id];
        if due < connection.armed {
            connection.armed = due;
            self.timers.push(Reverse((due, id as u32)));
        }
    }

    /// The oldest packet of a path, which is also the oldest of the connection, is overdue.
    fn expire(&mut self, now: Time, id: usize, index: usize) {
        let plane = index / self.shape.paths_per_plane;
        let Connection { paths, order, resend, resend_anywhere, in_flight, last_progress, .. } =
            &mut self.connections[id];
        let path = &mut paths[index];
        let sent = self.flight.pop(order, &mut path.flight);
        path.in_flight -= sent.len;
        *in_flight -= u64::from(sent.len);
        queue_resend(resend, resend_anywhere, &sent, plane);
        let previous = path.last_expiry;
        path.on_expiry(now, sent.sent_at);
        self.counters.timer_detections += 1;
        self.counters.timeouts += u64::from(path.expiries >= 2);
        // Differential (ours): others have progressed since this path first fell silent.
        let others_move = *last_progress >= previous;
        if u32::from(path.expiries) >= self.config.down_after && others_move && path.state == PathState::Up {
            self.path_down(now, id, index);
        }
        self.refresh_open(id, index);
        let planes = self.all_planes();
        self.wake(id, planes);
    }

    /// Gives up a path: what is on it, or waits for it, goes elsewhere.
    fn path_down(&mut self, now: Time, id: usize, index: usize) {
        let plane = index / self.shape.paths_per_plane;
        let stride = self.shape.paths_per_plane as u16 + 1;
        let Connection { paths, order, resend, resend_anywhere, in_flight, paths_down, .. } = &mut self.connections[id];
        if usize::from(*paths_down) + 1 == paths.len() {
            // The last path stays: its last-resort timer keeps trying.
            return;
        }
        let path = &mut paths[index];
        while path.flight.first != NIL {
            let sent = self.flight.pop(order, &mut path.flight);
            path.in_flight -= sent.len;
            *in_flight -= u64::from(sent.len);
            resend_anywhere.push_back(Resend { piece: sent.piece, path: sent.path, attempts: sent.attempts + 1 });
        }
        let waiting = std::mem::take(&mut resend[plane]);
        for lost in waiting {
            if lost.path as usize == index { resend_anywhere.push_back(lost) } else { resend[plane].push_back(lost) }
        }
        path.go_down(now, stride);
        *paths_down += 1;
        self.counters.paths_died += 1;
    }

    /// Probes the paths whose time has come. Answers when the next probe is due.
    fn probe_paths(&mut self, now: Time, id: usize) -> Time {
        let mut next = Time::NEVER;
        for index in 0..self.connections[id].paths.len() {
            let path = &self.connections[id].paths[index];
            if path.state != PathState::Down {
                continue;
            }
            if path.probe_at <= now {
                self.send_probe(now, id, index);
            }
            next = next.min(self.connections[id].paths[index].probe_at);
        }
        next
    }

    fn send_probe(&mut self, now: Time, id: usize, index: usize) {
        let connection = &mut self.connections[id];
        let path = &mut connection.paths[index];
        path.probe_at = now + Time(self.config.probe_interval_ps);
        let plane = PlaneId((index / self.shape.paths_per_plane) as u8);
        let envelope = Envelope {
            src: self.shape.host,
            dst: connection.peer,
            hash: connection.hash,
            len: lengths::mr_probe(),
            link: 0,
            entropy: path.entropy,
            plane,
            ecn: Ecn::Ect0,
            class: Class::Control,
        };
        let probe = MrProbe { sent_at: now, connection: connection.remote, path: index as u16, epoch: path.epoch };
        self.control[plane.index()].push_back(Packet { envelope, body: Body::MrProbe(probe) });
        self.ports_ready |= 1 << plane.0;
        self.counters.probes += 1;
    }

    pub(super) fn handle_probe_reply(&mut self, now: Time, probe: &MrProbe) {
        let id = probe.connection.index();
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        let Some(path) = connection.paths.get_mut(probe.path as usize) else {
            return;
        };
        if path.state != PathState::Down || path.epoch != probe.epoch || connection.failed {
            return;
        }
        path.come_up(self.shape.path_window);
        path.on_rtt(now.since(probe.sent_at));
        connection.paths_down -= 1;
        connection.last_progress = now;
        self.counters.paths_revived += 1;
        self.refresh_open(id, probe.path as usize);
        let planes = self.all_planes();
        self.wake(id, planes);
    }

    /// No path has answered for too long: every open request ends, the first with the reason.
    fn fail(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        connection.failed = true;
        connection.abandoned = connection.outbox.open_bytes();
        let mut status = CompletionStatus::RetryExceeded;
        let sends = connection.outbox.fail().into_iter().map(|wr_id| (wr_id, CompletionKind::Sent));
        let receives = connection.inbox.fail().into_iter().map(|wr_id| (wr_id, CompletionKind::Received));
        for (wr_id, kind) in sends.chain(receives) {
            self.completions.push_back(completion(ConnId(id as u32), wr_id, kind, status));
            status = CompletionStatus::Flushed;
        }
        for path in &mut connection.paths {
            while path.flight.first != NIL {
                self.flight.pop(&mut connection.order, &mut path.flight);
            }
            path.in_flight = 0;
        }
        connection.in_flight = 0;
    }
}

/// Queues a lost packet for the path that lost it, or for any after too many attempts.
fn queue_resend(resend: &mut [VecDeque<Resend>], anywhere: &mut VecDeque<Resend>, sent: &Sent, plane: usize) {
    let lost = Resend { piece: sent.piece, path: sent.path, attempts: sent.attempts.saturating_add(1) };
    if lost.attempts <= SAME_PATH_ATTEMPTS { resend[plane].push_back(lost) } else { anywhere.push_back(lost) }
}
