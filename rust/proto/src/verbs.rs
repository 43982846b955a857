//! The verbs-shaped words between an endpoint and its user: work requests in, completions out,
//! registered memory. Addresses are offsets in a registered region; the bytes themselves live
//! outside the protocol (a [`Placement`] says what to copy where).

use metaroce_wire::{ConnId, HostId, Opcode, Rkey, StreamId};
use thiserror::Error;

/// A request to transfer one message.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest {
    /// Name given back by the completion.
    pub wr_id: u32,
    /// Write or Send.
    pub opcode: Opcode,
    /// Ordered stream of the connection.
    pub stream: StreamId,
    /// Offset of the source in local registered memory.
    pub local: u64,
    /// Bytes, at least 1.
    pub len: u64,
    /// Write: offset in the peer's region. Send: unused.
    pub remote: u64,
    /// Write: key of the peer's region. Send: unused.
    pub rkey: Rkey,
}

/// A posted receive: where the next Send of a stream lands.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    /// Name given back by the completion.
    pub wr_id: u32,
    /// Ordered stream of the connection.
    pub stream: StreamId,
    /// Offset in local registered memory.
    pub local: u64,
    /// Longest message that fits, bytes.
    pub len: u64,
}

/// What a completion reports on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A Write or Send, acknowledged as a whole.
    Sent,
    /// A Send that has arrived as a whole, and all earlier messages of its stream too.
    Received,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    /// Done.
    Success,
    /// The peer stopped answering: retries exhausted.
    RetryExceeded,
    /// An earlier request of the connection failed.
    Flushed,
    /// The message does not fit the memory it names.
    AccessError,
}

/// One work request has ended. Per stream in the order of posting.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Name given when posting.
    pub wr_id: u32,
    /// Connection.
    pub connection: ConnId,
    /// Sent or received.
    pub kind: CompletionKind,
    /// How it ended.
    pub status: CompletionStatus,
}

/// Payload that has arrived and is to be copied: from the sender's registered memory to ours.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// Host whose memory holds the bytes.
    pub src: HostId,
    /// Offset there.
    pub source: u64,
    /// Offset in our memory.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Tag of the message at the sender.
    pub tag: u32,
    /// This was the last missing piece of the message.
    pub message_done: bool,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// No such connection.
    #[error("connection {0} does not exist")]
    UnknownConnection(u32),
    /// Nothing to transfer.
    #[error("len: a message has at least 1 byte")]
    Empty,
    /// The local range is not registered.
    #[error("local: range {offset}+{len} lies outside the {registered} registered bytes")]
    LocalRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Size of the region.
        registered: u64,
    },
    /// The connection has failed before.
    #[error("connection {0} is in the error state")]
    Failed(u32),
}

/// Registered memory of an endpoint: regions of one flat address space, checked per packet (F1).
#[derive(Clone, Debug, Default)]
pub struct Regions {
    ranges: Vec<(u64, u64)>,
}

impl Regions {
    /// Registers `[offset, offset + len)` and names it.
    pub fn register(&mut self, offset: u64, len: u64) -> Rkey {
        self.ranges.push((offset, len));
        Rkey(self.ranges.len() as u32 - 1)
    }

    /// The address of `[offset, offset + len)` of region `rkey`, if all of it is inside.
    pub fn resolve(&self, rkey: Rkey, offset: u64, len: u64) -> Option<u64> {
        let &(base, size) = self.ranges.get(rkey.index())?;
        (offset <= size && len <= size - offset).then(|| base + offset)
    }

    /// Whether the address range lies in a registered region.
    pub fn covers(&self, address: u64, len: u64) -> bool {
        self.ranges
            .iter()
            .any(|&(base, size)| address >= base && address - base <= size && len <= size - (address - base))
    }

    /// Bytes registered in all.
    pub fn registered(&self) -> u64 {
        self.ranges.iter().map(|&(_, len)| len).sum()
    }
}
