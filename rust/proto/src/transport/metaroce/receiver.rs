//! The receiving side: data and requests are placed on arrival, and acknowledged per path.
//!
//! An acknowledgement leaves at once where the sender needs it: a gap, a change of mark, the end of
//! a message, a refusal, or because it asked. Otherwise one may cover up to `ack_every` packets that
//! arrive within `ack_delay_ps` (ours).

use metaroce_wire::{
    Body, Class, ConnId, Ecn, Envelope, HostId, MrAck, MrData, MrRequest, Opcode, Packet, PathHeader, RateHint,
    Request, Sending, Stamp, Time, Verdict, lengths,
};

use super::connection::{Connection, Report};
use super::ledger::Noted;
use super::{MetaRoce, Shared};
use crate::config::Hints;
use crate::inbox::{Effect, Inbox, Place, Placed};
use crate::verbs::{Atomic, Completion, Placement, Regions};

/// Packets of one path that may wait for an acknowledgement that reports it, in `ack_every`. Ours.
pub const UNREPORTED: u32 = 2;

/// Of a packet that has arrived: its header, the backlog behind it, what became of it, and whether it was the last of
/// its message.
type Arrival<'a> = (&'a PathHeader, u16, Verdict, bool);

impl MetaRoce {
    #[inline(always)]
    pub(super) fn handle_data(
        &mut self,
        now: Time,
        envelope: &Envelope,
        data: &MrData,
        regions: &Regions,
    ) -> Option<Placement> {
        let (id, segment) = (data.header.connection.index(), &data.segment);
        let MetaRoce { connections, shared } = self;
        let connection = connections.get_mut(id)?;
        // [F9.nothing-else-harms]
        if connection.closed || envelope.trimmed || segment.opcode == Opcode::Response {
            return self.handle_unusual(now, envelope, data);
        }
        let Shared { completions, released, .. } = &mut *shared;
        let placed = connection.inbox.find_place(segment, data.imm, regions, |effect| match effect {
            Effect::Execute(request) => released.push(request),
            other => completions.extend(other.completion(ConnId(id as u32))),
        });
        if !shared.released.is_empty() {
            shared.execute_released(id, connection);
        }
        let (done, verdict) = match placed {
            Ok(Place { message_done, .. }) => {
                shared.counters.placed += 1;
                shared.counters.placed_bytes += u64::from(segment.len);
                (message_done, Verdict::Placed)
            }
            Err(outcome) => (false, shared.count_unplaced(outcome.into())),
        };
        let header = (&data.header, segment.backlog, verdict, done);
        let acknowledged = shared.acknowledge(now, (id, connection), envelope, header)?;
        if acknowledged {
            self.forget_void();
        }
        placed.ok().map(|place| place.placement(envelope.src, segment))
    }

    /// A packet that is no write or send to a connection in order.
    #[cold]
    #[inline(never)]
    fn handle_unusual(&mut self, now: Time, envelope: &Envelope, data: &MrData) -> Option<Placement> {
        let MetaRoce { connections, shared } = self;
        let (id, connection) = (data.header.connection, &mut connections[data.header.connection.index()]);
        let placed = if connection.failed {
            Placed::Refused(Verdict::PeerFailed)
        } else if envelope.trimmed {
            Placed::Refused(Verdict::Trimmed)
        } else {
            shared.place_answer(now, id, connection, (envelope.src, data))
        };
        let (placement, verdict) = match placed {
            Placed::Fresh(fresh) => {
                shared.counters.placed += 1;
                shared.counters.placed_bytes += u64::from(fresh.len);
                (Some(fresh), Verdict::Placed)
            }
            other => (None, shared.count_unplaced(other)),
        };
        let done = placement.is_some_and(|placement| placement.message_done);
        let header = (&data.header, data.segment.backlog, verdict, done);
        if shared.acknowledge_seldom(now, (id.index(), connection), envelope, header)? {
            self.forget_void();
        }
        placement
    }

    pub(super) fn handle_request(&mut self, now: Time, envelope: &Envelope, asked: &MrRequest, regions: &Regions) {
        let id = asked.header.connection.index();
        let MetaRoce { connections, shared } = self;
        let Some(connection) = connections.get_mut(id) else { return };
        let placed = if connection.failed {
            Placed::Refused(Verdict::PeerFailed)
        } else if asked.request.opcode == Opcode::Probe {
            Placed::Taken
        } else {
            shared.with_inbox(id, connection, |inbox, effect| inbox.ask(&asked.request, regions, effect))
        };
        let verdict = shared.count_unplaced(placed);
        let header = (&asked.header, asked.request.backlog, verdict, false);
        if shared.acknowledge_seldom(now, (id, connection), envelope, header) == Some(true) {
            self.forget_void();
        }
    }

    /// Sends the answer to a request: `len` bytes from its address, or `value`.
    pub(super) fn answer(&mut self, id: usize, request: &Request, len: u64, value: u64) {
        self.shared.answer(id, &mut self.connections[id], request, (len, value));
    }

    /// Sends the acknowledgements that have waited long enough for company.
    pub(super) fn send_delayed(&mut self, now: Time) {
        while let Some(&(due, id, number)) = self.shared.delayed.front()
            && due <= now
        {
            self.shared.delayed.pop_front();
            let connection = &mut self.connections[id as usize];
            if connection.acks == number && connection.untold > 0 {
                self.shared.send_ack(now, connection);
                self.forget_void();
            }
        }
    }

    /// What does not wait any more must not wake us.
    #[inline]
    fn forget_void(&mut self) {
        let MetaRoce { connections, shared } = self;
        while shared.delayed.front().is_some_and(|&(_, id, number)| connections[id as usize].acks != number) {
            shared.delayed.pop_front();
        }
    }
}

impl Shared {
    fn place_answer(
        &mut self,
        now: Time,
        id: ConnId,
        connection: &mut Connection,
        (src, data): (HostId, &MrData),
    ) -> Placed {
        let completions = &mut self.completions;
        let placed = connection.outbox.place_answer(&data.segment, src, |ended, status| {
            completions.extend(Completion::to_report(id, &ended, status));
        });
        connection.last_progress = now;
        if let Placed::Fresh(Placement { message_done: true, .. }) = placed {
            let planes = self.all_planes();
            self.wake(id.index(), connection, planes);
        }
        placed
    }

    /// Lets the inbox of a connection take something, and does what that sets off: completions are
    /// reported, requests whose turn has come are executed.
    #[inline(always)]
    pub(super) fn with_inbox<R>(
        &mut self,
        id: usize,
        connection: &mut Connection,
        take: impl FnOnce(&mut Inbox, &mut dyn FnMut(Effect)) -> R,
    ) -> R {
        let Shared { completions, released, .. } = self;
        let mut asked = false;
        let taken = take(&mut connection.inbox, &mut |effect| match effect {
            Effect::Execute(request) => {
                asked = true;
                released.push(request);
            }
            other => completions.extend(other.completion(ConnId(id as u32))),
        });
        if asked {
            self.execute_released(id, connection);
        }
        taken
    }

    #[cold]
    #[inline(never)]
    fn execute_released(&mut self, id: usize, connection: &mut Connection) {
        let mut released = std::mem::take(&mut self.released);
        released.drain(..).for_each(|request| self.execute(id, connection, request));
        self.released = released;
    }

    /// A request of the peer takes effect: its answer is a message like any other, but of no stream of ours.
    fn execute(&mut self, id: usize, connection: &mut Connection, request: Request) {
        if request.opcode.is_atomic() {
            self.atomics.push_back(Atomic { connection: ConnId(id as u32), request });
            return;
        }
        let len = if request.opcode == Opcode::Read { request.operands[0] } else { 0 };
        self.answer(id, connection, &request, (len, 0));
    }

    fn answer(&mut self, id: usize, connection: &mut Connection, request: &Request, (len, value): (u64, u64)) {
        connection.outbox.respond(request, len, value);
        if connection.paths.is_empty() {
            connection.open_paths(&self.common.shape, &self.common.config);
        }
        let planes = self.all_planes();
        self.wake(id, connection, planes);
    }

    /// Counts what brought nothing to be copied, and answers what its acknowledgement says.
    #[inline(never)]
    fn count_unplaced(&mut self, placed: Placed) -> Verdict {
        match placed {
            Placed::Fresh(_) | Placed::Taken => Verdict::Placed,
            // [I3]
            Placed::Duplicate => {
                self.counters.duplicates += 1;
                Verdict::Placed
            }
            Placed::Refused(why) => {
                let refused = matches!(why, Verdict::AccessError | Verdict::LengthError | Verdict::PeerFailed);
                self.counters.rnr += u64::from(why == Verdict::NotReady);
                self.counters.refused += u64::from(refused);
                why
            }
        }
    }

    /// [`Shared::acknowledge`] for what is rare.
    #[inline(never)]
    fn acknowledge_seldom(
        &mut self,
        now: Time,
        connection: (usize, &mut Connection),
        envelope: &Envelope,
        arrival: Arrival,
    ) -> Option<bool> {
        self.acknowledge(now, connection, envelope, arrival)
    }

    /// Books a packet on its path and acknowledges it, now or with a later one. Answers whether an acknowledgement
    /// has left; `None` if there is no such path.
    #[inline(always)]
    fn acknowledge(
        &mut self,
        now: Time,
        (id, connection): (usize, &mut Connection),
        envelope: &Envelope,
        (header, backlog, verdict, done): Arrival,
    ) -> Option<bool> {
        // A queue that was full has more to say than a mark.
        let marked = envelope.ecn == Ecn::Ce || verdict == Verdict::Trimmed;
        if marked {
            self.counters.marked += 1;
        }
        if connection.ledgers.is_empty() {
            connection.open_ledgers(&self.common.shape);
        }
        let ledger = connection.ledgers.get_mut(header.path as usize)?;
        let Some(noted) = ledger.note(header.epoch, header.pps, marked, verdict) else { return Some(false) };
        let of_path = u32::from(ledger.untold());
        if verdict == Verdict::Placed {
            connection.placed.insert(header.serial);
        }
        // Where planes differ in length: what a later report could not name any more is told before.
        let early = connection.untold > 0 && connection.placed.is_beyond(connection.pending.serial);
        if early {
            self.send_ack(now, connection);
        }
        let hint = match self.common.config.hints {
            Hints::Off => RateHint::NONE,
            _ => self.shares.on_data(now, id, u32::from(backlog) * self.common.shape.mtu),
        };
        connection.untold += 1;
        connection.pending = Report {
            serial: header.serial,
            sent_at: header.sent_at,
            arrived: Stamp::of(now),
            path: header.path,
            epoch: header.epoch,
            entropy: envelope.entropy,
            hint,
            plane: envelope.plane,
        };
        // [F6.ack-coalesced]
        let patient = verdict == Verdict::Placed
            && header.sending == Sending::First
            && noted == Noted::default()
            && !done
            && u32::from(connection.untold) < self.common.config.ack_every
            // Else the count of all could fall on the same paths for ever.
            && of_path < UNREPORTED * self.common.config.ack_every;
        if !patient {
            self.send_ack(now, connection);
        } else if connection.untold == 1 {
            let due = now + Time(self.common.config.ack_delay_ps);
            self.delayed.push_back((due, id as u32, connection.acks));
        }
        Some(early || !patient)
    }

    /// Acknowledges the packet that arrived last, and with it all that did before.
    #[inline(never)]
    fn send_ack(&mut self, now: Time, connection: &mut Connection) {
        connection.untold = 0;
        connection.acks = connection.acks.wrapping_add(1);
        let Report { sent_at, arrived, path, epoch, entropy, hint, plane, .. } = connection.pending;
        let Some(ledger) = connection.ledgers.get_mut(path as usize) else { return };
        ledger.tell();
        let (peer, remote, hash) = connection.back;
        let (serial, serials) = connection.placed.parts();
        let ack = MrAck {
            sack: ledger.sack(),
            // The time that it waited here is no part of the round trip.
            echo: sent_at.later(arrived.until(now)),
            connection: remote,
            max_pps: ledger.max(),
            ce_count: ledger.ce(),
            hint,
            path,
            epoch,
            verdict: ledger.newest(),
            serial,
            serials,
        };
        let len = lengths::mr_ack(ledger.words());
        let (src, class) = (self.host, Class::Control);
        let envelope = Envelope { src, dst: peer, hash, len, entropy, plane, class, ..Envelope::default() };
        self.ports.push_control(plane, Packet { envelope, body: Body::MrAck(ack) });
        self.counters.acks += 1;
    }
}
