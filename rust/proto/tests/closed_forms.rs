//! Goodput of one saturated QP under independent loss of data packets, against closed forms.
//!
//! 400 Gbit/s, 4 KiB, DCQCN off. Time is counted in slots, one full packet each; eta is packets placed a slot.
//!
//! **Go-back-N.** A lost packet is sent again W slots later, W counted with the lost one: the next packet shows
//! the gap, the one NAK returns, the packet on the wire is finished. Nothing sent in between counts. If the next
//! packet is lost too, the gap shows one slot later, and so on: p / (1 − p) more on average. The resend is lost
//! with probability p; there is no second NAK, so it costs the timer, T slots from resend to resend, and again
//! with probability p. What follows the packet meets fresh draws. So the slots of a packet are independent of
//! those of others, with mean
//!   1/eta = 1 + p (W + p/(1−p) + p/(1−p) T),
//! the published form but for p/(1−p), at most 0.1 % of W here. T = 0 of the published table is go-back-N
//! without a timer: a resend that is always in time and never lost, which only a test can have.
//! On the adaptive ladder the k-th expiry in a row lasts 2^min(k,3) T: p T (p + 2 p² + 4 p³ + 8 p⁴/(1−p)).
//!
//! **Selective repeat**, window not in the way: the port never idles and nothing is sent in vain, so what is
//! placed in S slots is binomial (S, 1 − p), whatever the timers. A window of C packets, C < 2 W, stalls
//! for 2 W − C slots at a loss, since it counts from the oldest packet missing: first order in p.
//!
//! Standard errors are those of the forms, not of the sample. `--nocapture` shows the table.

#![allow(clippy::float_arithmetic, reason = "closed forms are real numbers; nothing in the machine is")]

mod line;

use line::{Line, bernoulli};
use metaroce_proto::{DcqcnPreset, Recovery, RoceConfig, RoceTimer};
use metaroce_wire::{Body, Bytes, Packet, Rate, Time, lengths};

const RATE: Rate = Rate::from_gbps(400);
/// One way, so that W is 120.
const DELAY: Time = Time(4_912_000);
const W: f64 = 120.0;
const MTU: u64 = 4096;

fn slot() -> f64 {
    RATE.time_for(Bytes(u64::from(lengths::roce_data(4096, false)))).0 as f64
}

fn single(window_percent: u32) -> RoceConfig {
    RoceConfig { qps_per_plane: 1, window_percent, dcqcn: DcqcnPreset::Off, retry_count: 1000, ..RoceConfig::default() }
}

fn saturated(config: &RoceConfig, packets: u64) -> Line {
    let mut line = Line::new(config, 1, RATE, DELAY);
    // Long messages: few packets carry a RETH.
    let message = 1 << 16;
    for k in 0..packets.div_ceil(message) + 1 {
        line.post(0, k as u32, message * MTU);
    }
    line
}

fn sequence_number(packet: &Packet) -> u32 {
    match &packet.body {
        Body::RoceData(data) => data.psn,
        _ => 0,
    }
}

/// Slots from the start of the first packet to the end of the last of `packets`, a packet.
fn slots_a_packet(line: &mut Line, packets: u64) -> f64 {
    line.run_while(|line| line.placed[0] < packets);
    assert_eq!(line.placed[0], packets, "stopped at {}", line.now);
    (line.placed_at.0 - DELAY.0) as f64 / slot() / packets as f64
}

/// Mean and variance of the slots of a packet with first losses that cost `rewind` and a k-th lost resend
/// (from 0) that costs `timer(k)`.
fn moments(p: f64, rewind: f64, timer: impl Fn(u32) -> f64) -> (f64, f64) {
    let (mut mean, mut square) = (1.0 - p, 1.0 - p);
    let (mut probability, mut cost) = (p, 1.0 + rewind);
    for k in 0..400 {
        mean += probability * (1.0 - p) * cost;
        square += probability * (1.0 - p) * cost * cost;
        probability *= p;
        cost += timer(k);
    }
    (mean, square - mean * mean)
}

/// Slots that a first loss costs.
fn rewind(p: f64) -> f64 {
    W + p / (1.0 - p)
}

struct Cell {
    p: f64,
    packets: u64,
    seed: u64,
}

/// A row of the table; the deviation in standard errors.
fn report(name: &str, cell: &Cell, measured: f64, (mean, variance): (f64, f64)) -> f64 {
    let z = (measured - mean) / (variance / cell.packets as f64).sqrt();
    println!(
        "{name:>22} p {:<6} eta {:.4} form {:.4} z {z:+.2} seed {}",
        cell.p,
        1.0 / measured,
        1.0 / mean,
        cell.seed
    );
    z
}

const CELLS: [Cell; 4] = [
    Cell { p: 1e-4, packets: 500_000, seed: 11 },
    Cell { p: 1e-3, packets: 500_000, seed: 12 },
    Cell { p: 1e-2, packets: 500_000, seed: 13 },
    Cell { p: 1e-1, packets: 60_000, seed: 14 },
];

fn measure(config: &RoceConfig, cell: &Cell) -> f64 {
    let mut line = saturated(config, cell.packets);
    let mut lost = bernoulli(cell.p, cell.seed);
    line.loss = Box::new(move |_| lost());
    slots_a_packet(&mut line, cell.packets)
}

#[test]
fn a_loss_costs_120_slots_and_a_lost_resend_the_timer() {
    for (losses, timer_slots) in [(1, 0.0), (2, 1.0), (3, 2.0)] {
        let config = RoceConfig { timer: RoceTimer::Fixed, timeout_exponent: 7, ..single(250) };
        let timeout = 4.096e6 * 128.0 / slot();
        let mut line = saturated(&config, 2_000);
        let mut left = losses;
        line.loss = Box::new(move |packet| {
            let lost = sequence_number(packet) == 1_000 && left > 0;
            left -= u32::from(lost);
            lost
        });
        let slots = slots_a_packet(&mut line, 2_000) * 2_000.0 - 2_000.0;
        let expected = W + timer_slots * timeout;
        assert!((slots - expected).abs() < 0.1, "{losses} losses: {slots} slots for {expected}");
    }
}

/// Without timer: a packet that the receiver missed as the one it expected comes through the next time.
fn measure_pure(cell: &Cell) -> f64 {
    let mut line = saturated(&single(0), cell.packets);
    let mut draw = bernoulli(cell.p, cell.seed);
    let (mut expected, mut spared) = (0, None);
    line.loss = Box::new(move |packet| {
        let psn = sequence_number(packet);
        let lost = draw() && spared != Some(psn);
        if psn == expected && lost {
            spared = Some(psn);
        } else if psn == expected {
            expected += 1;
        }
        lost
    });
    let measured = slots_a_packet(&mut line, cell.packets);
    assert_eq!(line.hosts[0].counters().timeouts, 0);
    measured
}

// [I38]
#[test]
fn pure_go_back_n_meets_its_closed_form() {
    for cell in &CELLS {
        let z = report("go-back-N, T 0", cell, measure_pure(cell), moments(cell.p, rewind(cell.p), |_| 0.0));
        assert!(z.abs() < 3.0, "p {}, seed {}: {z:.2} standard errors", cell.p, cell.seed);
    }
}

/// All cells with timers of `exponent`, and how far a timer of 0.7 T is from what was measured.
fn fixed_timer(exponent: u32, window_percent: u32) {
    let timeout = 4.096e6 * f64::from(1u32 << exponent) / slot();
    let config = RoceConfig { timer: RoceTimer::Fixed, timeout_exponent: exponent, ..single(window_percent) };
    let name = format!("go-back-N, T {:.2} ms", 4.096e-3 * f64::from(1u32 << exponent));
    for cell in &CELLS {
        let measured = measure(&config, cell);
        let z = report(&name, cell, measured, moments(cell.p, rewind(cell.p), |_| timeout));
        assert!(z.abs() < 3.0, "p {}, seed {}: {z:.2} standard errors", cell.p, cell.seed);
        let other = moments(cell.p, rewind(cell.p), |_| 0.7 * timeout);
        let apart = (measured - other.0) / (other.1 / cell.packets as f64).sqrt();
        assert!(cell.p < 0.1 || apart > 5.0, "0.7 T is {apart:.1} standard errors away");
    }
}

// [I38]
#[test]
fn go_back_n_with_a_timer_of_half_a_millisecond_meets_its_closed_form() {
    fixed_timer(7, 250);
}

// [I38]
#[test]
fn go_back_n_with_a_timer_of_4_milliseconds_meets_its_closed_form() {
    fixed_timer(10, 250);
}

// [I38]
#[test]
fn go_back_n_with_the_timer_of_67_milliseconds_meets_its_closed_form() {
    fixed_timer(14, 250);
}

#[test]
fn go_back_n_on_the_adaptive_ladder_meets_its_closed_form() {
    for (milliseconds, ps) in [(0.5, 500_000_000), (2.0, 2_000_000_000)] {
        let config = RoceConfig { adaptive_base_ps: ps, ..single(250) };
        let rung = |k: u32| f64::from(1 << k.min(3)) * ps as f64 / slot();
        // Long rows of lost resends, or the rungs would hardly show.
        for cell in [&CELLS[2], &Cell { p: 0.3, packets: 20_000, seed: 15 }] {
            let measured = measure(&config, cell);
            let name = format!("ladder from {milliseconds} ms");
            let z = report(&name, cell, measured, moments(cell.p, rewind(cell.p), rung));
            assert!(z.abs() < 3.0, "p {}, seed {}: {z:.2} standard errors", cell.p, cell.seed);
        }
    }
}

/// The window only has to reach beyond a round trip. Without one, the port is never idle, so that the resend
/// waits for the packet on the wire.
#[test]
fn go_back_n_without_a_window_costs_the_same() {
    let cell = &CELLS[2];
    let config = RoceConfig { timer: RoceTimer::Fixed, timeout_exponent: 7, ..single(0) };
    let timeout = (4.096e6 * 128.0 / slot()).ceil();
    let measured = measure(&config, cell);
    let z = report("no window, T 0.52 ms", cell, measured, moments(cell.p, rewind(cell.p), |_| timeout));
    assert!(z.abs() < 3.0, "{z:.2} standard errors");
}

/// The published table, for timers of exactly 0.5, 4 and 67.1 ms, within its last digit.
#[test]
fn the_closed_form_gives_the_published_table() {
    let table = [
        (1e-4, [0.988, 0.988, 0.988, 0.980], 0.001),
        (1e-3, [0.893, 0.888, 0.855, 0.53], 0.011),
        (1e-2, [0.455, 0.356, 0.142, 0.012], 0.002),
    ];
    for (p, row, error) in table {
        for (published, milliseconds) in row.into_iter().zip([0.0, 0.5, 4.0, 67.1]) {
            let (mean, _) = moments(p, W, |_| milliseconds * 1e9 / slot());
            assert!((1.0 / mean - published).abs() <= error, "p {p}, {milliseconds} ms: {:.4}", 1.0 / mean);
        }
    }
}

fn selective(window_percent: u32) -> RoceConfig {
    RoceConfig { recovery: Recovery::SelectiveRepeat, ..single(window_percent) }
}

/// Packets placed in `slots` slots.
fn measure_selective(p: f64, seed: u64, slots: u64) -> (Line, f64) {
    let mut line = saturated(&selective(0), slots);
    let mut lost = bernoulli(p, seed);
    line.loss = Box::new(move |_| lost());
    line.run_until(Time((slots as f64 * slot()) as u64 + DELAY.0));
    assert_eq!(line.hosts[1].counters().duplicates, 0, "nothing is sent in vain");
    let eta = line.placed[0] as f64 / slots as f64;
    (line, eta)
}

// [I38]
#[test]
fn selective_repeat_delivers_all_that_is_not_lost() {
    for (p, seed) in [(1e-4, 21), (1e-3, 22), (1e-2, 23), (1e-1, 24)] {
        let slots = 500_000;
        let (line, eta) = measure_selective(p, seed, slots);
        let z = (eta - (1.0 - p)) / (p * (1.0 - p) / slots as f64).sqrt();
        println!("{:>22} p {p:<6} eta {eta:.4} form {:.4} z {z:+.2} seed {seed}", "selective repeat", 1.0 - p);
        assert!(z.abs() < 3.0, "p {p}, seed {seed}: {z:.2} standard errors");
        assert!(p < 0.01 || line.hosts[0].counters().timeouts > 20, "lost resends are part of it");
    }
}

#[test]
fn a_window_of_one_product_costs_selective_repeat_a_round_trip_a_loss() {
    for (window_percent, window) in [(100, 120.0), (150, 180.0)] {
        let cell = Cell { p: 1e-4, packets: 1_000_000, seed: 31 };
        let measured = measure(&RoceConfig { ack_every: 1, ..selective(window_percent) }, &cell);
        // The lost packet is sent again after W slots, and acknowledged after W more; one slot is its own.
        let mean = 1.0 + cell.p * (2.0 * W - window) + cell.p * cell.p * 320e6 / slot();
        let variance = cell.p * (2.0 * W - window) * (2.0 * W - window);
        let z = report(&format!("selective, window {window}"), &cell, measured, (mean, variance));
        assert!(z.abs() < 3.0, "window {window}: {z:.2} standard errors");
    }
}

/// Prints the table of docs/rocev2.md.
#[test]
#[ignore = "long: many packets, for rare cells"]
fn the_table_of_the_documentation() {
    println!("| p | T 0 | T 0.52 ms | T 4.19 ms | T 67.1 ms | selective repeat |\n|---|---|---|---|---|---|");
    for (p, packets) in [(1e-4, 10_000_000), (1e-3, 10_000_000), (1e-2, 3_000_000), (1e-1, 300_000)] {
        let cell = Cell { p, packets, seed: 1 };
        print!("| {p} ");
        for exponent in [0, 7, 10, 14] {
            let timeout = if exponent == 0 { 0.0 } else { 4.096e6 * f64::from(1u32 << exponent) / slot() };
            let config = RoceConfig { timer: RoceTimer::Fixed, timeout_exponent: exponent, ..single(250) };
            let measured = if exponent == 0 { measure_pure(&cell) } else { measure(&config, &cell) };
            let (mean, variance) = moments(p, rewind(p), |_| timeout);
            let z = (measured - mean) / (variance / packets as f64).sqrt();
            print!("| {:.5} / {:.5} ({:+.1}) ", 1.0 / measured, 1.0 / mean, -z);
        }
        let (_, eta) = measure_selective(p, 1, packets);
        let z = (eta - (1.0 - p)) / (p * (1.0 - p) / packets as f64).sqrt();
        println!("| {eta:.5} / {:.5} ({z:+.1}) |", 1.0 - p);
    }
}
