//! The receiving side: data is placed on arrival, and acknowledged selectively.
//!
//! An acknowledgement leaves at once for a packet that is marked, resent, a copy, the end of a message, or asks for it.
//! Otherwise one may cover up to `ack_every` packets that arrive within `ack_delay_ps`, and whose numbers lie within 64.

use metaroce_wire::{
    Body, Class, Ecn, Envelope, MrcData, MrcNack, MrcProbe, MrcSack, Opcode, Packet, Psn, Reflected, Stamp, Time,
    Verdict, lengths,
};

use super::Mrc;
use super::connection::Pending;
use crate::inbox::Placed;
use crate::verbs::{Placement, Regions};

/// Numbers that one acknowledgement can name (public).
pub const SACK_BITS: u64 = 64;

impl Mrc {
    pub(super) fn handle_data(
        &mut self,
        now: Time,
        envelope: &Envelope,
        data: &MrcData,
        regions: &Regions,
    ) -> Option<Placement> {
        let (id, mpr) = (data.connection, self.mpr);
        let connection = self.connections.get_mut(id.index())?;
        let (psn, marked) = (data.word.psn(), envelope.ecn == Ecn::Ce);
        self.counters.marked += u64::from(marked || envelope.trimmed);
        let number = psn.expand(connection.tracker.cumulative());
        let empty = data.segment.opcode == Opcode::Probe;
        if connection.back.failed && !empty {
            self.refuse(envelope, data, Verdict::PeerFailed);
            return None;
        }
        if envelope.trimmed {
            self.refuse(envelope, data, Verdict::Trimmed);
            return None;
        }
        if number >= connection.tracker.cumulative() + mpr {
            // Beyond what was granted.
            return None;
        }
        // [I3]
        let known = connection.tracker.contains(number);
        let completions = &mut self.completions;
        let placed = if known {
            Placed::Duplicate
        } else if empty {
            Placed::Taken
        } else {
            let effect = |effect: crate::inbox::Effect| completions.extend(effect.completion(id));
            connection.inbox.place(&data.segment, data.imm, regions, effect)
        };
        let placement = match placed {
            Placed::Fresh(placement) => {
                self.counters.placed += 1;
                self.counters.placed_bytes += u64::from(placement.len);
                Some(placement)
            }
            Placed::Taken => None,
            Placed::Duplicate => {
                self.counters.duplicates += 1;
                None
            }
            Placed::Refused(why) => {
                self.refuse(envelope, data, why);
                return None;
            }
        };
        if !known {
            connection.tracker.insert(number);
        }
        let done = placement.is_some_and(|placement| placement.message_done);
        let at_once = marked || known || done || data.word.asks() || data.word.resent();
        self.acknowledge(now, envelope, (number, data), at_once);
        placement
    }

    /// Acknowledges a packet, now or with a later one.
    fn acknowledge(&mut self, now: Time, envelope: &Envelope, packet: (u64, &MrcData), at_once: bool) {
        let (number, data) = packet;
        let id = data.connection.index();
        let pending = &self.connections[id].pending;
        let (least, greatest) = (pending.greatest - u64::from(pending.span), pending.greatest);
        if pending.count > 0 && least.min(number) + SACK_BITS <= greatest.max(number) {
            // One acknowledgement could not name all of them.
            self.send_sack(now, id);
        }
        let pending = &mut self.connections[id].pending;
        let (least, greatest) = if pending.count == 0 { (number, number) } else { (least, greatest) };
        let greatest = greatest.max(number);
        *pending = Pending {
            count: pending.count + 1,
            greatest,
            span: (greatest - least.min(number)) as u8,
            sent_at: data.sent_at,
            arrived: Stamp::of(now),
            entropy: envelope.entropy,
            plane: envelope.plane,
            marked: envelope.ecn == Ecn::Ce,
        };
        if at_once || u32::from(pending.count) >= self.config.ack_every {
            self.send_sack(now, id);
        } else if pending.count == 1 {
            let due = now + Time(self.config.ack_delay_ps);
            self.delayed.push_back((due, id as u32, self.told[id]));
        }
    }

    /// Sends the acknowledgements that have waited long enough for company.
    pub(super) fn send_delayed(&mut self, now: Time) {
        while let Some(&(due, id, number)) = self.delayed.front()
            && due <= now
        {
            self.delayed.pop_front();
            self.prefetch_delayed();
            if self.told[id as usize] == number && self.connections[id as usize].pending.count > 0 {
                self.send_sack(now, id as usize);
            }
        }
    }

    fn send_sack(&mut self, now: Time, id: usize) {
        let connection = &mut self.connections[id];
        let Pending { greatest, sent_at, arrived, entropy, plane, marked, .. } = connection.pending;
        connection.pending.count = 0;
        self.told[id] = self.told[id].wrapping_add(1);
        let cumulative = connection.tracker.cumulative();
        let start = (greatest + 1).saturating_sub(SACK_BITS).max(cumulative);
        let sack = MrcSack {
            // The time that it waited here is no part of the round trip.
            echo: sent_at.later(arrived.until(now)),
            reflected: Reflected { entropy, plane, marked },
            of_probe: false,
            ..self.record(id, start)
        };
        self.reply(id, (entropy, plane), Body::MrcSack(sack));
        self.counters.acks += 1;
        // What does not wait any more must not wake us.
        while self.delayed.front().is_some_and(|&(_, id, n)| self.told[id as usize] != n) {
            self.delayed.pop_front();
        }
    }

    /// What has arrived, with the bits from `start` on.
    fn record(&self, id: usize, start: u64) -> MrcSack {
        let connection = &self.connections[id];
        let cumulative = connection.tracker.cumulative();
        MrcSack {
            bitmap: connection.tracker.bitmap(start),
            echo: Stamp::default(),
            connection: connection.back.remote,
            cumulative: Psn::of(cumulative),
            // Less than the numbers granted, which 15 bits hold.
            offset: (start - cumulative) as i16,
            reflected: Reflected::default(),
            of_probe: true,
        }
    }

    pub(super) fn handle_probe(&mut self, envelope: &Envelope, probe: &MrcProbe) {
        let (id, mpr) = (probe.connection.index(), self.mpr);
        let Some(connection) = self.connections.get(id) else { return };
        let cumulative = connection.tracker.cumulative();
        let start = probe.psn.expand(cumulative).clamp(cumulative, cumulative + mpr);
        let Envelope { entropy, plane, .. } = *envelope;
        // Cut or not, it has come through.
        let marked = envelope.ecn == Ecn::Ce || envelope.trimmed;
        let sack =
            MrcSack { echo: probe.sent_at, reflected: Reflected { entropy, plane, marked }, ..self.record(id, start) };
        self.reply(id, (entropy, plane), Body::MrcSack(sack));
        self.counters.acks += 1;
    }

    /// Tells the sender that a packet was not taken. Its number stays open.
    fn refuse(&mut self, envelope: &Envelope, data: &MrcData, reason: Verdict) {
        self.counters.naks += 1;
        match reason {
            Verdict::NotReady => self.counters.rnr += 1,
            Verdict::Trimmed | Verdict::Placed => {}
            _ => self.counters.refused += 1,
        }
        let id = data.connection.index();
        let Envelope { entropy, plane, .. } = *envelope;
        let nack = MrcNack {
            echo: data.sent_at,
            connection: self.connections[id].back.remote,
            psn: data.word.psn(),
            reflected: Reflected { entropy, plane, marked: envelope.ecn == Ecn::Ce },
            reason,
        };
        self.reply(id, (entropy, plane), Body::MrcNack(nack));
        self.counters.acks += 1;
    }

    /// Queues a control packet back along the route that a packet came by.
    fn reply(&mut self, id: usize, route: (u16, metaroce_wire::PlaneId), body: Body) {
        let back = &self.connections[id].back;
        let len = if matches!(body, Body::MrcNack(_)) { lengths::mrc_nack() } else { lengths::mrc_sack() };
        let envelope = Envelope {
            src: self.host,
            dst: back.peer,
            hash: back.hash,
            len,
            entropy: route.0,
            plane: route.1,
            class: Class::Control,
            ..Envelope::default()
        };
        self.ports.push_control(route.1, Packet { envelope, body });
    }
}
