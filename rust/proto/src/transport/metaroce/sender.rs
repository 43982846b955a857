//! The sending side: what a free port pulls.
//!
//! A packet leaves if the connection window, the window of some path of the plane, and the pace
//! where there is one, allow it. Lost pieces go first and keep the room that they had (F6).

use metaroce_wire::{
    Body, Class, Envelope, MrData, MrRequest, Opcode, Packet, PathHeader, PlaneId, RateHint, Request, Segment, Sending,
    Stamp, Time, lengths,
};

use super::connection::{Connection, Resend, Shape};
use super::flight::{Flight, Sent};
use super::{MetaRoce, Shared};
use crate::config::Hints;
use crate::outbox::{Cargo, Piece};
use crate::transport::MAX_PLANES;

/// A hint lives for so many packets at its pace at least. Ours.
pub const PACED_LIFE: u64 = 4;

/// What a request without payload counts in windows, bytes: about its length. Ours.
pub const REQUEST_BYTES: u32 = 64;

/// Packets that a paced connection may be ahead of its pace (protocols call it the burst). Ours.
pub const BURST: u64 = 4;

impl Shared {
    /// What connection `id` sends into `plane` now, if it has something and windows allow; with its payload bytes,
    /// which a request has none of.
    #[inline(always)]
    pub(super) fn choose(
        &mut self,
        now: Time,
        id: usize,
        connection: &mut Connection,
        plane: PlaneId,
    ) -> Option<(Resend, Option<u32>)> {
        if connection.failed || !connection.has_work(plane.index()) {
            return None;
        }
        if connection.in_flight == 0 {
            if connection.paths.is_empty() {
                connection.open_paths(&self.common.shape, &self.common.config);
            }
            self.forget_old_hint(now, connection);
        // [F8.two-windows] [F10.one-controller] [I19]
        } else if connection.in_flight + u64::from(self.common.shape.mtu) > connection.window {
            connection.blocked |= 1 << plane.0;
            return None;
        }
        // Whose turn it is is ready then.
        if let Some(turn) = connection.turn(&self.common.shape)
            && turn != plane.index()
        {
            connection.blocked |= 1 << plane.0;
            self.wake(id, connection, 1 << turn);
            return None;
        }
        // [I25]
        if connection.pace > 0 && now < connection.paced_until {
            connection.blocked |= 1 << plane.0;
            connection.held_back = true;
            let due = connection.paced_until;
            self.arm(id, connection, due);
            return None;
        }
        if connection.lost > 0
            && let Some(resend) = connection.next_resend(plane.index(), &self.common.shape)
        {
            self.counters.resent += u64::from(resend.attempts > 0);
            return Some((resend, connection.outbox.payload_of(resend.piece)));
        }
        let path = if connection.outbox.has_unsent() {
            connection.choose_path(plane.index(), &self.common.shape)
        } else {
            None
        };
        let Some(path) = path else {
            connection.blocked |= 1 << plane.0;
            return None;
        };
        let (piece, bytes) = connection.outbox.next_cut()?;
        Some((Resend { piece, path: path as u16, attempts: 0 }, bytes))
    }

    // [F8.small-start] [I23]
    /// Nothing is in flight, and an old hint has no effect: start small again.
    fn forget_old_hint(&self, now: Time, connection: &mut Connection) {
        let life = self.common.hint_life.max(PACED_LIFE * connection.pace);
        if now.since(connection.hint_at).0 > life {
            connection.granted = self.common.shape.start_window(connection.crowd);
            connection.window = connection.granted;
            connection.last_hint = RateHint::NONE;
            connection.pace = 0;
        }
    }

    /// The packet of a piece that was chosen.
    #[inline(always)]
    pub(super) fn build(
        &mut self,
        now: Time,
        (id, plane): (usize, PlaneId),
        connection: &mut Connection,
        (what, bytes): (Resend, Option<u32>),
    ) -> Option<Packet> {
        self.keep_pace(now, connection);
        let (header, entropy) = self.depart(now, id, connection, (what, bytes.unwrap_or(REQUEST_BYTES).max(1)));
        self.counters.data_packets += 1;
        let backlog = self.common.shape.packets.div_ceil(connection.outbox.unsent()).min(u16::MAX.into()) as u16;
        // Nothing may follow before this one is acknowledged.
        let full =
            connection.in_flight + u64::from(self.common.shape.mtu) > connection.window || connection.all_paths_full();
        let last = full || !connection.outbox.has_unsent();
        if let Some(turn) = connection.turn(&self.common.shape) {
            self.wake(id, connection, 1 << turn);
        }
        if bytes.is_none() {
            return self.build_request(connection, (what.piece, backlog), header, (entropy, plane));
        }
        let sending = match what.attempts {
            1.. => Sending::Again,
            0 if last => Sending::FirstAsking,
            0 => Sending::First,
        };
        let (segment, imm) = (connection.outbox.segment(what.piece), connection.outbox.imm(what.piece));
        Some(Packet {
            envelope: Envelope {
                src: self.host,
                dst: connection.peer,
                hash: connection.hash,
                entropy,
                plane,
                class: Class::Data,
                len: lengths::mr_data(segment.len.into()),
                ..Envelope::default()
            },
            body: Body::MrData(MrData {
                segment: Segment { backlog, ..segment },
                imm,
                header: PathHeader { sending, ..header },
            }),
        })
    }

    #[cold]
    #[inline(never)]
    fn build_request(
        &self,
        connection: &Connection,
        (piece, backlog): (Piece, u16),
        header: PathHeader,
        (entropy, plane): (u16, PlaneId),
    ) -> Option<Packet> {
        let Some(Cargo::Request(request)) = connection.outbox.cargo(piece) else { return None };
        let request = Request { backlog, ..request };
        let envelope = self.envelope(connection, entropy, plane, Class::Data);
        let envelope = Envelope { len: lengths::mr_request(), ..envelope };
        Some(Packet { envelope, body: Body::MrRequest(MrRequest { request, header }) })
    }

    /// A packet leaves: when the next may, where there is a pace.
    #[inline]
    fn keep_pace(&self, now: Time, connection: &mut Connection) {
        if connection.pace > 0 {
            let ahead = if self.common.config.hints == Hints::Pace { BURST - 1 } else { 0 };
            let earliest = now.0.saturating_sub(ahead * connection.pace);
            connection.paced_until = Time(connection.paced_until.0.max(earliest) + connection.pace);
        }
    }

    /// Books a packet of so many bytes into flight on its path, and gives it its number there.
    #[inline(always)]
    fn depart(
        &mut self,
        now: Time,
        id: usize,
        connection: &mut Connection,
        (what, bytes): (Resend, u32),
    ) -> (PathHeader, u16) {
        // What the timer is armed for otherwise may be far off.
        let first = connection.in_flight == 0;
        let (header, entropy) = connection.depart(now, (what, bytes), &mut self.flight, &self.common.shape);
        // A timer that is far off stands for something else, a probe or a receiver that is not ready.
        if first || connection.armed.since(now) > self.common.shape.base_rtt {
            self.arm_tail_timer(now, id, connection, what.path);
        }
        (header, entropy)
    }

    #[inline(never)]
    fn arm_tail_timer(&mut self, now: Time, id: usize, connection: &mut Connection, path: u16) {
        let eager = now < self.lossy_until && !connection.outbox.has_unsent();
        let timeout = connection.paths[path as usize].tail_timeout(&self.common.config, connection.variation, eager);
        self.arm(id, connection, now + timeout);
    }

    /// An envelope to the peer of a connection, without its length.
    pub(super) fn envelope(&self, connection: &Connection, entropy: u16, plane: PlaneId, class: Class) -> Envelope {
        Envelope {
            src: self.host,
            dst: connection.peer,
            hash: connection.hash,
            entropy,
            plane,
            class,
            ..Envelope::default()
        }
    }
}

impl MetaRoce {
    // [F6.tail-probe] [I17]
    /// A packet without payload that makes gaps before it visible: it has a number on its path.
    pub(super) fn send_tail_probe(&mut self, now: Time, id: usize, index: usize) {
        let what = Resend { piece: Piece::PROBE, path: index as u16, attempts: 0 };
        let (shared, connection) = (&mut self.shared, &mut self.connections[id]);
        let (header, entropy) = shared.depart(now, id, connection, (what, REQUEST_BYTES));
        let plane = PlaneId(connection.paths[index].plane);
        let request = Request { opcode: Opcode::Probe, ..Request::default() };
        let envelope = shared.envelope(connection, entropy, plane, Class::Control);
        let envelope = Envelope { len: lengths::mr_probe(), ..envelope };
        shared.ports.push_control(plane, Packet { envelope, body: Body::MrRequest(MrRequest { request, header }) });
        shared.counters.probes += 1;
    }
}

impl Connection {
    /// The next lost piece that may leave through `plane`, and the path it takes.
    #[cold]
    #[inline(never)]
    fn next_resend(&mut self, plane: usize, shape: &Shape) -> Option<Resend> {
        while self.lost > 0 {
            // The slot of a lost packet in its path's window is its own: no window check here (F6:
            // it is resent at once).
            // [F6.same-path] [F6.at-once] [I18]
            if let Some(resend) = self.resend[plane].pop_front() {
                self.lost -= 1;
                if self.outbox.is_open(resend.piece.message) {
                    return Some(resend);
                }
                continue;
            }
            let lost = *self.resend_anywhere.front()?;
            if self.outbox.is_open(lost.piece.message) {
                // [F6.elsewhere-in-the-end]
                // Elsewhere: not the plane that keeps losing it, if there is another.
                let same_plane = self.paths[lost.path as usize].plane as usize == plane;
                if same_plane && self.other_plane_up(plane, shape.paths_per_plane) {
                    return None;
                }
                let path = self.choose_path(plane, shape)?;
                self.resend_anywhere.pop_front();
                self.lost -= 1;
                return Some(Resend { path: path as u16, ..lost });
            }
            self.resend_anywhere.pop_front();
            self.lost -= 1;
        }
        None
    }

    /// Books a packet of so many bytes into flight on its path, and gives it its number there.
    #[inline(always)]
    fn depart(
        &mut self,
        now: Time,
        (what, bytes): (Resend, u32),
        flight: &mut Flight,
        shape: &Shape,
    ) -> (PathHeader, u16) {
        let Connection { paths, planes, order, .. } = self;
        let only = usize::from(self.paths_down) + 1 == paths.len();
        let path = &mut paths[what.path as usize];
        let plane = &mut planes[path.plane as usize % MAX_PLANES];
        let header = PathHeader {
            connection: self.remote,
            pps: path.next_pps,
            serial: order.next_serial(),
            sent_at: Stamp::of(now),
            path: what.path,
            epoch: path.epoch,
            sending: if what.attempts > 0 { Sending::Again } else { Sending::FirstAsking },
        };
        // [F6.own-sequence] [F6.new-number] [I12]
        path.next_pps += 1;
        path.in_flight += bytes;
        path.packets += 1;
        plane.in_flight += bytes;
        // [I14]
        self.in_flight += u64::from(bytes);
        flight.push(Sent::new(now, what, header.serial, bytes), order, &mut path.flight);
        plane.show(path, only, shape);
        (header, path.entropy)
    }
}
