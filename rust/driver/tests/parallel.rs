//! A run divided among threads gives the results of one thread to the last bit, or says why it is not divided.

mod common;

use common::{GBPS, Net, SMALL, all_reduce, all_to_all, told};
use metaroce_driver::Status;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Busy enough to pay.
const BUSY: Net = Net { planes: 4, rate: 400 * GBPS, ..SMALL };

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_number_of_threads_gives_the_same_bytes(
        kind in prop::sample::select(vec!["metaroce", "rocev2", "rocev2-sr", "mrc"]),
        loss in prop::sample::select(vec![0.0, 0.001, 0.05]),
        queue in prop::sample::select(vec![50_000u64, 1 << 20]),
        faults in prop::collection::vec((0..200u64, 0..4u32, any::<bool>()), 0..4),
        trim: bool,
        count in 1..50_000u64,
        ring: bool,
        limit in 20..400u64,
        seed: u64,
    ) {
        let net = Net { queue, ecn: (queue / 10, queue / 3), switching: (trim, false, true), ..BUSY };
        let job = if ring { all_reduce(8, count, 4) } else { all_to_all(8, count, 4) };
        let run = |threads: u32| {
            let mut spec = net.spec(kind, 8);
            spec["seed"] = json!(seed);
            spec["loss"] = json!({"probability": loss, "per": "link", "on": "data_and_ack"});
            let lower = |&(us, plane, up): &(u64, u32, bool)| {
                json!({"at_ps": us * 1_000_000, "target": "plane", "id": plane, "up": up})
            };
            spec["faults"] = Value::Array(faults.iter().map(lower).collect());
            spec["fabric"]["reroute_delay_ps"] = json!(5_000_000u64);
            spec["time_limit_ps"] = json!(limit * 1_000_000);
            spec["record_wqes"] = json!(true);
            spec["record_bin_ps"] = json!(10_000_000u64);
            spec["threads"] = json!(threads);
            job.run(&spec)
        };
        let one = told(&run(1));
        for threads in 2..=4.min(cores()) {
            prop_assert_eq!(&one, &told(&run(threads)), "{} threads", threads);
        }
    }
}

#[test]
fn a_run_that_would_not_be_faster_or_not_equal_is_refused() {
    let job = all_to_all(8, 5_000, 4);
    let refusal = |change: &dyn Fn(&mut Value)| {
        let mut spec = BUSY.spec("metaroce", 8);
        spec["threads"] = json!(2);
        change(&mut spec);
        job.try_run(&spec).map(|outcome| outcome.status).expect_err("it is refused")
    };
    if cores() < 2 {
        assert!(refusal(&|_| {}).contains("needs a core"));
        return;
    }
    for (change, why) in [
        (json!({"iterations": 2}), "more than one iteration"),
        (json!({"record_paths_ps": 1_000_000}), "telemetry"),
        (json!({"threads": 0}), "a thread needs a core"),
        (json!({"threads": 5}), "a thread needs a core"),
    ] {
        let message = refusal(&|spec| {
            change.as_object().expect("an object").iter().for_each(|(key, value)| spec[key] = value.clone());
        });
        assert!(message.starts_with("threads: ") && message.contains(why), "{message}");
    }
    let message = refusal(&|spec| spec["fabric"]["explicit_queues"] = json!(true));
    assert!(message.contains("explicit queues"), "{message}");
    let slow = Net { rate: GBPS, ..BUSY };
    let message = refusal(&|spec| {
        let mut slow = slow.spec("metaroce", 8);
        slow["threads"] = json!(2);
        *spec = slow;
    });
    assert!(message.contains("would not pay"), "{message}");
}

#[test]
fn a_run_that_fails_ends_alike() {
    if cores() < 2 {
        return;
    }
    // Nothing leads to host 0 any more.
    let job = all_to_all(8, 50_000, 4);
    let faults: Vec<Value> = (0..BUSY.planes)
        .map(|plane| json!({"at_ps": 2_000_000, "target": "link", "id": BUSY.host_cable(0, plane), "up": false}))
        .collect();
    for kind in ["metaroce", "rocev2", "mrc"] {
        let run = |threads: u32| {
            let mut spec = BUSY.spec(kind, 8);
            spec["faults"] = json!(faults);
            spec["threads"] = json!(threads);
            job.run(&spec)
        };
        let one = run(1);
        assert_ne!(one.status, Status::Done, "{kind}");
        assert_eq!(told(&one), told(&run(2)), "{kind}");
    }
}
