//! One path as its sender sees it (F3, F5): entropy, sequence, window, round trip, ECN, health.
//!
//! The window follows DCTCP (RFC 8257) per path and round trip: the share of marked packets feeds
//! an estimate, a marked round cuts the window once by half of it, an unmarked one adds a part of
//! an MTU. Loss cuts nothing (F8 gives congestion to ECN; loss is repaired, not obeyed).

use metaroce_wire::Time;

use super::flight::Fifo;
use crate::config::MetaRoceConfig;

/// Whether a path is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// In use.
    Up,
    /// Given up until a probe is answered.
    Down,
}

/// Scale of the ECN estimate: 1.0.
const ALPHA_ONE: u32 = 1 << 10;
/// Round trips are kept in units of 2¹⁰ ps, about a nanosecond.
const RTT_SHIFT: u32 = 10;

/// Mean deviation of round trips, in the units of the paths' estimates. One for a whole connection
/// (ours): a path of a slow connection has too few samples of its own.
#[derive(Clone, Copy, Debug)]
pub struct Variation(u32);

impl Variation {
    /// Half a round trip, so that the first tail detection waits three of them, as RFC 6298 starts.
    pub const fn new(rtt: Time) -> Variation {
        Variation((rtt.0 >> (RTT_SHIFT + 1)) as u32)
    }

    /// A sample missed its path's estimate by `error`.
    #[inline]
    pub fn on_error(&mut self, error: u32) {
        self.0 = self.0 - self.0 / 8 + error / 8;
    }
}

/// A path: one cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct SendPath {
    /// Packets in flight, oldest first.
    pub flight: Fifo,
    pub next_pps: u32,
    /// Payload bytes in flight, and the window for them.
    pub in_flight: u32,
    pub cwnd: u32,
    srtt: u32,
    ce_seen: u32,
    round_end: u32,
    round_acked: u16,
    round_marked: u16,
    alpha: u16,
    /// Packets in flight: their numbers are contiguous, since only the oldest is ever taken out.
    pub packets: u16,
    pub entropy: u16,
    /// Its plane, and its number there.
    pub plane: u8,
    pub bit: u8,
    pub epoch: u8,
    pub state: PathState,
    /// Expiries in a row.
    pub expiries: u8,
    /// Up: when its last expiry was. Down: when it is probed next.
    pub moment: Time,
}

impl SendPath {
    /// A path `at` (plane, number there) that has seen nothing: window `cwnd` bytes, round trip assumed `rtt`.
    pub fn new(at: (usize, usize), entropy: u16, cwnd: u32, rtt: Time) -> SendPath {
        SendPath {
            flight: Fifo::EMPTY,
            next_pps: 0,
            in_flight: 0,
            cwnd,
            srtt: (rtt.0 >> RTT_SHIFT) as u32,
            ce_seen: 0,
            round_end: 0,
            round_acked: 0,
            round_marked: 0,
            alpha: ALPHA_ONE as u16,
            packets: 0,
            entropy,
            plane: at.0 as u8,
            bit: at.1 as u8,
            epoch: 0,
            state: PathState::Up,
            expiries: 0,
            moment: Time::ZERO,
        }
    }

    /// Whether a fresh packet of `mtu` bytes may leave on it. The first one always may: a window
    /// below one packet would never move. 256 packets are what one SACK can describe. A path that
    /// fell silent gets back what it lost, and nothing more until it answers, unless it is the `only` one.
    #[inline]
    pub fn is_open(&self, mtu: u32, only: bool) -> bool {
        self.state == PathState::Up
            && (self.in_flight == 0 || self.in_flight + mtu <= self.cwnd && self.packets < 256)
            && (self.expiries == 0 || only)
    }

    /// Smooths a round trip sample (RFC 6298). Answers by how much it missed the estimate.
    #[inline]
    pub fn on_rtt(&mut self, sample: Time) -> u32 {
        let sample = (sample.0 >> RTT_SHIFT).min(u64::from(u32::MAX / 8)) as u32;
        let error = sample.abs_diff(self.srtt);
        self.srtt = self.srtt - self.srtt / 8 + sample / 8;
        error
    }

    /// Smoothed round trip.
    pub const fn srtt(&self) -> Time {
        Time((self.srtt as u64) << RTT_SHIFT)
    }

    /// The ECN estimate in thousandths.
    pub const fn ecn_permille(&self) -> u16 {
        (self.alpha as u32 * 1000 / ALPHA_ONE) as u16
    }

    /// Packets sent and marks reported in the current epoch.
    pub const fn epoch_totals(&self) -> (u32, u32) {
        (self.next_pps, self.ce_seen)
    }

    /// `acked` packets are acknowledged and the cumulative count of marks stands at `ce`.
    #[inline]
    pub fn on_ack(&mut self, config: &MetaRoceConfig, max_window: u32, acked: u32, ack: (u32, u32)) {
        let (max_pps, ce) = ack;
        self.expiries = 0;
        self.round_acked += acked as u16;
        self.round_marked += ce.saturating_sub(self.ce_seen) as u16;
        self.ce_seen = self.ce_seen.max(ce);
        if max_pps < self.round_end {
            return;
        }
        self.round_end = self.next_pps;
        let (acked, marked) = (u32::from(self.round_acked), u32::from(self.round_marked));
        let share = (marked.min(acked) * ALPHA_ONE).checked_div(acked).unwrap_or(0);
        let gain = config.ecn_gain_shift;
        let alpha = u32::from(self.alpha);
        let alpha = alpha - (alpha >> gain) + (share >> gain);
        self.alpha = alpha.min(ALPHA_ONE) as u16;
        if marked > 0 {
            let cut = u64::from(self.cwnd) * u64::from(alpha) / u64::from(2 * ALPHA_ONE);
            self.cwnd = (self.cwnd - cut as u32).max(config.mtu);
        } else if 2 * acked * config.mtu >= self.cwnd {
            // Only a window that is used may grow.
            self.cwnd = (self.cwnd + config.mtu * config.growth_percent / 100).min(max_window);
        }
        self.round_acked = 0;
        self.round_marked = 0;
    }

    /// How long a packet may stay unacknowledged before time alone declares it lost: it doubles
    /// from the third expiry in a row on (the last-resort timer).
    pub fn tail_timeout(&self, config: &MetaRoceConfig, variation: Variation) -> Time {
        let wait = (u64::from(self.srtt) + u64::from(config.tail_var_multiple) * u64::from(variation.0)) << RTT_SHIFT;
        Time((wait + config.tail_slack_ps) << u32::from(self.expiries).saturating_sub(2).min(10))
    }

    /// The time-based detection found a loss. A batch of packets sent before the last expiry counts once.
    pub fn on_expiry(&mut self, now: Time, sent_at: Time) {
        if sent_at >= self.moment || self.expiries == 0 {
            self.expiries = self.expiries.saturating_add(1);
            self.moment = now;
        }
    }

    /// Leaves the route (F3): new entropy, new epoch with its own numbers, probe soon.
    pub fn go_down(&mut self, now: Time, stride: u16) {
        self.state = PathState::Down;
        self.entropy = 0xC000 | (self.entropy.wrapping_add(stride) & 0x3FFF);
        self.epoch = self.epoch.wrapping_add(1);
        self.next_pps = 0;
        self.round_end = 0;
        self.round_acked = 0;
        self.round_marked = 0;
        self.ce_seen = 0;
        self.moment = now;
    }

    /// A probe was answered: in use again, with window `cwnd`.
    pub fn come_up(&mut self, cwnd: u32) {
        self.state = PathState::Up;
        self.expiries = 0;
        self.cwnd = cwnd;
        self.moment = Time::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> (SendPath, MetaRoceConfig) {
        (SendPath::new((0, 0), 0xC000, 40_960, Time::from_us(5)), MetaRoceConfig::default())
    }

    /// One round trip of `acked` packets, `marked` of them with CE.
    fn round(path: &mut SendPath, config: &MetaRoceConfig, acked: u32, marked: u32) {
        path.next_pps += acked;
        let ce = path.ce_seen + marked;
        path.on_ack(config, 1 << 20, acked, (path.next_pps, ce));
    }

    #[test]
    fn unmarked_rounds_grow_by_a_quarter_packet_and_marked_ones_cut_once() {
        let (mut path, config) = path();
        round(&mut path, &config, 10, 0);
        assert_eq!(path.cwnd, 40_960 + 1024);
        let before = path.cwnd;
        round(&mut path, &config, 10, 10);
        assert!(path.cwnd < before && path.cwnd >= before / 2, "{}", path.cwnd);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let (mut path, config) = path();
        round(&mut path, &config, 1, 0);
        assert_eq!(path.cwnd, 40_960);
    }

    #[test]
    fn the_window_never_falls_below_one_packet() {
        let (mut path, config) = path();
        for _ in 0..100 {
            round(&mut path, &config, 4, 4);
        }
        assert_eq!(path.cwnd, config.mtu);
    }

    #[test]
    fn expiries_of_one_batch_count_once() {
        let (mut path, _) = path();
        path.on_expiry(Time(100), Time(10));
        path.on_expiry(Time(100), Time(20));
        assert_eq!(path.expiries, 1);
        path.on_expiry(Time(200), Time(110));
        assert_eq!(path.expiries, 2);
    }
}
