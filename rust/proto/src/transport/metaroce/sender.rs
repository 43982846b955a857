//! The sending side: what a free port pulls, what an acknowledgement changes, what time reveals.

use std::cmp::Reverse;
use std::collections::VecDeque;

use metaroce_wire::{
    Arrival, Body, Bytes, Class, ConnId, Envelope, MrAck, MrData, MrProbe, Packet, PlaneId, RateHint, Time, lengths,
};

use super::connection::{Connection, Resend};
use super::flight::{NIL, Sent};
use super::path::PathState;
use super::{MetaRoce, completion};
use crate::outbox::Piece;
use crate::verbs::{Completion, CompletionKind, CompletionStatus};

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
        if connection.lost == 0 {
            return None;
        }
        // The slot of a lost packet in its path's window is its own: no window check here (F6:
        // it is resent at once).
        if let Some(resend) = connection.resend[plane].pop_front() {
            connection.lost -= 1;
            return Some((resend.piece, resend.path as usize, resend.attempts));
        }
        let lost = connection.resend_anywhere.front()?;
        // Elsewhere: not the plane that keeps losing it, if there is another.
        let same_plane = connection.paths[lost.path as usize].plane as usize == plane;
        if same_plane && connection.other_plane_up(plane, paths_per_plane) {
            return None;
        }
        let path = connection.choose_path(plane, paths_per_plane)?;
        let resend = connection.resend_anywhere.pop_front()?;
        connection.lost -= 1;
        Some((resend.piece, path, resend.attempts))
    }

    fn build(&mut self, now: Time, id: usize, plane: PlaneId, what: (Piece, usize, u8)) -> Packet {
        let (piece, index, attempts) = what;
        let connection = &mut self.connections[id];
        let segment = connection.outbox.segment(piece);
        let path = &mut connection.paths[index];
        let pps = path.next_pps;
        path.next_pps += 1;
        path.in_flight += segment.len;
        path.packets += 1;
        connection.in_flight += u64::from(segment.len);
        connection.plane_in_flight[plane.index()] += segment.len;
        let sent = Sent::new(piece, pps, segment.len, index as u16, attempts);
        self.flight.push(now, sent, &mut connection.order, &mut path.flight);
        let data = MrData {
            segment,
            sent_at: now,
            connection: connection.remote,
            pps,
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
            entropy: path.entropy,
            plane,
            class: Class::Data,
            ..Envelope::default()
        };
        if connection.armed == Time::NEVER {
            let due = now + path.tail_timeout(&self.config, connection.variation);
            self.arm(id, due);
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
        let (plane, bit) = (path.plane as usize, path.bit);
        let only = usize::from(connection.paths_down) + 1 == connection.paths.len();
        if path.is_open(self.shape.mtu, only) {
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
        let plane = path.plane as usize;
        let (mut acked, mut lost) = (0, 0u64);
        let mut first = path.flight.first;
        while first != NIL {
            let behind = i64::from(ack.max_pps) - i64::from(self.flight.get(first).pps);
            if behind < 0 {
                break;
            }
            let arrived = behind == 0 || {
                let k = behind as u32 - 1;
                k < 256 && ack.sack[(k >> 6) as usize] >> (k & 63) & 1 == 1
            };
            let sent = connection.land(&mut self.flight, index);
            if arrived {
                acked += 1;
                acknowledge(id, connection, &sent, &mut self.completions);
            } else {
                // A path is FIFO: a later number has arrived, so this one is lost (F6).
                lost += 1;
                connection.lose(&sent, plane);
            }
            first = connection.paths[index].flight.first;
        }
        let path = &mut connection.paths[index];
        self.counters.gap_detections += lost;
        if lost > 0 {
            self.counts.count(id, index, |c| c.lost_gap += lost);
        }
        let rtt = now.since(ack.echo);
        connection.variation.on_error(path.on_rtt(rtt));
        let nearer = rtt < connection.least_rtt;
        connection.least_rtt = connection.least_rtt.min(rtt);
        let window = path.cwnd;
        path.on_ack(&self.config, self.max_path_window, acked, (ack.max_pps, ack.ce_count));
        let resized = path.cwnd;
        connection.resize(plane, window, resized);
        connection.last_progress = now;
        self.take_hint(now, id, ack.hint, nearer);
        self.refresh_open(id, index);
        self.take_arrival(id, ack.previous());
        self.wake_after(id, plane, lost > 0);
    }

    /// One packet of a path is known to have arrived. Of earlier ones this says nothing.
    #[inline]
    fn take_arrival(&mut self, id: usize, arrival: Arrival) {
        let connection = &mut self.connections[id];
        let index = arrival.path as usize;
        let Some(path) = connection.paths.get_mut(index) else { return };
        let first = path.flight.first;
        if path.epoch != arrival.epoch || first == NIL || self.flight.get(first).pps != arrival.pps {
            return;
        }
        path.expiries = 0;
        let sent = connection.land(&mut self.flight, index);
        acknowledge(id, connection, &sent, &mut self.completions);
        self.refresh_open(id, index);
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
    fn take_hint(&mut self, now: Time, id: usize, hint: RateHint, nearer: bool) {
        let connection = &mut self.connections[id];
        connection.hint_at = now;
        if hint == connection.last_hint && hint != RateHint::NONE && !nearer {
            return;
        }
        connection.last_hint = hint;
        connection.window = match hint.decode() {
            Some(rate) => {
                let headroom = self.shape.base_rtt.0 / 100 * u64::from(self.config.hint_headroom_percent);
                let Bytes(granted) = rate.bytes_in(Time(connection.least_rtt.0 + headroom));
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
            let connection = &mut self.connections[id];
            let Some((sent_at, index)) = self.flight.oldest(&mut connection.order) else { break };
            let due = sent_at + connection.paths[index as usize].tail_timeout(&self.config, connection.variation);
            if due > now {
                next = due;
                break;
            }
            if now.since(connection.last_progress) >= dead_after {
                self.fail(id);
                return;
            }
            self.expire(now, id, sent_at, index as usize);
        }
        // Who has nothing to send needs no path: probing goes on with the next post.
        if self.connections[id].paths_down > 0 && !self.connections[id].outbox.is_idle() {
            next = next.min(self.probe_paths(now, id));
        }
        if next != Time::NEVER {
            self.arm(id, next);
        }
    }

    pub(super) fn arm(&mut self, id: usize, due: Time) {
        let connection = &mut self.connections[id];
        if due < connection.armed {
            connection.armed = due;
            self.timers.push(Reverse((due, id as u32)));
            self.next_timer = self.next_timer.min(due);
        }
    }

    /// The oldest packet of a path, which is also the oldest of the connection, is overdue.
    fn expire(&mut self, now: Time, id: usize, sent_at: Time, index: usize) {
        let connection = &mut self.connections[id];
        let plane = index / self.shape.paths_per_plane;
        let sent = connection.land(&mut self.flight, index);
        connection.lose(&sent, plane);
        let path = &mut connection.paths[index];
        path.on_expiry(now, sent_at);
        self.counters.timer_detections += 1;
        self.counts.count(id, index, |c| c.lost_tail += 1);
        self.counters.timeouts += u64::from(path.expiries >= 2);
        if u32::from(path.expiries) >= self.config.down_after {
            self.path_down(now, id, index);
        }
        self.refresh_open(id, index);
        let planes = self.all_planes();
        self.wake(id, planes);
    }

    /// Gives up a path: what is on it, or waits for it, goes elsewhere. With half of its paths, the
    /// whole plane is given up (ours).
    fn path_down(&mut self, now: Time, id: usize, index: usize) {
        let (paths_per_plane, plane) = (self.shape.paths_per_plane, index / self.shape.paths_per_plane);
        self.leave(now, id, index);
        let own = plane * paths_per_plane..(plane + 1) * paths_per_plane;
        let connection = &self.connections[id];
        let down = connection.paths[own.clone()].iter().filter(|p| p.state == PathState::Down).count();
        if 2 * down >= paths_per_plane && connection.other_plane_up(plane, paths_per_plane) {
            own.for_each(|sibling| self.leave(now, id, sibling));
        }
    }

    fn leave(&mut self, now: Time, id: usize, index: usize) {
        let plane = index / self.shape.paths_per_plane;
        let stride = self.shape.paths_per_plane as u16 + 1;
        let connection = &mut self.connections[id];
        // The last path stays: its last-resort timer keeps trying.
        let last = usize::from(connection.paths_down) + 1 == connection.paths.len();
        if last || connection.paths[index].state == PathState::Down {
            return;
        }
        while connection.paths[index].flight.first != NIL {
            let sent = connection.land(&mut self.flight, index);
            connection.lose_to_any(&sent);
        }
        let window = connection.paths[index].cwnd;
        connection.resize(plane, window, 0);
        let Connection { paths, resend, resend_anywhere, paths_down, .. } = connection;
        let (away, stay) = std::mem::take(&mut resend[plane]).into_iter().partition(|lost| lost.path as usize == index);
        resend[plane] = stay;
        resend_anywhere.extend::<VecDeque<Resend>>(away);
        self.counts.count(id, index, |c| c.end_epoch(paths[index].epoch_totals()));
        paths[index].go_down(now, stride);
        *paths_down += 1;
        self.counters.paths_died += 1;
        self.refresh_open(id, index);
    }

    /// Probes the paths whose time has come. Answers when the next probe is due.
    fn probe_paths(&mut self, now: Time, id: usize) -> Time {
        let mut next = Time::NEVER;
        for index in 0..self.connections[id].paths.len() {
            let path = &self.connections[id].paths[index];
            if path.state != PathState::Down {
                continue;
            }
            if path.moment <= now {
                self.send_probe(now, id, index);
            }
            next = next.min(self.connections[id].paths[index].moment);
        }
        next
    }

    fn send_probe(&mut self, now: Time, id: usize, index: usize) {
        let connection = &mut self.connections[id];
        let path = &mut connection.paths[index];
        // Where nothing moves at all, probes thin out with the length of the silence.
        let silence = now.since(connection.last_progress).0 / 8;
        path.moment = now + Time(self.config.probe_interval_ps.max(silence));
        let plane = PlaneId((index / self.shape.paths_per_plane) as u8);
        let envelope = Envelope {
            src: self.shape.host,
            dst: connection.peer,
            hash: connection.hash,
            len: lengths::mr_probe(),
            entropy: path.entropy,
            plane,
            class: Class::Control,
            ..Envelope::default()
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
        connection.resize(probe.path as usize / self.shape.paths_per_plane, 0, self.shape.path_window);
        connection.paths_down -= 1;
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
        for index in 0..connection.paths.len() {
            while connection.paths[index].flight.first != NIL {
                connection.land(&mut self.flight, index);
            }
        }
    }
}

/// `sent` has arrived: its message may be complete, and others of its stream with it.
fn acknowledge(id: usize, connection: &mut Connection, sent: &Sent, completions: &mut VecDeque<Completion>) {
    connection.outbox.acknowledge(sent.piece.message, |wr_id| {
        let (kind, status) = (CompletionKind::Sent, CompletionStatus::Success);
        completions.push_back(completion(ConnId(id as u32), wr_id, kind, status));
    });
}
