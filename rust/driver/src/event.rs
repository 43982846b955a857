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

/// Bits of a short name.
pub const SHORT_BITS: u32 = 37;
/// Short names of whatever is no arrival have this.
const SHORT_OTHERS: u64 = 1 << (SHORT_BITS - 1);
/// So much of the order of arrivals is left out of a short name.
const CUT_BITS: u32 = SLOT_BITS + LINK_BITS - (SHORT_BITS - 1);

/// The name of an arrival. Of packets that arrive together on several links, the order is as good as random, and
/// another one each time; packets of one link never arrive together.
#[inline]
pub fn arrival(at: Time, link: u32, slot: u32) -> u64 {
    u64::from(order(at, link)) << SLOT_BITS | u64::from(slot)
}

/// What comes first of arrivals at one time.
#[inline]
pub fn order(at: Time, link: u32) -> u32 {
    (link ^ at.0 as u32).wrapping_mul(0x9e37_79b1) & ((1 << LINK_BITS) - 1)
}

/// A name in fewer bits, in the same order but for arrivals that are [`alike`].
#[inline]
pub fn short(name: u64) -> u64 {
    match arriving(name) {
        Some(slot) => name >> (SLOT_BITS + CUT_BITS) << SLOT_BITS | u64::from(slot),
        None => (name - OTHERS) | SHORT_OTHERS,
    }
}

/// Whether two short names below the same time are of arrivals whose order they do not tell.
#[inline]
pub fn alike(a: u64, b: u64) -> bool {
    ((a ^ b) >> SLOT_BITS) | (a & SHORT_OTHERS) == 0
}

/// The slot of a packet whose arrival a short name is, or the name of anything else.
#[inline]
pub fn from_short(short: u64) -> Result<u32, u64> {
    match short & SHORT_OTHERS {
        0 => Ok(slot(short)),
        _ => Err(OTHERS | short & (SHORT_OTHERS - 1)),
    }
}

/// The slot of a packet whose arrival a name is known to be, short or not, and whatever stands above it.
#[inline]
pub fn slot(name: u64) -> u32 {
    name as u32 & ((1 << SLOT_BITS) - 1)
}

/// The name of anything else.
#[inline]
pub fn other(kind: Kind, index: u32) -> u64 {
    OTHERS | (kind as u64) << u32::BITS | u64::from(index)
}

/// The slot of a packet whose arrival `name` is.
#[inline]
pub fn arriving(name: u64) -> Option<u32> {
    (name < OTHERS).then(|| slot(name))
}

/// What `name`, no arrival, is.
#[inline]
pub fn kind(name: u64) -> (Kind, u32) {
    (KINDS[(name - OTHERS) as usize >> u32::BITS], name as u32)
}

/// What the digest takes of a name: everything but the slot of a packet, which is no part of the model.
#[inline]
pub fn trace(name: u64) -> u64 {
    if name < OTHERS { name >> SLOT_BITS } else { name }
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

    proptest! {
        #[test]
        fn short_names_are_in_the_order_of_names(
            at: u64,
            a in (0..1u32 << LINK_BITS, 0..1u32 << SLOT_BITS, 0..KINDS.len() * 2),
            b in (0..1u32 << LINK_BITS, 0..1u32 << SLOT_BITS, 0..KINDS.len() * 2),
        ) {
            let [a, b] = [a, b].map(|(link, slot, kind)| match KINDS.get(kind) {
                Some(&kind) => other(kind, link << 9 ^ slot),
                None => arrival(Time(at), link, slot),
            });
            let back = |name| from_short(short(name));
            prop_assert_eq!([a, b].map(back), [a, b].map(|name| arriving(name).ok_or(name)));
            prop_assert!([a, b].iter().all(|&name| short(name) >> SHORT_BITS == 0));
            if alike(short(a), short(b)) {
                prop_assert!(arriving(a).is_some() && arriving(b).is_some());
            } else {
                prop_assert_eq!(short(a).cmp(&short(b)), a.cmp(&b));
            }
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
