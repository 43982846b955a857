//! The sending half of a connection's messages: requests posted, cut into packets in order, done
//! when every packet is acknowledged, and completed in posting order per stream.
//!
//! Both transports use it. It knows nothing of paths, windows or retransmission: a transport asks
//! for the next unsent piece, may ask for any piece again, and reports each acknowledged once.

use std::collections::VecDeque;

use metaroce_wire::{Opcode, Segment, StreamId, prefetch};

use crate::verbs::WorkRequest;

/// A message being sent.
#[derive(Clone, Copy, Debug)]
struct OutMessage {
    request: WorkRequest,
    /// Number on its stream.
    sequence: u32,
    /// Send: index of the receive it matches.
    receive: u32,
    packets: u32,
    unacked: u32,
}

#[derive(Debug, Default)]
struct OutStream {
    next_sequence: u32,
    next_receive: u32,
    /// Messages not completed yet, oldest first, as connection-wide numbers.
    open: VecDeque<u32>,
}

/// Posted messages of one connection.
#[derive(Debug)]
pub struct Outbox {
    mtu: u32,
    /// Connection-wide number of `messages[0]`.
    base: u32,
    messages: VecDeque<OutMessage>,
    /// Number of the first message with unsent packets, and its next packet.
    cursor: (u32, u32),
    unsent: u64,
    /// Bytes ever posted, and those of messages that are completely acknowledged and gone.
    posted: u64,
    acked: u64,
    streams: Vec<OutStream>,
}

/// Names one packet of one message of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Connection-wide number of the message.
    pub message: u32,
    /// Packet of the message.
    pub packet: u32,
}

impl Outbox {
    /// An empty outbox that cuts messages into payloads of at most `mtu` bytes.
    pub fn new(mtu: u32) -> Outbox {
        let (messages, streams) = (VecDeque::new(), Vec::new());
        Outbox { mtu, base: 0, messages, cursor: (0, 0), unsent: 0, posted: 0, acked: 0, streams }
    }

    /// Takes a request and numbers it, connection-wide.
    pub fn post(&mut self, request: WorkRequest) -> u32 {
        let index = request.stream.index();
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, OutStream::default);
        }
        let stream = &mut self.streams[index];
        let packets = request.len.div_ceil(u64::from(self.mtu)) as u32;
        let message = OutMessage {
            request,
            sequence: stream.next_sequence,
            receive: stream.next_receive,
            packets,
            unacked: packets,
        };
        stream.next_sequence += 1;
        stream.next_receive += u32::from(request.opcode == Opcode::Send);
        let number = self.base + self.messages.len() as u32;
        stream.open.push_back(number);
        self.messages.push_back(message);
        self.unsent += request.len;
        self.posted += request.len;
        number
    }

    /// Payload bytes not sent for the first time yet.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Payload bytes ever posted.
    pub fn posted_bytes(&self) -> u64 {
        self.posted
    }

    /// Payload bytes sent at least once.
    pub fn sent_bytes(&self) -> u64 {
        self.posted - self.unsent
    }

    /// Payload bytes acknowledged; of an open message, each packet that is not counts in full.
    pub fn acked_bytes(&self) -> u64 {
        self.acked + self.messages.iter().map(|m| m.request.len - self.open_len(m)).sum::<u64>()
    }

    /// The next piece never sent before.
    pub fn next_piece(&mut self) -> Option<Piece> {
        let (number, packet) = self.cursor;
        let message = self.messages.get((number - self.base) as usize)?;
        let piece = Piece { message: number, packet };
        self.cursor = if packet + 1 < message.packets { (number, packet + 1) } else { (number + 1, 0) };
        self.unsent -= u64::from(self.payload_len(message, packet));
        Some(piece)
    }

    /// `bytes` were sent for the first time by a transport that does not ask for `next_piece`.
    pub fn sent(&mut self, bytes: u32) {
        self.unsent -= u64::from(bytes);
    }

    /// Length of the next unsent piece, 0 if there is none.
    pub fn next_len(&self) -> u32 {
        self.messages.get((self.cursor.0 - self.base) as usize).map_or(0, |m| self.payload_len(m, self.cursor.1))
    }

    /// Hints the processor at the message that [`Outbox::next_piece`] will cut.
    #[inline]
    pub fn prefetch_next(&self) {
        self.messages.get((self.cursor.0 - self.base) as usize).map(prefetch).unwrap_or_default();
    }

    /// What the packet for `piece` carries.
    pub fn segment(&self, piece: Piece) -> Segment {
        let message = &self.messages[(piece.message - self.base) as usize];
        let request = &message.request;
        let offset = u64::from(piece.packet) * u64::from(self.mtu);
        Segment {
            address: request.remote,
            source: request.local + offset,
            message_len: request.len,
            message: message.sequence,
            packet: piece.packet,
            len: self.payload_len(message, piece.packet),
            key: if request.opcode == Opcode::Send { message.receive } else { request.rkey.0 },
            tag: request.wr_id,
            stream: request.stream,
            opcode: request.opcode,
        }
    }

    /// Whether `piece` is the last of its message.
    pub fn is_last(&self, piece: Piece) -> bool {
        piece.packet + 1 == self.messages[(piece.message - self.base) as usize].packets
    }

    /// One packet of `message` is acknowledged, for the first time. Calls `complete` with the
    /// request of every message that is thereby completed, in stream order.
    pub fn acknowledge(&mut self, message: u32, mut complete: impl FnMut(u32)) {
        let index = (message - self.base) as usize;
        self.messages[index].unacked -= 1;
        if self.messages[index].unacked > 0 {
            return;
        }
        let stream = &mut self.streams[self.messages[index].request.stream.index()];
        while let Some(&first) = stream.open.front() {
            let candidate = &self.messages[(first - self.base) as usize];
            if candidate.unacked > 0 {
                break;
            }
            complete(candidate.request.wr_id);
            stream.open.pop_front();
        }
        while let Some(message) = self.messages.front().filter(|m| m.unacked == 0) {
            self.acked += message.request.len;
            self.messages.pop_front();
            self.base += 1;
        }
    }

    /// Whether every posted message is completely acknowledged.
    pub fn is_idle(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether packets of `message` may still be waited for.
    pub fn is_open(&self, message: u32) -> bool {
        message >= self.base
    }

    /// Gives up: the requests that have not completed, in posting order per stream.
    pub fn fail(&mut self) -> Vec<u32> {
        let mut left: Vec<u32> = self.streams.iter_mut().flat_map(|s| s.open.drain(..)).collect();
        left.sort_unstable();
        let requests = left.iter().map(|&n| self.messages[(n - self.base) as usize].request.wr_id).collect();
        self.base += self.messages.len() as u32;
        self.acked = self.acked_bytes();
        self.messages.clear();
        self.cursor = (self.base, 0);
        requests
    }

    /// Bytes of posted messages that are not completely acknowledged, and the stream of the oldest.
    pub fn open_bytes(&self) -> Option<(StreamId, u64)> {
        let mut open = self.messages.iter().filter(|m| m.unacked > 0).peekable();
        let stream = open.peek()?.request.stream;
        Some((stream, open.map(|m| self.open_len(m)).sum()))
    }

    fn open_len(&self, message: &OutMessage) -> u64 {
        (u64::from(message.unacked) * u64::from(self.mtu)).min(message.request.len)
    }

    fn payload_len(&self, message: &OutMessage, packet: u32) -> u32 {
        let left = message.request.len - u64::from(packet) * u64::from(self.mtu);
        left.min(u64::from(self.mtu)) as u32
    }
}
