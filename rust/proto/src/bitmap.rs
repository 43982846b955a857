//! Which packets of a message have arrived: one bit each, the first 64 without an allocation.

/// A set of packet numbers below a length given at the start.
#[derive(Debug)]
pub(crate) enum Arrived {
    Few(u64),
    Many(Box<[u64]>),
}

impl Arrived {
    pub(crate) fn new(packets: u32) -> Arrived {
        if packets <= 64 { Arrived::Few(0) } else { Arrived::Many(vec![0; packets.div_ceil(64) as usize].into()) }
    }

    /// Sets bit `packet`; false if it was set, or lies outside.
    #[inline]
    pub(crate) fn insert(&mut self, packet: u32) -> bool {
        let word = match self {
            Arrived::Few(word) if packet < 64 => word,
            Arrived::Few(_) => return false,
            Arrived::Many(words) => match words.get_mut((packet >> 6) as usize) {
                Some(word) => word,
                None => return false,
            },
        };
        let bit = 1 << (packet & 63);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }
}
