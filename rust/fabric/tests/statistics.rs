//! ECMP and loss of a fabric, against what chance must give.

#![allow(clippy::float_arithmetic, reason = "expected values are real numbers")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{built, follow, packet};
use metaroce_fabric::{Ecmp, Fabric, FabricSpec, LossConfig, LossOn, LossPer};
use metaroce_wire::{Class, Envelope, Time};

/// One plane of 2 leaves with `hosts` each, and `spines`.
fn leaf_spine(hosts: u32, spines: u32, ecmp: Ecmp, loss: LossConfig, seed: u64) -> Fabric {
    built(&FabricSpec { ecmp, loss, seed, ..common::leaf_spine(1, 2, hosts, spines) })
}

/// Distinct uplinks that `n` flows of one leaf take.
fn uplinks(n: u32, ecmp: Ecmp, seed: u64, entropy: impl Fn(u32) -> u16) -> usize {
    let mut fabric = leaf_spine(n, n, ecmp, LossConfig::default(), seed);
    let used: BTreeSet<u32> = (0..n)
        .map(|host| follow(&mut fabric, Time::ZERO, packet(host, n + host, entropy(host), Class::Data)).0[1])
        .collect();
    used.len()
}

#[test]
fn equal_flows_use_the_share_of_links_that_random_choice_gives() {
    for n in [4, 8, 16, 64] {
        let seeds = 400u32;
        let shares: Vec<f64> =
            (0..seeds).map(|seed| uplinks(n, Ecmp::Mixed, u64::from(seed), |_| 0xC000) as f64 / f64::from(n)).collect();
        let mean = shares.iter().sum::<f64>() / f64::from(seeds);
        let variance = shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / f64::from(seeds - 1);
        let expected = 1.0 - (1.0 - 1.0 / f64::from(n)).powi(n as i32);
        let error = (variance / f64::from(seeds)).sqrt();
        assert!((mean - expected).abs() <= 3.0 * error, "{n} links: {mean:.4} used, {expected:.4} ± {error:.4}");
    }
}

#[test]
fn the_busiest_of_16_links_has_1_229_of_the_mean_of_1000_flows() {
    let (hosts, links, qps) = (50, 16u32, 20u16);
    let flows = f64::from(hosts) * f64::from(qps);
    // QPs of a pair differ in their port, or in their number alone.
    for (ecmp, same_port) in [(Ecmp::Mixed, false), (Ecmp::Qp, false), (Ecmp::Qp, true)] {
        let seeds = 200u64;
        let busiest: Vec<f64> = (0..seeds)
            .map(|seed| {
                let mut fabric = leaf_spine(hosts, links, ecmp, LossConfig::default(), seed);
                let mut load = BTreeMap::new();
                for (host, qp) in (0..hosts).flat_map(|host| (0..qps).map(move |qp| (host, qp))) {
                    let entropy = 0xC000 + if same_port { 0 } else { qp };
                    let packet = Envelope { qp, ..packet(host, hosts + host, entropy, Class::Data) };
                    *load.entry(follow(&mut fabric, Time::ZERO, packet).0[1]).or_insert(0u32) += 1;
                }
                f64::from(load.values().max().copied().unwrap_or(0)) / (flows / f64::from(links))
            })
            .collect();
        let mean = busiest.iter().sum::<f64>() / seeds as f64;
        assert!(
            (mean - 1.229).abs() <= 0.02,
            "{ecmp:?}, same port {same_port}: busiest/mean {mean:.4} of {seeds} seeds"
        );
    }
}

// [F3.port-is-entropy] [F3.consecutive-ports] [F9.ecn-and-ecmp]
#[test]
fn ports_of_one_pair_fall_on_links_at_random_or_in_turn() {
    let n = 8;
    let mut shares = Vec::new();
    for seed in 0..400u64 {
        for (ecmp, in_turn) in [(Ecmp::Linear, true), (Ecmp::Mixed, false)] {
            let mut fabric = leaf_spine(1, n, ecmp, LossConfig::default(), seed);
            let first = 0xC000 + (seed as u16 * 37) % 0x2000;
            let used: BTreeSet<u32> = (0..n as u16)
                .map(|k| follow(&mut fabric, Time::ZERO, packet(0, 1, first + k, Class::Data)).0[1])
                .collect();
            if in_turn {
                assert_eq!(used.len(), n as usize, "seed {seed}: consecutive ports take consecutive links");
            } else {
                shares.push(used.len() as f64 / f64::from(n));
            }
        }
    }
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    let variance = shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (shares.len() - 1) as f64;
    let (expected, error) = (1.0 - (1.0 - 1.0 / f64::from(n)).powi(8), (variance / shares.len() as f64).sqrt());
    assert!((mean - expected).abs() <= 3.0 * error, "{mean:.4} used, {expected:.4} ± {error:.4}");
}

#[test]
fn a_flow_keeps_its_route_and_another_seed_gives_another() {
    let route = |seed, entropy| {
        let mut fabric = leaf_spine(1, 64, Ecmp::Mixed, LossConfig::default(), seed);
        let once = follow(&mut fabric, Time::ZERO, packet(0, 1, entropy, Class::Data)).0;
        let again = follow(&mut fabric, Time::from_us(9), packet(0, 1, entropy, Class::Data)).0;
        assert_eq!(once, again);
        once
    };
    let routes: BTreeSet<Vec<u32>> = (0..32).map(|seed| route(seed, 0xC000)).collect();
    assert!(routes.len() > 16, "{} routes of 32 seeds", routes.len());
}

#[test]
fn loss_is_drawn_once_a_packet_or_once_a_link() {
    let n = 50_000u32;
    for (per, links, p) in [(LossPer::Packet, 1, 0.03), (LossPer::Link, 4, 0.03), (LossPer::Link, 4, 0.2)] {
        let loss = LossConfig { probability: p, per, on: LossOn::DataAndAck };
        let mut fabric = leaf_spine(4, 4, Ecmp::Mixed, loss, 1);
        let lost_after: Vec<usize> = (0..n)
            .filter_map(|k| {
                let packet = packet(k % 4, 4 + k % 4, 0xC000 + (k % 1000) as u16, Class::Control);
                let (crossed, arrived) = follow(&mut fabric, Time::from_us(u64::from(k)), packet);
                (!arrived).then_some(crossed.len())
            })
            .collect();
        let share = 1.0 - (1.0 - p).powi(links);
        let (hits, expected) = (lost_after.len() as f64, f64::from(n) * share);
        let error = (expected * (1.0 - share)).sqrt();
        assert!((hits - expected).abs() <= 4.0 * error, "{per:?}: {hits} lost, {expected:.0} ± {error:.0}");
        if per == LossPer::Packet {
            assert!(lost_after.iter().all(|&links| links == 1));
        }
        let counters = fabric.counters();
        assert_eq!(counters.injected, counters.delivered + counters.lost);
    }
}

#[test]
fn loss_on_data_spares_control_packets() {
    let loss = LossConfig { probability: 0.5, per: LossPer::Link, on: LossOn::Data };
    let mut fabric = leaf_spine(1, 4, Ecmp::Mixed, loss, 1);
    let arrived = |fabric: &mut Fabric, class| {
        (0..1000).filter(|k| follow(fabric, Time::from_us(*k), packet(0, 1, 0xC000, class)).1).count()
    };
    assert_eq!(arrived(&mut fabric, Class::Control), 1000);
    assert!((30..100).contains(&arrived(&mut fabric, Class::Data)), "a sixteenth of the data");
}
