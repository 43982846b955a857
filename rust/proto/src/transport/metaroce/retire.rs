//! Connections whose work is over give their paths and ledgers back, each direction by itself.

use metaroce_wire::ConnId;

use super::MetaRoce;
use crate::transport::Half;

impl MetaRoce {
    /// Whether nothing of one half of a connection is on its way, so that nothing needs the state of its paths any
    /// more: every packet of this host was sent once, and has landed. A late acknowledgement finds no path, and says
    /// nothing new.
    pub(super) fn half_settled(&self, id: ConnId, half: Half) -> bool {
        let connection = &self.connections[id.index()];
        match half {
            Half::Sending => {
                connection.in_flight == 0
                    && connection.lost == 0
                    && connection.paths_down == 0
                    && connection.outbox.is_idle()
                    && connection.waiting.is_empty()
                    && !connection.failed
                    && !connection.held_back
                    && self.shared.counters.resent == 0
                    && self.shared.counters.probes == 0
            }
            Half::Receiving => connection.untold == 0,
        }
    }

    /// Gives back what such a half knows of its paths.
    pub(super) fn drop_half(&mut self, id: ConnId, half: Half) {
        let connection = &mut self.connections[id.index()];
        match half {
            Half::Sending => connection.paths = Box::default(),
            Half::Receiving => connection.ledgers = Box::default(),
        }
    }
}
