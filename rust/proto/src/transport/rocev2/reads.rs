//! Reads and atomics, at both ends.
//!
//! The responder executes a request when its sequence number is due and answers with numbers that the request
//! took; the answers of a QP leave in order, and acknowledgements of what came later wait for them. A request that
//! comes again is executed again if it is a Read; of an atomic the result is told again. The requester takes an
//! answer only if it is the next one: an answer or acknowledgement beyond it means that it is lost (implied NAK),
//! and the rest is asked for again, once until there is progress.

use metaroce_wire::{
    Body, Class, Ecn, Envelope, Opcode, Packet, Request, RoceRequest, RoceResponse, Time, Verdict, lengths,
};

use super::answers::Answer;
use super::connection::home;
use super::responder::Order;
use super::{RoceV2, nak_of, psn};
use crate::inbox::{Effect, Placed, asked_address};
use crate::verbs::{Atomic, Completion, Placement, Regions};

impl RoceV2 {
    pub(super) fn handle_request(&mut self, now: Time, ecn: Ecn, asked: &RoceRequest, regions: &Regions) {
        let Some(index) = self.find(asked.connection, asked.qp) else { return };
        self.note_mark(now, index, ecn);
        let responder = &mut self.qps[index as usize].responder;
        let number = psn::nearest(responder.expected(), asked.psn);
        if number < responder.expected() {
            // Its answer is its acknowledgement.
            self.counters.duplicates += 1;
            if let Some(address) = asked_address(&asked.request, regions) {
                let answer = self.answer_to(number, asked, address);
                self.qps[index as usize].responder.repeat(answer);
            }
        } else if responder.arrived(number) == Order::Expected {
            self.take_request(index, number, asked, regions);
        } else {
            self.counters.dropped_ahead += 1;
        }
        self.queue_control(index);
        self.queue_data(index);
    }

    fn answer_to(&self, number: u32, asked: &RoceRequest, address: u64) -> Answer {
        let request = Request { address, ..asked.request };
        Answer::new(number, self.packets_of(&request), asked.packet, request)
    }

    /// Packets of the answer to a request.
    fn packets_of(&self, request: &Request) -> u32 {
        match request.opcode {
            Opcode::Read => request.operands[0].div_ceil(u64::from(self.config.mtu)) as u32,
            _ => 1,
        }
    }

    /// The expected packet is a request.
    fn take_request(&mut self, index: u32, number: u32, asked: &RoceRequest, regions: &Regions) {
        let (request, id) = (&asked.request, asked.connection);
        let range = asked.packet..asked.packet + self.packets_of(request);
        let inbox = &mut self.connections[id.index()].inbox;
        let completions = &mut self.completions;
        let effect = |effect: Effect| completions.extend(effect.completion(id));
        match inbox.take(request, (range, asked.packets), regions, effect) {
            Ok(address) => {
                let answer = self.answer_to(number, asked, address);
                let depth = self.config.read_depth;
                self.qps[index as usize].responder.accept_request(answer, depth);
                self.answers = true;
                if request.opcode.is_atomic() {
                    self.atomics.push_back(Atomic { connection: id, request: answer.request });
                }
            }
            Err(verdict) => self.refuse(index, verdict),
        }
    }

    /// A request is refused for good: its QP ends here too, and with it the connection.
    pub(super) fn refuse(&mut self, index: u32, verdict: Verdict) {
        self.counters.refused += 1;
        self.end(index, "refused a request of the peer".to_owned(), None);
        self.qps[index as usize].responder.nak(nak_of(verdict));
    }

    /// What an atomic found; they are executed in order.
    pub(super) fn found(&mut self, atomic: &Atomic, before: u64) {
        let id = atomic.connection;
        let index = id.0 * self.qps_per_connection + home(atomic.request.stream, self.qps_per_connection);
        self.qps[index as usize].responder.found(before);
        self.queue_data(index);
    }

    pub(super) fn handle_response(
        &mut self,
        now: Time,
        envelope: &Envelope,
        response: &RoceResponse,
    ) -> Option<Placement> {
        let index = self.find(response.connection, response.qp)?;
        self.note_mark(now, index, envelope.ecn);
        self.queue_control(index);
        let number = psn::nearest(self.qps[index as usize].requester.una(), response.psn);
        // It stands for everything before it.
        let mut progress = self.acknowledge(index, number);
        let requester = &mut self.qps[index as usize].requester;
        let mut placement = None;
        if requester.answered(number) {
            progress = true;
            placement = self.place_answer(envelope, response);
        } else if !requester.misses(number) {
            self.counters.duplicates += 1;
        } else if requester.rewind_missing() {
            self.note_gap(index);
            progress = true;
        } else {
            self.counters.dropped_ahead += 1;
        }
        if progress {
            self.restart_timer(now, index);
        }
        self.assign(response.connection);
        self.queue_data(index);
        placement
    }

    /// Places the next packet of an answer. With the last one the request is over.
    fn place_answer(&mut self, envelope: &Envelope, response: &RoceResponse) -> Option<Placement> {
        let (id, segment) = (response.connection, &response.segment);
        let outbox = &mut self.connections[id.index()].outbox;
        let completions = &mut self.completions;
        let message = outbox.asked_by(segment);
        let mut report = |ended: crate::outbox::Ended, status| {
            completions.extend(Completion::to_report(id, &ended, status));
        };
        let Placed::Fresh(placement) = outbox.place_answer(segment, envelope.src, &mut report) else {
            self.counters.duplicates += 1;
            return None;
        };
        self.counters.placed += 1;
        self.counters.placed_bytes += u64::from(placement.len);
        if let (true, Some(message)) = (placement.message_done, message) {
            // The request itself has no acknowledgement of its own.
            outbox.acknowledge(message, report);
        }
        Some(placement)
    }

    /// The next packet of an answer of QP `index`.
    pub(super) fn send_answer(&mut self, now: Time, index: u32) -> Option<Packet> {
        let mtu = self.config.mtu;
        let qp = &mut self.qps[index as usize];
        let (origin, plane) = (qp.requester.origin, qp.requester.plane);
        let params = self.ports[plane.index()].dcqcn.as_ref();
        let answer = qp.responder.take_answer(mtu)?;
        let len = match answer.atomic {
            true => lengths::roce_atomic_ack(),
            false => lengths::roce_response(answer.segment.len.into(), answer.ends),
        };
        self.counters.data_packets += 1;
        self.counters.resent += u64::from(answer.again);
        self.counts.count(0, index as usize, |c| c.sent += 1);
        qp.requester.sent(params, now, len);
        let body = Body::RoceResponse(RoceResponse {
            segment: answer.segment,
            connection: self.connections[origin.connection as usize].remote,
            psn: psn::on_wire(answer.psn),
            msn: psn::on_wire(answer.msn),
            qp: origin.number,
        });
        let again_at = qp.requester.pace_at(params, now);
        if again_at > now {
            self.wake_at(index, again_at);
        }
        // Acknowledgements may have waited for the last of it.
        self.queue_control(index);
        self.queue_data(index);
        Some(Packet { envelope: self.envelope(origin, plane, (len, Class::Data)), body })
    }
}
