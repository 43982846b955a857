//! How long a requester waits for a receiver that is not ready: IBTA's table of 5-bit codes.

use metaroce_wire::Time;

/// The retry count that stands for no limit.
pub const FOR_EVER: u32 = 7;
/// Unit of the table, picoseconds.
pub const UNIT_PS: u64 = 10_000_000;
/// Waits in that unit. The first is the longest.
const WAITS: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072,
    4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The wait that a code stands for.
pub fn wait(code: u8) -> Time {
    Time(WAITS[usize::from(code) % WAITS.len()] * UNIT_PS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that libibverbs documents.
    #[test]
    fn codes_stand_for_the_times_of_the_table() {
        let us =
            [(0, 655_360), (1, 10), (4, 40), (5, 60), (7, 120), (12, 640), (16, 2_560), (30, 327_680), (31, 491_520)];
        for (code, us) in us {
            assert_eq!(wait(code), Time::from_us(us), "code {code}");
        }
        assert!((2..32).all(|code| wait(code) > wait(code - 1) && wait(code) < wait(0)));
    }
}
