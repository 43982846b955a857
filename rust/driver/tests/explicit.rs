//! Explicit ports give the results of busy-until ports to the last bit, wherever both apply.

mod common;

use common::{GBPS, Net, SMALL, all_reduce, all_to_all, counter, unaccounted};
use metaroce_driver::{Outcome, Status};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Everything that a run tells, the order of all its events included: they are in the digest.
fn told(outcome: &Outcome) -> String {
    let Outcome { status, time, digest, wqe_done, wqe_placed, counters, plane_bytes, check, .. } = outcome;
    format!("{status:?} {time:?} {digest:x} {wqe_done:?} {wqe_placed:?} {counters:?} {plane_bytes:?} {check:?}")
}

/// Queues from shallow to deep, rates with and without whole picoseconds a byte, with trimming.
fn net() -> impl Strategy<Value = Net> {
    let queue = prop::sample::select(vec![10_000u64, 50_000, 200_000, 1 << 20]);
    let rate = prop::sample::select(vec![30 * GBPS, 100 * GBPS, 200 * GBPS]);
    (1..4u32, 1..4u32, 1..5u32, queue, rate, any::<(bool, bool)>()).prop_map(
        |(planes, leaves, spines, queue, rate, (trim, last_hop_ecn))| Net {
            planes,
            leaves,
            spines,
            hosts_per_leaf: 8 / leaves + 1,
            queue,
            rate,
            ecn: (queue / 10, queue / 3),
            switching: (trim, false, last_hop_ecn),
            ..SMALL
        },
    )
}

fn loss() -> impl Strategy<Value = Value> {
    let per = prop::sample::select(vec!["packet", "link"]);
    let on = prop::sample::select(vec!["data_and_ack", "data"]);
    let probability = prop::sample::select(vec![0.0, 0.001, 0.05]);
    (probability, per, on).prop_map(|(probability, per, on)| json!({"probability": probability, "per": per, "on": on}))
}

/// Some link, switch or plane goes down or comes up.
fn faults(net: Net) -> impl Strategy<Value = Vec<Value>> {
    let counts =
        [net.planes * (net.hosts() + net.leaves * net.spines), net.planes * (net.leaves + net.spines), net.planes];
    let fault = (0..300u64, 0..3usize, any::<prop::sample::Index>(), any::<bool>());
    prop::collection::vec(fault, 0..5).prop_map(move |faults| {
        let lower = |(us, target, id, up): (u64, usize, prop::sample::Index, bool)| {
            let (name, id) = (["link", "switch", "plane"][target], id.index(counts[target] as usize));
            json!({"at_ps": us * 1_000_000, "target": name, "id": id, "up": up})
        };
        faults.into_iter().map(lower).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn both_ports_run_alike(
        (net, faults) in net().prop_flat_map(|net| (Just(net), faults(net))),
        loss in loss(),
        kind in prop::sample::select(vec!["metaroce", "rocev2"]),
        ecmp in prop::sample::select(vec!["linear", "mixed", "qp"]),
        balance in prop::sample::select(vec!["ecmp", "ecmp", "flowlet", "spray", "spray-least"]),
        count in 1..20_000u64,
        ring in any::<bool>(),
        limit in 20..600u64,
        seed in any::<u64>(),
    ) {
        let ranks = net.hosts().min(8);
        let job = if ring { all_reduce(ranks, count, 4) } else { all_to_all(ranks, count, 4) };
        let run = |explicit: bool| {
            let mut spec = net.spec(kind, ranks);
            spec["seed"] = json!(seed);
            spec["loss"] = loss.clone();
            spec["faults"] = json!(faults);
            spec["time_limit_ps"] = json!(limit * 1_000_000);
            spec["fabric"]["reroute_delay_ps"] = json!(50_000_000u64);
            spec["fabric"]["ecmp"] = json!(ecmp);
            spec["fabric"]["balance"] = json!(balance);
            spec["fabric"]["explicit_queues"] = json!(explicit);
            job.run_checked(spec, "int32")
        };
        let (fast, explicit) = (run(false), run(true));
        prop_assert_eq!(told(&fast), told(&explicit));
    }
}

/// Simultaneous arrivals are the rule where all start together and all cables are equal.
#[test]
fn ties_go_alike() {
    let job = all_to_all(8, 50_000, 4);
    for kind in ["metaroce", "rocev2"] {
        let run = |explicit: bool| {
            let mut spec = Net { ecn: (0, 0), ..SMALL }.spec(kind, 8);
            spec["fabric"]["explicit_queues"] = json!(explicit);
            job.run_checked(spec, "int32")
        };
        assert_eq!(told(&run(false)), told(&run(true)), "{kind}");
    }
}

/// Where control packets overtake, a busy-until port lets them overlap with data that has its arrival already.
#[test]
fn with_priorities_both_ports_run_nearly_alike() {
    let job = all_to_all(8, 100_000, 4);
    for kind in ["metaroce", "rocev2"] {
        let run = |explicit: bool| {
            let mut spec = Net { switching: (false, true, true), ..SMALL }.spec(kind, 8);
            spec["fabric"]["explicit_queues"] = json!(explicit);
            let outcome = job.run_checked(spec, "int32");
            assert_eq!((outcome.status, unaccounted(&outcome)), (Status::Done, 0));
            outcome
        };
        let (fast, explicit) = (run(false), run(true));
        assert_eq!(counter(&fast, "placed_bytes"), counter(&explicit, "placed_bytes"));
        let apart = fast.time.0.abs_diff(explicit.time.0);
        assert!(apart * 50 < fast.time.0, "{kind}: {:?} and {:?}", fast.time, explicit.time);
    }
}
