//! What time reveals: packets that are overdue, paths that are dead and return, connections that fail.

use std::collections::VecDeque;

use metaroce_wire::{Body, Bytes, Class, ConnId, Envelope, MrProbe, Packet, PlaneId, RateHint, Time, lengths};

use super::connection::{Connection, Resend};
use super::flight::{NIL, Sent};
use super::path::PathState;
use super::{LOSSY_RTTS, MetaRoce};
use crate::config::{Hints, Tail};
use crate::transport::give_up;
use crate::verbs::{CompletionStatus, PostError};

/// Where nothing moves at all, probes thin out: one in this part of the silence. Ours.
pub const SILENCE_SHARE: u64 = 8;

/// From so many packets in flight on a path on, its losses are left to the gap rule. Ours.
pub const FOLLOWED: u16 = 3;

/// One down of so many paths of a plane, and the plane is given up. Ours: half are hardly chance.
pub const PLANE_DOWN_SHARE: usize = 2;

/// So many silent paths of a plane, and half of them, are no chance one silence before each alone would be given
/// up. Ours.
pub const SILENT_PATHS: usize = 2;

/// A path that goes down moves its port on by the paths of a plane and this. Ours: past all siblings, and to
/// another residue, which ECMP reads.
pub const STRIDE_BEYOND: u16 = 1;

/// So many packets of every sender may be ahead of one that has no window for a packet in each plane. Ours.
pub const CROWD_TURNS: u64 = 2;

/// Expiries in a row that count as a timeout. Ours: the first is tail detection at its work.
pub const TIMEOUT_EXPIRIES: u8 = 2;

impl MetaRoce {
    /// The connection's timer: declares what is overdue lost, probes paths that are down, and
    /// gives up when nothing has moved for too long.
    pub(super) fn on_timer(&mut self, now: Time, id: usize) {
        let dead_after = Time(self.shared.common.config.dead_after_ps);
        if self.connections[id].failed {
            return;
        }
        let crowding = self.crowding(now, &self.connections[id]);
        let mut next = Time::NEVER;
        let mut from = 0;
        loop {
            let connection = &mut self.connections[id];
            let Some((position, slot)) = connection.order.oldest(from) else { break };
            let &Sent { at: sent_at, path: index, .. } = self.shared.flight.get(slot);
            let eager = now < self.shared.lossy_until && !connection.outbox.has_unsent();
            let path = &connection.paths[index as usize];
            let timeout = path.tail_timeout(&self.shared.common.config, connection.variation, eager) + crowding;
            let probed = self.shared.common.config.tail == Tail::Probe && path.expiries > 0;
            let due = timeout + if probed { sent_at.max(path.moment) } else { sent_at };
            if due > now {
                next = next.min(due);
                break;
            }
            // Where others follow closely on the path, the gap rule is at work: the newest counts.
            let age = self.shared.flight.newest_age(&path.flight, now);
            if path.packets >= FOLLOWED && age < timeout {
                next = next.min(now + timeout - age);
                from = position + 1;
                continue;
            }
            // [I15] [I16]
            if now.since(connection.last_progress) >= dead_after {
                self.fail(id, CompletionStatus::RetryExceeded);
                return;
            }
            self.expire(now, id, sent_at, index.into());
        }
        let connection = &self.connections[id];
        let stranded = usize::from(connection.paths_down) == connection.paths.len() && !connection.outbox.is_idle();
        if connection.in_flight == 0 && (stranded || connection.outbox.awaits_answer()) {
            // [I15]
            // Nothing of ours can expire, and still it must end.
            let end = connection.last_progress + dead_after;
            if now >= end {
                self.fail(id, CompletionStatus::RetryExceeded);
                return;
            }
            next = next.min(end);
        }
        // Who has nothing to send needs no path: probing goes on with the next post.
        if connection.paths_down > 0 && !connection.outbox.is_idle() {
            next = next.min(self.probe_paths(now, id));
        }
        if !self.connections[id].waiting.is_empty() {
            next = next.min(self.resume_waiting(now, id));
        }
        if self.connections[id].held_back {
            next = next.min(self.resume_pace(now, id));
        }
        if next != Time::NEVER {
            self.arm(id, next);
        }
    }

    /// How much longer than a path has shown an acknowledgement may take where many send to one. Where losses
    /// happen, who still has a window prefers to look early.
    fn crowding(&self, now: Time, connection: &Connection) -> Time {
        let (mtu, planes) = (u64::from(self.shared.common.shape.mtu), self.shared.common.shape.planes as u64);
        let crowded = connection.granted < planes * mtu && (connection.pace > 0 || now >= self.shared.lossy_until);
        match connection.last_hint.decode() {
            Some(rate) if crowded => rate.time_for(Bytes(CROWD_TURNS * mtu)),
            Some(_) => Time::ZERO,
            None if self.shared.common.config.hints == Hints::Off => Time::ZERO,
            // Nothing is heard yet: the first windows of all others may be ahead.
            None => {
                let others = u64::from(connection.crowd.saturating_sub(1));
                self.shared
                    .common
                    .shape
                    .rate
                    .time_for(Bytes(self.shared.common.shape.start_window(connection.crowd) * others))
            }
        }
    }

    /// Lets a connection that its pace held back try again. Answers when that will be.
    fn resume_pace(&mut self, now: Time, id: usize) -> Time {
        let connection = &mut self.connections[id];
        if connection.paced_until > now {
            return connection.paced_until;
        }
        connection.held_back = false;
        let planes = connection.blocked;
        self.wake(id, planes);
        Time::NEVER
    }

    /// The oldest packet of a path, which is also the oldest of the connection, is overdue.
    fn expire(&mut self, now: Time, id: usize, sent_at: Time, index: usize) {
        let connection = &mut self.connections[id];
        let path = &mut connection.paths[index];
        if self.shared.common.config.tail == Tail::Probe && path.expiries == 0 {
            path.on_expiry(now, sent_at);
            self.send_tail_probe(now, id, index);
            return;
        }
        let plane = index / self.shared.common.shape.paths_per_plane;
        let sent = connection.land(&mut self.shared.flight, index);
        connection.lose(&sent, plane, self.shared.common.config.same_path_attempts);
        let path = &mut connection.paths[index];
        path.on_expiry(now, sent_at);
        self.shared.lossy_until = now + Time(LOSSY_RTTS * self.shared.common.shape.base_rtt.0);
        if connection.last_hint == RateHint::NONE && self.shared.common.config.hints != Hints::Off {
            // Nothing was ever heard of the receiver: one packet will do to ask.
            connection.granted = self.shared.common.shape.mtu.into();
            connection.window = connection.granted;
        }
        let path = &mut connection.paths[index];
        let window = path.cwnd;
        path.on_loss(&self.shared.common.controller);
        let resized = path.cwnd;
        connection.resize(plane, window, resized);
        let path = &connection.paths[index];
        self.shared.counters.timer_detections += 1;
        self.shared.counts.count(id, index, |c| c.lost_tail += 1);
        self.shared.counters.timeouts += u64::from(path.expiries >= TIMEOUT_EXPIRIES);
        // [F5.down-after-expiries] [F5.failure-is-not-congestion]
        let expiries = u32::from(path.expiries);
        if expiries >= self.shared.common.config.down_after {
            self.path_down(now, id, index);
        } else if expiries + 1 == self.shared.common.config.down_after && self.is_silent(id, plane) {
            self.plane_down(now, id, plane);
        }
        self.connections[id].refresh_open(index, &self.shared.common.shape);
        let planes = self.all_planes();
        self.wake(id, planes);
    }

    // [F5.silent-plane]
    /// Whether half of the paths of a plane, two at least, have fallen silent, and none of some other plane has:
    /// that is no chance, and no congestion of the receiver either.
    fn is_silent(&self, id: usize, plane: usize) -> bool {
        let connection = &self.connections[id];
        let silent = |plane: usize| {
            let own = &connection.paths[plane * self.shared.common.shape.paths_per_plane..]
                [..self.shared.common.shape.paths_per_plane];
            let up = own.iter().filter(|path| path.state == PathState::Up);
            up.fold((0, 0), |(up, silent), path| (up + 1, silent + usize::from(path.expiries > 0)))
        };
        let (_, quiet) = silent(plane);
        let others = (0..self.shared.common.shape.planes).filter(|&other| other != plane);
        quiet >= SILENT_PATHS.max(self.shared.common.shape.paths_per_plane / PLANE_DOWN_SHARE)
            && others.map(silent).any(|(up, quiet)| up > 0 && quiet == 0)
    }

    /// Gives up a path: what is on it, or waits for it, goes elsewhere. With half of its paths, the
    /// whole plane is given up (ours).
    fn path_down(&mut self, now: Time, id: usize, index: usize) {
        let (paths_per_plane, plane) =
            (self.shared.common.shape.paths_per_plane, index / self.shared.common.shape.paths_per_plane);
        self.leave(now, id, index);
        let connection = &self.connections[id];
        let own = &connection.paths[plane * paths_per_plane..][..paths_per_plane];
        let down = own.iter().filter(|p| p.state == PathState::Down).count();
        // [F5.plane-down-with-half]
        if PLANE_DOWN_SHARE * down >= paths_per_plane && connection.other_plane_up(plane, paths_per_plane) {
            self.plane_down(now, id, plane);
        }
    }

    fn plane_down(&mut self, now: Time, id: usize, plane: usize) {
        let own =
            plane * self.shared.common.shape.paths_per_plane..(plane + 1) * self.shared.common.shape.paths_per_plane;
        own.for_each(|index| self.leave(now, id, index));
    }

    fn leave(&mut self, now: Time, id: usize, index: usize) {
        let stride = self.shared.common.shape.paths_per_plane as u16 + STRIDE_BEYOND;
        let connection = &mut self.connections[id];
        // [I16]
        // The last path stays: its last-resort timer keeps trying.
        let last = usize::from(connection.paths_down) + 1 == connection.paths.len();
        if last || connection.paths[index].state != PathState::Up {
            return;
        }
        self.abandon(id, index);
        self.end_epoch(id, index);
        self.connections[id].paths[index].go_down(now, stride);
        self.shared.counters.paths_died += 1;
        self.connections[id].refresh_open(index, &self.shared.common.shape);
    }

    fn end_epoch(&mut self, id: usize, index: usize) {
        let totals = self.connections[id].paths[index].epoch_totals();
        self.shared.counts.count(id, index, |c| c.end_epoch(totals));
    }

    /// Takes everything off a path, to be sent on others, and counts it out.
    fn abandon(&mut self, id: usize, index: usize) {
        let plane = index / self.shared.common.shape.paths_per_plane;
        let connection = &mut self.connections[id];
        // [I28]
        while connection.paths[index].flight.first != NIL {
            let sent = connection.land(&mut self.shared.flight, index);
            connection.lose_to_any(&sent);
        }
        let window = connection.paths[index].cwnd;
        connection.resize(plane, window, 0);
        let Connection { resend, resend_anywhere, paths_down, .. } = connection;
        let (away, stay) = std::mem::take(&mut resend[plane]).into_iter().partition(|lost| lost.path as usize == index);
        resend[plane] = stay;
        resend_anywhere.extend::<VecDeque<Resend>>(away);
        *paths_down += 1;
    }

    /// Takes a plane out of use for a connection, or back into it (F11: an extension call).
    pub(super) fn set_denied(&mut self, now: Time, id: usize, plane: usize, denied: bool) -> Result<(), PostError> {
        if plane >= self.shared.common.shape.planes {
            return Err(PostError::NoPlaneLeft(plane as u8));
        }
        if self.connections[id].paths.is_empty() {
            self.connections[id].open_paths(&self.shared.common.shape, &self.shared.common.config);
        }
        let own =
            plane * self.shared.common.shape.paths_per_plane..(plane + 1) * self.shared.common.shape.paths_per_plane;
        let allowed =
            |(index, path): (usize, &super::path::SendPath)| !own.contains(&index) && path.state != PathState::Denied;
        if denied && !self.connections[id].paths.iter().enumerate().any(allowed) {
            return Err(PostError::NoPlaneLeft(plane as u8));
        }
        for index in own {
            match self.connections[id].paths[index].state {
                PathState::Up if denied => self.abandon(id, index),
                PathState::Denied if !denied => self.connections[id].paths[index].moment = now,
                PathState::Down if denied => {}
                _ => continue,
            }
            // A path that is allowed again has to answer a probe first.
            let state = if denied { PathState::Denied } else { PathState::Down };
            self.end_epoch(id, index);
            self.connections[id].paths[index].leave_for(state);
            self.connections[id].refresh_open(index, &self.shared.common.shape);
        }
        self.arm(id, now);
        let planes = self.all_planes();
        self.wake(id, planes);
        Ok(())
    }

    /// Probes the paths whose time has come. Answers when the next probe is due.
    fn probe_paths(&mut self, now: Time, id: usize) -> Time {
        let mut next = Time::NEVER;
        for index in 0..self.connections[id].paths.len() {
            let path = &self.connections[id].paths[index];
            if path.state != PathState::Down {
                continue;
            }
            // [F5.probe-revives] [I17]
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
        let silence = now.since(connection.last_progress).0 / SILENCE_SHARE;
        path.moment = now + Time(self.shared.common.config.probe_interval_ps.max(silence));
        let (plane, entropy, epoch) = (PlaneId(path.plane), path.entropy, path.epoch);
        let probe = MrProbe { sent_at: now, connection: connection.remote, path: index as u16, epoch };
        let envelope = Envelope {
            len: lengths::mr_probe(),
            ..self.shared.envelope(&self.connections[id], entropy, plane, Class::Control)
        };
        self.shared.ports.push_control(plane, Packet { envelope, body: Body::MrProbe(probe) });
        self.shared.counters.probes += 1;
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
        path.come_up(self.shared.common.shape.path_window);
        path.on_rtt(now.since(probe.sent_at));
        connection.resize(
            probe.path as usize / self.shared.common.shape.paths_per_plane,
            0,
            self.shared.common.shape.path_window,
        );
        connection.paths_down -= 1;
        self.shared.counters.paths_revived += 1;
        self.connections[id].refresh_open(probe.path as usize, &self.shared.common.shape);
        let planes = self.all_planes();
        self.wake(id, planes);
    }

    /// Gives a connection up: every open request ends, the first with the reason.
    pub(super) fn fail(&mut self, id: usize, why: CompletionStatus) {
        let connection = &mut self.connections[id];
        if connection.failed {
            return;
        }
        (connection.failed, connection.closed) = (true, true);
        connection.abandoned = connection.outbox.open_bytes();
        let messages = (&mut connection.outbox, &mut connection.inbox);
        give_up(&mut self.shared.completions, ConnId(id as u32), messages, why);
        connection.waiting.clear();
        for index in 0..connection.paths.len() {
            while connection.paths[index].flight.first != NIL {
                connection.land(&mut self.shared.flight, index);
            }
        }
    }
}
