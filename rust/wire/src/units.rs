//! Integer units: picoseconds, bytes and bits per second. No float decides anything; a product
//! of two units goes through `u128`, so that no size or rate in range can overflow.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// Picoseconds: an instant since the start of the run, or a span. 64 bits last 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// Bytes, on the wire or in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// Bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

/// Picoseconds in a second.
pub const PS_PER_S: u64 = 1_000_000_000_000;

impl Time {
    /// The instant that never comes.
    pub const NEVER: Time = Time(u64::MAX);
    /// The start of the run.
    pub const ZERO: Time = Time(0);

    /// A span of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Time {
        Time(ns * 1_000)
    }

    /// A span of `us` microseconds.
    pub const fn from_us(us: u64) -> Time {
        Time(us * 1_000_000)
    }

    /// The span since `earlier`, zero if it lies ahead.
    pub const fn since(self, earlier: Time) -> Time {
        Time(self.0.saturating_sub(earlier.0))
    }

    /// `self + span`, staying at [`Time::NEVER`].
    pub const fn saturating_add(self, span: Time) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

/// An instant as packets carry it: 32 bits of 2¹⁰ ps, about a nanosecond, so it wraps after 4.4 s.
/// Ours; a round trip must be shorter than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(u32);

impl Stamp {
    /// A stamp counts 2^this picoseconds.
    pub const SHIFT: u32 = 10;
    /// Width of a stamp, bits.
    pub const BITS: u32 = u32::BITS;

    /// The stamp of `now`.
    pub const fn of(now: Time) -> Stamp {
        Stamp((now.0 >> Stamp::SHIFT) as u32)
    }

    /// This stamp moved on by `span`.
    #[must_use]
    pub const fn later(self, span: Time) -> Stamp {
        Stamp(self.0.wrapping_add((span.0 >> Stamp::SHIFT) as u32))
    }

    /// Time from this stamp to `now`.
    pub const fn until(self, now: Time) -> Time {
        Time((Stamp::of(now).0.wrapping_sub(self.0) as u64) << Stamp::SHIFT)
    }
}

impl Rate {
    /// Gigabits per second.
    pub const fn from_gbps(gbps: u64) -> Rate {
        Rate(gbps * 1_000_000_000)
    }

    /// Bytes that flow at this rate in `span`, rounded down.
    pub const fn bytes_in(self, span: Time) -> Bytes {
        Bytes((self.0 as u128 * span.0 as u128 / (8 * PS_PER_S as u128)) as u64)
    }

    /// The span that `bytes` take at this rate, rounded up. A zero rate takes for ever.
    pub const fn time_for(self, bytes: Bytes) -> Time {
        if self.0 == 0 {
            return Time::NEVER;
        }
        let bit_ps = bytes.0 as u128 * 8 * PS_PER_S as u128;
        Time(bit_ps.div_ceil(self.0 as u128) as u64)
    }
}

macro_rules! arithmetic {
    ($($unit:ident),*) => {$(
        impl Add for $unit {
            type Output = $unit;
            fn add(self, other: $unit) -> $unit {
                $unit(self.0 + other.0)
            }
        }
        impl Sub for $unit {
            type Output = $unit;
            fn sub(self, other: $unit) -> $unit {
                $unit(self.0 - other.0)
            }
        }
        impl AddAssign for $unit {
            fn add_assign(&mut self, other: $unit) {
                self.0 += other.0;
            }
        }
        impl SubAssign for $unit {
            fn sub_assign(&mut self, other: $unit) {
                self.0 -= other.0;
            }
        }
    )*};
}
arithmetic!(Time, Bytes, Rate);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => write!(f, "never"),
            ps => write!(f, "{}.{:06} us", ps / 1_000_000, ps % 1_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_at_200_gbps_takes_40_ps() {
        assert_eq!(Rate::from_gbps(200).time_for(Bytes(1)), Time(40));
        assert_eq!(Rate::from_gbps(200).bytes_in(Time(40)), Bytes(1));
    }

    #[test]
    fn stamps_measure_across_their_wrap() {
        for at in [0, 1 << 41, (1 << 42) - 5_000_000] {
            let span = Stamp::of(Time(at)).until(Time(at + 9_999_999));
            assert!(span.0.abs_diff(9_999_999) <= 1 << 10, "{span} from {at}");
        }
    }

    #[test]
    fn large_products_do_not_overflow() {
        assert_eq!(Rate::from_gbps(800).time_for(Bytes(1 << 40)), Time(10 << 40));
        assert_eq!(Rate::from_gbps(800).bytes_in(Time(10 << 40)), Bytes(1 << 40));
    }
}
