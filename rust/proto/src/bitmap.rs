//! Which packets of a message have arrived: one bit each, up to 256 without an allocation.

/// Words of a set in place.
const FEW: usize = 4;

/// A set of packet numbers below a length given at the start.
#[derive(Debug)]
pub(crate) enum Arrived {
    Few([u64; FEW]),
    Many(Box<[u64]>),
}

impl Arrived {
    /// The empty set of those that lie in place.
    pub(crate) const NONE: Arrived = Arrived::Few([0; FEW]);

    pub(crate) fn new(packets: u32) -> Arrived {
        let words = packets.div_ceil(u64::BITS) as usize;
        if words <= FEW { Arrived::NONE } else { Arrived::Many(vec![0; words].into()) }
    }

    /// Sets bit `packet`; false if it was set, or lies outside.
    #[inline]
    pub(crate) fn insert(&mut self, packet: u32) -> bool {
        let words = match self {
            Arrived::Few(words) => &mut words[..],
            Arrived::Many(words) => words,
        };
        let Some(word) = words.get_mut((packet >> 6) as usize) else { return false };
        let bit = 1 << (packet & 63);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }
}
