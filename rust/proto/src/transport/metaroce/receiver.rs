//! The receiving side: data and requests are placed on arrival, and acknowledged per path.
//!
//! An acknowledgement leaves at once where the sender needs it: a gap, a change of mark, the end of
//! a message, a refusal, or because it asked. Otherwise one may cover up to `ack_every` packets that
//! arrive within `ack_delay_ps` (ours).

use metaroce_wire::{
    Body, Class, ConnId, Ecn, Envelope, MrAck, MrData, MrRequest, Opcode, Packet, PathHeader, RateHint, Request,
    Sending, Stamp, Time, Verdict, lengths,
};

use super::MetaRoce;
use super::connection::Report;
use super::ledger::{Noted, PathLedger};
use crate::config::Hints;
use crate::inbox::{Effect, Inbox, Placed};
use crate::verbs::{Atomic, Completion, Placement, Regions};

/// Packets of one path that may wait for an acknowledgement that reports it, in `ack_every`. Ours.
pub const UNREPORTED: u32 = 2;

impl MetaRoce {
    pub(super) fn handle_data(
        &mut self,
        now: Time,
        envelope: &Envelope,
        data: &MrData,
        regions: &Regions,
    ) -> Option<Placement> {
        let (id, segment) = (data.header.connection, &data.segment);
        let connection = self.connections.get_mut(id.index())?;
        let placed = if connection.failed {
            Placed::Refused(Verdict::PeerFailed)
        // [F9.nothing-else-harms]
        } else if envelope.trimmed {
            Placed::Refused(Verdict::Trimmed)
        } else if segment.opcode == Opcode::Response {
            let completions = &mut self.completions;
            let placed = connection.outbox.place_answer(segment, envelope.src, |ended, status| {
                completions.extend(Completion::to_report(id, &ended, status));
            });
            connection.last_progress = now;
            if let Placed::Fresh(Placement { message_done: true, .. }) = placed {
                let planes = self.all_planes();
                self.wake(id.index(), planes);
            }
            placed
        } else {
            self.with_inbox(id, |inbox, effect| inbox.place(segment, data.imm, regions, effect))
        };
        self.acknowledge(now, envelope, (&data.header, segment.backlog), &placed)
    }

    pub(super) fn handle_request(&mut self, now: Time, envelope: &Envelope, asked: &MrRequest, regions: &Regions) {
        let id = asked.header.connection;
        let Some(connection) = self.connections.get_mut(id.index()) else { return };
        let placed = if connection.failed {
            Placed::Refused(Verdict::PeerFailed)
        } else if asked.request.opcode == Opcode::Probe {
            Placed::Taken
        } else {
            self.with_inbox(id, |inbox, effect| inbox.ask(&asked.request, regions, effect))
        };
        self.acknowledge(now, envelope, (&asked.header, asked.request.backlog), &placed);
    }

    /// Lets the inbox of a connection take something, and does what that sets off: completions are
    /// reported, requests whose turn has come are executed.
    #[inline]
    pub(super) fn with_inbox<R>(
        &mut self,
        id: ConnId,
        take: impl FnOnce(&mut Inbox, &mut dyn FnMut(Effect)) -> R,
    ) -> R {
        let completions = &mut self.completions;
        let mut released = Vec::new();
        let taken = take(&mut self.connections[id.index()].inbox, &mut |effect| match effect {
            Effect::Execute(request) => released.push(request),
            other => completions.extend(other.completion(id)),
        });
        released.into_iter().for_each(|request| self.execute(id, request));
        taken
    }

    /// A request of the peer takes effect: its answer is a message like any other, but of no stream of ours.
    fn execute(&mut self, id: ConnId, request: Request) {
        if request.opcode.is_atomic() {
            self.atomics.push_back(Atomic { connection: id, request });
            return;
        }
        let len = if request.opcode == Opcode::Read { request.operands[0] } else { 0 };
        self.answer(id.index(), &request, len, 0);
    }

    /// Sends the answer to a request: `len` bytes from its address, or `value`.
    pub(super) fn answer(&mut self, id: usize, request: &Request, len: u64, value: u64) {
        let connection = &mut self.connections[id];
        connection.outbox.respond(request, len, value);
        if connection.paths.is_empty() {
            connection.open_paths(&self.shape, &self.config);
        }
        let planes = self.all_planes();
        self.wake(id, planes);
    }

    /// Books a packet on its path and acknowledges it, now or with a later one. With its header comes
    /// the backlog behind it.
    fn acknowledge(
        &mut self,
        now: Time,
        envelope: &Envelope,
        header: (&PathHeader, u16),
        placed: &Placed,
    ) -> Option<Placement> {
        let (header, backlog) = header;
        let (mut placement, mut verdict) = (None, Verdict::Placed);
        match *placed {
            Placed::Fresh(fresh) => {
                self.counters.placed += 1;
                self.counters.placed_bytes += u64::from(fresh.len);
                placement = Some(fresh);
            }
            Placed::Taken => {}
            // [I3]
            Placed::Duplicate => self.counters.duplicates += 1,
            Placed::Refused(why) => {
                verdict = why;
                self.counters.rnr += u64::from(why == Verdict::NotReady);
                self.counters.refused +=
                    u64::from(matches!(why, Verdict::AccessError | Verdict::LengthError | Verdict::PeerFailed));
            }
        }
        let id = header.connection.index();
        let connection = &mut self.connections[id];
        // A queue that was full has more to say than a mark.
        let marked = envelope.ecn == Ecn::Ce || verdict == Verdict::Trimmed;
        self.counters.marked += u64::from(marked);
        if connection.ledgers.is_empty() {
            connection.ledgers = vec![PathLedger::default(); self.shape.planes * self.shape.paths_per_plane].into();
        }
        let ledger = connection.ledgers.get_mut(header.path as usize)?;
        let Some(noted) = ledger.note(header.epoch, header.pps, marked, verdict) else {
            return placement;
        };
        let of_path = u32::from(ledger.untold());
        if verdict == Verdict::Placed {
            connection.placed.insert(header.serial);
        }
        // Where planes differ in length: what a later report could not name any more is told before.
        if connection.untold > 0 && connection.placed.is_beyond(connection.pending.header.serial) {
            self.send_ack(now, id);
        }
        let connection = &mut self.connections[id];
        let hint = match self.config.hints {
            Hints::Off => RateHint::NONE,
            _ => self.shares.on_data(now, id, u32::from(backlog) * self.shape.mtu),
        };
        connection.untold += 1;
        connection.pending =
            Report { header: *header, entropy: envelope.entropy, plane: envelope.plane, hint, arrived: Stamp::of(now) };
        // [F6.ack-coalesced]
        let patient = verdict == Verdict::Placed
            && header.sending == Sending::First
            && noted == Noted::default()
            && !placement.is_some_and(|p| p.message_done)
            && u32::from(connection.untold) < self.config.ack_every
            // Else the count of all could fall on the same paths for ever.
            && of_path < UNREPORTED * self.config.ack_every;
        if !patient {
            self.send_ack(now, id);
        } else if connection.untold == 1 {
            let due = now + Time(self.config.ack_delay_ps);
            let number = connection.acks;
            self.delayed.push_back((due, id as u32, number));
        }
        placement
    }

    /// Sends the acknowledgements that have waited long enough for company.
    pub(super) fn send_delayed(&mut self, now: Time) {
        while let Some(&(due, id, number)) = self.delayed.front()
            && due <= now
        {
            self.delayed.pop_front();
            let connection = &self.connections[id as usize];
            if connection.acks == number && connection.untold > 0 {
                self.send_ack(now, id as usize);
            }
        }
    }

    /// Acknowledges the packet that arrived last, and with it all that did before.
    fn send_ack(&mut self, now: Time, id: usize) {
        let connection = &mut self.connections[id];
        connection.untold = 0;
        connection.acks = connection.acks.wrapping_add(1);
        let Report { header, entropy, plane, hint, arrived } = connection.pending;
        let Some(ledger) = connection.ledgers.get_mut(header.path as usize) else { return };
        ledger.tell();
        let (serial, serials) = connection.placed.parts();
        let ack = MrAck {
            sack: ledger.sack(),
            // The time that it waited here is no part of the round trip.
            echo: header.sent_at.later(arrived.until(now)),
            connection: connection.remote,
            max_pps: ledger.max(),
            ce_count: ledger.ce(),
            hint,
            path: header.path,
            epoch: header.epoch,
            verdict: ledger.newest(),
            serial,
            serials,
        };
        let len = lengths::mr_ack(ledger.words());
        let envelope = Envelope { len, ..self.envelope(id, entropy, plane, Class::Control) };
        self.ports.push_control(plane, Packet { envelope, body: Body::MrAck(ack) });
        self.counters.acks += 1;
        // What does not wait any more must not wake us.
        while self.delayed.front().is_some_and(|&(_, id, number)| self.connections[id as usize].acks != number) {
            self.delayed.pop_front();
        }
    }
}
