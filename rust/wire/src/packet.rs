//! A packet: the envelope that the fabric reads, and a body for the endpoints.
//!
//! Every data packet names its own place in memory (F1, F2) through its [`Segment`]: an address
//! for a Write, the index of the posted receive for a Send. Both transports share it, so that one
//! receiver places for both. Payload is a length and the address at the sender it is read from.

use crate::hint::RateHint;
use crate::ids::{ConnId, HostId, PlaneId, Rkey, StreamId};
use crate::mrc::{MrcData, MrcNack, MrcProbe, MrcSack};
use crate::units::{Stamp, Time};

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// What switches read.
    pub envelope: Envelope,
    /// What endpoints read.
    pub body: Body,
}

/// The part of a packet that the fabric may read (and, for `ecn` and `link`, write).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(32))] // two a cache line, none across two
pub struct Envelope {
    /// Sending host.
    pub src: HostId,
    /// Destination host.
    pub dst: HostId,
    /// Hash of the addresses, constant for a (src, dst) pair: see [`Envelope::address_hash`].
    pub hash: u32,
    /// Length on the wire, gap included ([`crate::lengths`]).
    pub len: u32,
    /// The directed link being crossed; kept by the fabric.
    pub link: u32,
    /// What comes after it, as far as that is known; kept by the fabric.
    pub next: u32,
    // [F3.port-is-entropy]
    /// UDP source port: the ECMP entropy (F3).
    pub entropy: u16,
    /// Number of the destination QP, as far as switches hash it; 0 for a transport without QPs.
    pub qp: u16,
    // [F4.nic-picks-plane]
    /// Plane, chosen by the sending NIC alone (F4).
    pub plane: PlaneId,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// Data or control.
    pub class: Class,
    /// A switch cut the payload off instead of dropping the packet.
    pub trimmed: bool,
}

impl Envelope {
    /// The address part of the ECMP hash input (a switch mixes in its own seed).
    pub const fn address_hash(src: HostId, dst: HostId) -> u32 {
        let mut h = (src.0 as u64) << 32 | dst.0 as u64;
        h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        (h >> 32) as u32
    }
}

/// The two ECN code points that matter here: both transports send ECN-capable packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// ECN-capable, not marked.
    #[default]
    Ect0,
    /// Congestion experienced.
    Ce,
}

/// What a packet carries, as far as loss definitions and counters care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Payload.
    #[default]
    Data,
    /// Acknowledgements, notifications, probes.
    Control,
}

/// What an endpoint reads.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// MetaRoCE-style data.
    MrData(MrData),
    /// MetaRoCE-style request without payload: Read, atomic, flush, tail probe.
    MrRequest(MrRequest),
    /// MetaRoCE-style acknowledgement of one path.
    MrAck(MrAck),
    /// Asks whether a path delivers.
    MrProbe(MrProbe),
    /// Answers a probe, on the path that it came by.
    MrProbeReply(MrProbe),
    /// RoCEv2 data.
    RoceData(RoceData),
    /// RoCEv2 request without payload: Read, atomic.
    RoceRequest(RoceRequest),
    /// RoCEv2 answer to such a request.
    RoceResponse(RoceResponse),
    /// RoCEv2 ACK or NAK.
    RoceAck(RoceAck),
    /// RoCEv2 congestion notification.
    RoceCnp(Cnp),
    /// RoCEv2 selective acknowledgement.
    RoceSack(RoceSack),
    /// MRC-like data.
    MrcData(MrcData),
    /// MRC-like selective acknowledgement.
    MrcSack(MrcSack),
    /// MRC-like negative acknowledgement.
    MrcNack(MrcNack),
    /// MRC-like reliability probe.
    MrcProbe(MrcProbe),
}

/// The operation that a packet is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opcode {
    /// One-sided: every packet carries its address (F2).
    #[default]
    Write,
    /// A Write that also completes a posted receive and hands over 32 bits.
    WriteImm,
    /// Two-sided: every packet carries the index of the posted receive (F2).
    Send,
    /// Fetches from the peer's memory.
    Read,
    /// Replaces 8 bytes of the peer's memory where they equal an operand; fetches what was there.
    CompareSwap,
    /// Adds to 8 bytes of the peer's memory; fetches what was there.
    FetchAdd,
    /// Answered when all earlier messages of the stream are placed.
    Flush,
    /// The answer to one of the four before.
    Response,
    /// Nothing but a number on its path, which makes gaps before it visible.
    Probe,
}

impl Opcode {
    /// Whether a message of this kind is one packet without payload, answered by a `Response`.
    pub const fn is_request(self) -> bool {
        matches!(self, Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd | Opcode::Flush)
    }

    /// Whether it changes 8 bytes of the peer's memory exactly once.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Opcode::CompareSwap | Opcode::FetchAdd)
    }

    /// Whether the peer's posted receives are counted down by it.
    pub const fn takes_receive(self) -> bool {
        matches!(self, Opcode::Send | Opcode::WriteImm)
    }
}

// [F1.own-destination] [F2.write-carries-address] [F2.send-carries-match] [F2.no-lookup-round-trip]
/// The piece of a message in a data packet, and where it belongs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    /// Write: address in the region of the message's first byte. Answer of an atomic: what was
    /// there before. Else unused.
    pub address: u64,
    /// Address at the sender that this piece is read from; registered, so it may be read at
    /// delivery. Stands for the payload bytes.
    pub source: u64,
    /// Length of the whole message, bytes.
    pub message_len: u64,
    /// Number of the message on its stream; responses have a numbering of their own.
    pub message: u32,
    /// Offset of this piece in the message, in MTUs.
    pub packet: u32,
    /// Write: remote key. Send: index of the posted receive on the stream. Response: number of the
    /// request on the stream.
    pub key: u32,
    /// Name of the work request at the sender; not on the wire, for records only.
    pub tag: u32,
    /// Payload bytes in this packet.
    pub len: u16,
    /// What the sender has not sent yet on this connection, in MTUs, saturating: input of the rate hint.
    pub backlog: u16,
    // [F10.many-streams]
    /// Ordered stream.
    pub stream: StreamId,
    /// Write, WriteImm, Send or Response.
    pub opcode: Opcode,
}

impl Segment {
    /// The remote key of a Write.
    pub const fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }
}

/// A message that asks for an answer, as it is in its only packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Address in the peer's region.
    pub address: u64,
    /// Read: bytes wanted. CompareSwap: compare, swap. FetchAdd: addend.
    pub operands: [u64; 2],
    /// Number of the message on its stream.
    pub message: u32,
    /// Remote key.
    pub rkey: Rkey,
    /// As in a [`Segment`].
    pub backlog: u16,
    /// Ordered stream.
    pub stream: StreamId,
    /// Read, CompareSwap, FetchAdd, Flush or Probe.
    pub opcode: Opcode,
    /// Executed only when all earlier messages of the stream are placed; atomics always are.
    pub fence: bool,
}

/// How a packet leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sending {
    /// For the first time.
    #[default]
    First,
    /// For the first time, and the sender has nothing to send after it for now: acknowledge at once.
    FirstAsking,
    /// Again; acknowledge at once.
    Again,
}

/// What data and requests share: the path and their place in its sequence (F6).
#[derive(Clone, Copy, Debug, Default)]
pub struct PathHeader {
    /// Connection at the receiver.
    pub connection: ConnId,
    /// Sequence number on (path, epoch); every packet has a new one, resent or not.
    pub pps: u32,
    /// Number among all packets of the connection, in order of sending, whatever their path. Ours: lets
    /// one acknowledgement cover packets of several paths, and what lost acknowledgements said.
    pub serial: u32,
    /// Sending time, echoed by the acknowledgement.
    pub sent_at: Stamp,
    /// Path, as numbered by the sender.
    pub path: u16,
    /// Counts entropy changes of the path.
    pub epoch: u8,
    /// First or again.
    pub sending: Sending,
}

/// MetaRoCE-style data packet: a segment on a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct MrData {
    /// Piece of message.
    pub segment: Segment,
    /// Immediate data of a WriteImm.
    pub imm: u32,
    /// Path and number there.
    pub header: PathHeader,
}

/// MetaRoCE-style request packet: a request on a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct MrRequest {
    /// What is asked.
    pub request: Request,
    /// Path and number there.
    pub header: PathHeader,
}

/// What became of the packet that an acknowledgement answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Placed, now or before.
    #[default]
    Placed,
    /// A Send without a posted receive: receiver not ready, try again later.
    NotReady,
    /// Key, range or permission refused: nothing was written, the stream fails.
    AccessError,
    /// Longer than its receive, or malformed: nothing was written, the stream fails.
    LengthError,
    /// The stream or connection has failed at the receiver.
    PeerFailed,
    /// A switch cut off its payload.
    Trimmed,
}

/// MetaRoCE-style acknowledgement: the state of one path, anchored at its highest sequence number.
#[derive(Clone, Copy, Debug)]
pub struct MrAck {
    // [F6.sack-256]
    /// Bit k: `max_pps - 1 - k` was placed (F6: 256 bits).
    pub sack: [u32; 8],
    /// Sending time of the packet that caused this acknowledgement.
    pub echo: Stamp,
    /// Connection at the data sender.
    pub connection: ConnId,
    /// Highest sequence number seen on (path, epoch).
    pub max_pps: u32,
    /// CE marks seen on (path, epoch), cumulative.
    pub ce_count: u32,
    // [F8.hint-in-every-ack]
    /// Share of inbound bandwidth granted to this sender (F8).
    pub hint: RateHint,
    /// Path reported.
    pub path: u16,
    /// Its epoch.
    pub epoch: u8,
    /// What became of `max_pps`. Not `Placed` makes this a negative acknowledgement; `max_pps` is
    /// then a hole in what later acknowledgements say, so that losing this one is harmless.
    pub verdict: Verdict,
    /// Highest serial placed on the connection, and in bit k whether `serial - 1 - k` was placed. Ours.
    pub serial: u32,
    /// The 64 serials before it; low word first.
    pub serials: [u32; 2],
}

/// MetaRoCE-style probe of a path.
#[derive(Clone, Copy, Debug)]
pub struct MrProbe {
    /// Sending time of the probe.
    pub sent_at: Time,
    /// Connection at the destination of this packet.
    pub connection: ConnId,
    /// Path probed.
    pub path: u16,
    /// Its epoch.
    pub epoch: u8,
}

/// RoCEv2 RC packet of a Write or Send.
#[derive(Clone, Copy, Debug)]
pub struct RoceData {
    /// Piece of message.
    pub segment: Segment,
    /// Connection (peer pair) at the receiver.
    pub connection: ConnId,
    /// Packet sequence number of the QP, 24 bits.
    pub psn: u32,
    /// Immediate data of a WriteImm; on the wire in `last` packets alone.
    pub imm: u32,
    /// QP of the pair.
    pub qp: u16,
    /// The sender asks for an ACK (last packet of a message, or resent).
    pub ack_request: bool,
    /// The last packet of its RC message, which is a part of the whole one.
    pub last: bool,
}

/// RoCEv2 RC request for a Read or an atomic. It takes as many sequence numbers as its answer has packets.
#[derive(Clone, Copy, Debug)]
pub struct RoceRequest {
    /// What is asked: of a Read, the bytes of the part from `packet` on.
    pub request: Request,
    /// Connection (peer pair) at the receiver.
    pub connection: ConnId,
    /// Packet sequence number of the QP, 24 bits; its answer has it, and those after it.
    pub psn: u32,
    /// First packet asked for, in packets of the whole message.
    pub packet: u32,
    /// Packets of the whole message.
    pub packets: u32,
    /// QP of the pair.
    pub qp: u16,
}

/// RoCEv2 RC Read response, or acknowledgement of an atomic.
#[derive(Clone, Copy, Debug)]
pub struct RoceResponse {
    /// Piece of the answer.
    pub segment: Segment,
    /// Connection at the requester.
    pub connection: ConnId,
    /// Packet sequence number, 24 bits, of those that the request took.
    pub psn: u32,
    /// Messages that the responder has completed, 24 bits.
    pub msn: u32,
    /// QP of the pair.
    pub qp: u16,
}

/// RoCEv2 acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct RoceAck {
    /// Connection at the data sender.
    pub connection: ConnId,
    /// ACK: all up to and including this arrived. NAK: this one is expected. 24 bits.
    pub psn: u32,
    /// Messages that the responder has completed, 24 bits.
    pub msn: u32,
    /// QP of the pair.
    pub qp: u16,
    /// Which of them.
    pub kind: RoceAckKind,
}

/// RoCEv2 selective acknowledgement of one packet that came out of order. IRN's carries the cumulative and
/// this number; the bits, *ours*, make the loss of one harmless.
#[derive(Clone, Copy, Debug)]
pub struct RoceSack {
    /// Connection at the data sender.
    pub connection: ConnId,
    /// All before this arrived, and this one did not.
    pub expected: u32,
    /// This one arrived.
    pub arrived: u32,
    /// Bit k: `arrived - 1 - k` did, too; those before `expected` did.
    pub bits: u64,
    /// QP of the pair.
    pub qp: u16,
}

/// AETH syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoceAckKind {
    /// Positive, cumulative.
    Ack,
    /// PSN sequence error: go back to the expected PSN.
    SequenceNak,
    /// Receiver not ready: try again after the time that this 5-bit code stands for.
    RnrNak(u8),
    /// Invalid request: the QP fails.
    InvalidNak,
    /// Remote access error: the QP fails.
    AccessNak,
    /// Remote operational error: the QP fails.
    OperationNak,
}

/// RoCEv2 congestion notification.
#[derive(Clone, Copy, Debug)]
pub struct Cnp {
    /// Connection at the data sender.
    pub connection: ConnId,
    /// QP of the pair whose packets were marked.
    pub qp: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_and_bodies_stay_small() {
        assert_eq!(size_of::<Envelope>(), 32);
        assert_eq!(size_of::<Body>(), 72);
    }
}
