//! What this transport shows of its connections, and of its QPs as their paths.

use metaroce_wire::{ConnId, Time};

use super::{Qp, RoceV2};
use crate::telemetry::{ConnectionSample, Health, Observe, PathSample, Sample};

impl Observe for RoceV2 {
    fn record(&mut self) {
        self.counts.record();
    }

    fn observe(&self, show: &mut dyn FnMut(Sample)) {
        let all = self.qps.chunks(self.qps_per_connection as usize).enumerate();
        let used = |id: usize, qps: &[Qp]| {
            self.connections[id].outbox.end() > 0 || qps.iter().any(|qp| qp.responder.answers())
        };
        for (id, qps) in all.filter(|&(id, qps)| used(id, qps)) {
            let connection = &self.connections[id];
            let windows = || qps.iter().map(|qp| u64::from(self.window_bytes(qp)));
            show(Sample::Connection(ConnectionSample {
                connection: ConnId(id as u32),
                peer: connection.peer,
                window: if windows().any(|window| window == 0) { 0 } else { windows().sum() },
                in_flight: qps.iter().map(|qp| u64::from(self.in_flight_bytes(qp))).sum(),
                hint: None,
                least_rtt: Time::ZERO,
                sent_bytes: connection.outbox.sent_bytes(),
                acked_bytes: connection.outbox.acked_bytes(),
                unsent_bytes: connection.outbox.unsent(),
            }));
            for qp in qps {
                show(Sample::Path(self.path_sample(qp)));
            }
        }
    }
}

impl RoceV2 {
    fn path_sample(&self, qp: &Qp) -> PathSample {
        let connection = &self.connections[qp.connection() as usize];
        let index = qp.connection() * self.qps_per_connection + u32::from(qp.number());
        let limited = qp.requester.limited(self.ports[qp.requester.plane.index()].dcqcn.as_ref());
        let health = match qp.requester.timeouts {
            _ if connection.failure.is_some() => Health::Down,
            0 => Health::Up,
            _ => Health::Suspect,
        };
        PathSample {
            connection: ConnId(qp.connection()),
            peer: connection.peer,
            path: qp.number(),
            plane: qp.requester.plane,
            health,
            window: self.window_bytes(qp),
            in_flight: self.in_flight_bytes(qp),
            srtt: Time::ZERO,
            pace: limited.and_then(|(pace, _)| pace),
            ecn_permille: limited.map_or(0, |(_, permille)| permille),
            counts: self.counts.counts(0, index as usize),
        }
    }

    fn window_bytes(&self, qp: &Qp) -> u32 {
        self.ports[qp.requester.plane.index()].window.saturating_mul(self.config.mtu)
    }

    fn in_flight_bytes(&self, qp: &Qp) -> u32 {
        qp.requester.in_flight().saturating_mul(self.config.mtu)
    }
}
