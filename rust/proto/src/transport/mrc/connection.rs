//! One side of a connection: a QP with its messages, and both directions of its sequence numbers.

use metaroce_wire::{ConnId, Envelope, HostId, PlaneId, Stamp, StreamId, Time, prefetch};

use super::board::Board;
use super::entropy::Profile;
use super::repair::SILENCE_SHARE;
use super::tracker::Tracker;
use super::window::{Rule, Window};
use crate::inbox::Inbox;
use crate::outbox::Outbox;

/// A probe on its way.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// When it left.
    pub at: Time,
    /// What was sent before it.
    pub until: u64,
}

/// Packets that the next acknowledgement covers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pending {
    /// How many.
    pub count: u32,
    /// Their least and greatest number.
    pub range: (u64, u64),
    /// The last of them.
    pub sent_at: Stamp,
    pub arrived: Stamp,
    pub entropy: u16,
    pub plane: PlaneId,
    pub marked: bool,
    /// Acknowledgements sent.
    pub number: u32,
}

/// A QP.
#[derive(Debug)]
pub struct Connection {
    pub peer: HostId,
    /// The peer's number for it.
    pub remote: ConnId,
    /// [`Envelope::address_hash`] towards the peer.
    pub hash: u32,
    pub failed: bool,
    /// Planes in whose ready queue it stands.
    pub queued: u8,
    /// The plane whose turn it is, where the window has no room for a packet in each.
    pub turn: u8,
    pub window: Window,
    pub board: Board,
    /// None before the first message is posted.
    pub profile: Option<Box<Profile>>,
    pub outbox: Outbox,
    pub asked: Option<Asked>,
    /// When to ask what has arrived.
    pub probe_at: Time,
    /// Expiries in a row without progress.
    pub expiries: u32,
    /// The last of them.
    pub expired_at: Time,
    /// Earliest timer entry that stands for this connection.
    pub armed: Time,
    pub last_progress: Time,
    /// When each plane's values that are assumed bad are probed next.
    pub ev_probe_at: Box<[Time]>,
    /// Numbers that the receiver was not ready for, and when to send them again; in no order.
    pub waiting: Vec<(Time, u64)>,
    pub tracker: Tracker,
    pub pending: Pending,
    pub inbox: Inbox,
    /// What was unfinished when it failed.
    pub abandoned: Option<(StreamId, u64)>,
}

impl Connection {
    pub fn new(mtu: u32, first: u64, rule: &Rule, hosts: (HostId, HostId)) -> Connection {
        let (host, peer) = hosts;
        Connection {
            peer,
            remote: ConnId(u32::MAX),
            hash: Envelope::address_hash(host, peer),
            failed: false,
            queued: 0,
            turn: 0,
            window: rule.start(),
            board: Board::new(first),
            profile: None,
            outbox: Outbox::new(mtu),
            asked: None,
            probe_at: Time::NEVER,
            expiries: 0,
            expired_at: Time::ZERO,
            armed: Time::NEVER,
            last_progress: Time::ZERO,
            ev_probe_at: Box::default(),
            waiting: Vec::new(),
            tracker: Tracker::new(first),
            pending: Pending::default(),
            inbox: Inbox::new(mtu, peer),
            abandoned: None,
        }
    }

    /// Whether something may leave now: windows allow it, and there is something.
    #[inline]
    pub fn can_send(&mut self, mpr: u64) -> bool {
        // [I19]
        let room = self.board.in_flight() < u64::from(self.window.bytes);
        room && !self.failed
            && (self.board.next_lost().is_some() || self.outbox.has_unsent() && self.board.span() < mpr)
    }

    /// `interval`, or longer where nothing has moved for long.
    pub fn thinned(&self, now: Time, interval: Time) -> Time {
        interval.max(Time(now.since(self.last_progress).0 / SILENCE_SHARE))
    }

    /// Asks for the lines that sending touches.
    #[inline]
    pub fn prefetch_sender(&self) {
        prefetch(&self.window);
        prefetch(&self.board);
        prefetch(&self.outbox);
    }

    /// Asks for the lines that receiving touches.
    #[inline]
    pub fn prefetch_receiver(&self) {
        prefetch(&self.tracker);
        prefetch(&self.pending);
        prefetch(&self.inbox);
    }

    /// Sums up for a report on a stalled run.
    pub fn explain(&self) -> String {
        let state = if self.failed { "QP in the error state" } else { "waiting" };
        let (good, all) = self.profile.as_ref().map_or((0, 0), |profile| profile.in_use());
        let Connection { expiries, last_progress, .. } = self;
        format!(
            "{state}: {expiries} timeouts in a row, {good} of {all} entropy values in use, no progress since \
             {last_progress}"
        )
    }
}
