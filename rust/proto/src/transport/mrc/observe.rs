//! What this transport shows of its connections, and of their entropy values as their paths.

use metaroce_wire::{ConnId, PlaneId, Time};

use super::Mrc;
use super::board::State;
use super::entropy::EvState;
use crate::telemetry::{ConnectionSample, Health, Observe, PathSample, Sample};

impl Observe for Mrc {
    fn record(&mut self) {
        self.counts.record();
    }

    fn observe(&self, show: &mut dyn FnMut(Sample)) {
        for (id, connection) in self.connections.iter().enumerate() {
            let Some(profile) = connection.profile.as_ref().filter(|_| connection.outbox.posted_bytes() > 0) else {
                continue;
            };
            let (number, peer) = (ConnId(id as u32), connection.peer);
            show(Sample::Connection(ConnectionSample {
                connection: number,
                peer,
                window: connection.window.bytes.into(),
                in_flight: connection.board.in_flight(),
                hint: None,
                least_rtt: connection.window.least_rtt,
                sent_bytes: connection.outbox.sent_bytes(),
                acked_bytes: connection.outbox.acked_bytes(),
                unsent_bytes: connection.outbox.unsent(),
            }));
            let mut in_flight = vec![0; profile.in_use().1 as usize];
            for (_, sent) in connection.board.iter().filter(|(_, sent)| sent.state == State::Flying) {
                in_flight[profile.index(sent.plane.into(), sent.ev)] += sent.len;
            }
            for (plane, ev, state) in profile.states() {
                let index = profile.index(plane, ev);
                let health = match state {
                    _ if connection.failed => Health::Down,
                    EvState::Good => Health::Up,
                    EvState::AssumedBad => Health::Down,
                    EvState::Denied => Health::Denied,
                };
                show(Sample::Path(PathSample {
                    connection: number,
                    peer,
                    path: index as u16,
                    plane: PlaneId(plane as u8),
                    health,
                    // The window is that of the QP.
                    window: 0,
                    in_flight: in_flight[index],
                    srtt: Time::ZERO,
                    pace: None,
                    ecn_permille: 0,
                    counts: self.counts.counts(id, index),
                }));
            }
        }
    }
}
