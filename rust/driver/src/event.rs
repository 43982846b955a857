//! What can happen, and its name in the queue, which says what comes first of things at the same time.
//!
//! Names say nothing about who pushed an event, or when: only what it is and where. So the order of a run does not
//! depend on how it is divided, and of packets that arrive together none is favoured for its number.

use metaroce_wire::Time;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A host's port may be free.
    PortFree,
    /// A host's endpoint has a timeout.
    Timer,
    /// A work-queue entry starts at its own time.
    Start,
    /// A fault of the schedule.
    Fault,
    /// Routes follow a fault.
    Reroute,
    /// A rank's message engines have a timeout.
    Device,
    /// From here on, calls of the fabric's explicit ports: no events of the model, so neither counted nor in the digest.
    Dequeue,
    Pause,
    Resume,
    Unpause,
    Watch,
    Check,
}

const KINDS: [Kind; 12] = [
    Kind::PortFree,
    Kind::Timer,
    Kind::Start,
    Kind::Fault,
    Kind::Reroute,
    Kind::Device,
    Kind::Dequeue,
    Kind::Pause,
    Kind::Resume,
    Kind::Unpause,
    Kind::Watch,
    Kind::Check,
];

/// Packets on their way have slots below this.
const SLOT_BITS: u32 = 28;
/// Directed links of a fabric that a name can tell apart.
pub const LINK_BITS: u32 = 23;
/// Whatever is no arrival, above all of those.
const OTHERS: u64 = 1 << (SLOT_BITS + LINK_BITS);

/// The name of an arrival. Of packets that arrive together on several links, the order is as good as random, and
/// another one each time; packets of one link never arrive together.
#[inline]
pub fn arrival(at: Time, link: u32, slot: u32) -> u64 {
    let order = (link ^ at.0 as u32).wrapping_mul(0x9e37_79b1) & ((1 << LINK_BITS) - 1);
    u64::from(order) << SLOT_BITS | u64::from(slot)
}

/// The name of anything else.
#[inline]
pub fn other(kind: Kind, index: u32) -> u64 {
    OTHERS | (kind as u64) << u32::BITS | u64::from(index)
}

/// The slot of a packet whose arrival `name` is.
#[inline]
pub fn arriving(name: u64) -> Option<u32> {
    (name < OTHERS).then(|| arrived(name).0)
}

/// The slot of a packet whose arrival `name` is known to be, and what the digest takes of it.
#[inline]
pub fn arrived(name: u64) -> (u32, u64) {
    debug_assert!(name < OTHERS, "no arrival: {name:x}");
    (name as u32 & ((1 << SLOT_BITS) - 1), name >> SLOT_BITS)
}

/// What `name`, no arrival, is.
#[inline]
pub fn kind(name: u64) -> (Kind, u32) {
    (KINDS[(name - OTHERS) as usize >> u32::BITS], name as u32)
}

/// What the digest takes of a name: everything but the slot of a packet, which is no part of the model.
#[inline]
pub fn trace(name: u64) -> u64 {
    if name < OTHERS { arrived(name).1 } else { name }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::NAME_BITS;

    proptest! {
        #[test]
        fn names_tell_arrivals_apart_and_come_back(at: u64, a in 0..1u32 << LINK_BITS, b in 0..1u32 << LINK_BITS) {
            let (one, two) = (arrival(Time(at), a, 3), arrival(Time(at), b, 3));
            prop_assert_eq!(one == two, a == b);
            prop_assert_eq!((arriving(one), one >> NAME_BITS), (Some(3), 0));
            prop_assert_eq!(trace(one), trace(arrival(Time(at), a, 4)));
        }
    }

    #[test]
    fn other_names_come_back_and_follow_all_arrivals() {
        for kind in KINDS {
            let name = other(kind, u32::MAX);
            assert_eq!((super::kind(name), arriving(name), name >> NAME_BITS), ((kind, u32::MAX), None, 0));
        }
    }
}
