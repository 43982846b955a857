//! DCTCP (RFC 8257) per path and round trip, the default (F8): the share of marked packets feeds an
//! estimate, a marked round cuts the window once by half of it, an unmarked one adds a part of an MTU.

use super::{Signal, USED_SHARE};
use crate::config::MetaRoceConfig;

/// Scale of the ECN estimate: 1.0.
pub const ALPHA_ONE: u32 = 1 << 10;
/// First estimate: 1.0 (RFC 8257).
pub const FIRST_ALPHA: u32 = ALPHA_ONE;
/// A marked round takes the estimate ÷ this of the window (RFC 8257).
pub const CUT: u32 = 2;

/// Marks of a path: counts of the round, and the estimate.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    acked: u16,
    marked: u16,
    alpha: u16,
}

impl Marks {
    /// Nothing seen; the first mark halves (RFC 8257).
    pub const START: Marks = Marks { acked: 0, marked: 0, alpha: FIRST_ALPHA as u16 };

    /// The estimate in thousandths.
    pub const fn permille(self) -> u16 {
        (self.alpha as u32 * 1000 / ALPHA_ONE) as u16
    }

    /// Forgets the round.
    pub const fn restart(&mut self) {
        self.acked = 0;
        self.marked = 0;
    }
}

/// Settings of AIMD.
#[derive(Clone, Debug)]
pub struct Aimd {
    mtu: u32,
    /// Gain of the estimate, as a right shift.
    gain: u32,
    /// Growth in a round without marks, bytes.
    growth: u32,
    /// All paths of a connection share one such growth.
    coupled: bool,
}

impl Aimd {
    pub const fn new(config: &MetaRoceConfig) -> Aimd {
        Aimd {
            mtu: config.mtu,
            gain: config.ecn_gain_shift,
            growth: config.mtu * config.growth_percent / 100,
            coupled: config.coupled_growth,
        }
    }

    /// The next window.
    #[inline]
    pub fn on_ack(&self, marks: &mut Marks, window: u32, signal: &Signal) -> u32 {
        marks.acked = marks.acked.saturating_add(signal.packets as u16);
        marks.marked = marks.marked.saturating_add(signal.marked as u16);
        if !signal.round_over {
            return window;
        }
        let (acked, marked) = (u32::from(marks.acked), u32::from(marks.marked));
        let share = (marked.min(acked) * ALPHA_ONE).checked_div(acked).unwrap_or(0);
        let alpha = u32::from(marks.alpha);
        let alpha = (alpha - (alpha >> self.gain) + (share >> self.gain)).min(ALPHA_ONE);
        *marks = Marks { acked: 0, marked: 0, alpha: alpha as u16 };
        // [F8.ecn-aimd] [F8.dctcp-cut]
        if marked > 0 {
            window - (u64::from(window) * u64::from(alpha) / u64::from(CUT * ALPHA_ONE)) as u32
        } else if USED_SHARE as u32 * acked * self.mtu >= window {
            // Only a window that is used may grow.
            window + if self.coupled { self.growth / signal.paths.max(1) } else { self.growth }
        } else {
            window
        }
    }
}
