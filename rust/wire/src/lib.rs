//! Units, identifiers and packets: the bottom that every other crate shares.
//!
//! A [`Packet`] is an [`Envelope`], which is all a switch may read, and a [`Body`], which only
//! endpoints read. Lengths on the wire are exact, inter-frame gap included ([`lengths`]); byte
//! encodings are not part of this crate yet. Nothing here knows a topology or a protocol rule.

pub mod hint;
pub mod ids;
pub mod lengths;
pub mod mrc;
pub mod packet;
pub mod prefetch;
pub mod units;

pub use hint::RateHint;
pub use ids::{ConnId, HostId, PlaneId, Rkey, StreamId};
pub use mrc::{MrcData, MrcNack, MrcProbe, MrcSack, Psn, PsnWord, Reflected};
pub use packet::{
    Body, Class, Cnp, Ecn, Envelope, MrAck, MrData, MrProbe, MrRequest, Opcode, Packet, PathHeader, Request, RoceAck,
    RoceAckKind, RoceData, RoceRequest, RoceResponse, RoceSack, Segment, Sending, Verdict,
};
pub use prefetch::prefetch;
pub use units::{Bytes, Rate, Stamp, Time};
