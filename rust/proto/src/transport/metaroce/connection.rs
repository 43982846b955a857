//! State of one connection (peer pair): many ordered streams above (inbox, outbox), many paths
//! below, under one window (F10).

use std::collections::VecDeque;
use std::mem::offset_of;

use metaroce_wire::{ConnId, Envelope, HostId, PlaneId, Rate, RateHint, Stamp, StreamId, Time, prefetch};

use super::flight::{Flight, Order, Sent};
use super::ledger::PathLedger;
use super::path::{self, PathState, SendPath, Variation};
use super::serials::Serials;
use crate::config::{Entropies, MetaRoceConfig, Spray};
use crate::inbox::Inbox;
use crate::outbox::{Outbox, Piece};
use crate::reciprocal::Reciprocal;
use crate::transport::cc::State;
use crate::transport::{LINE, MAX_PLANES};

/// Most paths of a connection in a plane. Ours: one machine word says which have room.
pub const MAX_PATHS: usize = u64::BITS as usize;

/// Multiplier of the hash that draws source ports.
const HASH: u64 = 0x9e37_79b9_7f4a_7c15;

/// A piece to be sent on a path; one that was declared lost.
#[derive(Clone, Copy, Debug)]
pub struct Resend {
    pub piece: Piece,
    /// Path that takes it, or lost it.
    pub path: u16,
    pub attempts: u8,
}

/// A packet that an acknowledgement answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub serial: u32,
    pub sent_at: Stamp,
    pub arrived: Stamp,
    pub path: u16,
    pub entropy: u16,
    /// The share that goes with it.
    pub hint: RateHint,
    pub plane: PlaneId,
    pub epoch: u8,
}

/// What a connection knows of a plane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plane {
    /// Bit i: path i has room.
    pub open: u64,
    /// Payload bytes in flight.
    pub in_flight: u32,
    /// Sum of the windows of its paths that are up.
    pub window: u32,
}

impl Plane {
    /// Notes whether `path`, one of its own and perhaps the `only` one of all, has room.
    #[inline]
    pub fn show(&mut self, path: &SendPath, only: bool, shape: &Shape) {
        let open = u64::from(path.is_open(shape.mtu, only, shape.spray));
        self.open = self.open & !(1 << path.bit) | open << path.bit;
    }
}

/// A connection. The order of the fields is that of use, a cache line a group: sending takes the first, receiving
/// two behind them, and what is rare is last.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Connection {
    /// Payload bytes in flight on all paths.
    pub in_flight: u64,
    /// Connection window.
    pub window: u64,
    /// Earliest timer entry that stands for this connection.
    pub armed: Time,
    /// Picoseconds between packets, where the granted share asks for a pace; else 0.
    pub pace: u64,
    // [F3.connection-has-paths]
    /// All paths, plane by plane; none before the first message is posted.
    pub paths: Box<[SendPath]>,
    /// Pieces in `resend` and `resend_anywhere`.
    pub lost: u32,
    /// Sum of the windows of all planes.
    pub all_windows: u32,
    /// Paths out of use.
    pub paths_down: u16,
    pub last_hint: RateHint,
    /// Planes in whose ready queue this connection stands.
    pub queued: u8,
    /// Planes that left their ready queue for want of window.
    pub blocked: u8,
    pub failed: bool,
    /// A port was refused for the pace alone.
    pub held_back: bool,

    /// All sends, oldest first.
    pub order: Order,
    pub next_path: [u8; MAX_PLANES],
    pub peer: HostId,
    /// Number of this connection at the peer.
    pub remote: ConnId,
    /// [`Envelope::address_hash`] towards the peer.
    pub hash: u32,
    pub variation: Variation,
    /// What the start or the last hint allows the window to become.
    pub granted: u64,
    pub hint_at: Time,

    pub planes: [Plane; MAX_PLANES],

    pub outbox: Outbox,
    /// When the next packet may leave, where there is a pace.
    pub paced_until: Time,
    /// Connections of the peer.
    pub crowd: u32,

    pub last_progress: Time,
    /// Least round trip seen.
    pub least_rtt: Time,
    /// What of ours is known to be placed.
    pub landed: Serials,
    /// What the next acknowledgement reports if nothing else sets it off.
    pub pending: Report,
    /// `peer`, `remote`, `hash` and `failed` once more, for the receiving half.
    pub back: (HostId, ConnId, u32),
    pub closed: bool,
    /// Packets placed since the last acknowledgement.
    pub untold: u8,

    /// One for each of the peer's paths; none before the first packet arrives.
    pub ledgers: Box<[PathLedger]>,
    /// What of the peer's packets was placed.
    pub placed: Serials,
    /// Acknowledgements sent.
    pub acks: u32,
    pub inbox: Inbox,

    /// Lost pieces that leave on the path that lost them, by plane.
    pub resend: Box<[VecDeque<Resend>]>,
    /// Lost pieces that any path may take.
    pub resend_anywhere: VecDeque<Resend>,
    /// Pieces that the receiver was not ready for, and when to send them again; in no order.
    pub waiting: Vec<(Time, Resend)>,
    /// Paths whose last acknowledgement was unmarked, oldest first, by plane; for `Spray::Recycled`.
    pub recycled: Box<[VecDeque<u8>]>,
    /// What was unfinished when the connection failed.
    pub abandoned: Option<(StreamId, u64)>,
}

/// The groups of [`Connection`] begin at cache lines.
const _: () = {
    assert!(offset_of!(Connection, order) == LINE && offset_of!(Connection, planes) == 2 * LINE);
    assert!(offset_of!(Connection, outbox) == 4 * LINE && offset_of!(Connection, last_progress) == 6 * LINE);
    assert!(offset_of!(Connection, ledgers) == 7 * LINE && offset_of!(Connection, resend) == 8 * LINE);
};

/// What a new connection needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub mtu: u32,
    pub planes: usize,
    pub paths_per_plane: usize,
    pub spray: Spray,
    /// A full packet in each plane, bytes.
    pub window_of_all_planes: u64,
    /// Turns bytes into packets.
    pub packets: Reciprocal,
    pub base_rtt: Time,
    /// First window of a path, and of the connection.
    pub path_window: u32,
    /// What a new path's congestion controller remembers.
    pub congestion: State,
    pub start_window: u64,
    /// Of all ports together.
    pub rate: Rate,
}

impl Shape {
    // [F8.small-start]
    /// First window towards a receiver with `crowd` connections: each an equal part, of a packet at least.
    pub fn start_window(&self, crowd: u32) -> u64 {
        (self.start_window / u64::from(crowd.max(1))).max(self.mtu.into())
    }
}

impl Connection {
    pub fn new(shape: &Shape, host: HostId, peer: HostId) -> Connection {
        let hash = Envelope::address_hash(host, peer);
        let all_open = if shape.paths_per_plane == MAX_PATHS { u64::MAX } else { (1 << shape.paths_per_plane) - 1 };
        Connection {
            peer,
            remote: ConnId(u32::MAX),
            hash,
            back: (peer, ConnId(u32::MAX), hash),
            failed: false,
            closed: false,
            abandoned: None,
            in_flight: 0,
            window: shape.start_window,
            granted: shape.start_window,
            variation: Variation::new(shape.base_rtt),
            least_rtt: shape.base_rtt,
            last_hint: RateHint::NONE,
            hint_at: Time::ZERO,
            crowd: 1,
            queued: 0,
            blocked: 0,
            last_progress: Time::ZERO,
            armed: Time::NEVER,
            order: Order::default(),
            lost: 0,
            planes: std::array::from_fn(|plane| Plane {
                open: if plane < shape.planes { all_open } else { 0 },
                ..Plane::default()
            }),
            next_path: [(hash as usize % shape.paths_per_plane) as u8; MAX_PLANES],
            all_windows: 0,
            paths: Box::default(),
            ledgers: Box::default(),
            placed: Serials::NONE,
            landed: Serials::NONE,
            pace: 0,
            paced_until: Time::ZERO,
            held_back: false,
            untold: 0,
            pending: Report::default(),
            acks: 0,
            waiting: Vec::new(),
            recycled: Box::default(),
            resend: vec![VecDeque::new(); shape.planes].into(),
            resend_anywhere: VecDeque::new(),
            paths_down: 0,
            outbox: Outbox::new(shape.mtu),
            inbox: Inbox::new(shape.mtu, peer),
        }
    }

    /// Makes the paths of a connection that is to send.
    pub fn open_paths(&mut self, shape: &Shape, config: &MetaRoceConfig) {
        let hash = self.hash as u16;
        let path = |i: usize| {
            let at = (i / shape.paths_per_plane, i % shape.paths_per_plane);
            let port = match config.entropies {
                // [F3.consecutive-ports]
                Entropies::Consecutive => hash.wrapping_add(at.1 as u16),
                Entropies::Hashed => (u64::from(self.hash) << 16 | i as u64).wrapping_mul(HASH).wrapping_shr(48) as u16,
            };
            let mut path = SendPath::new(at, path::port(port), shape.path_window, shape.base_rtt, shape.congestion);
            if config.denied_planes >> path.plane & 1 == 1 {
                path.state = PathState::Denied;
            }
            path
        };
        self.paths = (0..shape.planes * shape.paths_per_plane).map(path).collect();
        for plane in 0..shape.planes {
            if config.denied_planes >> plane & 1 == 1 {
                self.paths_down += shape.paths_per_plane as u16;
                self.planes[plane].open = 0;
            } else {
                self.resize(plane, 0, shape.path_window * shape.paths_per_plane as u32);
            }
        }
        if shape.spray == Spray::Recycled {
            self.recycled = vec![VecDeque::new(); shape.planes].into();
        }
    }

    /// Makes the record of the peer's paths.
    #[cold]
    #[inline(never)]
    pub fn open_ledgers(&mut self, shape: &Shape) {
        self.ledgers = vec![PathLedger::default(); shape.planes * shape.paths_per_plane].into();
    }

    /// Whether plane `plane` could send something if windows allow.
    #[inline]
    pub fn has_work(&self, plane: usize) -> bool {
        self.outbox.has_unsent() || self.lost > 0 && !(self.resend[plane].is_empty() && self.resend_anywhere.is_empty())
    }

    /// Whether no path of any plane has room.
    #[inline]
    pub fn all_paths_full(&self) -> bool {
        self.planes.iter().all(|plane| plane.open == 0)
    }

    /// Recomputes whether a path has room.
    #[inline]
    pub fn refresh_open(&mut self, index: usize, shape: &Shape) {
        let path = &self.paths[index];
        let only = usize::from(self.paths_down) + 1 == self.paths.len();
        self.planes[path.plane as usize % MAX_PLANES].show(path, only, shape);
    }

    /// Planes that were blocked and have room now.
    #[inline]
    pub fn unblocked(&self, mtu: u32) -> u8 {
        if self.blocked == 0 || (self.in_flight > 0 && self.in_flight + u64::from(mtu) > self.window) {
            return 0;
        }
        if self.in_flight == 0 {
            // No acknowledgement will come to look again.
            return self.blocked;
        }
        self.unblocked_by_paths()
    }

    fn unblocked_by_paths(&self) -> u8 {
        let mut planes = self.blocked;
        for plane in 0..self.resend.len() {
            let resend = self.lost > 0 && !self.resend[plane].is_empty();
            if !resend && (self.planes[plane].open == 0 || !self.has_share(plane)) {
                planes &= !(1 << plane);
            }
        }
        planes
    }

    /// A path window of `plane` has changed from `old` to `new`.
    #[inline]
    pub fn resize(&mut self, plane: usize, old: u32, new: u32) {
        let window = &mut self.planes[plane].window;
        *window = *window + new - old;
        self.all_windows = self.all_windows + new - old;
    }

    /// Whether `plane` may take more of the connection window, which has room for a packet: where that is what
    /// limits, planes share it in proportion to their path windows, or whichever port asks first would get it all.
    #[inline]
    fn has_share(&self, plane: usize) -> bool {
        // [F4.share-of-window] [I29]
        // Where nothing is in flight no acknowledgement would come to look again. The only plane has all.
        let Plane { in_flight, window, .. } = self.planes[plane];
        if in_flight == 0 || window == self.all_windows || self.falls_short(plane) {
            return true;
        }
        // What rounding leaves goes to a plane only if no other is further from its share.
        let taken = u64::from(in_flight) * u64::from(self.all_windows);
        taken <= self.window.saturating_mul(u64::from(window))
            && !(0..self.resend.len()).any(|other| self.planes[other].open != 0 && self.falls_short(other))
    }

    /// Whether `plane` is short of its share by half a packet or more.
    #[inline]
    fn falls_short(&self, plane: usize) -> bool {
        let Plane { in_flight, window, .. } = self.planes[plane];
        let taken = u64::from(in_flight) + u64::from(self.outbox.mtu() / 2);
        taken * u64::from(self.all_windows) <= self.window.saturating_mul(u64::from(window))
    }

    /// Where the window is too small for a packet in each plane, planes take turns, each pair of hosts from
    /// another one on: else the first planes to ask would have all of it. Whose turn it is; nobody's while
    /// lost packets wait, since not every plane may take those.
    #[inline]
    pub fn turn(&self, shape: &Shape) -> Option<usize> {
        if self.window >= shape.window_of_all_planes { None } else { self.turn_in_small_window(shape.planes) }
    }

    #[inline(never)]
    fn turn_in_small_window(&self, planes: usize) -> Option<usize> {
        let first = self.hash.wrapping_add(self.order.next_serial()) as usize;
        let turns = (0..planes).map(|k| first.wrapping_add(k) % planes);
        let mut able = turns.filter(|&turn| self.planes[turn].window > 0 && self.has_work(turn));
        if self.lost == 0 {
            return able.next();
        }
        // Lost pieces first: those of a path in its plane, others not in the plane that keeps losing them.
        let loser = self.resend_anywhere.front().map(|lost| self.paths[lost.path as usize].plane as usize);
        able.clone().find(|&turn| !self.resend[turn].is_empty()).or_else(|| {
            let elsewhere = able.clone().find(|&turn| Some(turn) != loser);
            elsewhere.or_else(|| able.next())
        })
    }

    /// The path of `plane` that the next packet takes, if one has room.
    #[inline(always)]
    pub fn choose_path(&mut self, plane: usize, shape: &Shape) -> Option<usize> {
        let mut open = self.planes[plane].open;
        let first = plane * shape.paths_per_plane;
        if open == 0 {
            if self.in_flight > 0 {
                return None;
            }
            // All paths fell silent and nothing is in flight: one has to be tried.
            let of_plane = self.paths[first..].iter().take(shape.paths_per_plane);
            open = of_plane.rev().fold(0, |bits, path| bits << 1 | u64::from(path.state == PathState::Up));
        }
        if open == 0 || !self.has_share(plane) {
            return None;
        }
        // [F3.packet-spray] [F8.marks-steer]
        let preferred = match shape.spray {
            Spray::RoundRobin | Spray::Oblivious => None,
            Spray::Weighted => self.emptiest(first, open),
            Spray::Recycled => self.recycle(plane, open),
        };
        Some(first + preferred.unwrap_or_else(|| self.next_in_turn(plane, open, shape.paths_per_plane)))
    }

    /// The next of the `open` paths of a plane.
    #[inline]
    fn next_in_turn(&mut self, plane: usize, open: u64, paths_per_plane: usize) -> usize {
        let ahead = open >> self.next_path[plane] << self.next_path[plane];
        let index = if ahead != 0 { ahead } else { open }.trailing_zeros() as usize;
        self.next_path[plane] = if index + 1 == paths_per_plane { 0 } else { index as u8 + 1 };
        index
    }

    /// Of the `open` paths from `first` on, the one with the smallest part of its window in use.
    #[inline(never)]
    fn emptiest(&self, first: usize, open: u64) -> Option<usize> {
        let used = |&index: &usize| {
            let path = &self.paths[first + index];
            (u64::from(path.in_flight) << 32).checked_div(u64::from(path.cwnd))
        };
        (0..MAX_PATHS).filter(|index| open >> index & 1 == 1).min_by_key(used)
    }

    /// The oldest path that was acknowledged unmarked and has room.
    #[inline(never)]
    fn recycle(&mut self, plane: usize, open: u64) -> Option<usize> {
        while let Some(bit) = self.recycled[plane].pop_front() {
            if open >> bit & 1 == 1 {
                return Some(bit as usize);
            }
        }
        None
    }

    /// Whether some path outside `plane` is in use.
    pub fn other_plane_up(&self, plane: usize, paths_per_plane: usize) -> bool {
        let own = plane * paths_per_plane..(plane + 1) * paths_per_plane;
        let up = |(index, path): (usize, &SendPath)| !own.contains(&index) && path.state == PathState::Up;
        self.paths.iter().enumerate().any(up)
    }

    /// A packet of `plane` is lost: back to its path, or to any after `same_path` attempts.
    pub fn lose(&mut self, sent: &Sent, plane: usize, same_path: u32) {
        // [I18]
        if u32::from(sent.attempts) >= same_path {
            self.lose_to_any(sent);
        } else if self.outbox.is_open(sent.piece.message) {
            self.lost += 1;
            self.resend[plane].push_back(sent.again());
        }
    }

    /// A packet is lost, and any path may take it.
    pub fn lose_to_any(&mut self, sent: &Sent) {
        if self.outbox.is_open(sent.piece.message) {
            self.lost += 1;
            self.resend_anywhere.push_back(sent.again());
        }
    }

    /// Takes the oldest packet of a path out of flight.
    #[inline(always)]
    pub fn land(&mut self, flight: &mut Flight, index: usize) -> Sent {
        let path = &mut self.paths[index];
        let sent = path.land(flight);
        self.order.land(sent.serial);
        self.planes[path.plane as usize % MAX_PLANES].in_flight -= sent.len;
        // [I14]
        self.in_flight -= u64::from(sent.len);
        sent
    }

    /// Takes a packet that is known to have been placed out of flight, whatever was before it on its path.
    #[inline(always)]
    pub fn land_aside(&mut self, now: Time, flight: &mut Flight, slot: u32, shape: &Shape) -> Sent {
        let index = flight.get(slot).path as usize;
        let only = usize::from(self.paths_down) + 1 == self.paths.len();
        let path = &mut self.paths[index];
        path.expiries = 0;
        let sent = if path.flight.first == slot { path.land(flight) } else { path.land_behind(flight, slot) };
        self.order.land(sent.serial);
        // Acknowledged late: what time-based detection has to allow for.
        self.variation.on_error(path.on_rtt(sent.age(now)));
        path.landed_aside();
        let plane = &mut self.planes[path.plane as usize % MAX_PLANES];
        plane.in_flight -= sent.len;
        // [I14]
        self.in_flight -= u64::from(sent.len);
        plane.show(path, only, shape);
        sent
    }

    /// Asks for the lines that sending touches.
    #[inline]
    pub fn prefetch_sender(&self) {
        prefetch(&self.in_flight);
        prefetch(&self.order);
        prefetch(&self.planes);
        prefetch(&self.outbox);
        prefetch(&self.paced_until);
    }

    /// Asks for what sending through `plane` touches beyond them.
    #[inline]
    pub fn prefetch_next(&self, plane: usize, shape: &Shape) {
        let index = plane * shape.paths_per_plane + self.next_path[plane] as usize;
        self.paths.get(index).map(prefetch).unwrap_or_default();
        self.order.prefetch(self.order.next_serial());
        self.outbox.prefetch_next();
    }

    /// Asks for the lines that an acknowledgement touches.
    #[inline]
    pub fn prefetch_acked(&self) {
        prefetch(&self.in_flight);
        prefetch(&self.order);
        prefetch(&self.planes);
        prefetch(&self.outbox);
        prefetch(&self.last_progress);
    }

    /// Asks for the lines that receiving touches.
    #[inline]
    pub fn prefetch_receiver(&self) {
        prefetch(&self.last_progress);
        prefetch(&self.ledgers);
    }

    /// Sums up for a report on a stalled run. A path answers if nothing it carries is overdue.
    pub fn explain(&self) -> String {
        let answering = self.paths.iter().filter(|p| p.state == PathState::Up && p.expiries == 0).count();
        let state = if self.failed { "connection failed" } else { "waiting" };
        let (all, progress) = (self.paths.len(), self.last_progress);
        format!("{state}: {answering} of {all} paths answer, no progress since {progress}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        mtu: 4096,
        planes: 4,
        paths_per_plane: 4,
        spray: Spray::RoundRobin,
        window_of_all_planes: 4 * 4096,
        packets: Reciprocal::new(4096),
        base_rtt: Time::from_us(5),
        path_window: 65_536,
        congestion: State::Swift(0),
        start_window: 65_536,
        rate: Rate::from_gbps(800),
    };

    /// On 4 planes. A path costs what its [`SendPath`] and [`PathLedger`] take, and only where it is used.
    #[test]
    fn a_connection_with_one_stream_takes_1024_bytes_and_a_path_64_here_and_32_there() {
        let mut connection = Connection::new(&SHAPE, HostId(0), HostId(1));
        assert!(connection.paths.is_empty() && connection.ledgers.is_empty() && connection.recycled.is_empty());
        let lists = size_of_val(&*connection.resend);
        let out = connection.outbox.bytes_with_stream(StreamId(0));
        let within = connection.inbox.bytes_with_stream(StreamId(0));
        assert_eq!((size_of::<Connection>(), lists, out, within), (640, 128, 128, 128));
        assert_eq!(size_of::<Connection>() + lists + out + within, 1024);
        assert_eq!((size_of::<SendPath>(), size_of::<PathLedger>()), (64, 32));
    }
}
