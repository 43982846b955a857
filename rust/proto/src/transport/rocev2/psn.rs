//! Packet sequence numbers: 24 bits on the wire, counted on without end inside.
//!
//! What arrives stands for the number nearest to the one that is expected. Half of the space is the most that
//! may be unacknowledged, so that a duplicate never looks like a new packet (IBTA).

/// Most sequence numbers that may be unacknowledged.
pub const REACH: u32 = 1 << 23;

/// Bits of a machine word that the wire has not.
const SHIFT: u32 = u32::BITS - 24;

/// As in the packet.
pub const fn on_wire(number: u32) -> u32 {
    number << SHIFT >> SHIFT
}

/// The number nearest to `to` that has these 24 bits.
pub const fn nearest(to: u32, psn: u32) -> u32 {
    to.wrapping_add_signed((psn.wrapping_sub(to) << SHIFT) as i32 >> SHIFT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_within_reach_comes_back(to in REACH..u32::MAX - REACH, step in 1 - (REACH as i32)..REACH as i32) {
            let number = to.wrapping_add_signed(step);
            prop_assert!(on_wire(number) < 1 << 24);
            prop_assert_eq!(nearest(to, on_wire(number)), number);
        }
    }
}
