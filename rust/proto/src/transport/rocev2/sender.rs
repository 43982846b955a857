//! The sending side: what a free port pulls. Control packets go first, then the QPs of its ring in
//! turn, each as its window and its pace allow.

use metaroce_wire::{
    Body, Class, Cnp, Envelope, Packet, PlaneId, RoceAck, RoceAckKind, RoceData, RoceSack, Time, lengths,
};

use super::RoceV2;
use super::responder::Control;
use super::selective::FEW;

impl RoceV2 {
    /// Puts a QP into the ring of its port, unless it has nothing that its window lets out or it
    /// waits for its pace.
    pub(super) fn queue_data(&mut self, index: u32) {
        let qp = &mut self.qps[index as usize];
        let port = &mut self.ports[qp.plane.index()];
        if !qp.in_ring && qp.requester.wake == Time::NEVER && qp.requester.can_send(port.window) {
            qp.in_ring = true;
            port.ring.push_back(index);
            self.ready |= 1 << qp.plane.0;
        }
    }

    pub(super) fn queue_control(&mut self, index: u32) {
        let qp = &mut self.qps[index as usize];
        if !qp.in_control && qp.responder.owes() {
            qp.in_control = true;
            self.ports[qp.plane.index()].control.push_back(index);
            self.ready |= 1 << qp.plane.0;
        }
    }

    pub(super) fn next_control(&mut self, plane: PlaneId) -> Option<Packet> {
        while let Some(index) = self.ports[plane.index()].control.pop_front() {
            let qp = &mut self.qps[index as usize];
            qp.in_control = false;
            let Some(control) = qp.responder.take() else {
                continue;
            };
            let connection = self.connections[qp.connection as usize].remote;
            let (len, body) = match control {
                Control::Cnp => {
                    self.counters.cnps += 1;
                    (lengths::roce_cnp(), Body::RoceCnp(Cnp { connection, qp: qp.number }))
                }
                Control::Ack(kind, psn) => {
                    self.counters.acks += 1;
                    self.counters.naks += u64::from(kind == RoceAckKind::SequenceNak);
                    (lengths::roce_ack(), Body::RoceAck(RoceAck { connection, psn, qp: qp.number, kind }))
                }
                Control::Sack(expected, arrived, bits) => {
                    self.counters.acks += 1;
                    let sack = RoceSack { connection, expected, arrived, bits, qp: qp.number };
                    (lengths::roce_sack(), Body::RoceSack(sack))
                }
            };
            self.queue_control(index);
            return Some(Packet { envelope: self.envelope(index, len, Class::Control), body });
        }
        None
    }

    pub(super) fn next_data(&mut self, now: Time, plane: PlaneId) -> Option<Packet> {
        while let Some(index) = self.ports[plane.index()].ring.pop_front() {
            let port = &self.ports[plane.index()];
            let qp = &mut self.qps[index as usize];
            qp.in_ring = false;
            if !qp.requester.can_send(port.window) {
                continue;
            }
            let ready_at = qp.requester.ready_at(port.dcqcn.as_ref(), now);
            let ready_at = qp.not_before(ready_at, now);
            if ready_at > now {
                self.wake_at(index, ready_at);
                continue;
            }
            return self.send(now, index);
        }
        None
    }

    fn send(&mut self, now: Time, index: u32) -> Option<Packet> {
        let qp = &mut self.qps[index as usize];
        let port = &self.ports[qp.plane.index()];
        let connection = &mut self.connections[qp.connection as usize];
        let next = qp.requester.take(port.window, now, self.patience)?;
        let segment = connection.outbox.segment(next.piece);
        // A part of a Send is what collective libraries issue as a Write to the buffer of the
        // receive: its first packet carries an address like that of a Write.
        let len = lengths::roce_data(segment.len.into(), next.first);
        self.counters.data_packets += 1;
        self.counts.count(0, index as usize, |c| c.sent += 1);
        if next.resent {
            self.counters.resent += 1;
        } else {
            connection.outbox.sent(segment.len.into());
        }
        qp.requester.sent(port.dcqcn.as_ref(), now, len);
        qp.ramp.iter_mut().for_each(|ramp| ramp.sent(now, len));
        let body = Body::RoceData(RoceData {
            segment,
            connection: connection.remote,
            psn: next.psn,
            qp: qp.number,
            ack_request: next.ack_request,
        });
        let again_at = qp.requester.ready_at(port.dcqcn.as_ref(), now);
        let again_at = qp.not_before(again_at, now);
        // A timer for few packets is not one for more.
        let restart =
            qp.requester.deadline == Time::NEVER || qp.requester.in_flight() == FEW && self.selective.is_some();
        if again_at > now && qp.requester.can_send(port.window) {
            self.wake_at(index, again_at);
        }
        if restart {
            self.restart_timer(now, index);
        }
        self.queue_data(index);
        Some(Packet { envelope: self.envelope(index, len, Class::Data), body })
    }

    fn envelope(&self, index: u32, len: u32, class: Class) -> Envelope {
        let qp = &self.qps[index as usize];
        let connection = &self.connections[qp.connection as usize];
        Envelope {
            src: self.host,
            dst: connection.peer,
            hash: connection.hash,
            len,
            entropy: qp.entropy,
            plane: qp.plane,
            class,
            ..Envelope::default()
        }
    }
}
