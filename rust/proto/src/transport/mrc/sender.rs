//! The sending side: what a free port pulls.
//!
//! A packet leaves while less is in flight than the window allows; lost numbers go first. The entropy value is chosen as
//! it leaves, among those of the plane whose port is free (public).

use metaroce_wire::{
    Body, Class, Envelope, MrcData, MrcProbe, Opcode, Packet, PlaneId, Psn, PsnWord, Segment, Stamp, Time, lengths,
};

use super::board::{Sent, State};
use super::connection::{Asked, Connection};
use super::entropy::Profile;
use super::{ALL, Mrc};
use crate::outbox::Cargo;

impl Mrc {
    /// The packet that connection `id` sends into `plane` now, if it has one and its window allows.
    #[inline]
    pub(super) fn pull(&mut self, now: Time, id: usize, plane: PlaneId) -> Option<Packet> {
        let mpr = self.mpr;
        let connection = &mut self.connections[id];
        if !connection.can_send(mpr) || self.waits_for_turn(id, plane) {
            return None;
        }
        let connection = &mut self.connections[id];
        let ev = connection.profile.as_mut()?.choose(plane.index())?;
        if let Some(number) = connection.board.next_lost() {
            connection.board.depart_again(now, number, (plane.0, ev));
            self.counters.resent += 1;
            let sent = *connection.board.get(number)?;
            return self.build(now, id, number, &sent);
        }
        let (piece, payload) = connection.outbox.next_cut()?;
        let len = payload.map_or(1, |len| len.max(1));
        let sent = Sent { piece, at: now, len, ev, plane: plane.0, state: State::Flying, resends: 0, departure: 0 };
        let number = connection.board.depart(sent);
        self.build(now, id, number, &sent)
    }

    /// Whether other planes go first: where the window has no room for a packet in each, they take turns.
    #[inline]
    fn waits_for_turn(&mut self, id: usize, plane: PlaneId) -> bool {
        let connection = &self.connections[id];
        let planes = self.numbers.planes;
        let room = u64::from(connection.window.bytes) - connection.board.in_flight();
        if room > (planes as u64 - 1) * u64::from(self.config.mtu) {
            return false;
        }
        self.waits_for_few(id, plane, self.packets.div_ceil(room))
    }

    /// Whether `packets` other planes go first.
    fn waits_for_few(&mut self, id: usize, plane: PlaneId, packets: u64) -> bool {
        let connection = &self.connections[id];
        let (planes, open) = (self.numbers.planes, connection.open_planes());
        let (mut ahead, mut count, mut other) = (0, 0, usize::from(connection.turn));
        for _ in 0..planes {
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
            other = if other + 1 == planes { 0 } else { other + 1 };
        }
        self.wake(id, ahead);
        true
    }

    /// It was the turn of `plane` if no open one comes before it: the next one's turn is now.
    #[inline]
    fn take_turn(&mut self, id: usize, plane: u8) {
        let connection = &mut self.connections[id];
        let open = connection.open_planes();
        if first_open(open, connection.turn) == Some(plane)
            && let Some(turn) = first_open(open, plane + 1)
        {
            connection.turn = turn;
            self.wake(id, 1 << turn);
        }
    }

    #[inline]
    fn build(&mut self, now: Time, id: usize, number: u64, sent: &Sent) -> Option<Packet> {
        let connection = &mut self.connections[id];
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
        self.take_turn(id, sent.plane);
        let index = self.connections[id].profile.as_ref()?.index(sent.plane.into(), sent.ev);
        self.counts.count(id, index, |counts| counts.sent += 1);
        let envelope = self.envelope(id, (sent.plane, sent.ev), len, Class::Data)?;
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
        let Some(plane) = first_open(open, connection.turn) else { return };
        connection.turn = (plane + 1) % planes;
        if let Some(ev) = profile.choose(plane.into()) {
            self.send_probe(now, id, (plane, ev));
        }
    }

    #[inline]
    fn envelope(&self, id: usize, route: (u8, u16), len: u32, class: Class) -> Option<Envelope> {
        let connection = &self.connections[id];
        Some(Envelope {
            src: self.host,
            dst: connection.peer,
            hash: connection.profile.as_ref()?.hash(),
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

/// The first of the planes `open`, a bit each, from `from` on, behind the last of which comes plane 0.
#[inline]
fn first_open(open: u8, from: u8) -> Option<u8> {
    let behind = u32::from(open) >> from << from;
    let first = if behind == 0 { u32::from(open) } else { behind };
    (first != 0).then(|| first.trailing_zeros() as u8)
}

impl Connection {
    /// Planes with entropy values in use, one bit each.
    #[inline]
    pub fn open_planes(&self) -> u8 {
        self.profile.as_ref().map_or(0, Profile::open_planes)
    }

    /// Whether nothing is left that was never sent.
    pub fn has_no_backlog(&self) -> bool {
        !self.outbox.has_unsent()
    }
}
