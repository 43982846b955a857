//! Swift (SIGCOMM 2020) as in Falcon: delay alone. Up to the target round trip the window grows by an
//! MTU a round; beyond it, it falls once in a round, by the excess.
//!
//! target = base + per hop × hops + flow scaling, where Falcon's defaults are 25 us, 1 us and up to
//! 100 us. A sender here does not count hops, and the fabrics span round trips of microseconds to
//! milliseconds, so all of it is relative to the least round trip of the path, which grows with its
//! hops: `delay_target_percent` and `flow_scaling_percent` (ours; 400 keeps Falcon's 100 us ÷ 25 us).
//!
//! Left out: windows below one packet (the seam's floor), and the window for the receiver's NIC,
//! which the rate hint replaces (F8).

use super::{PARTS, Signal, cut, grow};
use crate::config::MetaRoceConfig;

/// Flow scaling spans windows of 0.1 to 256 packets (Falcon): 1 ÷ (1/√0.1 − 1/√256) in 1/1024.
pub const SCALE: u64 = 330;
/// 1/√256 in 1/1024.
pub const LEAST: u32 = 64;
/// MTU that a window grows by in a round (Falcon: additive increment).
pub const GROWTH: u64 = 1;

/// Settings of Swift.
#[derive(Clone, Debug)]
pub struct Swift {
    mtu: u32,
    target_percent: u64,
    scaling_percent: u64,
    coupled: bool,
}

impl Swift {
    pub fn new(config: &MetaRoceConfig) -> Swift {
        Swift {
            mtu: config.mtu,
            target_percent: u64::from(config.delay_target_percent),
            scaling_percent: u64::from(config.flow_scaling_percent),
            coupled: config.coupled_growth,
        }
    }

    /// The next window.
    #[inline]
    pub fn on_ack(&self, fraction: &mut u8, window: u32, signal: &Signal) -> u32 {
        let target = self.target(window, signal.base_rtt);
        if signal.rtt > target {
            return if signal.may_cut { cut(window, signal.rtt, target) } else { window };
        }
        if !signal.used {
            return window;
        }
        let paths = if self.coupled { signal.paths.max(1) } else { 1 };
        let step = GROWTH * PARTS * u64::from(self.mtu);
        let growth = step * u64::from(signal.bytes) / (u64::from(window) * u64::from(paths));
        grow(window, fraction, growth)
    }

    /// Round trip that a path with this `window` may have, ticks: small windows may have longer ones,
    /// since many flows share a queue that their windows barely describe.
    #[inline]
    fn target(&self, window: u32, base: u32) -> u32 {
        let base = u64::from(base);
        let root = (((u64::from(self.mtu) << 20) / u64::from(window)) as u32).isqrt();
        let scaling = SCALE * u64::from(root.saturating_sub(LEAST)) * base * self.scaling_percent / 100;
        (base + base * self.target_percent / 100 + (scaling >> 20)).min(u64::from(u32::MAX)) as u32
    }
}
