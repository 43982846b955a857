//! What an endpoint shows of its connections and paths while it works, for time series.
//!
//! Nearly all of it is state that a transport keeps anyway and is only read. What it would forget
//! (a path's numbers start anew with each epoch) goes into a side table that exists only once
//! [`crate::Endpoint::record`] was called: without it, telemetry costs a branch a *loss*.

use metaroce_wire::{ConnId, HostId, PlaneId, Rate, Time};

/// One row of one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Of a connection, before those of its paths.
    Connection(ConnectionSample),
    /// Of a path.
    Path(PathSample),
}

/// A connection as its sender sees it. Bytes are those of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSample {
    /// The connection.
    pub connection: ConnId,
    /// Its peer.
    pub peer: HostId,
    /// Bytes that it may have in flight; RoCEv2: the windows of all QPs, 0 = no limit.
    pub window: u64,
    /// Bytes that it has in flight; RoCEv2: packets, each counted as a full one.
    pub in_flight: u64,
    /// The receiver's last rate hint, if its acknowledgements carry one.
    pub hint: Option<Rate>,
    /// Least round trip seen (at first that of the idle fabric); zero where none is measured.
    pub least_rtt: Time,
    /// Bytes sent at least once.
    pub sent_bytes: u64,
    /// Bytes acknowledged. In whole packets: while a message is open, each that it lacks counts in full.
    pub acked_bytes: u64,
    /// Bytes posted and never sent.
    pub unsent_bytes: u64,
}

/// A path as its sender sees it; with RoCEv2, a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSample {
    /// Its connection.
    pub connection: ConnId,
    /// Peer of that.
    pub peer: HostId,
    /// Number of the path in its connection.
    pub path: u16,
    /// Its plane.
    pub plane: PlaneId,
    /// Whether it is used.
    pub health: Health,
    /// Payload bytes that it may have in flight; 0 = no limit (RoCEv2).
    pub window: u32,
    /// Payload bytes that it has in flight.
    pub in_flight: u32,
    /// Smoothed round trip; zero where none is measured.
    pub srtt: Time,
    /// Rate that its congestion control paces it to, where it does.
    pub pace: Option<Rate>,
    /// Share of marked packets as the congestion control estimates it, in thousandths.
    pub ecn_permille: u16,
    /// Totals since the start.
    pub counts: PathCounts,
}

/// Whether a path is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// In use.
    Up,
    /// In use, but silent for longer than it should be.
    Suspect,
    /// Given up.
    Down,
    /// Kept out of use by order.
    Denied,
}

impl Health {
    /// Names, in the order of the numbers `self as u8`.
    pub const NAMES: [&str; 4] = ["up", "suspect", "down", "denied"];
}

/// Totals of a path, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Data packets sent on it, first sends and resends.
    pub sent: u64,
    /// Losses that a gap revealed; RoCEv2: rewinds after a NAK.
    pub lost_gap: u64,
    /// Losses that time revealed; RoCEv2: timeouts.
    pub lost_tail: u64,
    /// Congestion marks that its sender was told of; RoCEv2: CNPs.
    pub marked: u64,
}

impl PathCounts {
    /// An epoch ends, with its `totals` (sent, marked).
    pub fn end_epoch(&mut self, (sent, marked): (u32, u32)) {
        self.sent += u64::from(sent);
        self.marked += u64::from(marked);
    }
}

/// What a transport does to be observed.
pub trait Observe {
    /// From now on, before the first packet, keeps count of what [`Observe::observe`] is to tell.
    fn record(&mut self);
    /// Shows every connection that has posted something, each followed by its paths.
    fn observe(&self, show: &mut dyn FnMut(Sample));
}

/// The side table: what the state of a path no longer tells. None before it is switched on.
#[derive(Debug, Default)]
pub struct PathTable(Option<Vec<Vec<PathCounts>>>);

impl PathTable {
    /// Switches it on.
    pub fn record(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Whether it is on.
    pub fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Counts on the entry of a path, if the table is on.
    #[inline]
    pub fn count(&mut self, connection: usize, path: usize, count: impl FnOnce(&mut PathCounts)) {
        if let Some(rows) = &mut self.0 {
            if rows.len() <= connection {
                rows.resize_with(connection + 1, Vec::new);
            }
            let row = &mut rows[connection];
            if row.len() <= path {
                row.resize(path + 1, PathCounts::default());
            }
            count(&mut row[path]);
        }
    }

    /// The entry of a path to read; zeros if there is none.
    pub fn counts(&self, connection: usize, path: usize) -> PathCounts {
        let rows = self.0.as_ref().and_then(|rows| rows.get(connection));
        rows.and_then(|row| row.get(path)).copied().unwrap_or_default()
    }
}
