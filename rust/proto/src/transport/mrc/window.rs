//! The congestion window of a QP: NSCC, with the quick adaptation that a window of many packets allows.
//!
//! Every base round trip plus target delay, a window that achieved less than its gate and saw a loss, a trim or a delay
//! beyond four targets falls to what it achieved; then marks are ignored for as many bytes as were in flight.
//! Left out: the receiver's window penalty, since receivers here take all that their ports bring.

use metaroce_wire::Time;

use crate::config::MrcConfig;
use crate::transport::cc::nscc::{Delay, Nscc};
use crate::transport::cc::{Place, Signal, TICK_SHIFT, USED_SHARE};

/// Quick adaptation happens below one in 2^this of the largest window (UEC: qa_gate).
pub const QA_GATE: u32 = 3;
/// Quick adaptation happens beyond so many target delays (UEC: qa_threshold).
pub const QA_TARGETS: u64 = 4;

/// What windows of a host have in common.
#[derive(Clone, Debug)]
pub struct Rule {
    nscc: Nscc,
    mtu: u32,
    start: u32,
    /// Largest window, bytes.
    pub cap: u32,
    base_rtt: Time,
    /// Queueing delay that is aimed at.
    pub target: Time,
    quick_adapt: bool,
}

/// The window of a QP. What sending reads is first.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Window {
    /// Bytes that may be in flight.
    pub bytes: u32,
    pub(super) lost: bool,
    /// Least round trip seen.
    pub least_rtt: Time,
    adapt_at: Time,
    achieved: u64,
    round_at: Time,
    cut_at: Time,
    pub(super) ignore: u64,
    delay: Delay,
}

/// What an acknowledgement tells the window.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    pub packets: u32,
    pub bytes: u32,
    pub marked: bool,
    pub rtt: Time,
    /// In flight before it.
    pub in_flight: u64,
}

fn ticks(span: Time) -> u32 {
    (span.0 >> TICK_SHIFT).min(u64::from(u32::MAX / 4)) as u32
}

impl Rule {
    /// For a host whose ports have this bandwidth-delay `product` together.
    pub fn new(config: &MrcConfig, product: u64, base_rtt: Time) -> Rule {
        let percent =
            |of: u32| (product * u64::from(of) / 100).clamp(u64::from(config.mtu), u64::from(u32::MAX / 2)) as u32;
        let cap = percent(config.window_cap_percent);
        let place = Place { base_rtt: ticks(base_rtt), bdp: product, paths: 1, cap };
        Rule {
            nscc: Nscc::new(config.mtu, config.delay_target_percent, place),
            mtu: config.mtu,
            start: percent(config.start_window_percent).min(cap),
            cap,
            base_rtt,
            target: Time(base_rtt.0 / 100 * u64::from(config.delay_target_percent)),
            quick_adapt: config.quick_adapt,
        }
    }

    /// A window that has seen nothing.
    pub const fn start(&self) -> Window {
        Window {
            bytes: self.start,
            least_rtt: self.base_rtt,
            delay: Delay::START,
            round_at: Time::ZERO,
            cut_at: Time::ZERO,
            adapt_at: Time::ZERO,
            achieved: 0,
            ignore: 0,
            lost: false,
        }
    }

    /// An acknowledgement has come.
    #[inline]
    pub fn on_ack(&self, window: &mut Window, now: Time, heard: &Heard) {
        window.least_rtt = window.least_rtt.min(heard.rtt);
        window.achieved += u64::from(heard.bytes);
        if self.quick_adapt && self.adapts(window, now, heard) {
            return;
        }
        // [I20]
        let may_cut = window.ignore == 0 && window.cut_at + self.base_rtt <= now;
        let round_over = window.round_at + self.base_rtt <= now;
        if round_over {
            window.round_at = now;
        }
        window.ignore = window.ignore.saturating_sub(u64::from(heard.bytes));
        let signal = Signal {
            packets: heard.packets,
            bytes: heard.bytes,
            marked: u32::from(heard.marked),
            rtt: ticks(heard.rtt),
            base_rtt: ticks(window.least_rtt),
            paths: 1,
            round_over,
            may_cut,
            used: heard.in_flight * USED_SHARE >= u64::from(window.bytes),
        };
        let before = window.bytes;
        // [I19]
        window.bytes = self.nscc.on_ack(&mut window.delay, before, &signal).clamp(self.mtu, self.cap);
        if window.bytes < before {
            window.cut_at = now;
        }
    }

    /// Something leaves when nothing is in flight: what a silence achieved says nothing (ours).
    pub fn begin(&self, window: &mut Window, now: Time) {
        (window.adapt_at, window.achieved, window.lost) = (now + self.base_rtt + self.target, 0, false);
    }

    /// Whether the window has just fallen to what it achieved.
    fn adapts(&self, window: &mut Window, now: Time, heard: &Heard) -> bool {
        if now < window.adapt_at {
            return false;
        }
        let delay = heard.rtt.since(window.least_rtt);
        let called = window.lost || delay.0 > QA_TARGETS * self.target.0;
        let little = window.achieved < u64::from(self.cap) >> QA_GATE;
        let falls = called && little && window.achieved < u64::from(window.bytes);
        if falls {
            window.bytes = (window.achieved as u32).max(self.mtu);
            window.ignore = heard.in_flight;
            window.delay = Delay::START;
        }
        self.begin(window, now);
        falls
    }
}

impl Window {
    /// A packet was lost or trimmed.
    pub const fn on_loss(&mut self) {
        self.lost = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 4096;
    const RTT: Time = Time::from_us(5);
    /// Four ports of 200 Gbit/s.
    const PRODUCT: u64 = 500_000;

    fn rule(config: &MrcConfig) -> Rule {
        Rule::new(config, PRODUCT, RTT)
    }

    fn heard(rtt_us: u64, marked: bool) -> Heard {
        Heard { packets: 4, bytes: 4 * MTU, marked, rtt: Time::from_us(rtt_us), in_flight: 400_000 }
    }

    #[test]
    fn it_starts_at_the_largest_window_and_marks_with_delay_cut_it_once_in_a_round_trip() {
        let rule = rule(&MrcConfig { quick_adapt: false, ..MrcConfig::default() });
        let mut window = rule.start();
        assert_eq!((window.bytes, rule.cap), (750_000, 750_000));
        let (mut cuts, mut last) = (Vec::new(), window.bytes);
        for us in 100..140 {
            rule.on_ack(&mut window, Time::from_us(us), &heard(30, true));
            if window.bytes < last {
                cuts.push(us);
            }
            assert!(window.bytes >= last / 2);
            last = window.bytes;
        }
        assert!(cuts.len() >= 3 && cuts.windows(2).all(|w| w[1] - w[0] >= 5), "{cuts:?}");
    }

    #[test]
    fn a_mark_without_delay_is_for_path_choice_alone() {
        let rule = rule(&MrcConfig { start_window_percent: 50, ..MrcConfig::default() });
        let mut window = rule.start();
        rule.on_ack(&mut window, Time::from_us(1), &heard(6, true));
        rule.on_ack(&mut window, Time::from_us(2), &heard(6, true));
        assert_eq!(window.bytes, 250_000);
    }

    #[test]
    fn a_window_that_achieves_little_and_sees_loss_falls_to_what_it_achieved() {
        for quick_adapt in [false, true] {
            let rule = rule(&MrcConfig { quick_adapt, ..MrcConfig::default() });
            let mut window = rule.start();
            let mut now = Time::from_us(100);
            rule.begin(&mut window, now);
            rule.on_ack(&mut window, now, &heard(5, false));
            window.on_loss();
            now += Time::from_us(10);
            rule.on_ack(&mut window, now, &heard(5, false));
            assert_eq!(window.bytes, if quick_adapt { 8 * MTU } else { 750_000 });
        }
        // An eighth of the largest window is no little: it stays.
        let rule = rule(&MrcConfig::default());
        let mut window = rule.start();
        rule.begin(&mut window, Time::from_us(100));
        rule.on_ack(&mut window, Time::from_us(100), &Heard { bytes: 94_000, ..heard(5, false) });
        window.on_loss();
        rule.on_ack(&mut window, Time::from_us(110), &heard(5, false));
        assert_eq!(window.bytes, 750_000);
    }
}
