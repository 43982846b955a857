//! What the processor is asked for ahead of packets and pulls: see [`Stage`].

use metaroce_wire::{Body, ConnId, prefetch};

use super::connection::Connection;
use super::{Qp, RoceV2};
use crate::transport::Stage;

/// QPs of a ring that are asked for ahead: so many may send before the host has its turn again.
const OF_A_RING: usize = 4;

impl Qp {
    #[inline]
    fn prefetch_requester(&self) {
        prefetch(&self.requester);
        prefetch(&self.requester.origin);
    }
}

impl RoceV2 {
    #[inline]
    fn qp(&self, connection: ConnId, number: u16) -> Option<&Qp> {
        self.qps.get(connection.index() * self.qps_per_connection as usize + usize::from(number))
    }

    #[inline]
    fn sends_for(&self, index: u32) -> &Connection {
        &self.connections[self.qps[index as usize].connection() as usize]
    }

    #[inline]
    pub(super) fn look_at_self(&self) {
        prefetch(&self.ports);
        prefetch(&self.atomics);
        prefetch(&self.counters);
        self.ports.iter().for_each(|port| {
            prefetch(port);
            prefetch(&port.window);
            port.ring.front().map(prefetch).unwrap_or_default();
        });
    }

    /// All ports: their links end in the same window.
    #[inline]
    pub(super) fn look_at_rings(&self, stage: Stage) {
        match (stage, self.timers.first()) {
            (Stage::Connection, _) => self.timers.prefetch(),
            (Stage::Path, Some((_, key))) => prefetch(&self.qps[key as usize >> 1].requester),
            _ => {}
        }
        for port in &self.ports {
            let next = port.ring.iter().take(OF_A_RING);
            match stage {
                Stage::Connection => next.for_each(|&index| self.qps[index as usize].prefetch_requester()),
                Stage::Path => next.for_each(|&index| self.sends_for(index).prefetch_sender()),
                Stage::Message => next.for_each(|&index| self.sends_for(index).outbox.prefetch_oldest()),
            }
        }
    }

    #[inline]
    pub(super) fn look_at(&self, body: &Body, stage: Stage) {
        let (id, number, data) = match body {
            Body::RoceData(data) => (data.connection, data.qp, Some(&data.segment)),
            Body::RoceAck(ack) => (ack.connection, ack.qp, None),
            Body::RoceSack(sack) => (sack.connection, sack.qp, None),
            _ => return,
        };
        let (Some(connection), Some(qp)) = (self.connections.get(id.index()), self.qp(id, number)) else { return };
        match (stage, data) {
            (Stage::Connection, Some(_)) => {
                prefetch(&qp.responder);
                prefetch(connection);
            }
            (Stage::Path, Some(segment)) => connection.inbox.prefetch_stream(segment),
            (Stage::Message, Some(segment)) => connection.inbox.prefetch_message(segment),
            (Stage::Connection, None) => {
                qp.prefetch_requester();
                connection.prefetch_sender();
            }
            (Stage::Path, None) => connection.outbox.prefetch_oldest(),
            (Stage::Message, None) => {}
        }
    }
}
