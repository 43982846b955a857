//! The verbs-shaped words between an endpoint and its user: work requests in, completions out,
//! registered memory. Addresses are offsets in a registered region; the bytes themselves live
//! outside the protocol (a [`Placement`] says what to copy where).

use metaroce_wire::{ConnId, HostId, Opcode, Request, Rkey, StreamId};
use thiserror::Error;

use crate::outbox::Ended;

/// A request to transfer one message, or to fetch one. What each packet of it says is first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct WorkRequest {
    /// Name given back by the completion.
    pub wr_id: u32,
    /// Key of the peer's region. Send and Flush: unused.
    pub rkey: Rkey,
    /// Offset in local registered memory: of what is sent, or of where the answer goes.
    pub local: u64,
    /// Offset in the peer's region. Send and Flush: unused.
    pub remote: u64,
    /// WriteImm: handed to the peer with the completion of its receive.
    pub imm: u32,
    /// Ordered stream of the connection.
    pub stream: StreamId,
    /// Any but `Response` and `Probe`.
    pub opcode: Opcode,
    /// No completion if it succeeds.
    pub unsignaled: bool,
    /// Bytes; 8 for an atomic, 0 for a flush.
    pub len: u64,
    /// CompareSwap: compare, swap. FetchAdd: addend.
    pub operands: [u64; 2],
    /// Starts only when all earlier Reads and atomics of the stream are answered; a fenced Read also
    /// sees all earlier Writes.
    pub fence: bool,
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
    /// A work request: acknowledged as a whole, and answered if it asked for something.
    Sent,
    /// A receive: its message has arrived as a whole, and all earlier messages of its stream too.
    Received,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    /// Done.
    Success,
    /// The peer stopped answering: retries exhausted.
    RetryExceeded,
    /// The peer posted no receive for too long.
    RnrRetryExceeded,
    /// An earlier request of the stream or the connection failed.
    Flushed,
    /// The peer refused the key, the range or the permission.
    AccessError,
    /// The message does not fit the memory it names.
    LengthError,
    /// The stream or connection has failed at the peer.
    PeerFailed,
}

/// One work request has ended. Per stream in the order of posting.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Name given when posting.
    pub wr_id: u32,
    /// Connection.
    pub connection: ConnId,
    /// Stream.
    pub stream: StreamId,
    /// Sent or received.
    pub kind: CompletionKind,
    /// How it ended.
    pub status: CompletionStatus,
    /// Payload bytes of the message.
    pub bytes: u64,
    /// Immediate data that came with it.
    pub imm: Option<u32>,
}

impl Completion {
    /// A work request has ended.
    pub(crate) const fn of_request(connection: ConnId, ended: &Ended, status: CompletionStatus) -> Completion {
        let Ended { wr_id, bytes, stream, .. } = *ended;
        Completion { wr_id, connection, stream, kind: CompletionKind::Sent, status, bytes, imm: None }
    }

    /// What is reported of a work request that has ended: nothing where it succeeded unsignaled.
    pub(crate) fn to_report(connection: ConnId, ended: &Ended, status: CompletionStatus) -> Option<Completion> {
        let silent = ended.unsignaled && status == CompletionStatus::Success;
        (!silent).then(|| Completion::of_request(connection, ended, status))
    }

    /// A receive has ended without a message.
    pub(crate) const fn of_receive(
        connection: ConnId,
        request: &ReceiveRequest,
        status: CompletionStatus,
    ) -> Completion {
        let ReceiveRequest { wr_id, stream, .. } = *request;
        Completion { wr_id, connection, stream, kind: CompletionKind::Received, status, bytes: 0, imm: None }
    }
}

/// Payload that has arrived and is to be written to our memory.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// Host whose memory holds the bytes.
    pub src: HostId,
    /// Offset there.
    pub source: u64,
    /// Instead of bytes of the peer: what an atomic found, little-endian.
    pub value: Option<u64>,
    /// Offset in our memory.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Tag of the message at the one who asked for it.
    pub tag: u32,
    /// This was the last missing piece of the message.
    pub message_done: bool,
}

/// An atomic of a peer that is to be executed on our memory, now and once.
#[derive(Clone, Copy, Debug)]
pub struct Atomic {
    /// Connection that it came by.
    pub connection: ConnId,
    /// The request; its address is that of our memory.
    pub request: Request,
}

impl Atomic {
    /// What stands there afterwards, if `before` stands there now.
    pub const fn apply(&self, before: u64) -> u64 {
        let [first, second] = self.request.operands;
        match self.request.opcode {
            Opcode::FetchAdd => before.wrapping_add(first),
            _ if before == first => second,
            _ => before,
        }
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// No such connection.
    #[error("connection {0} does not exist")]
    UnknownConnection(u32),
    /// Nothing to transfer: only Send, WriteImm and Flush may be empty.
    #[error("len: 0 is not allowed; allowed: at least 1 byte")]
    Empty,
    /// The transport has no such operation.
    #[error("opcode: {0:?} is not an operation of this transport")]
    Unsupported(Opcode),
    /// Atomics are 8 bytes.
    #[error("len: {0} bytes is not allowed for an atomic; allowed: 8")]
    AtomicLength(u64),
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
    /// A connection needs a plane.
    #[error("plane: {0} is not allowed; allowed: a plane of the host, as long as another one stays in use")]
    NoPlaneLeft(u8),
    /// The connection has failed before.
    #[error("connection {0} is in the error state")]
    Failed(u32),
}

/// What peers may do with a region. The owner may do everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// Nothing: for local use.
    pub const LOCAL: Access = Access(0);
    /// Write to it.
    pub const WRITE: Access = Access(1);
    /// Read it.
    pub const READ: Access = Access(2);
    /// Atomics on it.
    pub const ATOMIC: Access = Access(4);
    /// All of it.
    pub const ALL: Access = Access(7);

    /// Both permissions.
    #[must_use]
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    const fn allows(self, what: Access) -> bool {
        self.0 & what.0 == what.0
    }
}

#[derive(Clone, Copy, Debug)]
struct Region {
    base: u64,
    len: u64,
    access: Access,
}

/// Registered memory of an endpoint: regions of one flat address space, checked per packet (F1).
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct Regions {
    /// Region 0. Most hosts have no other: no way to the heap for each packet.
    first: Option<Region>,
    others: Vec<Region>,
}

impl Regions {
    /// Registers `[offset, offset + len)` and names it.
    pub fn register(&mut self, offset: u64, len: u64, access: Access) -> Rkey {
        let region = Region { base: offset, len, access };
        if self.first.is_none() {
            self.first = Some(region);
            return Rkey(0);
        }
        self.others.push(region);
        Rkey(self.others.len() as u32)
    }

    /// The address of `[offset, offset + len)` of region `rkey`, if all of it is inside and peers may
    /// do `what` there.
    #[inline]
    pub fn resolve(&self, rkey: Rkey, offset: u64, len: u64, what: Access) -> Option<u64> {
        let region = match rkey.index() {
            0 => self.first.as_ref()?,
            other => self.others.get(other - 1)?,
        };
        // [I2]
        let inside = offset <= region.len && len <= region.len - offset;
        (inside && region.access.allows(what)).then(|| region.base + offset)
    }

    /// Whether the address range lies in a registered region.
    pub fn covers(&self, address: u64, len: u64) -> bool {
        let inside = |r: &Region| address >= r.base && address - r.base <= r.len && len <= r.len - (address - r.base);
        self.first.iter().chain(&self.others).any(inside)
    }

    /// Bytes registered in all.
    pub fn registered(&self) -> u64 {
        self.first.iter().chain(&self.others).map(|r| r.len).sum()
    }
}
