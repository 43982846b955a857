//! State of one connection (peer pair): many ordered streams above (inbox, outbox), many paths
//! below, under one window (F10).

use std::collections::VecDeque;

use metaroce_wire::{ConnId, Envelope, HostId, RateHint, StreamId, Time};

use super::flight::Ends;
use super::ledger::PathLedger;
use super::path::{PathState, SendPath};
use crate::inbox::Inbox;
use crate::outbox::{Outbox, Piece};

/// Most planes of a host.
pub const MAX_PLANES: usize = 8;

/// A piece that was declared lost.
#[derive(Clone, Copy, Debug)]
pub struct Resend {
    pub piece: Piece,
    /// Path that lost it.
    pub path: u16,
    pub attempts: u8,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    pub peer: HostId,
    /// Number of this connection at the peer.
    pub remote: ConnId,
    /// [`Envelope::address_hash`] towards the peer.
    pub hash: u32,
    pub failed: bool,
    /// What was unfinished when the connection failed.
    pub abandoned: Option<(StreamId, u64)>,
    /// Payload bytes in flight on all paths.
    pub in_flight: u64,
    /// Connection window: what the start or the last hint allows.
    pub window: u64,
    pub last_hint: RateHint,
    pub hint_at: Time,
    /// Planes in whose ready queue this connection stands.
    pub queued: u8,
    /// Planes that left their ready queue for want of window.
    pub blocked: u8,
    pub last_progress: Time,
    /// Earliest timer entry that stands for this connection.
    pub armed: Time,
    /// All packets in flight, in sending order.
    pub order: Ends,
    /// Bit i of plane p: path i of the plane has room.
    pub open: [u64; MAX_PLANES],
    pub next_path: [u8; MAX_PLANES],
    /// All paths, plane by plane.
    pub paths: Box<[SendPath]>,
    pub ledgers: Box<[PathLedger]>,
    /// Lost pieces that leave on the path that lost them, by plane.
    pub resend: Box<[VecDeque<Resend>]>,
    /// Lost pieces that any path may take.
    pub resend_anywhere: VecDeque<Resend>,
    pub paths_down: u16,
    pub outbox: Outbox,
    pub inbox: Inbox,
}

/// What a new connection needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub host: HostId,
    pub mtu: u32,
    pub planes: usize,
    pub paths_per_plane: usize,
    pub base_rtt: Time,
    /// First window of a path, and of the connection.
    pub path_window: u32,
    pub start_window: u64,
}

impl Connection {
    pub fn new(shape: &Shape, peer: HostId) -> Connection {
        let hash = Envelope::address_hash(shape.host, peer);
        let paths = (0..shape.planes * shape.paths_per_plane)
            .map(|i| {
                // Consecutive ports within a plane: a fabric whose ECMP hash is linear in the port
                // (CRC and XOR hashes are) maps them to distinct routes.
                let entropy = 0xC000 | (hash as u16).wrapping_add((i % shape.paths_per_plane) as u16) & 0x3FFF;
                SendPath::new(entropy, shape.path_window, shape.base_rtt)
            })
            .collect();
        let all_open = if shape.paths_per_plane == 64 { u64::MAX } else { (1 << shape.paths_per_plane) - 1 };
        Connection {
            peer,
            remote: ConnId(u32::MAX),
            hash,
            failed: false,
            abandoned: None,
            in_flight: 0,
            window: shape.start_window,
            last_hint: RateHint::NONE,
            hint_at: Time::ZERO,
            queued: 0,
            blocked: 0,
            last_progress: Time::ZERO,
            armed: Time::NEVER,
            order: Ends::EMPTY,
            open: [all_open; MAX_PLANES],
            next_path: [(hash as usize % shape.paths_per_plane) as u8; MAX_PLANES],
            paths,
            ledgers: vec![PathLedger::default(); shape.planes * shape.paths_per_plane].into(),
            resend: vec![VecDeque::new(); shape.planes].into(),
            resend_anywhere: VecDeque::new(),
            paths_down: 0,
            outbox: Outbox::new(shape.mtu),
            inbox: Inbox::new(shape.mtu, peer),
        }
    }

    /// Whether plane `plane` could send something if windows allow.
    #[inline]
    pub fn has_work(&self, plane: usize) -> bool {
        self.outbox.next_len() > 0 || !self.resend[plane].is_empty() || !self.resend_anywhere.is_empty()
    }

    /// Planes that were blocked and have room now.
    #[inline]
    pub fn unblocked(&self, mtu: u32) -> u8 {
        if self.blocked == 0 || (self.in_flight > 0 && self.in_flight + u64::from(mtu) > self.window) {
            return 0;
        }
        let mut planes = self.blocked;
        for plane in 0..self.resend.len() {
            if self.open[plane] == 0 && self.resend[plane].is_empty() {
                planes &= !(1 << plane);
            }
        }
        planes
    }

    /// The next path of `plane` with room, round robin.
    #[inline]
    pub fn choose_path(&mut self, plane: usize, paths_per_plane: usize) -> Option<usize> {
        let open = self.open[plane];
        if open == 0 {
            return None;
        }
        let ahead = open >> self.next_path[plane] << self.next_path[plane];
        let index = if ahead != 0 { ahead } else { open }.trailing_zeros() as usize;
        self.next_path[plane] = if index + 1 == paths_per_plane { 0 } else { index as u8 + 1 };
        Some(plane * paths_per_plane + index)
    }

    /// Sums up for a report on a stalled run.
    pub fn explain(&self) -> String {
        let up = self.paths.iter().filter(|p| p.state == PathState::Up).count();
        let state = if self.failed { "connection failed" } else { "waiting" };
        let progress = self.last_progress;
        format!("{state}: {up} of {} paths up, no acknowledgement since {progress}", self.paths.len())
    }
}
