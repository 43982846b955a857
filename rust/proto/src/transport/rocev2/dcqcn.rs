//! DCQCN, reaction point and constants (Zhu et al., SIGCOMM 2015; NIC defaults from the vendor's
//! parameter page), in integers and without timers of its own.
//!
//! A QP gets a [`Limiter`] with its first CNP and runs at line rate until then. Alpha decay, pending cuts
//! and timed increases are caught up when the QP sends, when it may send, or when a CNP arrives;
//! [`Limiter::due`] tells a QP that waits for its pace when to look again.

use metaroce_wire::{Rate, Time};

use crate::config::{DcqcnPreset, RoceConfig};

/// 1 in the fixed point of alpha.
const ONE: u64 = 1 << 32;
const MBPS: u64 = 1_000_000;

/// When a CNP cuts the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutRule {
    /// At once; CNPs within `spacing` of the last cut are ignored (paper).
    AtOnce,
    /// At the end of the running monitor period of `spacing`, counted from the first CNP (NIC).
    EndOfPeriod,
}

/// A published parameter set.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// g, in 1/1024.
    pub gain: u64,
    /// Alpha of the first CNP, in 1/1024.
    pub first_alpha: u64,
    /// Alpha decays once in this, us.
    pub alpha_us: u64,
    rule: CutRule,
    /// At most one cut, and one CNP, in this, us.
    pub spacing_us: u64,
    /// Period of the timed increase, us.
    pub increase_us: u64,
    /// Bytes of the counted increase.
    pub increase_bytes: u64,
    /// Rounds of fast recovery.
    pub stages: u32,
    /// Additive increase, Mbit/s.
    pub additive_mbps: u64,
    /// Hyper increase, Mbit/s.
    pub hyper_mbps: u64,
    /// Rate of the port that the increases were published for, Mbit/s.
    pub line_mbps: u64,
}

/// Zhu et al., SIGCOMM 2015.
pub const PAPER: Published = Published {
    gain: 4,
    first_alpha: 1024,
    alpha_us: 55,
    rule: CutRule::AtOnce,
    spacing_us: 50,
    increase_us: 55,
    increase_bytes: 10_000_000,
    stages: 5,
    additive_mbps: 40,
    hyper_mbps: 400,
    line_mbps: 40_000,
};

/// NIC defaults (vendor's parameter page); 25 Gbit/s as the HPCC simulator takes it.
pub const NIC: Published = Published {
    gain: 5,
    first_alpha: 1023,
    alpha_us: 1,
    rule: CutRule::EndOfPeriod,
    spacing_us: 4,
    increase_us: 300,
    increase_bytes: 32_767 * 64,
    stages: 1,
    additive_mbps: 5,
    hyper_mbps: 50,
    line_mbps: 25_000,
};

/// Least rate: the NIC's. The paper names none.
pub const MIN_RATE_MBPS: u64 = 1;
/// A rate this close to the line's, as a right shift of that, is the line's. Ours: halving the
/// distance never ends; a tenth of a percent is beyond a rate limiter.
pub const AT_LINE_SHIFT: u32 = 10;
/// A cut takes alpha ÷ this of the rate (SIGCOMM 2015).
pub const CUT: u64 = 2;
/// An increase closes one in so many of the distance to the target (SIGCOMM 2015).
pub const RECOVERY: u64 = 2;

/// One parameter set, scaled to the rate of a port.
#[derive(Clone, Debug)]
pub struct Params {
    line: Rate,
    /// 1 − g.
    keep: u64,
    first_alpha: u64,
    alpha_period: Time,
    rule: CutRule,
    spacing: Time,
    /// Least time between two CNPs of a QP, kept by the notification point.
    pub cnp_gap: Time,
    increase_period: Time,
    increase_bytes: u64,
    stages: u32,
    additive: u64,
    hyper: u64,
    min_rate: u64,
}

impl Params {
    /// The constants of `preset` for a port of rate `line`; none without rate control.
    ///
    /// Increase steps are scaled with the line rate from the one that they were published for: without
    /// it, recovery at 200 Gbit/s would take 8 times as long. That favours this baseline.
    pub fn new(preset: DcqcnPreset, line: Rate) -> Option<Params> {
        let set = match preset {
            DcqcnPreset::Off => return None,
            DcqcnPreset::Paper => PAPER,
            DcqcnPreset::Nic => NIC,
        };
        let scaled = |mbps: u64| (line.0 / (set.line_mbps / mbps)).max(mbps * MBPS);
        Some(Params {
            line,
            keep: ONE / 1024 * (1024 - set.gain),
            first_alpha: ONE / 1024 * set.first_alpha,
            alpha_period: Time::from_us(set.alpha_us),
            rule: set.rule,
            spacing: Time::from_us(set.spacing_us),
            cnp_gap: Time::from_us(set.spacing_us),
            increase_period: Time::from_us(set.increase_us),
            increase_bytes: set.increase_bytes,
            stages: set.stages,
            additive: scaled(set.additive_mbps),
            hyper: scaled(set.hyper_mbps),
            min_rate: MIN_RATE_MBPS * MBPS,
        })
    }

    /// The preset of `config` with what it sets itself, which is not scaled.
    pub fn of(config: &RoceConfig, line: Rate) -> Option<Params> {
        let preset = Params::new(config.dcqcn, line)?;
        let own = |value: u64, preset: u64| if value == 0 { preset } else { value };
        let timer = |us: u64, preset: Time| Time(own(Time::from_us(us).0, preset.0));
        let rate = |mbps: u64, preset: u64| own(mbps * MBPS, preset).min(line.0);
        Some(Params {
            keep: if config.dcqcn_gain == 0 { preset.keep } else { ONE / 1024 * (1024 - u64::from(config.dcqcn_gain)) },
            alpha_period: timer(config.dcqcn_alpha_timer_us, preset.alpha_period),
            spacing: timer(config.dcqcn_cut_spacing_us, preset.spacing),
            cnp_gap: timer(config.dcqcn_cnp_gap_us, preset.cnp_gap),
            increase_period: timer(config.dcqcn_increase_timer_us, preset.increase_period),
            increase_bytes: own(config.dcqcn_increase_bytes, preset.increase_bytes),
            stages: own(config.dcqcn_stages.into(), preset.stages.into()) as u32,
            additive: rate(config.dcqcn_additive_mbps, preset.additive),
            hyper: rate(config.dcqcn_hyper_mbps, preset.hyper),
            min_rate: rate(config.dcqcn_least_mbps, preset.min_rate),
            ..preset
        })
    }
}

/// The rate state of one QP.
#[derive(Clone, Debug)]
pub struct Limiter {
    rate: u64,
    target: u64,
    alpha: u64,
    /// Last alpha tick that is accounted for.
    alpha_at: Time,
    /// A CNP has come since then (NIC rule: alpha rises at the next tick).
    cnp_seen: bool,
    first_cnp: Time,
    last_cut: Time,
    cut_due: Time,
    increase_due: Time,
    bytes: u64,
    timer_stage: u32,
    byte_stage: u32,
}

impl Limiter {
    /// A limiter at line rate, allocated by the first CNP, which it takes into account.
    pub fn new(params: &Params, now: Time) -> Limiter {
        let mut limiter = Limiter {
            rate: params.line.0,
            target: params.line.0,
            alpha: params.first_alpha,
            alpha_at: now,
            cnp_seen: false,
            first_cnp: now,
            last_cut: now,
            cut_due: Time::NEVER,
            increase_due: Time::NEVER,
            bytes: 0,
            timer_stage: 0,
            byte_stage: 0,
        };
        match params.rule {
            CutRule::AtOnce => limiter.cut(params, now),
            // "Rate unchanged on first CNP": the first cut ends the first monitor period.
            CutRule::EndOfPeriod => limiter.cut_due = now + params.spacing,
        }
        limiter
    }

    /// A further CNP.
    pub fn congested(&mut self, params: &Params, now: Time) {
        self.catch_up(params, now);
        match params.rule {
            CutRule::AtOnce if now.since(self.last_cut) < params.spacing => {}
            CutRule::AtOnce => self.cut(params, now),
            CutRule::EndOfPeriod => {
                self.decay(params, now);
                self.cnp_seen = true;
                if self.cut_due == Time::NEVER {
                    let periods = now.since(self.first_cnp).0 / params.spacing.0 + 1;
                    self.cut_due = self.first_cnp + Time(periods * params.spacing.0);
                }
            }
        }
    }

    /// Runs every timed cut and increase up to `now`.
    pub fn catch_up(&mut self, params: &Params, now: Time) {
        while self.due() <= now {
            if self.cut_due <= self.increase_due {
                let at = std::mem::replace(&mut self.cut_due, Time::NEVER);
                self.cut(params, at);
            } else {
                self.increase_due += params.increase_period;
                self.timer_stage += 1;
                self.increase(params);
            }
        }
    }

    /// Counts bytes put on the wire.
    pub fn sent(&mut self, params: &Params, bytes: u32) {
        if self.increase_due == Time::NEVER {
            return;
        }
        self.bytes += u64::from(bytes);
        if self.bytes >= params.increase_bytes {
            self.bytes -= params.increase_bytes;
            self.byte_stage += 1;
            self.increase(params);
        }
    }

    /// The estimate alpha in thousandths.
    pub const fn ecn_permille(&self) -> u16 {
        (self.alpha * 1000 / ONE) as u16
    }

    /// When the rate changes next by itself.
    pub fn due(&self) -> Time {
        self.cut_due.min(self.increase_due)
    }

    /// The rate to pace at; none at line rate, where the port paces.
    pub fn pace(&self, params: &Params) -> Option<Rate> {
        (self.rate < params.line.0).then_some(Rate(self.rate))
    }

    fn cut(&mut self, params: &Params, now: Time) {
        self.decay(params, now);
        // NICs leave the target of a burst of cuts where it was before the burst, unless the
        // timer has raised the rate since (`clamp_tgt_rate` off, `clamp_tgt_rate_after_time_inc` on).
        if params.rule == CutRule::AtOnce || self.timer_stage > 0 {
            self.target = self.rate;
        }
        let cut = (u128::from(self.rate) * u128::from(self.alpha) / u128::from(CUT * ONE)) as u64;
        // [I37]
        self.rate = (self.rate - cut).max(params.min_rate).min(params.line.0);
        if params.rule == CutRule::AtOnce {
            self.alpha = raised(self.alpha, params.keep);
            self.alpha_at = now;
        }
        self.last_cut = now;
        self.increase_due = now + params.increase_period;
        (self.bytes, self.timer_stage, self.byte_stage) = (0, 0, 0);
    }

    /// Fast recovery for `stages` rounds, then additive, and hyper increase once timer and byte
    /// counter both have passed their rounds.
    fn increase(&mut self, params: &Params) {
        let (low, high) = (self.timer_stage.min(self.byte_stage), self.timer_stage.max(self.byte_stage));
        if high > params.stages {
            self.target += if low > params.stages { params.hyper } else { params.additive };
            self.target = self.target.min(params.line.0);
        }
        self.rate += (self.target - self.rate).div_ceil(RECOVERY);
        if params.line.0 - self.rate <= params.line.0 >> AT_LINE_SHIFT {
            (self.rate, self.target) = (params.line.0, params.line.0);
            self.increase_due = Time::NEVER;
        }
    }

    /// Runs the alpha ticks up to `now`.
    fn decay(&mut self, params: &Params, now: Time) {
        let mut ticks = now.since(self.alpha_at).0 / params.alpha_period.0;
        if ticks == 0 {
            return;
        }
        self.alpha_at += Time(ticks * params.alpha_period.0);
        if std::mem::take(&mut self.cnp_seen) {
            self.alpha = raised(self.alpha, params.keep);
            ticks -= 1;
        }
        self.alpha = decayed(self.alpha, params.keep, ticks);
    }
}

/// (1 − g) α + g.
fn raised(alpha: u64, keep: u64) -> u64 {
    decayed(alpha, keep, 1) + (ONE - keep)
}

/// (1 − g)^ticks α, by repeated squaring: an idle QP may have missed millions of ticks.
fn decayed(mut alpha: u64, keep: u64, mut ticks: u64) -> u64 {
    // `keep` < ONE, so no product exceeds 64 bits.
    let mut power = keep;
    while ticks > 0 && alpha > 0 {
        if ticks & 1 == 1 {
            alpha = (alpha * power) >> 32;
        }
        power = (power * power) >> 32;
        ticks >>= 1;
    }
    alpha
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE: Rate = Rate::from_gbps(200);

    fn params(preset: DcqcnPreset) -> Params {
        Params::new(preset, LINE).expect("preset has rate control")
    }

    #[test]
    fn paper_halves_on_the_first_cnp_and_recovers_in_five_halvings() {
        let params = params(DcqcnPreset::Paper);
        let mut limiter = Limiter::new(&params, Time::ZERO);
        assert_eq!((limiter.rate, limiter.target), (LINE.0 / 2, LINE.0));
        for round in 1..=5u64 {
            limiter.catch_up(&params, Time::from_us(55 * round));
            assert_eq!(LINE.0 - limiter.rate, (LINE.0 / 2) >> round);
        }
        assert_eq!(limiter.target, LINE.0, "fast recovery leaves the target alone");
    }

    #[test]
    fn paper_ignores_cnps_within_the_spacing_and_alpha_follows_g() {
        let params = params(DcqcnPreset::Paper);
        let mut limiter = Limiter::new(&params, Time::ZERO);
        limiter.congested(&params, Time::from_us(49));
        assert_eq!(limiter.rate, LINE.0 / 2);
        limiter.congested(&params, Time::from_us(50));
        assert_eq!((limiter.rate, limiter.target), (LINE.0 / 4, LINE.0 / 2), "alpha is still 1");
        // One alpha tick without a CNP: alpha = 255/256, the next cut takes 255/512.
        limiter.congested(&params, Time::from_us(105));
        let before = LINE.0 / 4 + LINE.0 / 8;
        assert_eq!(limiter.rate, before - before * 255 / 512);
    }

    #[test]
    fn paper_goes_on_to_additive_and_hyper_increase() {
        let params = params(DcqcnPreset::Paper);
        let mut limiter = Limiter::new(&params, Time::ZERO);
        for cnp in 1..6 {
            limiter.congested(&params, Time::from_us(50 * cnp));
        }
        let (start, target) = (Time::from_us(250), limiter.target);
        limiter.catch_up(&params, start + Time::from_us(5 * 55));
        assert_eq!(limiter.target, target);
        limiter.catch_up(&params, start + Time::from_us(6 * 55));
        assert_eq!(limiter.target, target + 200 * MBPS, "40 Mbit/s at 40 Gbit/s");
        for _ in 0..5 {
            limiter.sent(&params, 10_000_000);
        }
        assert_eq!(limiter.target, target + 6 * 200 * MBPS, "the byte counter is still in its rounds");
        limiter.sent(&params, 10_000_000);
        assert_eq!(limiter.target, target + 6 * 200 * MBPS + 2000 * MBPS, "both have passed them");
    }

    #[test]
    fn nic_cuts_once_a_monitor_period_and_keeps_the_target_of_a_burst() {
        let params = params(DcqcnPreset::Nic);
        let mut limiter = Limiter::new(&params, Time::ZERO);
        assert_eq!(limiter.pace(&params), None, "rate unchanged on the first CNP");
        limiter.congested(&params, Time::from_us(1));
        limiter.congested(&params, Time::from_us(3));
        limiter.catch_up(&params, Time::from_us(4));
        let once = limiter.rate;
        assert!(once > LINE.0 / 2 && once < LINE.0 / 2 + LINE.0 / 100, "{once}");
        limiter.congested(&params, Time::from_us(9));
        assert_eq!(limiter.due(), Time::from_us(12));
        limiter.catch_up(&params, Time::from_us(12));
        assert!(limiter.rate < once && limiter.rate > once / 2);
        assert_eq!(limiter.target, LINE.0);
        let twice = limiter.rate;
        limiter.catch_up(&params, Time::from_us(312));
        assert_eq!(limiter.rate, twice + (LINE.0 - twice).div_ceil(2), "fast recovery towards it");
        limiter.congested(&params, Time::from_us(313));
        let raised = limiter.rate;
        limiter.catch_up(&params, Time::from_us(316));
        assert_eq!(limiter.target, raised, "the timer had raised the rate");
    }

    #[test]
    fn nic_recovers_to_line_rate_and_stops_its_events() {
        let params = params(DcqcnPreset::Nic);
        let mut limiter = Limiter::new(&params, Time::ZERO);
        limiter.catch_up(&params, Time::from_us(4));
        limiter.catch_up(&params, Time::from_us(10_000));
        assert_eq!((limiter.pace(&params), limiter.due()), (None, Time::NEVER));
    }

    #[test]
    fn rate_never_falls_below_the_minimum() {
        for preset in [DcqcnPreset::Paper, DcqcnPreset::Nic] {
            let params = params(preset);
            let mut limiter = Limiter::new(&params, Time::ZERO);
            for cnp in 1..200 {
                limiter.congested(&params, Time::from_us(50 * cnp));
            }
            assert!(limiter.rate >= MBPS);
        }
    }

    #[test]
    fn what_is_set_takes_the_place_of_the_preset_and_the_rest_stays() {
        for preset in [DcqcnPreset::Paper, DcqcnPreset::Nic] {
            let plain = RoceConfig { dcqcn: preset, ..RoceConfig::default() };
            let of = |config: &RoceConfig| format!("{:?}", Params::of(config, LINE).expect("rate control"));
            assert_eq!(of(&plain), format!("{:?}", params(preset)));
            let set = RoceConfig {
                dcqcn_gain: 512,
                dcqcn_alpha_timer_us: 2,
                dcqcn_cut_spacing_us: 3,
                dcqcn_cnp_gap_us: 5,
                dcqcn_increase_timer_us: 7,
                dcqcn_increase_bytes: 11,
                dcqcn_stages: 13,
                dcqcn_additive_mbps: 17,
                dcqcn_hyper_mbps: 1_000_000,
                dcqcn_least_mbps: 19,
                ..plain
            };
            let params = Params::of(&set, LINE).expect("rate control");
            assert_eq!((params.keep, params.stages, params.increase_bytes), (ONE / 2, 13, 11));
            assert_eq!((params.additive, params.hyper, params.min_rate), (17 * MBPS, LINE.0, 19 * MBPS));
            let times = [params.alpha_period, params.spacing, params.cnp_gap, params.increase_period];
            assert_eq!(times, [2, 3, 5, 7].map(Time::from_us));
            assert_eq!(params.rule, self::params(preset).rule);
        }
    }

    proptest! {
        #[test]
        fn the_rate_stays_between_its_bounds_and_below_its_target(
            nic in any::<bool>(),
            gain in 0..1025u32,
            times in (0..9u64, 0..9u64, 0..90u64),
            stages in 0..9u32,
            rates in (0..250_000u64, 0..250_000u64, 0..250_000u64),
            steps in prop::collection::vec((0..4u8, 0..400_000_000u64), 1..150),
        ) {
            let config = RoceConfig {
                dcqcn: if nic { DcqcnPreset::Nic } else { DcqcnPreset::Paper },
                dcqcn_gain: gain,
                dcqcn_alpha_timer_us: times.0,
                dcqcn_cut_spacing_us: times.1,
                dcqcn_increase_timer_us: times.2,
                dcqcn_increase_bytes: 100_000,
                dcqcn_stages: stages,
                dcqcn_additive_mbps: rates.0,
                dcqcn_hyper_mbps: rates.1,
                dcqcn_least_mbps: rates.2,
                ..RoceConfig::default()
            };
            let params = Params::of(&config, LINE).expect("rate control");
            let (mut now, mut limiter) = (Time::ZERO, Limiter::new(&params, Time::ZERO));
            for (what, span) in steps {
                match what {
                    0 => limiter.congested(&params, now),
                    1 => limiter.sent(&params, 60_000),
                    _ => now += Time(span),
                }
                limiter.catch_up(&params, now);
                let Limiter { rate, target, alpha, .. } = limiter;
                prop_assert!(params.min_rate <= rate && rate <= target && target <= LINE.0, "{:?}", limiter);
                prop_assert!(alpha <= ONE, "{:?}", limiter);
                prop_assert!(limiter.due() > now);
            }
        }
    }

    #[test]
    fn decay_in_one_step_equals_decay_in_many() {
        let keep = ONE / 1024 * 1019;
        let mut alpha = ONE;
        for _ in 0..300 {
            alpha = decayed(alpha, keep, 1);
        }
        let at_once = decayed(ONE, keep, 300);
        assert!(alpha.abs_diff(at_once) <= 600, "{alpha} {at_once}");
        assert_eq!(decayed(ONE, keep, u64::MAX), 0);
    }
}
