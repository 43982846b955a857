//! The controllers behind the seam: their curves on a queue that is shared, and what holds for all.

use metaroce_wire::Time;
use proptest::prelude::*;

use super::*;
use crate::transport::metaroce::path::{Acked, SendPath, ticks};

const MTU: u32 = 4096;
const BASE: Time = Time::from_us(5);
const KINDS: [ControllerKind; 3] = [ControllerKind::Aimd, ControllerKind::Nscc, ControllerKind::Swift];
/// A port of 200 Gbit/s × 5 us, bytes.
const BDP: u32 = 125_000;
/// Packets are marked where the queue is longer, bytes.
const MARKING: u32 = 51_200;
const CAP: u32 = 2 * BDP;

fn config(controller: ControllerKind) -> MetaRoceConfig {
    MetaRoceConfig { controller, ..MetaRoceConfig::default() }
}

fn controller(config: &MetaRoceConfig, paths: u64) -> Controller {
    Controller::new(config, Place { base_rtt: ticks(BASE), bdp: u64::from(BDP), paths, cap: CAP })
}

fn path(controller: &Controller, window: u32) -> SendPath {
    SendPath::new((0, 0), 0xC000, window, BASE, controller.start())
}

/// A window's worth of packets on `path`, acknowledged one by one. Answers how often the window fell.
fn round(path: &mut SendPath, controller: &Controller, marked: bool, rtt: Time) -> u32 {
    let (first, mut ce) = (path.next_pps, path.marks());
    let packets = (path.cwnd / MTU).max(1);
    path.next_pps += packets;
    // What arrives is replaced at once.
    path.in_flight = packets * MTU;
    let mut cuts = 0;
    for max_pps in first..first + packets {
        ce += u32::from(marked);
        let before = path.cwnd;
        path.on_ack(controller, Acked { packets: 1, bytes: MTU, max_pps, ce, rtt, paths: 1 });
        cuts += u32::from(path.cwnd < before);
    }
    cuts
}

/// `rounds` of paths that share one port; bytes of its queue in each.
fn share(paths: &mut [SendPath], controller: &Controller, rounds: usize) -> Vec<u32> {
    let mut queues = Vec::new();
    for _ in 0..rounds {
        let queue = paths.iter().map(|p| p.cwnd).sum::<u32>().saturating_sub(BDP);
        let rtt = BASE + Time(u64::from(queue) * BASE.0 / u64::from(BDP));
        for path in &mut *paths {
            round(path, controller, queue > MARKING, rtt);
        }
        queues.push(queue);
    }
    queues
}

#[test]
fn two_paths_come_to_share_a_port_that_stays_full_and_its_queue_short() {
    for kind in KINDS {
        let controller = controller(&config(kind), 2);
        let mut paths = [path(&controller, MTU), path(&controller, controller.cap().min(BDP))];
        share(&mut paths, &controller, 1000);
        let (mut sums, mut full, mut longest) = ([0u64; 2], 0, 0);
        for _ in 0..400 {
            let queue = share(&mut paths, &controller, 1)[0];
            full += u32::from(paths.iter().map(|p| p.cwnd).sum::<u32>() >= BDP);
            longest = longest.max(queue);
            (0..2).for_each(|i| sums[i] += u64::from(paths[i].cwnd));
        }
        assert!(sums[0] * 10 >= sums[1] * 8 && sums[1] * 10 >= sums[0] * 8, "{kind:?}: {sums:?}");
        assert!(full >= 380, "{kind:?}: full in {full} of 400 rounds");
        assert!(longest < 2 * BDP, "{kind:?}: queue of {longest} bytes");
    }
}

#[test]
fn aimd_ends_where_marks_begin_and_delay_controllers_where_their_target_is() {
    let queue = |kind| {
        let controller = controller(&config(kind), 1);
        let mut paths = [path(&controller, 8 * MTU)];
        share(&mut paths, &controller, 600);
        share(&mut paths, &controller, 200).iter().sum::<u32>() / 200
    };
    let aimd = queue(ControllerKind::Aimd);
    assert!((MARKING / 2..=MARKING + 2 * MTU).contains(&aimd), "AIMD: {aimd}");
    // One path may use 1.5 × its share of the product.
    assert_eq!(queue(ControllerKind::Nscc), BDP / 2);
    // A round trip of delay, and flow scaling: 4 × 0.3223 × (1/√W − 1/16) round trips at W packets.
    let swift = queue(ControllerKind::Swift);
    assert!((BDP * 9 / 10..=BDP * 5 / 4).contains(&swift), "Swift: {swift}");
}

#[test]
fn a_round_of_marks_and_delay_cuts_once_and_by_half_at_most() {
    for kind in KINDS {
        let controller = controller(&config(kind), 1);
        let mut path = path(&controller, 30 * MTU);
        let mut total = 0;
        for _ in 0..5 {
            let before = path.cwnd;
            let cuts = round(&mut path, &controller, true, Time::from_us(100));
            assert!(cuts <= 1 && path.cwnd >= before / 2, "{kind:?}: {cuts} cuts, {before} to {}", path.cwnd);
            total += cuts;
        }
        assert!(total >= 2 && path.cwnd < 10 * MTU, "{kind:?}: {total} cuts, {}", path.cwnd);
    }
}

#[test]
fn loss_is_no_signal_for_any_controller_unless_it_is_to_be() {
    for kind in KINDS {
        for cut_on_loss in [false, true] {
            let controller = controller(&MetaRoceConfig { cut_on_loss, ..config(kind) }, 1);
            let mut path = path(&controller, 20 * MTU);
            (0..5).for_each(|_| path.on_loss(&controller));
            assert_eq!(path.cwnd, if cut_on_loss { 10 * MTU } else { 20 * MTU }, "{kind:?}");
        }
    }
}

#[test]
fn coupled_growth_divides_by_the_paths_that_are_up() {
    for (kind, growth) in [(ControllerKind::Aimd, 1024), (ControllerKind::Swift, MTU)] {
        let controller = controller(&MetaRoceConfig { coupled_growth: true, ..config(kind) }, 4);
        let mut path = path(&controller, 10 * MTU);
        path.next_pps = 10;
        let acked = Acked { packets: 10, bytes: 10 * MTU, max_pps: 9, ce: 0, rtt: BASE, paths: 4 };
        path.on_ack(&controller, acked);
        assert_eq!(path.cwnd, 10 * MTU + growth / 4, "{kind:?}");
    }
}

/// Growth of a window of 10 packets by one acknowledgement of all of them.
fn step(kind: ControllerKind, marked: u32, rtt: Time) -> i64 {
    let controller = controller(&config(kind), 1);
    let mut path = path(&controller, 10 * MTU);
    path.next_pps = 10;
    // Not the end of a round: no eta.
    path.on_ack(&controller, Acked { packets: 0, bytes: 0, max_pps: 0, ce: 0, rtt: BASE, paths: 1 });
    path.on_ack(&controller, Acked { packets: 10, bytes: 10 * MTU, max_pps: 9, ce: marked, rtt, paths: 1 });
    i64::from(path.cwnd) - 10 * i64::from(MTU)
}

#[test]
fn nscc_follows_its_four_branches() {
    let step = |marked, delay_us| step(ControllerKind::Nscc, marked, BASE + Time::from_us(delay_us));
    // a = 125,000 ÷ 150,000, b = 5 ÷ 12: 4 × 4096 × a × b = 5,689 bytes where nothing is queued.
    assert!((step(0, 2) - 5_689 * 3 / 5).abs() <= 8, "{}", step(0, 2));
    assert!((step(0, 4) - 5_689 / 5).abs() <= 8, "{}", step(0, 4));
    // 5 × 4096 × a, however far beyond the target.
    assert!((step(0, 6) - 17_066).abs() <= 8 && step(0, 6) == step(0, 50), "{}", step(0, 6));
    assert_eq!(step(10, 4), 0, "a mark at low delay is for path choice");
    // 0.8 × (10 − 5) ÷ 10 of it, and half at most.
    assert!((step(10, 10) + 4 * i64::from(MTU)).abs() <= 16, "{}", step(10, 10));
    assert_eq!(step(10, 100), -5 * i64::from(MTU));
}

#[test]
fn nscc_grows_fast_once_a_window_found_the_path_clear() {
    let controller = controller(&config(ControllerKind::Nscc), 1);
    let mut path = path(&controller, 10 * MTU);
    round(&mut path, &controller, false, BASE);
    let before = path.cwnd;
    round(&mut path, &controller, false, BASE);
    // 0.25 × a of what was acknowledged, and eta.
    let grown = f64::from(path.cwnd - before) / f64::from(before / MTU * MTU);
    assert!((0.18..0.24).contains(&grown), "{grown}");
}

#[test]
fn swift_grows_by_a_packet_and_cuts_by_the_excess() {
    let step = |rtt_ns: u64| step(ControllerKind::Swift, 0, Time(rtt_ns * 1000));
    assert_eq!(step(5_000), i64::from(MTU));
    // Target at 10 packets: 2 + 4 × 0.3223 × (1/√10 − 1/16) base round trips = 11.63 us.
    assert_eq!(step(11_600), i64::from(MTU));
    assert!(step(11_700) < 0);
    // 0.8 × (15 − 11.63) ÷ 15 of the window.
    let cut = -step(15_000);
    assert!((cut - 7_359).abs() < 64, "{cut}");
    assert_eq!(step(1_000_000), -5 * i64::from(MTU));
}

proptest! {
    #[test]
    fn a_window_stays_within_a_packet_and_the_cap(
        kind in 0usize..3,
        cut_on_loss: bool,
        percents in (1u32..10_000, 0u32..10_000, 0u32..1_000),
        place in (1u64..100_000_000, 1u64..512, 1u32..10_000_000),
        events in prop::collection::vec((0u32..300, 0u32..300, 0u64..1_000_000_000_000, 0u8..8), 1..200),
    ) {
        let config = MetaRoceConfig {
            delay_target_percent: percents.0,
            flow_scaling_percent: percents.1,
            growth_percent: percents.2,
            cut_on_loss,
            ..config(KINDS[kind])
        };
        let cap = (2 * place.0).clamp(u64::from(4 * MTU), u64::from(256 * MTU)) as u32;
        let controller = Controller::new(&config, Place { base_rtt: place.2, bdp: place.0, paths: place.1, cap });
        prop_assert!(controller.cap() <= cap);
        let mut path = path(&controller, controller.cap());
        let mut ce = 0;
        for (packets, marked, rtt, lost) in events {
            path.next_pps += packets;
            ce += marked;
            path.in_flight = packets * MTU;
            if lost == 0 {
                path.on_loss(&controller);
            }
            if lost == 1 {
                path.go_down(Time::ZERO, 1);
                path.come_up(controller.cap());
                ce = 0;
            }
            let max_pps = path.next_pps.saturating_sub(u32::from(lost));
            let acked = Acked { packets, bytes: packets * MTU, max_pps, ce, rtt: Time(rtt), paths: place.1 as u32 };
            path.on_ack(&controller, acked);
            prop_assert!((MTU..=controller.cap()).contains(&path.cwnd), "{}", path.cwnd);
        }
    }

    #[test]
    fn a_window_falls_once_in_a_round_at_most(
        kind in 0usize..3,
        rounds in prop::collection::vec((any::<bool>(), 0u64..60_000_000), 1..60),
    ) {
        let controller = controller(&config(KINDS[kind]), 1);
        let mut path = path(&controller, controller.cap());
        for (marked, queued) in rounds {
            let cuts = round(&mut path, &controller, marked, BASE + Time(queued));
            prop_assert!(cuts <= 1, "{cuts} cuts");
        }
    }
}
