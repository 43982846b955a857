//! One side of a connection: a QP with its messages, and both directions of its sequence numbers.

use std::mem::offset_of;

use metaroce_wire::{ConnId, Envelope, HostId, MrcSack, PlaneId, Stamp, StreamId, Time, prefetch};

use super::board::Board;
use super::entropy::Profile;
use super::repair::SILENCE_SHARE;
use super::tracker::Tracker;
use super::window::{Rule, Window};
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::transport::LINE;

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
    /// The greatest of their numbers, and how far below it the least is.
    pub greatest: u64,
    pub span: u8,
    /// How many.
    pub count: u8,
    /// The last of them.
    pub plane: PlaneId,
    pub marked: bool,
    pub entropy: u16,
    pub sent_at: Stamp,
    pub arrived: Stamp,
}

/// A QP. The order of the fields is that of use, a cache line a group: sending takes the first six and acknowledgements
/// one more, receiving the two behind them, and what is rare is last.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Connection {
    pub board: Board,
    /// Earliest timer entry that stands for this connection.
    pub armed: Time,
    /// When to ask what has arrived.
    pub probe_at: Time,
    pub last_progress: Time,
    /// When the first of `ev_probe_at` is due.
    pub ev_probe_due: Time,

    /// None before the first message is posted.
    pub profile: Option<Profile>,
    /// The last of the expiries.
    pub expired_at: Time,
    /// The peer's number for it.
    pub remote: ConnId,
    pub peer: HostId,
    /// Expiries in a row without progress.
    pub expiries: u32,
    pub failed: bool,
    /// There is something in `waiting`.
    pub waits: bool,
    /// Planes in whose ready queue it stands.
    pub queued: u8,
    /// The plane whose turn it is, where the window has no room for a packet in each.
    pub turn: u8,

    pub outbox: Outbox,
    pub window: Window,
    /// When each plane's values that are assumed bad are probed next.
    pub ev_probe_at: Box<[Time]>,

    pub tracker: Tracker,
    /// `remote`, `peer`, `hash` and `failed` once more, for the receiving half.
    pub back: Back,
    /// [`Envelope::address_hash`] towards the peer.
    pub hash: u32,

    pub pending: Pending,
    pub inbox: Inbox,

    pub asked: Option<Asked>,
    /// Numbers that the receiver was not ready for, and when to send them again; in no order.
    pub waiting: Vec<(Time, u64)>,
    /// What was unfinished when it failed.
    pub abandoned: Option<(StreamId, u64)>,
}

/// What the receiving half knows of the connection.
#[derive(Clone, Copy, Debug)]
pub struct Back {
    pub remote: ConnId,
    pub peer: HostId,
    pub hash: u32,
    pub failed: bool,
}

/// The groups of [`Connection`] begin at cache lines.
const _: () = {
    assert!(offset_of!(Connection, profile) == 2 * LINE && offset_of!(Connection, outbox) == 4 * LINE);
    assert!(offset_of!(Connection, window) + offset_of!(Window, lost) < 6 * LINE);
    assert!(offset_of!(Connection, tracker) == 7 * LINE && offset_of!(Connection, pending) == 8 * LINE);
    assert!(offset_of!(Connection, asked) <= 9 * LINE);
};

impl Connection {
    pub fn new(mtu: u32, first: u64, rule: &Rule, hosts: (HostId, HostId)) -> Connection {
        let (host, peer) = hosts;
        let (remote, hash) = (ConnId(u32::MAX), Envelope::address_hash(host, peer));
        Connection {
            peer,
            remote,
            hash,
            back: Back { remote, peer, hash, failed: false },
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
            ev_probe_due: Time::NEVER,
            ev_probe_at: Box::default(),
            waits: false,
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

    /// Sets when values of `plane` are probed next.
    pub fn probe_plane(&mut self, plane: usize, at: Time) {
        self.ev_probe_at[plane] = at;
        self.ev_probe_due = self.ev_probe_at.iter().copied().min().unwrap_or(Time::NEVER);
    }

    /// Asks for the lines that sending touches.
    #[inline]
    pub fn prefetch_sender(&self) {
        prefetch(&self.board);
        prefetch(&self.armed);
        prefetch(&self.profile);
        prefetch(&self.remote);
        prefetch(&self.outbox);
        prefetch(&self.window);
    }

    /// Asks for those that it leads to: the next packet into `plane`.
    #[inline]
    pub fn prefetch_next(&self, plane: PlaneId) {
        if let Some(profile) = &self.profile {
            profile.prefetch(plane.index());
        }
        self.board.prefetch_next();
        self.outbox.prefetch_next();
    }

    /// Asks for the lines that an acknowledgement touches.
    #[inline]
    pub fn prefetch_acknowledged(&self) {
        self.prefetch_sender();
        prefetch(&self.window.ignore);
    }

    /// Asks for those that it leads to.
    #[inline]
    pub fn prefetch_landing(&self, sack: &MrcSack) {
        let cumulative = sack.cumulative.expand(self.board.base());
        let newest =
            cumulative.wrapping_add_signed(sack.offset.into()) + u64::from(sack.bitmap.checked_ilog2().unwrap_or(0));
        self.board.prefetch(self.board.base());
        self.board.prefetch(newest);
        self.outbox.prefetch_oldest();
    }

    /// Asks for what the timer looks at.
    #[inline]
    pub fn prefetch_oldest(&self) {
        self.board.prefetch(self.board.base());
    }

    /// Asks for the lines that receiving touches.
    #[inline]
    pub fn prefetch_receiver(&self) {
        prefetch(&self.tracker);
        prefetch(&self.pending);
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
