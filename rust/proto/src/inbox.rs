//! The receiving half of a connection's messages: the message ledger.
//!
//! Every packet is placed on arrival, wherever it falls (F1), after a check of that packet's own
//! range; a second copy is recognised by (stream, message, packet) and not placed again. A Send is
//! matched by the receive index it carries, so earlier messages need not have arrived (F2).
//! Receives complete in stream order. Path sequence numbers are no business of this ledger.

use std::collections::VecDeque;

use metaroce_wire::{HostId, Opcode, Segment, StreamId, prefetch};

use crate::verbs::{Placement, ReceiveRequest, Regions};

/// One bit a packet; the first 64 without an allocation.
#[derive(Debug)]
enum Arrived {
    Few(u64),
    Many(Box<[u64]>),
}

impl Arrived {
    fn new(packets: u32) -> Arrived {
        if packets <= 64 { Arrived::Few(0) } else { Arrived::Many(vec![0; packets.div_ceil(64) as usize].into()) }
    }

    /// Sets bit `packet`; false if it was set.
    fn insert(&mut self, packet: u32) -> bool {
        let word = match self {
            Arrived::Few(word) => word,
            Arrived::Many(words) => &mut words[(packet >> 6) as usize],
        };
        let bit = 1 << (packet & 63);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }
}

#[derive(Debug)]
struct InMessage {
    arrived: Arrived,
    /// Packets still missing; `UNSEEN` until the first one tells the length.
    missing: u32,
    opcode: Opcode,
}

const UNSEEN: u32 = u32::MAX;

#[derive(Debug, Default)]
struct InStream {
    /// Number of `messages[0]`: all before are complete.
    base: u32,
    messages: VecDeque<InMessage>,
    /// Index of `receives[0]`.
    receive_base: u32,
    receives: VecDeque<ReceiveRequest>,
}

/// Messages of one connection on their way in.
#[derive(Debug)]
pub struct Inbox {
    mtu: u32,
    peer: HostId,
    streams: Vec<InStream>,
}

/// What became of an arriving segment.
#[derive(Clone, Copy, Debug)]
pub enum Placed {
    /// To be copied.
    Fresh(Placement),
    /// Had arrived before.
    Duplicate,
    /// A Send without a posted receive: receiver not ready.
    NotReady,
    /// Outside registered memory, or longer than the receive: nothing is written.
    Refused,
}

impl Inbox {
    /// An empty inbox for messages of `peer`, cut at `mtu` bytes.
    pub fn new(mtu: u32, peer: HostId) -> Inbox {
        Inbox { mtu, peer, streams: Vec::new() }
    }

    /// Posts a receive.
    pub fn post(&mut self, request: ReceiveRequest) {
        self.stream(request.stream.index()).receives.push_back(request);
    }

    /// Takes one segment. Calls `complete` with each receive that is thereby completed.
    pub fn place(&mut self, segment: &Segment, regions: &Regions, mut complete: impl FnMut(u32)) -> Placed {
        let (mtu, src) = (u64::from(self.mtu), self.peer);
        let stream = self.stream(segment.stream.index());
        if segment.message < stream.base {
            return Placed::Duplicate;
        }
        let offset = u64::from(segment.packet) * mtu;
        let end = offset + u64::from(segment.len);
        if end > segment.message_len || segment.len == 0 {
            return Placed::Refused;
        }
        let address = match segment.opcode {
            Opcode::Write => segment
                .address
                .checked_add(offset)
                .and_then(|at| regions.resolve(segment.rkey(), at, u64::from(segment.len))),
            Opcode::Send => {
                let Some(index) = segment.key.checked_sub(stream.receive_base) else {
                    return Placed::Duplicate;
                };
                let Some(receive) = stream.receives.get(index as usize) else {
                    return Placed::NotReady;
                };
                (segment.message_len <= receive.len).then_some(receive.local + offset)
            }
        };
        let Some(address) = address else {
            return Placed::Refused;
        };
        let message = stream.message(segment, mtu);
        if !message.arrived.insert(segment.packet) {
            return Placed::Duplicate;
        }
        message.missing -= 1;
        let message_done = message.missing == 0;
        if message_done {
            stream.complete(&mut complete);
        }
        Placed::Fresh(Placement {
            src,
            source: segment.source,
            address,
            len: segment.len,
            tag: segment.tag,
            message_done,
        })
    }

    /// Hints the processor at a stream.
    #[inline]
    pub fn prefetch_stream(&self, stream: StreamId) {
        self.streams.get(stream.index()).map(prefetch).unwrap_or_default();
    }

    /// Hints the processor at the message of a segment.
    #[inline]
    pub fn prefetch_message(&self, segment: &Segment) {
        if let Some(stream) = self.streams.get(segment.stream.index()) {
            let index = segment.message.wrapping_sub(stream.base) as usize;
            stream.messages.get(index).map(prefetch).unwrap_or_default();
        }
    }

    /// Gives up: the receives that have not completed.
    pub fn fail(&mut self) -> Vec<u32> {
        self.streams.iter_mut().flat_map(|s| s.receives.drain(..)).map(|r| r.wr_id).collect()
    }

    fn stream(&mut self, index: usize) -> &mut InStream {
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, InStream::default);
        }
        &mut self.streams[index]
    }
}

impl InStream {
    fn message(&mut self, segment: &Segment, mtu: u64) -> &mut InMessage {
        let index = (segment.message - self.base) as usize;
        while self.messages.len() <= index {
            self.messages.push_back(InMessage { arrived: Arrived::Few(0), missing: UNSEEN, opcode: Opcode::Write });
        }
        let message = &mut self.messages[index];
        if message.missing == UNSEEN {
            let packets = segment.message_len.div_ceil(mtu) as u32;
            *message = InMessage { arrived: Arrived::new(packets), missing: packets, opcode: segment.opcode };
        }
        message
    }

    fn complete(&mut self, complete: &mut impl FnMut(u32)) {
        while self.messages.front().is_some_and(|m| m.missing == 0) {
            self.base += 1;
            if self.messages.pop_front().is_some_and(|m| m.opcode == Opcode::Send)
                && let Some(receive) = self.receives.pop_front()
            {
                self.receive_base += 1;
                complete(receive.wr_id);
            }
        }
    }
}
