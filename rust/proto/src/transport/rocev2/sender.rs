//! The sending side: what a free port pulls. Control packets go first, then the QPs of its ring in
//! turn, each as its window and its pace allow.

use metaroce_wire::{
    Body, Class, Cnp, ConnId, Envelope, Opcode, Packet, PlaneId, Request, RoceAck, RoceAckKind, RoceData, RoceRequest,
    RoceSack, Segment, Time, lengths,
};

use super::requester::{Next, Origin};
use super::responder::Control;
use super::selective::FEW;
use super::slow_restart::not_before;
use super::{RoceV2, psn};
use crate::outbox::Cargo;

impl RoceV2 {
    /// Puts a QP into the ring of its port, unless it has nothing that its window lets out or it
    /// waits for its pace.
    #[inline]
    pub(super) fn queue_data(&mut self, index: u32) {
        let qp = &mut self.qps[index as usize];
        let plane = qp.requester.plane;
        let port = &mut self.ports[plane.index()];
        let request = || qp.requester.wake == Time::NEVER && qp.requester.can_send(port.window);
        if !qp.requester.in_ring && (request() || self.answers && qp.responder.has_answer()) {
            qp.requester.in_ring = true;
            port.ring.push_back(index);
            self.ready |= 1 << plane.0;
        }
    }

    #[inline]
    pub(super) fn queue_control(&mut self, index: u32) {
        let responder = &mut self.qps[index as usize].responder;
        if !responder.in_control && responder.owes() {
            responder.in_control = true;
            self.ports[responder.plane.index()].control.push_back(index);
            self.ready |= 1 << responder.plane.0;
        }
    }

    #[inline]
    pub(super) fn next_control(&mut self, plane: PlaneId) -> Option<Packet> {
        while let Some(index) = self.ports[plane.index()].control.pop_front() {
            let responder = &mut self.qps[index as usize].responder;
            responder.in_control = false;
            let Some(control) = responder.take() else {
                continue;
            };
            let (origin, qp) = (responder.origin, responder.origin.number);
            let connection = self.connections[origin.connection as usize].remote;
            let (len, body) = match control {
                Control::Cnp => {
                    self.counters.cnps += 1;
                    (lengths::roce_cnp(), Body::RoceCnp(Cnp { connection, qp }))
                }
                Control::Ack(kind, number) => {
                    self.counters.acks += 1;
                    self.counters.naks += u64::from(kind == RoceAckKind::SequenceNak);
                    let (psn, msn) = (psn::on_wire(number), psn::on_wire(responder.msn()));
                    (lengths::roce_ack(), Body::RoceAck(RoceAck { connection, psn, msn, qp, kind }))
                }
                Control::Sack(expected, arrived, bits) => {
                    self.counters.acks += 1;
                    let (expected, arrived) = (psn::on_wire(expected), psn::on_wire(arrived));
                    (lengths::roce_sack(), Body::RoceSack(RoceSack { connection, expected, arrived, bits, qp }))
                }
            };
            // It must not overtake the answers before it in a switch: that would look like their loss.
            let behind = responder.answers() && matches!(control, Control::Ack(..));
            let class = if behind { Class::Data } else { Class::Control };
            self.queue_control(index);
            return Some(Packet { envelope: self.envelope(origin, plane, (len, class)), body });
        }
        None
    }

    #[inline]
    pub(super) fn next_data(&mut self, now: Time, plane: PlaneId) -> Option<Packet> {
        while let Some(index) = self.ports[plane.index()].ring.pop_front() {
            let port = &self.ports[plane.index()];
            let qp = &mut self.qps[index as usize];
            qp.requester.in_ring = false;
            let answer = self.answers && qp.responder.has_answer();
            let request = qp.requester.can_send(port.window);
            let params = port.dcqcn.as_ref();
            let in_flight = qp.requester.in_flight();
            if request {
                let ready_at = qp.requester.ready_at(params, now);
                let ready_at = not_before(self.ramps.get_mut(index as usize), ready_at, now, in_flight);
                if ready_at <= now && !(answer && qp.responder.answer_first()) {
                    return self.send(now, index);
                }
                if !answer {
                    self.wake_at(index, ready_at);
                    continue;
                }
            } else if !answer {
                continue;
            }
            let ready_at = qp.requester.pace_at(params, now);
            let ready_at = not_before(self.ramps.get_mut(index as usize), ready_at, now, in_flight);
            if ready_at <= now {
                return self.send_answer(now, index);
            }
            self.wake_at(index, ready_at);
        }
        None
    }

    #[inline]
    fn send(&mut self, now: Time, index: u32) -> Option<Packet> {
        let qp = &mut self.qps[index as usize];
        let (origin, plane) = (qp.requester.origin, qp.requester.plane);
        let port = &self.ports[plane.index()];
        let connection = &mut self.connections[origin.connection as usize];
        let next = qp.requester.take(port.window, now, self.patience)?;
        let (remote, mtu) = (connection.remote, self.config.mtu);
        let (len, body) = match connection.outbox.cargo(next.piece)? {
            Cargo::Data(segment, imm) => {
                if !next.resent {
                    connection.outbox.sent(segment.len.into());
                }
                data((origin.number, remote), &next, (segment, imm))
            }
            Cargo::Request(request) => ask((origin.number, remote), &next, (&request, mtu)),
        };
        if self.answers {
            qp.responder.request_sent();
        }
        self.counters.data_packets += 1;
        self.counts.count(0, index as usize, |c| c.sent += 1);
        self.counters.resent += u64::from(next.resent);
        qp.requester.sent(port.dcqcn.as_ref(), now, len);
        let mut ramp = self.ramps.get_mut(index as usize);
        ramp.iter_mut().for_each(|ramp| ramp.sent(now, len));
        let again_at = qp.requester.ready_at(port.dcqcn.as_ref(), now);
        let in_flight = qp.requester.in_flight();
        let again_at = not_before(ramp, again_at, now, in_flight);
        // A timer for few packets is not one for more.
        let restart = qp.requester.deadline == Time::NEVER || in_flight == FEW && self.selective.is_some();
        if again_at > now && qp.requester.can_send(port.window) {
            self.wake_at(index, again_at);
        }
        if restart {
            self.restart_timer(now, index);
        }
        self.queue_data(index);
        Some(Packet { envelope: self.envelope(origin, plane, (len, Class::Data)), body })
    }

    #[inline]
    pub(super) fn envelope(&self, origin: Origin, plane: PlaneId, (len, class): (u32, Class)) -> Envelope {
        let connection = &self.connections[origin.connection as usize];
        Envelope {
            src: self.host,
            dst: connection.peer,
            hash: connection.hash,
            len,
            entropy: origin.entropy,
            qp: origin.number,
            plane,
            class,
            ..Envelope::default()
        }
    }
}

/// A packet of a Write or Send, and its length.
fn data((qp, connection): (u16, ConnId), next: &Next, (segment, imm): (Segment, u32)) -> (u32, Body) {
    let payload = segment.len.into();
    // A part of a Send is what collective libraries issue as a Write to the buffer of the
    // receive: its first packet carries an address like that of a Write.
    let len = match segment.opcode == Opcode::WriteImm && next.last {
        true => lengths::roce_last_imm(payload, next.first),
        false => lengths::roce_data(payload, next.first),
    };
    let Next { ack_request, last, .. } = *next;
    let psn = psn::on_wire(next.psn);
    (len, Body::RoceData(RoceData { segment, connection, psn, imm, qp, ack_request, last }))
}

/// The request for the rest of a part of a Read, or an atomic, and its length.
fn ask((qp, connection): (u16, ConnId), next: &Next, (request, mtu): (&Request, u32)) -> (u32, Body) {
    let (mut request, mtu) = (*request, u64::from(mtu));
    let (mut packets, mut len) = (1, lengths::roce_atomic());
    if request.opcode == Opcode::Read {
        let (whole, from) = (request.operands[0], u64::from(next.piece.packet) * mtu);
        packets = whole.div_ceil(mtu) as u32;
        // One that does not exist is the peer's to refuse.
        request.address = request.address.saturating_add(from);
        request.operands = [(u64::from(next.answer) * mtu).min(whole - from), 0];
        len = lengths::roce_read();
    }
    let (psn, packet) = (psn::on_wire(next.psn), next.piece.packet);
    (len, Body::RoceRequest(RoceRequest { request, connection, psn, packet, packets, qp }))
}
