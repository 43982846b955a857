//! The sending side: what a free port pulls.
//!
//! A packet leaves while less is in flight than the window allows; lost numbers go first. The entropy value is chosen as
//! it leaves, among those of the plane whose port is free (public).

use metaroce_wire::{
    Body, Class, Envelope, MrcData, MrcProbe, Opcode, Packet, PlaneId, Psn, PsnWord, Segment, Stamp, Time, lengths,
};

use super::board::{Sent, State};
use super::connection::{Asked, Connection};
use super::{ALL, Mrc};
use crate::outbox::{Cargo, Outbox, Piece};

impl Mrc {
    /// The packet that connection `id` sends into `plane` now, if it has one and its window allows.
    pub(super) fn pull(&mut self, now: Time, id: usize, plane: PlaneId) -> Option<Packet> {
        let mpr = self.mpr;
        let connection = &mut self.connections[id];
        if !connection.can_send(mpr) || self.waits_for_turn(id, plane) {
            return None;
        }
        let connection = &mut self.connections[id];
        let ev = connection.profile.as_mut()?.choose(plane.index())?;
        let route = (plane.0, ev);
        if let Some(number) = connection.board.next_lost() {
            connection.board.depart_again(now, number, route);
            self.counters.resent += 1;
            return self.build(now, id, number, route);
        }
        let piece = connection.outbox.next_piece()?;
        let len = bytes(&connection.outbox, piece);
        let sent = Sent { piece, at: now, len, ev, plane: plane.0, state: State::Flying, resends: 0, departure: 0 };
        let number = connection.board.depart(sent);
        self.build(now, id, number, route)
    }

    /// Whether other planes go first: where the window has no room for a packet in each, they take turns.
    fn waits_for_turn(&mut self, id: usize, plane: PlaneId) -> bool {
        let connection = &self.connections[id];
        let planes = self.numbers.planes;
        let room = u64::from(connection.window.bytes) - connection.board.in_flight();
        let packets = room.div_ceil(u64::from(self.config.mtu));
        if packets >= planes as u64 {
            return false;
        }
        let open = connection.profile.as_ref().map_or(0, |profile| profile.open_planes());
        let (mut ahead, mut count) = (0, 0);
        for other in (0..planes).map(|k| (usize::from(connection.turn) + k) % planes) {
            if other == plane.index() {
                return false;
            }
            if open >> other & 1 == 1 {
                ahead |= 1 << other;
                count += 1;
            }
            if count == packets {
                break;
            }
        }
        self.wake(id, ahead);
        true
    }

    /// It was the turn of `plane` if no open one comes before it: the next one's turn is now.
    fn take_turn(&mut self, id: usize, plane: u8) {
        let connection = &mut self.connections[id];
        let (open, planes) = (connection.profile.as_ref().map_or(0, |p| p.open_planes()), self.numbers.planes as u8);
        let next = |from: u8| (0..planes).map(|k| (from + k) % planes).find(|plane| open >> plane & 1 == 1);
        if next(connection.turn) == Some(plane)
            && let Some(turn) = next(plane + 1)
        {
            connection.turn = turn;
            self.wake(id, 1 << turn);
        }
    }

    fn build(&mut self, now: Time, id: usize, number: u64, route: (u8, u16)) -> Option<Packet> {
        let connection = &mut self.connections[id];
        let sent = *connection.board.get(number)?;
        // A message that has failed has nothing to carry, and yet the receiver waits for its numbers.
        let nothing = || (Segment { opcode: Opcode::Probe, ..Segment::default() }, 0);
        let (segment, imm) = match connection.outbox.cargo(sent.piece) {
            Some(Cargo::Data(segment, imm)) => (segment, imm),
            Some(Cargo::Request(_)) | None => nothing(),
        };
        let asks = !connection.can_send(self.mpr);
        let word = PsnWord::new(Psn::of(number)).asking(asks).again(sent.resends > 0);
        let data = MrcData { segment, imm, connection: connection.remote, sent_at: Stamp::of(now), word };
        let len = lengths::mrc_data(segment.len.into(), segment.opcode == Opcode::WriteImm);
        if connection.board.in_flight() == u64::from(sent.len) {
            // Nothing else is on its way, and no timer stands for it.
            self.rule.begin(&mut connection.window, now);
            self.wait_for_acknowledgement(now, id);
            self.arm_timer(now, id);
        }
        self.counters.data_packets += 1;
        self.take_turn(id, route.0);
        let index = self.connections[id].profile.as_ref()?.index(route.0.into(), route.1);
        self.counts.count(id, index, |counts| counts.sent += 1);
        let envelope = self.envelope(id, route, len, Class::Data)?;
        Some(Packet { envelope, body: Body::MrcData(data) })
    }

    /// Asks the peer, by `route`, what has arrived from the oldest unacknowledged number on.
    pub(super) fn send_probe(&mut self, now: Time, id: usize, route: (u8, u16)) {
        let connection = &self.connections[id];
        let (remote, number) = (connection.remote, connection.board.base());
        let probe = MrcProbe { sent_at: Stamp::of(now), connection: remote, psn: Psn::of(number) };
        // It waits in the queues that data waits in: what it finds out is whether data is late or lost.
        if let Some(envelope) = self.envelope(id, route, lengths::mrc_probe(), Class::Data) {
            self.ports.push_control(PlaneId(route.0), Packet { envelope, body: Body::MrcProbe(probe) });
            self.counters.probes += 1;
        }
    }

    /// Sends a probe by the next entropy value in turn, on account of what is missing.
    pub(super) fn ask(&mut self, now: Time, id: usize) {
        let connection = &mut self.connections[id];
        connection.asked = Some(Asked { at: now, until: connection.board.next() });
        let Some(profile) = connection.profile.as_mut() else { return };
        let (open, planes) = (profile.open_planes(), self.numbers.planes as u8);
        let mut turns = (0..planes).map(|k| (connection.turn + k) % planes);
        let Some(plane) = turns.find(|plane| open >> plane & 1 == 1) else { return };
        connection.turn = (plane + 1) % planes;
        if let Some(ev) = profile.choose(plane.into()) {
            self.send_probe(now, id, (plane, ev));
        }
    }

    fn envelope(&self, id: usize, route: (u8, u16), len: u32, class: Class) -> Option<Envelope> {
        let connection = &self.connections[id];
        Some(Envelope {
            src: self.host,
            dst: connection.peer,
            hash: connection.hash,
            len,
            entropy: connection.profile.as_ref()?.port(route.1),
            plane: PlaneId(route.0),
            class,
            ..Envelope::default()
        })
    }

    /// Wakes every plane that may send again.
    pub(super) fn wake_all(&mut self, id: usize) {
        self.wake(id, ALL);
    }
}

/// Bytes that a piece counts in the window.
fn bytes(outbox: &Outbox, piece: Piece) -> u32 {
    match outbox.cargo(piece) {
        Some(Cargo::Data(segment, _)) => u32::from(segment.len).max(1),
        Some(Cargo::Request(_)) | None => 1,
    }
}

impl Connection {
    /// Whether nothing is left that was never sent.
    pub fn has_no_backlog(&self) -> bool {
        !self.outbox.has_unsent()
    }
}
