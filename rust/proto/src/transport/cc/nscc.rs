//! NSCC of the Ultra Ethernet specification 1.0 (3.6.13), which MRC uses too: marks say whether,
//! delay says how much. Unmarked and below the target delay the window grows in proportion to what
//! is missing, fast where the path is clear; unmarked and above it, by the same for every window;
//! marked and above it, it falls with the average delay's excess; marked and below it, it holds.
//!
//! UEC and MRC have one window a connection. With MetaRoCE-style paths each path has one, with the increase constants of the
//! path's share of the bandwidth-delay product, so that all paths together grow as that one would.
//!
//! Left out here: the receiver's penalty, and quick_adapt. Its gate is an eighth of the largest window: for a path of a
//! few packets that is less than one of them.
//! Increments count at once instead of every 8 MTU: their sum is the same.

use super::{PARTS, Place, Signal, TICK_SHIFT, cut, grow};

/// Network that the constants are given for: 100 Gbit/s × 12 us, bytes, and 12 us in picoseconds.
pub const REFERENCE_BDP: u64 = 150_000;
pub const REFERENCE_RTT: u64 = 12_000_000;
/// A delay below 1 us is a clear path (htsim of the Ultra Ethernet Consortium), picoseconds.
pub const CLEAR: u64 = 1_000_000;
/// Largest window: this × the share of the bandwidth-delay product (MaxWnd).
pub const MOST_PERCENT: u64 = 150;
/// alpha, MTU in a window's worth of bytes at no delay.
pub const ALPHA: u64 = 4;
/// fi, MTU in a window's worth of bytes beyond the target.
pub const FAIR: u64 = 5;
/// eta, of an MTU in a round.
pub const ETA_PERCENT: u64 = 15;
/// fi_scale, of each byte on a clear path.
pub const FAST_PERCENT: u64 = 25;
/// Precision of growth by delay: parts of a tick's worth.
const FINE: u64 = 256;

/// No window grows by more at once, 1/256 bytes.
const MOST: u64 = u32::MAX as u64;

/// Delay that a path sees. Packed, so that a [`State`](super::State) with its tag takes 8 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed)]
pub struct Delay {
    /// Average over the last round, ticks.
    average: u32,
    /// Packets acknowledged in a row on a clear path; the maximum once they filled a window.
    clear: u16,
    /// Part of a byte that growth has earned, 1/256.
    fraction: u8,
}

impl Delay {
    /// Nothing seen.
    pub const START: Delay = Delay { average: 0, clear: 0, fraction: 0 };
}

/// Settings of NSCC. Amounts of growth in 1/256 bytes.
#[derive(Clone, Debug)]
pub struct Nscc {
    /// Largest window: 1.5 × the path's share of the bandwidth-delay product (MaxWnd), bytes.
    pub cap: u32,
    mtu: u32,
    /// Queueing delay that is aimed at, ticks.
    target: u32,
    /// In a window's worth of bytes for each tick below the target, × 256: alpha = 4 × MTU × a × b ÷ target.
    alpha: u64,
    /// In a window's worth of bytes beyond the target: fi = 5 × MTU × a.
    fair: u64,
    /// In each round: eta = 0.15 × MTU × a.
    eta: u64,
    /// For each byte on a clear path: fi_scale = 0.25 × a of the whole connection, being relative.
    fast: u64,
}

impl Nscc {
    /// Scales the constants by a = BDP ÷ 150,000 bytes and b = target ÷ 12 us.
    pub fn new(mtu: u32, delay_target_percent: u32, place: Place) -> Nscc {
        // More than 64 GiB in flight is nobody's, and would overflow.
        let all = place.bdp.min(1 << 36);
        let bdp = (all / place.paths.max(1)).max(1);
        let target = (u64::from(place.base_rtt) * u64::from(delay_target_percent) / 100).max(1);
        let scaled = u64::from(mtu) * PARTS * bdp;
        Nscc {
            cap: (bdp * MOST_PERCENT / 100).min(u64::from(u32::MAX)) as u32,
            mtu,
            target: target.min(u64::from(u32::MAX / 4)) as u32,
            // b ÷ target is 1 ÷ 12 us.
            alpha: (ALPHA * scaled / REFERENCE_BDP * FINE) / (REFERENCE_RTT >> TICK_SHIFT),
            fair: FAIR * scaled / REFERENCE_BDP,
            eta: ETA_PERCENT * scaled / (100 * REFERENCE_BDP),
            fast: PARTS * all * FAST_PERCENT / (100 * REFERENCE_BDP),
        }
    }

    /// The next window.
    #[inline]
    pub fn on_ack(&self, delay: &mut Delay, window: u32, signal: &Signal) -> u32 {
        let queued = signal.rtt.saturating_sub(signal.base_rtt);
        // The average over a round: each sample weighs what it acknowledges of the window.
        let (bytes, all) = (u64::from(signal.bytes.min(window)), u64::from(window));
        delay.average = ((u64::from(delay.average) * (all - bytes) + u64::from(queued) * bytes) / all) as u32;
        let marked = signal.marked > 0;
        if marked && queued >= self.target {
            delay.clear = 0;
            if signal.may_cut && delay.average > self.target {
                return cut(window, delay.average, self.target);
            }
        }
        if !signal.used {
            return window;
        }
        let mut growth = if signal.round_over { self.eta } else { 0 };
        if !marked {
            growth += if queued >= self.target {
                self.fair * bytes / all
            } else if self.is_clear(delay, window, queued, signal.packets) {
                self.fast * bytes
            } else {
                let of_window = self.alpha.saturating_mul(u64::from(self.target - queued)) / FINE;
                of_window.min(MOST) * bytes / all
            };
        }
        grow(window, &mut delay.fraction, growth)
    }

    /// Whether a window's worth of packets has found the path clear.
    #[inline]
    fn is_clear(&self, delay: &mut Delay, window: u32, queued: u32, packets: u32) -> bool {
        if u64::from(queued) >= CLEAR >> TICK_SHIFT {
            delay.clear = 0;
            return false;
        }
        delay.clear = delay.clear.saturating_add(packets as u16);
        if u32::from(delay.clear).saturating_mul(self.mtu) > window {
            delay.clear = u16::MAX;
        }
        delay.clear == u16::MAX
    }
}
