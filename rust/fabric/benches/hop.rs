//! A hop: route, queue, mark, serialise. Packets between random hosts of a three-tier fat tree, one after the other.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{built, spec};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use metaroce_fabric::{Cable, End, Fabric, Step};
use metaroce_wire::{Bytes, Envelope, HostId, Rate, Time, lengths};

/// Full bisection: `radix` ports each way of a switch below the core, `pods` ports of a core switch; 100 Gbit/s.
fn fat_tree(pods: u32, radix: u32) -> Fabric {
    let (hosts, tors) = (pods * radix * radix, pods * radix);
    let (first_agg, first_core) = (hosts + tors, hosts + 2 * tors);
    let cable = |a, b| Cable {
        a,
        b,
        rate: Rate::from_gbps(100),
        delay: Time::from_us(1),
        queue: Bytes(350_000),
        kmin: Bytes(35_000),
        kmax: Bytes(140_000),
        pmax: u32::MAX,
    };
    let mut cables: Vec<Cable> = (0..hosts).map(|host| cable(host, hosts + host / radix)).collect();
    for i in 0..tors {
        let (pod, core) = (i / radix * radix, first_core + i % radix * radix);
        cables.extend((pod..pod + radix).map(|agg| cable(hosts + i, first_agg + agg)));
        cables.extend((core..core + radix).map(|core| cable(first_agg + i, core)));
    }
    let tiers = [(1, tors), (2, tors), (3, radix * radix)];
    let switches: Vec<(u32, u32)> = tiers.iter().flat_map(|&(tier, count)| vec![(0, tier); count as usize]).collect();
    built(&spec(hosts, 1, &switches, cables))
}

/// Packets between hosts that a generator draws.
fn packets(hosts: u32) -> Vec<Envelope> {
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    let mut packet = || {
        let src = draw() % hosts;
        let (src, dst) = (HostId(src), HostId((src + 1 + draw() % (hosts - 1)) % hosts));
        let (hash, entropy) = (Envelope::address_hash(src, dst), draw() as u16);
        Envelope { src, dst, hash, entropy, len: lengths::mr_data(4096), ..Envelope::default() }
    };
    (0..4096).map(|_| packet()).collect()
}

/// Takes a packet to its host; counts the links.
fn follow(fabric: &mut Fabric, now: Time, mut packet: Envelope) -> u64 {
    let (mut step, mut hops) = (fabric.inject(now, &mut packet), 1);
    while let Step::Arrives(at) = step {
        if let End::Host(_) = fabric.end(&packet) {
            fabric.deliver();
            break;
        }
        step = fabric.forward(at, &mut packet);
        hops += 1;
    }
    hops
}

fn hop(c: &mut Criterion) {
    let mut group = c.benchmark_group("fabric/hop");
    for (pods, radix) in [(4, 4), (8, 4), (16, 8)] {
        let mut fabric = fat_tree(pods, radix);
        let hosts = pods * radix * radix;
        let packets = packets(hosts);
        let mut now = Time::ZERO;
        let mut all = || {
            // Room for all of them: queues do not grow from round to round.
            now += Time::from_us(1000);
            packets.iter().map(|&packet| follow(&mut fabric, now, packet)).sum::<u64>()
        };
        group.throughput(Throughput::Elements(all()));
        group.bench_function(BenchmarkId::from_parameter(format!("{hosts}-hosts")), |b| b.iter(&mut all));
    }
    group.finish();
}

criterion_group!(benches, hop);
criterion_main!(benches);
