//! Bodies of MRC-like packets. The fields are those that public text on OCP MRC 1.0 names; their grouping is ours.

use crate::ids::{ConnId, PlaneId};
use crate::packet::{Segment, Verdict};
use crate::units::Stamp;

/// A packet sequence number as packets carry it: 24 bits, one sequence for a QP and direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psn(u32);

impl Psn {
    /// Width of it, bits.
    pub const BITS: u32 = 24;
    const MASK: u64 = (1 << Psn::BITS) - 1;

    /// What packets carry of `number`.
    pub const fn of(number: u64) -> Psn {
        Psn((number & Psn::MASK) as u32)
    }

    /// The number on the wire.
    pub const fn wire(self) -> u32 {
        self.0
    }

    /// The number that is less than 2²³ away from `near` and is carried so.
    pub const fn expand(self, near: u64) -> u64 {
        let ahead = (self.0 as u64).wrapping_sub(near) & Psn::MASK;
        let half = 1 << (Psn::BITS - 1);
        if ahead < half { near + ahead } else { (near + ahead).saturating_sub(1 << Psn::BITS) }
    }
}

/// The third word of a base transport header: the sequence number beside its flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PsnWord(u32);

impl PsnWord {
    const ASKS: u32 = 1 << 31;
    const RESENT: u32 = 1 << 30;

    /// A word without flags.
    pub const fn new(psn: Psn) -> PsnWord {
        PsnWord(psn.0)
    }

    /// Asks for an acknowledgement at once, where `asks`.
    #[must_use]
    pub const fn asking(self, asks: bool) -> PsnWord {
        if asks { PsnWord(self.0 | PsnWord::ASKS) } else { self }
    }

    /// Tells that the packet was sent before, where `resent`.
    #[must_use]
    pub const fn again(self, resent: bool) -> PsnWord {
        if resent { PsnWord(self.0 | PsnWord::RESENT) } else { self }
    }

    /// Sequence number.
    pub const fn psn(self) -> Psn {
        Psn(self.0 & Psn::MASK as u32)
    }

    /// Whether it asks for an acknowledgement at once.
    pub const fn asks(self) -> bool {
        self.0 & PsnWord::ASKS != 0
    }

    /// Whether the packet was sent before.
    pub const fn resent(self) -> bool {
        self.0 & PsnWord::RESENT != 0
    }
}

/// MRC-like data packet: every one names its place in memory.
#[derive(Clone, Copy, Debug)]
pub struct MrcData {
    /// Piece of message; with opcode `Probe` none, only its number is to be taken.
    pub segment: Segment,
    /// Immediate data of a WriteImm.
    pub imm: u32,
    /// Connection at the receiver.
    pub connection: ConnId,
    /// Sending time, echoed.
    pub sent_at: Stamp,
    /// Sequence number and flags.
    pub word: PsnWord,
}

/// An entropy value: the UDP source port of the packet that is answered, and the plane it came by. It is reflected, so
/// that the sender can tell what each route does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reflected {
    /// UDP source port.
    pub entropy: u16,
    /// Plane.
    pub plane: PlaneId,
    /// It came with a congestion mark.
    pub marked: bool,
}

/// MRC-like selective acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct MrcSack {
    /// Bit k: number `cumulative + offset + k` has arrived. A cleared bit says nothing.
    pub bitmap: u64,
    /// Sending time of the packet that is answered, moved on by the time that it waited here.
    pub echo: Stamp,
    /// Connection at the data sender.
    pub connection: ConnId,
    /// All numbers before this one have arrived.
    pub cumulative: Psn,
    /// Where the bitmap begins.
    pub offset: i16,
    /// The packet that is answered.
    pub reflected: Reflected,
    /// It was a probe.
    pub of_probe: bool,
}

/// MRC-like negative acknowledgement of one packet.
#[derive(Clone, Copy, Debug)]
pub struct MrcNack {
    /// Sending time of the packet.
    pub echo: Stamp,
    /// Connection at the data sender.
    pub connection: ConnId,
    /// Its sequence number.
    pub psn: Psn,
    /// The route that it took.
    pub reflected: Reflected,
    /// Why it was not taken.
    pub reason: Verdict,
}

/// MRC-like reliability probe: answered by a selective acknowledgement around `psn`, on the route that it takes.
#[derive(Clone, Copy, Debug)]
pub struct MrcProbe {
    /// Sending time.
    pub sent_at: Stamp,
    /// Connection at the receiver.
    pub connection: ConnId,
    /// The number asked about. Probes have none of their own.
    pub psn: Psn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_apart_across_their_wrap() {
        let wrap = 1u64 << Psn::BITS;
        for near in [0, 5, wrap - 3, wrap, wrap + 7, 3 * wrap - 1, 1 << 40] {
            for number in near.saturating_sub(40_000)..near.saturating_sub(39_000) {
                assert_eq!(Psn::of(number).expand(near), number, "{number} near {near}");
            }
            for number in (near..near + 40_000).step_by(37) {
                assert_eq!(Psn::of(number).expand(near), number, "{number} near {near}");
            }
        }
    }

    #[test]
    fn flags_leave_the_number_alone() {
        let psn = Psn::of(0xFF_FFFF);
        for (asks, resent) in [(false, false), (true, false), (false, true), (true, true)] {
            let word = PsnWord::new(psn).asking(asks).again(resent);
            assert_eq!((word.psn(), word.asks(), word.resent()), (psn, asks, resent));
        }
    }
}
