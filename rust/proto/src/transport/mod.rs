//! The seam between an endpoint and its transport: a trait, and a closed enum over the
//! transports so that the packet path has no virtual call.

pub(crate) mod cc;
pub mod metaroce;
pub mod mrc;
mod ports;
mod ring;
pub mod rocev2;

use std::collections::VecDeque;

use metaroce_wire::{Body, ConnId, Envelope, HostId, Opcode, Packet, PlaneId, StreamId, Time};

use crate::counters::Counters;
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::verbs::{Atomic, Completion, CompletionStatus, Placement, PostError, ReceiveRequest, Regions, WorkRequest};

/// First UDP source port: the dynamic range (RFC 6335), as RoCE NICs use it. The other bits are free.
pub(crate) const FIRST_PORT: u16 = 0xC000;

/// Most planes of a host.
pub(crate) const MAX_PLANES: usize = 8;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// A connection that has not finished what was posted, for reports on stalled runs.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// Peer of the connection.
    pub peer: HostId,
    /// Stream of the oldest unfinished message.
    pub stream: StreamId,
    /// Bytes not acknowledged.
    pub bytes_left: u64,
    /// What the transport knows about why.
    pub reason: String,
}

/// State that is asked for ahead of a packet, in this order, since each leads to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The connection, or the queues of a port.
    Connection,
    /// Its path, and its stream or next message; or the connection whose turn it is at a port.
    Path,
    /// The packet in flight that is acknowledged, or the message that is arriving and its receive; or the path and the
    /// stream of what is sent.
    Message,
}

/// A direction of a connection, as one of its ends sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// What this end sends.
    Sending,
    /// What the peer sends.
    Receiving,
}

/// What a transport does for the endpoint of one host. See [`crate::Endpoint`] for the contract;
/// methods of the same name have the same meaning.
pub trait Transport {
    /// Opens this side of a connection.
    fn connect(&mut self, peer: HostId) -> ConnId;
    /// Tells this side how the peer numbers the connection.
    fn bind(&mut self, connection: ConnId, remote: ConnId);
    /// Tells this side how many connections the peer has: so many may want its bandwidth at once.
    fn crowd(&mut self, _connection: ConnId, _size: u32) {}

    /// See [`crate::Endpoint::has_settled`].
    fn has_settled(&self, _connection: ConnId, _half: Half) -> bool {
        false
    }

    /// See [`crate::Endpoint::retire`].
    fn retire(&mut self, _connection: ConnId, _half: Half) {}
    /// Takes a request that the endpoint has checked.
    ///
    /// # Errors
    /// [`PostError::Failed`] if the connection has failed.
    fn post(&mut self, now: Time, connection: ConnId, request: WorkRequest) -> Result<(), PostError>;
    /// Takes a receive that the endpoint has checked.
    fn post_receive(&mut self, connection: ConnId, request: ReceiveRequest);
    /// A packet for this host has arrived.
    fn handle_packet(&mut self, now: Time, packet: (&Envelope, &Body), regions: &Regions) -> Option<Placement>;
    /// `poll_timeout` is due.
    fn handle_timeout(&mut self, now: Time);
    /// Port `plane` is free: the packet it is to send.
    fn poll_transmit(&mut self, now: Time, plane: PlaneId) -> Option<Packet>;
    /// The same where it may send no data: control packets alone.
    fn poll_control(&mut self, plane: PlaneId) -> Option<Packet>;
    /// When to call `handle_timeout`; may be early, never late.
    fn poll_timeout(&self) -> Time;
    /// The next completion.
    fn poll_completion(&mut self) -> Option<Completion>;
    /// Whether work requests of this kind can be posted.
    fn supports(&self, _opcode: Opcode) -> bool {
        true
    }
    /// The next atomic to execute on our memory.
    fn poll_atomic(&mut self) -> Option<Atomic> {
        None
    }
    /// What an atomic found.
    fn answer_atomic(&mut self, _atomic: &Atomic, _before: u64) {}
    /// Takes a plane out of use for a connection, or back into it.
    ///
    /// # Errors
    /// [`PostError`] where the transport has no choice of planes, or no plane would be left.
    fn deny(&mut self, _now: Time, _connection: ConnId, plane: PlaneId, _denied: bool) -> Result<(), PostError> {
        Err(PostError::NoPlaneLeft(plane.0))
    }
    /// Bit p: port p may have something to send.
    fn ports_ready(&self) -> u32;
    /// Totals.
    fn counters(&self) -> &Counters;
    /// Connections with unfinished requests.
    fn stuck(&self) -> Vec<Stuck>;
    /// Hints the processor at the transport's own lines behind the first; no effect on results.
    fn prefetch_self(&self) {}
    /// Hints the processor at the state that a packet with this body will touch; no effect on
    /// results.
    fn prefetch(&self, _body: &Body, _stage: Stage) {}
    /// The same for a pull of port `plane`.
    fn prefetch_port(&self, _plane: PlaneId, _stage: Stage) {}
}

/// Gives a connection up: every open request ends, the first with the reason, and all receives.
pub(crate) fn give_up(
    completions: &mut VecDeque<Completion>,
    id: ConnId,
    (outbox, inbox): (&mut Outbox, &mut Inbox),
    why: CompletionStatus,
) {
    let requests = outbox.fail().into_iter().enumerate();
    completions.extend(requests.map(|(k, ended)| {
        let status = if k == 0 { why } else { CompletionStatus::Flushed };
        Completion::of_request(id, &ended, status)
    }));
    let receives = inbox.fail().into_iter();
    completions.extend(receives.map(|r| Completion::of_receive(id, &r, CompletionStatus::Flushed)));
}

/// One of the transports. The tag is first, in the line that the transport begins.
#[derive(Debug)]
#[repr(u8)]
pub enum AnyTransport {
    /// MetaRoCE-style.
    MetaRoce(metaroce::MetaRoce),
    /// RoCEv2.
    RoceV2(rocev2::RoceV2),
    /// MRC-like.
    Mrc(mrc::Mrc),
}

/// Calls a method of whichever transport it is.
macro_rules! each {
    ($transport:expr, $t:ident => $call:expr) => {
        match $transport {
            $crate::transport::AnyTransport::MetaRoce($t) => $call,
            $crate::transport::AnyTransport::RoceV2($t) => $call,
            $crate::transport::AnyTransport::Mrc($t) => $call,
        }
    };
}
pub(crate) use each;
