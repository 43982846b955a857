//! Whether nodes are looked at one after the other in windows or all events in the order of their times, a run tells the
//! same to the last bit. Telemetry, which looks at all nodes at once, asks for the order of times.

mod common;

use common::{Job, MULTIPLANE_4X64, Net, SMALL, WRITE, all_reduce, all_to_all, entry, told};
use metaroce_driver::Status;
use proptest::prelude::*;
use serde_json::json;

/// Longer than any run here: nothing is sampled before its end.
const NEVER_PS: u64 = 1 << 50;

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn both_orders_give_the_same_bytes(
        kind in prop::sample::select(vec!["metaroce", "rocev2", "rocev2-sr", "mrc"]),
        loss in prop::sample::select(vec![0.0, 0.001, 0.05, 0.9]),
        queue in prop::sample::select(vec![50_000u64, 1 << 20]),
        balance in prop::sample::select(vec!["ecmp", "spray", "spray-least", "flowlet"]),
        (explicit, trim, goes_on, ring, payload) in any::<(bool, bool, bool, bool, bool)>(),
        (delay, other_delay) in (1..900_000u64, 0..3_000_000u64),
        count in 1..50_000u64,
        limit in prop::option::of(1..400_000_000u64),
        seed: u64,
    ) {
        let net = Net { queue, ecn: (queue / 10, queue / 3), switching: (trim, false, true), delay, ..SMALL };
        let job = if ring { all_reduce(8, count, 4) } else { all_to_all(8, count, 4) };
        let mut spec = net.spec(kind, 8);
        spec["seed"] = json!(seed);
        spec["loss"] = json!({"probability": loss, "per": "link", "on": "data_and_ack"});
        spec["fabric"]["explicit_queues"] = json!(explicit);
        spec["fabric"]["balance"] = json!(balance);
        // Cables of one plane differ in length.
        spec["fabric"]["links"]["delay_ps"][net.spine_cable(1, 1, 0) as usize] = json!(delay + other_delay);
        spec["on_error"] = json!(if goes_on { "continue" } else { "stop" });
        if kind == "metaroce" {
            spec["transport"]["dead_after_ps"] = json!(200_000_000u64);
        }
        if let Some(limit) = limit {
            spec["time_limit_ps"] = json!(limit);
        }
        spec["record_bin_ps"] = json!(10_000_000u64);
        if payload {
            spec["payload"] = json!({"dtype": "float32"});
            spec["memory_bytes"] = json!(job.memory);
        }
        let by_node = job.run(&spec);
        spec["record_paths_ps"] = json!(NEVER_PS);
        let by_time = job.run(&spec);
        prop_assert_eq!(told(&by_node), told(&by_time));
        prop_assert_eq!(by_node.check, by_time.check);
    }
}

#[test]
fn a_run_that_fails_in_several_places_ends_when_the_first_does() {
    let job = all_to_all(8, 50_000, 4);
    let mut spec = SMALL.spec("metaroce", 8);
    spec["loss"] = json!({"probability": 0.97, "per": "link", "on": "data_and_ack"});
    spec["transport"]["dead_after_ps"] = json!(50_000_000u64);
    let by_node = job.run(&spec);
    assert_eq!(by_node.status, Status::Stalled);
    spec["record_paths_ps"] = json!(NEVER_PS);
    assert_eq!(told(&by_node), told(&job.run(&spec)));
}

/// More packets arrive at a switch at once than what is queued of their order tells apart.
#[test]
fn both_orders_give_the_same_bytes_where_many_arrive_at_once() {
    let net = Net { planes: 1, leaves: 1, spines: 1, hosts_per_leaf: 96, ..MULTIPLANE_4X64 };
    let mut job = Job::new(96);
    (1..96).for_each(|rank| job.ranks[rank].push(entry(WRITE, 0, 0, 20_000)));
    for explicit in [false, true] {
        let mut spec = net.spec("metaroce", 96);
        spec["fabric"]["explicit_queues"] = json!(explicit);
        let by_node = job.run(&spec);
        spec["record_paths_ps"] = json!(NEVER_PS);
        assert_eq!(told(&by_node), told(&job.run(&spec)));
    }
}

/// With more state than the cache takes, switches look ahead.
#[test]
fn both_orders_give_the_same_bytes_where_there_is_much_state() {
    let job = all_to_all(24, 5_000, 4);
    for kind in ["metaroce", "rocev2", "rocev2-sr", "mrc"] {
        let mut spec = MULTIPLANE_4X64.spec(kind, 24);
        spec["loss"] = json!({"probability": 0.01, "per": "link", "on": "data_and_ack"});
        let by_node = job.run(&spec);
        spec["record_paths_ps"] = json!(NEVER_PS);
        assert_eq!(told(&by_node), told(&job.run(&spec)), "{kind}");
    }
}
