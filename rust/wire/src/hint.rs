//! The receiver's rate hint as carried in an acknowledgement (F8): 16 bits, of which 4 are a
//! binary exponent and 12 a mantissa, in Mbit/s. The presence of the hint is public; this
//! encoding is *ours*. Zero means "no hint".

use crate::units::Rate;

// [F8.hint-code]
/// A rate of at most 134 Tbit/s, exact to max(1 Mbit/s, 2⁻¹¹ of its value), rounded down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateHint(pub u16);

const MANTISSA_BITS: u32 = RateHint::MANTISSA_BITS;
const MBPS: u64 = 1_000_000;

impl RateHint {
    /// Bits of the mantissa; the other four are the exponent.
    pub const MANTISSA_BITS: u32 = 12;
    /// No statement about the rate.
    pub const NONE: RateHint = RateHint(0);

    // [I24]
    /// The largest hint that does not exceed `rate`; at least 1 Mbit/s.
    pub fn encode(rate: Rate) -> RateHint {
        let mbps = (rate.0 / MBPS).max(1);
        let bits = u64::BITS - mbps.leading_zeros();
        let exponent = bits.saturating_sub(MANTISSA_BITS);
        if exponent > 15 {
            return RateHint(u16::MAX);
        }
        RateHint((exponent as u16) << MANTISSA_BITS | (mbps >> exponent) as u16)
    }

    /// The rate, if this is a hint.
    pub fn decode(self) -> Option<Rate> {
        let mantissa = u64::from(self.0) & ((1 << MANTISSA_BITS) - 1);
        let exponent = self.0 >> MANTISSA_BITS;
        (self != RateHint::NONE).then_some(Rate((mantissa << exponent) * MBPS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [F8.hint-code] [I24]
    #[test]
    fn encoding_is_monotone_and_tight() {
        let mut last = 0;
        for step in 0..200_000u64 {
            let mbps = 1 + step * step / 7;
            let decoded = RateHint::encode(Rate(mbps * MBPS)).decode().expect("a rate is a hint").0 / MBPS;
            assert!(decoded >= last && decoded <= mbps, "{mbps} Mbit/s decoded as {decoded}");
            assert!(mbps - decoded <= (mbps >> 11).max(1) || mbps > 4095 << 15, "{mbps} decoded as {decoded}");
            last = decoded;
        }
        assert_eq!(RateHint::NONE.decode(), None);
    }
}
