//! What an endpoint counts. All are totals since the start.

/// Event totals of one endpoint. What each packet adds to is first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Data packets handed to a port, first sends and resends.
    pub data_packets: u64,
    /// Acknowledgements handed to a port, NAKs included.
    pub acks: u64,
    /// Segments placed, and their bytes.
    pub placed: u64,
    /// Payload bytes placed.
    pub placed_bytes: u64,
    /// Data packets sent again.
    pub resent: u64,
    /// Data packets received whose segment had arrived before.
    pub duplicates: u64,
    /// Expiries of a retransmission timer (RoCEv2) or of a path's last-resort timer.
    pub timeouts: u64,
    /// Packets declared lost because a later one of their path arrived.
    pub gap_detections: u64,
    /// Packets declared lost by time.
    pub timer_detections: u64,
    /// Paths declared down.
    pub paths_died: u64,
    /// Paths taken back after a probe was answered.
    pub paths_revived: u64,
    /// Probes sent.
    pub probes: u64,
    /// Sequence-error NAKs sent.
    pub naks: u64,
    /// Congestion notifications sent.
    pub cnps: u64,
    /// Sends that found no posted receive.
    pub rnr: u64,
    /// CE-marked data packets received.
    pub marked: u64,
    /// Packets refused for their address or length.
    pub refused: u64,
    /// Data packets dropped by a go-back-N receiver because an earlier one of their QP is missing.
    pub dropped_ahead: u64,
}

impl Counters {
    /// Adds the totals of another endpoint.
    pub fn add(&mut self, other: &Counters) {
        let Counters { data_packets, resent, acks, duplicates, placed, placed_bytes, .. } = *other;
        let Counters { timeouts, gap_detections, timer_detections, paths_died, paths_revived, probes, .. } = *other;
        let Counters { naks, cnps, rnr, marked, refused, dropped_ahead, .. } = *other;
        self.data_packets += data_packets;
        self.resent += resent;
        self.acks += acks;
        self.duplicates += duplicates;
        self.placed += placed;
        self.placed_bytes += placed_bytes;
        self.timeouts += timeouts;
        self.gap_detections += gap_detections;
        self.timer_detections += timer_detections;
        self.paths_died += paths_died;
        self.paths_revived += paths_revived;
        self.probes += probes;
        self.naks += naks;
        self.cnps += cnps;
        self.rnr += rnr;
        self.marked += marked;
        self.refused += refused;
        self.dropped_ahead += dropped_ahead;
    }
}
