//! Lanes: what carries messages from one rank to another in the order of their streams. A transport that sprays has one
//! a connection, over all paths; RoCEv2 one for each QP, on one path.
//!
//! Streams of a lane take turns, a packet each. That order is kept, to the packet: of messages that begin together the
//! first ends a packet before the second, what follows it begins so much earlier, and a pipeline spreads out. A fluid
//! that served all alike would keep its chunks together for ever, and their latencies would add up.

use std::collections::VecDeque;
use std::ops::Range;

/// Bytes below which a message is over: times are whole picoseconds.
const CRUMB: f64 = 1e-3;

/// A part of a message on its way through a lane.
#[derive(Clone, Copy, Debug)]
struct Share {
    message: u32,
    bytes: f64,
}

/// Messages of one stream, one after the other.
#[derive(Clone, Debug)]
struct Stream {
    number: u16,
    /// The first is being sent; `left` are its bytes, the packet in service included.
    queue: VecDeque<Share>,
    left: f64,
}

/// Where a lane leads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    /// Picoseconds a byte, of all links and of those behind the first.
    pub byte_ps: (f64, f64),
    /// Propagation, picoseconds.
    pub delay: u64,
    /// Ports that it begins at, and picoseconds a byte of one.
    pub ports: (u64, f64),
}

/// A lane.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// Its routes.
    pub routes: Range<u32>,
    pub way: Way,
    /// A full packet on the wire.
    packet: f64,
    /// On the wire, a picosecond.
    rate: f64,
    since: u64,
    streams: Vec<Stream>,
    /// Streams with something to send; the first is being served.
    ring: VecDeque<u32>,
    /// Bytes of its packet that are out.
    spent: f64,
    /// Only the latest event counts.
    pub version: u32,
}

impl Lane {
    pub(crate) fn new(routes: Range<u32>, way: Way, packet: u64) -> Lane {
        let (streams, ring) = (Vec::new(), VecDeque::new());
        Lane { routes, way, packet: packet as f64, rate: 0.0, since: 0, streams, ring, spent: 0.0, version: 0 }
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.ring.is_empty()
    }

    /// A message, or part, lines up on `stream`. Call [`Lane::serve`] first.
    pub(crate) fn push(&mut self, stream: u16, message: u32, bytes: u64) {
        let at = self.streams.iter().position(|s| s.number == stream).unwrap_or_else(|| {
            self.streams.push(Stream { number: stream, queue: VecDeque::new(), left: 0.0 });
            self.streams.len() - 1
        });
        let (entry, bytes) = (&mut self.streams[at], bytes as f64);
        if entry.queue.is_empty() {
            entry.left = bytes;
            self.ring.push_back(at as u32);
        }
        entry.queue.push_back(Share { message, bytes });
    }

    /// From now on it gets `rate` bytes a picosecond. Call [`Lane::serve`] first.
    pub(crate) fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
    }

    /// Packets that the first message of a stream still needs, and where in the ring the one is that needs least.
    fn least(&self) -> Option<(f64, usize)> {
        let needs = |&stream: &u32| (self.streams[stream as usize].left / self.packet - CRUMB).ceil();
        let least = self.ring.iter().map(needs).fold(f64::INFINITY, f64::min);
        self.ring.iter().position(|stream| needs(stream) == least).map(|at| (least, at))
    }

    /// When the next message is over, if nothing changes before.
    pub(crate) fn next(&self) -> Option<u64> {
        let (packets, first) = self.least()?;
        let served = |(at, &stream): (usize, &u32)| {
            let turns = if at <= first { packets } else { packets - 1.0 };
            self.streams[stream as usize].left.min(turns * self.packet)
        };
        let bytes: f64 = self.ring.iter().enumerate().map(served).sum();
        let wait = ((bytes - self.spent).max(0.0) / self.rate).ceil();
        (wait < 9e18).then(|| self.since + wait as u64)
    }

    /// Serves its streams up to `now`; messages that are over go to `over`.
    pub(crate) fn serve(&mut self, now: u64, over: &mut Vec<u32>) {
        let mut bytes = self.rate * (now - self.since) as f64 + self.spent;
        self.since = now;
        if let Some((packets, _)) = self.least() {
            let round = self.packet * self.ring.len() as f64;
            let rounds = (bytes / round).floor().min(packets - 1.0).max(0.0);
            for &stream in &self.ring {
                self.streams[stream as usize].left -= rounds * self.packet;
            }
            bytes -= rounds * round;
        }
        while let Some(&first) = self.ring.front() {
            let stream = &mut self.streams[first as usize];
            let packet = stream.left.min(self.packet);
            if bytes + CRUMB < packet {
                break;
            }
            bytes = (bytes - packet).max(0.0);
            stream.left -= packet;
            if stream.left <= CRUMB
                && let Some(share) = stream.queue.pop_front()
            {
                over.push(share.message);
                stream.left = stream.queue.front().map_or(0.0, |next| next.bytes);
            }
            self.ring.pop_front();
            if !self.streams[first as usize].queue.is_empty() {
                self.ring.push_back(first);
            }
        }
        self.spent = if self.ring.is_empty() { 0.0 } else { bytes };
    }
}
