//! Connections whose work is over give their paths and ledgers back.

use metaroce_wire::ConnId;

use super::MetaRoce;

impl MetaRoce {
    /// Whether nothing of a connection is on its way, so that nothing needs the state of its paths any more: every
    /// packet of this host was sent once, and has landed. A late acknowledgement finds no path, and says nothing new.
    pub(super) fn has_settled(&self, id: ConnId) -> bool {
        let connection = &self.connections[id.index()];
        connection.in_flight == 0
            && connection.lost == 0
            && connection.untold == 0
            && connection.paths_down == 0
            && connection.outbox.is_idle()
            && connection.waiting.is_empty()
            && !connection.failed
            && !connection.held_back
            && self.counters.resent == 0
            && self.counters.probes == 0
    }

    /// Gives back what such a connection knows of its paths and its peer's.
    pub(super) fn drop_paths(&mut self, id: ConnId) {
        let connection = &mut self.connections[id.index()];
        connection.paths = Box::default();
        connection.ledgers = Box::default();
    }
}
