//! DCQCN end to end: two flows on one queue, what the presets do to a rate, and how CNPs are spaced.

#![allow(clippy::float_arithmetic, reason = "fairness is a real number; nothing in the machine is")]

mod line;

use line::{Line, Red};
use metaroce_proto::{DcqcnPreset, RoceConfig};
use metaroce_wire::{Body, Bytes, Packet, Rate, Time, lengths};
use proptest::prelude::*;

const DELAY: Time = Time::from_us(2);

/// One QP without a window; the paper's packets are of 1 KiB.
fn config(dcqcn: DcqcnPreset) -> RoceConfig {
    RoceConfig { mtu: 1024, qps_per_plane: 1, window_percent: 0, dcqcn, ..RoceConfig::default() }
}

fn psn(packet: &Packet) -> Option<u32> {
    match &packet.body {
        Body::RoceData(data) => Some(data.psn),
        _ => None,
    }
}

/// The thresholds of the paper, at its 40 Gbit/s: 5 KB, 200 KB, 1 %.
#[test]
fn two_flows_from_unequal_rates_share_a_queue_between_its_thresholds() {
    let red = Red { kmin: 5_000, kmax: 200_000, pmax: (1 << 32) / 100 };
    let rate = Rate::from_gbps(40);
    for seed in 1..3 {
        let mut line = Line::new(&config(DcqcnPreset::Paper), 2, rate, DELAY);
        line.seed(seed);
        line.red = Some(red);
        for wr_id in 0..50 {
            line.post(0, wr_id, 1 << 24);
        }
        // The first flow is brought down alone.
        line.mark = Box::new(|packet| packet.envelope.src.0 == 0 && psn(packet).is_some_and(|psn| psn < 2_000));
        line.run_until(Time::from_us(400));
        line.mark = Box::new(|_| false);
        let slow = line.path(0).pace.expect("limited").0;
        for wr_id in 0..50 {
            line.post(1, wr_id, 1 << 24);
        }
        line.run_until(Time::from_us(410));
        assert!(
            slow * 8 < rate.0 && line.path(1).pace.is_none(),
            "seed {seed}: from {slow} bit/s beside the line rate"
        );
        line.run_until(Time::from_us(25_000));
        let before = line.placed.clone();
        (line.backlog, line.met) = (0, (0, 0));
        line.run_until(Time::from_us(75_000));
        let [a, b] = [0, 1].map(|flow| (line.placed[flow] - before[flow]) as f64);
        let jain = (a + b).powi(2) / (2.0 * (a * a + b * b));
        let wire = Bytes(u64::from(lengths::roce_data(1024, false)));
        let used = (a + b) * rate.time_for(wire).0 as f64 / 50e9;
        let (mean, most) = (line.met.0 / line.met.1, line.backlog);
        println!("seed {seed}: from 1:{}, Jain {jain:.4}, used {used:.3}, queue {mean} to {most}", rate.0 / slow);
        assert!(jain > 0.99, "seed {seed}: Jain {jain:.4}");
        assert!(red.kmin < mean && most < red.kmax, "seed {seed}: {mean} bytes on average, {most} at most");
        assert!(used > 0.97, "seed {seed}: {used:.3} of the line");
    }
}

/// Rate of a saturated flow after marks on the packets that leave at `marks_us`, at so many microseconds after
/// the first CNP has come, over the line rate.
fn rates(preset: DcqcnPreset, marks_us: &[u64], after_us: &[f64]) -> Vec<f64> {
    let rate = Rate::from_gbps(200);
    let mut line = Line::new(&config(preset), 1, rate, DELAY);
    for wr_id in 0..100 {
        line.post(0, wr_id, 1 << 24);
    }
    let mut first = None;
    let mut after = Vec::new();
    for &mark_us in marks_us {
        line.run_until(Time::from_us(mark_us));
        let mut left = 1;
        line.mark = Box::new(move |_| std::mem::take(&mut left) > 0);
        let told = line.cnps[0].len();
        line.run_while(|line| line.cnps[0].len() == told);
        first.get_or_insert(line.now + DELAY + Time::from_ns(10));
    }
    for &us in after_us {
        line.run_until(first.expect("a mark") + Time((us * 1e6) as u64));
        after.push(line.path(0).pace.unwrap_or(rate).0 as f64 / rate.0 as f64);
    }
    after
}

fn assert_rates(measured: &[f64], expected: &[f64]) {
    let near = measured.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(near && measured.len() == expected.len(), "{measured:.5?} for {expected:.5?}");
}

/// Paper: alpha 1 and half the rate at the first CNP, half the distance back each 55 us.
#[test]
fn the_paper_halves_at_once_and_recovers_every_55_microseconds() {
    let measured = rates(DcqcnPreset::Paper, &[10], &[1.0, 54.0, 56.0, 111.0, 166.0, 221.0, 276.0]);
    assert_rates(&measured, &[0.5, 0.5, 0.75, 0.875, 0.9375, 0.96875, 0.984375]);
}

/// NIC: alpha 1023/1024, the rate unchanged at the first CNP and cut after 4 us, in which alpha decays each 1 us;
/// then nothing before 32,767 units of 64 bytes are sent, or 300 us.
#[test]
fn the_nic_cuts_4_microseconds_later_and_recovers_by_its_byte_counter() {
    let cut = 1.0 - 1023.0 / 1024.0 * (1019.0_f64 / 1024.0).powi(4) / 2.0;
    let counted = 4.0 + 32_767.0 * 64.0 * 8.0 / (cut * 200e3);
    let measured = rates(DcqcnPreset::Nic, &[10], &[1.0, 3.9, 4.1, counted - 1.0, counted + 1.0]);
    assert_rates(&measured, &[1.0, 1.0, cut, cut, (1.0 + cut) / 2.0]);
}

/// Alpha falls by g each timer: by 7 % in a millisecond with the paper's, to nothing with the NIC's.
#[test]
fn the_paper_remembers_congestion_for_milliseconds_and_the_nic_forgets_it_in_one() {
    let paper = 1.0 - (255.0_f64 / 256.0).powi(18) / 2.0;
    assert_rates(&rates(DcqcnPreset::Paper, &[10, 1010], &[1001.0, 1005.0]), &[paper, paper]);
    let alpha = 1023.0 / 1024.0 * (1019.0_f64 / 1024.0).powi(1003) + 5.0 / 1024.0;
    let measured = rates(DcqcnPreset::Nic, &[10, 1010], &[1005.0])[0];
    assert!((measured - (1.0 - alpha / 2.0)).abs() < 2e-4, "{measured:.5}, alpha {alpha:.5}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // [I37]
    /// Whatever is marked, and with gaps of one's own.
    #[test]
    fn cnps_keep_their_gap_and_the_rate_its_bounds(
        nic in any::<bool>(),
        gap_us in prop::sample::select(vec![0u64, 1, 7, 80]),
        least_mbps in prop::sample::select(vec![0u64, 500, 20_000]),
        marked_permille in 1..1000u32,
        seed in any::<u64>(),
    ) {
        let preset = if nic { DcqcnPreset::Nic } else { DcqcnPreset::Paper };
        let config = RoceConfig { dcqcn_cnp_gap_us: gap_us, dcqcn_least_mbps: least_mbps, ..config(preset) };
        let rate = Rate::from_gbps(200);
        let mut line = Line::new(&config, 1, rate, DELAY);
        let mut draw = line::bernoulli(f64::from(marked_permille) / 1000.0, seed);
        line.mark = Box::new(move |_| draw());
        line.post(0, 1, 1 << 24);
        for us in (5..1_000).step_by(5) {
            line.run_until(Time::from_us(us));
            let pace = line.path(0).pace.unwrap_or(rate).0;
            prop_assert!((least_mbps.max(1) * 1_000_000..=rate.0).contains(&pace), "{} bit/s", pace);
        }
        let gap = Time::from_us(if gap_us > 0 { gap_us } else if nic { 4 } else { 50 });
        let cnps = &line.cnps[0];
        // One may wait for the control packet before it.
        let slack = rate.time_for(Bytes(u64::from(lengths::roce_cnp())));
        prop_assert!(cnps.windows(2).all(|w| w[1].since(w[0]) + slack >= gap), "gap {}: {:?}", gap, cnps);
        prop_assert!(!cnps.is_empty());
    }
}
