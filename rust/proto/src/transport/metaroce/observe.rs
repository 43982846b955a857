//! What this transport shows of its connections and paths.

use metaroce_wire::{ConnId, PlaneId};

use super::MetaRoce;
use super::path::PathState;
use crate::telemetry::{ConnectionSample, Health, Observe, PathSample, Sample};

impl Observe for MetaRoce {
    fn record(&mut self) {
        self.shared.counts.record();
    }

    fn observe(&self, show: &mut dyn FnMut(Sample)) {
        for (id, connection) in self.connections.iter().enumerate().filter(|(_, c)| !c.paths.is_empty()) {
            let (number, peer) = (ConnId(id as u32), connection.peer);
            show(Sample::Connection(ConnectionSample {
                connection: number,
                peer,
                window: connection.window,
                in_flight: connection.in_flight,
                hint: connection.last_hint.decode(),
                least_rtt: connection.least_rtt,
                sent_bytes: connection.outbox.sent_bytes(),
                acked_bytes: connection.outbox.acked_bytes(),
                unsent_bytes: connection.outbox.unsent(),
            }));
            for (index, path) in connection.paths.iter().enumerate() {
                let mut counts = self.shared.counts.counts(id, index);
                counts.end_epoch(path.epoch_totals());
                let health = match path.state {
                    PathState::Down => Health::Down,
                    PathState::Denied => Health::Denied,
                    PathState::Up if path.expiries > 0 => Health::Suspect,
                    PathState::Up => Health::Up,
                };
                show(Sample::Path(PathSample {
                    connection: number,
                    peer,
                    path: index as u16,
                    plane: PlaneId(path.plane),
                    health,
                    window: path.cwnd,
                    in_flight: path.in_flight,
                    srtt: path.srtt(),
                    pace: None,
                    ecn_permille: path.ecn_permille(),
                    counts,
                }));
            }
        }
    }
}
