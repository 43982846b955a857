//! Whole estimates against closed forms.

use metaroce_engine::{Column, Columns};
use metaroce_flow::{FabricColumns, FlowData, FlowError, FlowOutcome, FlowSpec, FlowStatus, estimate};
use proptest::prelude::*;

const RATE: u64 = 100_000_000_000;
const DELAY: u64 = 500_000;
/// A full packet: 4096 bytes, and 118 of headers, preamble and gap.
const FULL: u64 = 4214;
const ACK: u64 = 118;
/// Picoseconds a byte.
const BYTE: u64 = 80;

/// `leaves` × `spines`, as many hosts under a leaf as `under`.
struct LeafSpine {
    hosts: u32,
    columns: [Vec<u32>; 4],
    rates: Vec<u64>,
    delays: Vec<u64>,
}

impl LeafSpine {
    fn new(leaves: u32, spines: u32, under: u32) -> LeafSpine {
        let hosts = leaves * under;
        let of_hosts = (0..hosts).map(|host| (host, hosts + host / under));
        let between = (0..leaves).flat_map(|leaf| (0..spines).map(move |spine| (hosts + leaf, hosts + leaves + spine)));
        let (a, b): (Vec<u32>, Vec<u32>) = of_hosts.chain(between).unzip();
        let tier = [vec![1; leaves as usize], vec![2; spines as usize]].concat();
        let rows = a.len();
        let columns = [vec![0; tier.len()], tier, a, b];
        LeafSpine { hosts, columns, rates: vec![RATE; rows], delays: vec![DELAY; rows] }
    }

    fn columns(&self) -> FabricColumns<'_> {
        let [switch_plane, switch_tier, a, b] = &self.columns;
        FabricColumns {
            hosts: self.hosts,
            switch_plane,
            switch_tier,
            a,
            b,
            rate_bps: &self.rates,
            delay_ps: &self.delays,
        }
    }
}

/// One WRITE a row: source, target, bytes. Sources rise.
fn run(fabric: &LeafSpine, writes: &[(u32, u32, u64)], more: &str) -> Result<FlowOutcome, FlowError> {
    let ranks = fabric.hosts;
    let count = writes.len();
    let starts: Vec<u32> = (0..=ranks).map(|rank| writes.partition_point(|w| w.0 < rank) as u32).collect();
    let memory = writes.iter().map(|w| w.2).max().unwrap_or(1);
    let same = |value| Column::of(std::iter::repeat_n(value, count));
    let program = Columns {
        rank_start: starts,
        op: same(2),
        peer: Column::of(writes.iter().map(|w| w.1.into())),
        stream: same(0),
        local: same(0),
        remote: same(0),
        bytes: Column::of(writes.iter().map(|w| w.2)),
        dep_start: vec![0; count + 1],
        ..Columns::default()
    };
    let json = format!(
        r#"{{"seed": 1, "planes": 1, "transport": {{"kind": "metaroce"}}, "memory_bytes": {memory}, "iterations": 1,
            "record_wqes": true{more}}}"#
    );
    let hosts: Vec<u32> = (0..ranks).collect();
    let data = FlowData { fabric: fabric.columns(), hosts_of_ranks: &hosts, program };
    estimate(&FlowSpec::parse(&json)?, data, &mut || false)
}

fn one(fabric: &LeafSpine, writes: &[(u32, u32, u64)]) -> FlowOutcome {
    let outcome = run(fabric, writes, "").expect("runs");
    assert_eq!(outcome.status, FlowStatus::Done);
    outcome
}

/// What the last packet still takes when it has left its host, and the acknowledgement back, over `links`.
fn tail(links: u64) -> u64 {
    (links - 1) * FULL * BYTE + links * DELAY + links * (ACK * BYTE + DELAY)
}

#[test]
fn one_flow_alone_takes_its_serialisation_and_a_round_trip() {
    let fabric = LeafSpine::new(2, 4, 4);
    for (to, links) in [(1, 2), (7, 4)] {
        let time = one(&fabric, &[(0, to, 100 * 4096)]).time;
        assert_eq!(time, 100 * FULL * BYTE + tail(links), "to {to}");
    }
}

#[test]
fn n_to_one_takes_n_times_as_long() {
    let fabric = LeafSpine::new(2, 4, 4);
    let writes: Vec<_> = (1..8).map(|source| (source, 0, 100 * 4096)).collect();
    assert!(one(&fabric, &writes).time.abs_diff(700 * FULL * BYTE + tail(4)) <= 8);
}

#[test]
fn a_permutation_runs_at_line_rate_where_the_bisection_is_full() {
    let fabric = LeafSpine::new(4, 4, 4);
    let writes: Vec<_> = (0..16).map(|source| (source, (source + 5) % 16, 100 * 4096)).collect();
    // Acknowledgements of the other direction take 118 bytes in two packets.
    let line = 100 * (FULL + ACK / 2) * BYTE + tail(4);
    assert!(one(&fabric, &writes).time.abs_diff(line) <= 8);
}

#[test]
fn uplinks_share_out_where_it_is_not() {
    let fabric = LeafSpine::new(2, 1, 4);
    let writes: Vec<_> = (0..4).map(|source| (source, source + 4, 100 * 4096)).collect();
    assert!(one(&fabric, &writes).time.abs_diff(400 * FULL * BYTE + tail(4)) <= 8);
}

#[test]
fn a_time_limit_bounds_the_run() {
    let fabric = LeafSpine::new(2, 1, 4);
    let outcome = run(&fabric, &[(0, 1, 1 << 30)], r#", "time_limit_ps": 1000000"#).expect("runs");
    assert_eq!((outcome.status, outcome.time), (FlowStatus::Bound, 1_000_000));
}

#[test]
fn what_a_curve_was_not_measured_for_is_refused() {
    let fabric = LeafSpine::new(2, 4, 4);
    let curve = |packets: &str| {
        format!(
            r#", "curve": {{"rate_factor": 0.5, "bdp": [0.1, 10.0], "ranks": [0.0, 1.0], "added": [[0.0, 0.0], [1.0, 1.0]],
                "unit": "rtt", "bdp_packets": {packets}}}"#
        )
    };
    let error = |bytes, packets| run(&fabric, &[(0, 7, bytes)], &curve(packets)).expect_err("refused").to_string();
    assert!(error(4096, "[1, 2]").starts_with("bandwidth-delay product: 16 packets is not allowed; allowed: 1 to 2"));
    assert!(error(1 << 30, "[1, 100]").starts_with("bytes[0]: "));
    // Half the rate, and a round trip for ten bandwidth-delay products.
    let time = run(&fabric, &[(0, 7, 100 * 4096)], &curve("[1, 100]")).expect("runs").time;
    let share = 100 * FULL * BYTE;
    assert!(time > 2 * share + tail(4) && time < 2 * share + tail(4) + tail(4));
}

proptest! {
    #[test]
    fn every_byte_arrives_and_no_port_is_faster_than_it_is(
        seeds in prop::collection::vec((0u32..16, 1u32..16, 1u64..200_000), 1..40)
    ) {
        let fabric = LeafSpine::new(4, 2, 4);
        let mut writes: Vec<_> = seeds.into_iter().map(|(from, to, bytes)| (from, (from + to) % 16, bytes)).collect();
        writes.sort_unstable();
        let outcome = one(&fabric, &writes);
        prop_assert_eq!(outcome.counters.bytes, writes.iter().map(|w| w.2).sum::<u64>());
        prop_assert!(outcome.wqe_done.iter().all(|&at| at <= outcome.time));
        for host in 0..16 {
            for end in [|w: &(u32, u32, u64)| w.0, |w: &(u32, u32, u64)| w.1] {
                let bytes: u64 = writes.iter().filter(|w| end(w) == host).map(|w| w.2).sum();
                prop_assert!(outcome.time >= bytes * BYTE, "host {}", host);
            }
        }
    }
}
