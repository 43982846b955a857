//! The sending side: what a free port pulls.
//!
//! A packet leaves if the connection window, the window of some path of the plane, and the pace
//! where there is one, allow it. Lost pieces go first and keep the room that they had (F6).

use metaroce_wire::{
    Body, Class, Envelope, MrData, MrRequest, Opcode, Packet, PathHeader, PlaneId, RateHint, Request, Segment, Sending,
    Stamp, Time, lengths,
};

use super::MetaRoce;
use super::connection::{MAX_PLANES, Resend};
use super::flight::Sent;
use crate::config::Hints;
use crate::outbox::{Cargo, Piece};

/// A hint lives for so many packets at its pace at least. Ours.
pub const PACED_LIFE: u64 = 4;

/// What a request without payload counts in windows, bytes: about its length. Ours.
pub const REQUEST_BYTES: u32 = 64;

/// Packets that a paced connection may be ahead of its pace (protocols call it the burst). Ours.
pub const BURST: u64 = 4;

impl MetaRoce {
    /// The packet that connection `id` sends into `plane` now, if it has one and windows allow.
    pub(super) fn pull(&mut self, now: Time, id: usize, plane: PlaneId) -> Option<Packet> {
        let mtu = self.shape.mtu;
        let connection = &mut self.connections[id];
        if connection.failed || !connection.has_work(plane.index()) {
            return None;
        }
        if connection.paths.is_empty() {
            connection.open_paths(&self.shape, &self.config);
        }
        let life = self.hint_life.max(PACED_LIFE * connection.pace);
        if connection.in_flight == 0 && now.since(connection.hint_at).0 > life {
            // [F8.small-start] [I23]
            // An old hint has no effect: start small again.
            connection.granted = self.shape.start_window(connection.crowd);
            connection.window = connection.granted;
            connection.last_hint = RateHint::NONE;
            connection.pace = 0;
        }
        // [F8.two-windows] [F10.one-controller] [I19]
        if connection.in_flight > 0 && connection.in_flight + u64::from(mtu) > connection.window {
            connection.blocked |= 1 << plane.0;
            return None;
        }
        if self.waits_for_turn(id, plane.index()) {
            return None;
        }
        let connection = &mut self.connections[id];
        // [I25]
        if connection.pace > 0 && now < connection.paced_until {
            connection.blocked |= 1 << plane.0;
            connection.held_back = true;
            let due = connection.paced_until;
            self.arm(id, due);
            return None;
        }
        if let Some(resend) = self.next_resend(id, plane.index()) {
            return self.build(now, id, plane, resend);
        }
        let connection = &mut self.connections[id];
        let path = if connection.outbox.has_unsent() {
            connection.choose_path(plane.index(), self.shape.paths_per_plane, self.config.spray)
        } else {
            None
        };
        let Some(path) = path else {
            connection.blocked |= 1 << plane.0;
            return None;
        };
        let piece = connection.outbox.next_piece()?;
        self.build(now, id, plane, Resend { piece, path: path as u16, attempts: 0 })
    }

    /// Whether it is the turn of another plane than `plane`, which is then ready.
    fn waits_for_turn(&mut self, id: usize, plane: usize) -> bool {
        let Some(turn) = self.connections[id].turn(self.shape.mtu, self.shape.planes).filter(|&turn| turn != plane)
        else {
            return false;
        };
        self.connections[id].blocked |= 1 << plane;
        self.wake(id, 1 << turn);
        true
    }

    /// The next lost piece that may leave through `plane`, and the path it takes.
    fn next_resend(&mut self, id: usize, plane: usize) -> Option<Resend> {
        let paths_per_plane = self.shape.paths_per_plane;
        let connection = &mut self.connections[id];
        while connection.lost > 0 {
            // The slot of a lost packet in its path's window is its own: no window check here (F6:
            // it is resent at once).
            // [F6.same-path] [F6.at-once] [I18]
            if let Some(resend) = connection.resend[plane].pop_front() {
                connection.lost -= 1;
                if connection.outbox.is_open(resend.piece.message) {
                    return Some(resend);
                }
                continue;
            }
            let lost = *connection.resend_anywhere.front()?;
            if connection.outbox.is_open(lost.piece.message) {
                // [F6.elsewhere-in-the-end]
                // Elsewhere: not the plane that keeps losing it, if there is another.
                let same_plane = connection.paths[lost.path as usize].plane as usize == plane;
                if same_plane && connection.other_plane_up(plane, paths_per_plane) {
                    return None;
                }
                let path = connection.choose_path(plane, paths_per_plane, self.config.spray)?;
                connection.resend_anywhere.pop_front();
                connection.lost -= 1;
                return Some(Resend { path: path as u16, ..lost });
            }
            connection.resend_anywhere.pop_front();
            connection.lost -= 1;
        }
        None
    }

    fn build(&mut self, now: Time, id: usize, plane: PlaneId, what: Resend) -> Option<Packet> {
        let mtu = u64::from(self.shape.mtu);
        let connection = &mut self.connections[id];
        let cargo = connection.outbox.cargo(what.piece)?;
        let bytes = match &cargo {
            Cargo::Data(segment, _) => u32::from(segment.len).max(1),
            Cargo::Request(_) => REQUEST_BYTES,
        };
        if connection.pace > 0 {
            let ahead = if self.config.hints == Hints::Pace { BURST - 1 } else { 0 };
            let earliest = now.0.saturating_sub(ahead * connection.pace);
            connection.paced_until = Time(connection.paced_until.0.max(earliest) + connection.pace);
        }
        let (header, entropy) = self.depart(now, id, what, bytes);
        let connection = &mut self.connections[id];
        let backlog = u16::try_from(connection.outbox.unsent().div_ceil(mtu)).unwrap_or(u16::MAX);
        let (len, body) = match cargo {
            Cargo::Data(segment, imm) => {
                let segment = Segment { backlog, ..segment };
                // Nothing may follow before this one is acknowledged.
                let full = connection.in_flight + mtu > connection.window || connection.open == [0; MAX_PLANES];
                let last = full || !connection.outbox.has_unsent();
                let first = if last { Sending::FirstAsking } else { Sending::First };
                let sending = if what.attempts > 0 { Sending::Again } else { first };
                let header = PathHeader { sending, ..header };
                (lengths::mr_data(segment.len.into()), Body::MrData(MrData { segment, imm, header }))
            }
            Cargo::Request(request) => {
                let request = Request { backlog, ..request };
                (lengths::mr_request(), Body::MrRequest(MrRequest { request, header }))
            }
        };
        self.counters.data_packets += 1;
        self.counters.resent += u64::from(what.attempts > 0);
        if let Some(turn) = connection.turn(self.shape.mtu, self.shape.planes) {
            self.wake(id, 1 << turn);
        }
        let envelope = self.envelope(id, entropy, plane, Class::Data);
        Some(Packet { envelope: Envelope { len, ..envelope }, body })
    }

    /// Books a packet of `bytes` into flight on its path, and gives it its number there.
    fn depart(&mut self, now: Time, id: usize, what: Resend, bytes: u32) -> (PathHeader, u16) {
        let connection = &mut self.connections[id];
        let index = what.path as usize;
        let path = &mut connection.paths[index];
        let pps = path.next_pps;
        // [F6.own-sequence] [F6.new-number] [I12]
        path.next_pps += 1;
        path.in_flight += bytes;
        path.packets += 1;
        // What the timer is armed for otherwise may be far off.
        let first = connection.in_flight == 0;
        // [I14]
        connection.in_flight += u64::from(bytes);
        connection.plane_in_flight[path.plane as usize] += bytes;
        let serial = connection.order.next_serial();
        self.flight.push(now, Sent::new(what, pps, bytes), &mut connection.order, &mut path.flight);
        let header = PathHeader {
            connection: connection.remote,
            pps,
            serial,
            sent_at: Stamp::of(now),
            path: what.path,
            epoch: path.epoch,
            sending: if what.attempts > 0 { Sending::Again } else { Sending::FirstAsking },
        };
        let entropy = path.entropy;
        // A timer that is far off stands for something else, a probe or a receiver that is not ready.
        if first || connection.armed.since(now) > self.shape.base_rtt {
            let eager = now < self.lossy_until && !connection.outbox.has_unsent();
            let due = now + path.tail_timeout(&self.config, connection.variation, eager);
            self.arm(id, due);
        }
        self.refresh_open(id, index);
        (header, entropy)
    }

    // [F6.tail-probe] [I17]
    /// A packet without payload that makes gaps before it visible: it has a number on its path.
    pub(super) fn send_tail_probe(&mut self, now: Time, id: usize, index: usize) {
        let what = Resend { piece: Piece::PROBE, path: index as u16, attempts: 0 };
        let (header, entropy) = self.depart(now, id, what, REQUEST_BYTES);
        let plane = PlaneId(self.connections[id].paths[index].plane);
        let request = Request { opcode: Opcode::Probe, ..Request::default() };
        let envelope = Envelope { len: lengths::mr_probe(), ..self.envelope(id, entropy, plane, Class::Control) };
        self.ports.push_control(plane, Packet { envelope, body: Body::MrRequest(MrRequest { request, header }) });
        self.counters.probes += 1;
    }

    /// An envelope to the peer of a connection, without its length.
    pub(super) fn envelope(&self, id: usize, entropy: u16, plane: PlaneId, class: Class) -> Envelope {
        let connection = &self.connections[id];
        Envelope {
            src: self.shape.host,
            dst: connection.peer,
            hash: connection.hash,
            entropy,
            plane,
            class,
            ..Envelope::default()
        }
    }

    /// Recomputes whether a path has room.
    #[inline]
    pub(super) fn refresh_open(&mut self, id: usize, index: usize) {
        let connection = &mut self.connections[id];
        let path = &connection.paths[index];
        let (plane, bit) = (path.plane as usize, path.bit);
        let only = usize::from(connection.paths_down) + 1 == connection.paths.len();
        if path.is_open(self.shape.mtu, only, self.config.spray) {
            connection.open[plane] |= 1 << bit;
        } else {
            connection.open[plane] &= !(1 << bit);
        }
    }
}
