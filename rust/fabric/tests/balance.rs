//! Choices among equal routes other than ECMP: E-ECMP, flowlets, sprayed packets, routes laid by a controller.

#![allow(clippy::float_arithmetic, reason = "expected values are real numbers")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{built, cable};
use metaroce_fabric::{Balance, Cable, Demand, Ecmp, Fabric, FabricSpec, Switching, Target};
use metaroce_wire::{Bytes, Class, Envelope, HostId, PlaneId, Time};

const SPINES: u32 = 8;

/// `planes` planes of `leaves` leaves with 8 hosts each, and 8 spines.
fn leaf_spine(planes: u32, leaves: u32, ecmp: Ecmp, switching: Switching, seed: u64) -> FabricSpec {
    FabricSpec { ecmp, switching, seed, ..common::leaf_spine(planes, leaves, SPINES, SPINES) }
}

fn balanced(balance: Balance, seed: u64) -> Fabric {
    built(&leaf_spine(1, 2, Ecmp::Linear, Switching { balance, ..Switching::default() }, seed))
}

fn packet(src: u32, dst: u32, entropy: u16) -> Envelope {
    common::packet(src, dst, entropy, Class::Data)
}

/// The links that a packet crosses on its way to its host.
fn follow(fabric: &mut Fabric, now: Time, packet: Envelope) -> Vec<u32> {
    let (links, arrives) = common::follow(fabric, now, packet);
    assert!(arrives, "lost after {links:?}");
    links
}

#[test]
fn qps_that_share_a_port_spread_only_where_their_number_is_hashed() {
    let uplinks = |ecmp, seed| {
        let spec = leaf_spine(1, 2, ecmp, Switching::default(), seed);
        let mut fabric = built(&spec);
        let uplink = |qp| follow(&mut fabric, Time::ZERO, Envelope { qp, ..packet(0, 8, 0xC000) })[1];
        (0..8).map(uplink).collect::<BTreeSet<u32>>().len()
    };
    let seeds = 400u64;
    for ecmp in [Ecmp::Linear, Ecmp::Mixed] {
        assert!((0..seeds).all(|seed| uplinks(ecmp, seed) == 1));
    }
    let shares: Vec<f64> = (0..seeds).map(|seed| uplinks(Ecmp::Qp, seed) as f64 / 8.0).collect();
    let mean = shares.iter().sum::<f64>() / seeds as f64;
    let variance = shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (seeds - 1) as f64;
    let (expected, error) = (1.0 - (7.0f64 / 8.0).powi(8), (variance / seeds as f64).sqrt());
    assert!((mean - expected).abs() <= 3.0 * error, "{mean:.4} used, {expected:.4} ± {error:.4}");
}

#[test]
fn a_flow_keeps_its_port_until_it_pauses_and_then_takes_the_shortest_queue_or_any() {
    for balance in [Balance::Flowlet, Balance::FlowletRandom] {
        let (mut moved, seeds) = (0, 64);
        for seed in 0..seeds {
            let mut fabric = balanced(balance, seed);
            let mut now = Time::ZERO;
            let mut uplink = |pause| {
                now += Time::from_us(pause);
                follow(&mut fabric, now, packet(0, 8, 0xC000))[1]
            };
            let first = uplink(0);
            assert!((0..100).all(|_| uplink(15) == first), "seed {seed}: within the gap");
            moved += u32::from(uplink(16) != first);
        }
        // Of idle ports its own is as good as any.
        let expected = if balance == Balance::Flowlet { 0..1 } else { 45..64 };
        assert!(expected.contains(&moved), "{balance:?}: {moved} of {seeds} moved");
    }
}

#[test]
fn a_flow_that_pauses_leaves_a_queue_that_is_longer_than_others() {
    // One row, so that four hosts together overload the port of one flow.
    let switching = Switching { balance: Balance::Flowlet, flowlet_entries: 1, ..Switching::default() };
    for seed in 0..20 {
        let mut fabric = built(&leaf_spine(1, 2, Ecmp::Linear, switching, seed));
        let mut burst = |at: Time| {
            let sent = (0..200).flat_map(|_| 0..4).map(|src| follow(&mut fabric, at, packet(src, 8, 0xC000))[1]);
            sent.collect::<BTreeSet<u32>>()
        };
        let first = burst(Time::ZERO);
        assert_eq!(first.len(), 1, "seed {seed}");
        // 800 packets of 40 ns: it has work until 32 us.
        let second = burst(Time::from_us(25));
        assert_eq!(second.len(), 1, "seed {seed}");
        assert!(first.is_disjoint(&second), "seed {seed}");
        assert_eq!(burst(Time::from_us(200)), second, "seed {seed}: empty by then");
    }
}

#[test]
fn new_flowlets_and_least_sprayed_packets_fill_links_in_equal_parts() {
    for balance in [Balance::Flowlet, Balance::SprayLeast] {
        for seed in 0..20u64 {
            let mut fabric = balanced(balance, seed);
            let mut load = BTreeMap::new();
            // All at one moment: queues differ by what has been sent into them, and by nothing else.
            for flow in 0..16 * SPINES as u16 {
                let links = follow(&mut fabric, Time::ZERO, packet(u32::from(flow) % 8, 8, 0xC000 + flow));
                *load.entry(links[1]).or_insert(0u32) += 1;
            }
            let (least, most) = (load.values().min().copied(), load.values().max().copied());
            assert!(
                most.zip(least).is_some_and(|(most, least)| most - least <= 1),
                "{balance:?}, seed {seed}: {load:?}"
            );
        }
    }
}

#[test]
fn sprayed_packets_take_each_port_equally_often() {
    let mut fabric = balanced(Balance::Spray, 5);
    let mut load = BTreeMap::new();
    let n = 80_000u32;
    for k in 0..n {
        let uplink = follow(&mut fabric, Time::from_us(u64::from(k)), packet(0, 8, 0xC000))[1];
        *load.entry(uplink).or_insert(0u32) += 1;
    }
    assert_eq!(load.len() as u32, SPINES);
    let expected = f64::from(n) / f64::from(SPINES);
    let chi: f64 = load.values().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    assert!(chi < 24.3, "chi squared {chi:.1}, 7 degrees of freedom, above 24.3 once in a thousand: {load:?}");
}

#[test]
fn flows_that_share_a_row_of_the_flowlet_table_share_a_port() {
    let ports = |flowlet_entries| {
        let switching = Switching { balance: Balance::FlowletRandom, flowlet_entries, ..Switching::default() };
        let mut fabric = built(&leaf_spine(1, 2, Ecmp::Linear, switching, 1));
        let port = |flow: u16| follow(&mut fabric, Time::ZERO, packet(0, 8, 0xC000 + flow))[1];
        (0..64).map(port).collect::<BTreeSet<u32>>().len()
    };
    assert_eq!((ports(1), ports(1 << 15)), (1, 8));
}

#[test]
fn a_pinned_permutation_loads_every_link_once() {
    let (leaves, planes) = (8u32, 2u32);
    let hosts = leaves * SPINES;
    for seed in 0..200u64 {
        let switching = Switching { balance: Balance::Pinned, ..Switching::default() };
        let mut fabric = built(&leaf_spine(planes, leaves, Ecmp::Linear, switching, seed));
        // Of both kinds: those that send, and those that acknowledge.
        let order = shuffled(hosts, seed);
        let pairs: Vec<(u32, u32)> =
            (0..hosts).map(|host| (host, order[host as usize])).filter(|(a, b)| a != b).collect();
        let demand =
            |&(src, dst): &(u32, u32), bytes| Demand { src: HostId(src), dst: HostId(dst), bytes: Bytes(bytes) };
        let back: Vec<(u32, u32)> = pairs.iter().map(|&(a, b)| (b, a)).filter(|pair| !pairs.contains(pair)).collect();
        let demands = pairs.iter().map(|pair| demand(pair, 1)).chain(back.iter().map(|pair| demand(pair, 0)));
        fabric.pin(&demands.collect::<Vec<_>>());
        for plane in 0..planes {
            for pairs in [&pairs, &back] {
                let mut load = BTreeMap::new();
                for (k, &(src, dst)) in pairs.iter().enumerate() {
                    let sent = Envelope { plane: PlaneId(plane as u8), ..packet(src, dst, 0xC000 + k as u16) };
                    for link in follow(&mut fabric, Time::ZERO, sent) {
                        *load.entry(link).or_insert(0u32) += 1;
                    }
                }
                assert!(load.values().all(|&flows| flows == 1), "seed {seed}, plane {plane}: {load:?}");
            }
        }
    }
}

/// The numbers below `n` in an order of the seed.
fn shuffled(n: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    order.sort_by_key(|&i| Envelope::address_hash(HostId(i), HostId(seed as u32 + 1000)));
    order
}

#[test]
fn pins_meet_at_the_cores_of_a_fat_tree() {
    // 4 pods of 2 ToRs and 2 aggregation switches, 2 hosts a ToR; aggregation switch j reaches cores 2j and 2j + 1.
    let (hosts, tors, aggs, cores) = (16u32, 8u32, 8u32, 4u32);
    let mut cables: Vec<Cable> = (0..hosts).map(|host| cable(host, hosts + host / 2)).collect();
    for agg in 0..aggs {
        let (pod, j, node) = (agg / 2, agg % 2, hosts + tors + agg);
        cables.extend((0..2).map(|tor| cable(hosts + 2 * pod + tor, node)));
        cables.extend((0..2).map(|core| cable(node, hosts + tors + aggs + 2 * j + core)));
    }
    let switches: Vec<(u32, u32)> =
        [(1, tors), (2, aggs), (3, cores)].iter().flat_map(|&(tier, count)| vec![(0, tier); count as usize]).collect();
    let switching = Switching { balance: Balance::Pinned, ..Switching::default() };
    let spec = FabricSpec { ecmp: Ecmp::Mixed, switching, seed: 3, ..common::spec(hosts, 1, &switches, cables) };
    for seed in 0..100u64 {
        let mut fabric = built(&spec);
        let order = shuffled(hosts, seed);
        let pairs: Vec<(u32, u32)> =
            (0..hosts).map(|host| (host, order[host as usize])).filter(|(a, b)| a != b).collect();
        let demand = |&(src, dst): &(u32, u32)| Demand { src: HostId(src), dst: HostId(dst), bytes: Bytes(1) };
        fabric.pin(&pairs.iter().map(demand).collect::<Vec<_>>());
        let mut load = BTreeMap::new();
        for &(src, dst) in &pairs {
            for link in follow(&mut fabric, Time::ZERO, packet(src, dst, 0xC000)) {
                *load.entry(link).or_insert(0u32) += 1;
            }
        }
        assert!(load.values().all(|&flows| flows == 1), "seed {seed}: {load:?}");
    }
}

#[test]
fn a_pin_whose_link_has_gone_is_hashed_until_the_link_is_back() {
    let mut fabric = balanced(Balance::Pinned, 1);
    fabric.pin(&[Demand { src: HostId(0), dst: HostId(8), bytes: Bytes(1) }]);
    let ways = |fabric: &mut Fabric| -> BTreeSet<u32> {
        (0..64).map(|flow| follow(fabric, Time::ZERO, packet(0, 8, 0xC000 + flow))[1]).collect()
    };
    let pinned = ways(&mut fabric);
    assert_eq!(pinned.len(), 1);
    let row = pinned.first().map(|link| link / 2).expect("one");
    fabric.set(Target::Link(row), false);
    fabric.reroute();
    let hashed = ways(&mut fabric);
    assert_eq!(hashed.len(), 7);
    assert!(hashed.is_disjoint(&pinned));
    fabric.set(Target::Link(row), true);
    fabric.reroute();
    assert_eq!(ways(&mut fabric), pinned);
}

#[test]
fn every_balance_takes_packets_away_from_a_dead_port() {
    let all = [Balance::Ecmp, Balance::Flowlet, Balance::FlowletRandom, Balance::Spray, Balance::SprayLeast];
    for balance in [&all[..], &[Balance::Pinned]].concat() {
        let mut fabric = balanced(balance, 1);
        // The uplinks of the first leaf but one.
        let first_uplink = 16;
        for row in first_uplink..first_uplink + SPINES - 1 {
            fabric.set(Target::Link(row), false);
        }
        for flow in 0..100 {
            let links = follow(&mut fabric, Time::ZERO, packet(0, 8, 0xC000 + flow));
            assert_eq!(links[1] / 2, first_uplink + SPINES - 1, "{balance:?}");
        }
    }
}

#[test]
fn tables_that_cannot_be_are_refused_by_name() {
    let refused = |switching| {
        let refusal = Fabric::new(&leaf_spine(1, 2, Ecmp::Linear, switching, 1)).expect_err("refused");
        refusal.to_string()
    };
    let usual = Switching { balance: Balance::Flowlet, ..Switching::default() };
    let zero = refused(Switching { flowlet_gap: Time::ZERO, ..usual });
    assert_eq!(zero, "fabric.flowlet_gap_ps: 0 is not allowed; allowed: at least 1");
    for flowlet_entries in [0, (1 << 20) + 1] {
        let message = refused(Switching { flowlet_entries, ..usual });
        let expected = format!("fabric.flowlet_entries: {flowlet_entries} is not allowed; allowed: 1 to 1048576");
        assert_eq!(message, expected);
    }
}
