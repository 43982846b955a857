//! The lossless class: no loss with the computed headroom, pauses hop by hop, deadlocks by name, the watchdog.

mod common;

use common::{GBPS, Job, Net, SMALL, WRITE, all_to_all, counter, entry, unaccounted};
use metaroce_driver::{Outcome, Status};
use proptest::prelude::*;
use serde_json::{Value, json};

/// All hosts on one switch.
const STAR: Net = Net { planes: 1, leaves: 1, spines: 1, hosts_per_leaf: 65, ecn: (0, 0), ..SMALL };

fn lossless(net: &Net, kind: &str, pfc: &Value) -> Value {
    let mut spec = net.spec(kind, net.hosts());
    spec["fabric"]["lossless"] = json!(true);
    spec["fabric"]["pfc"] = pfc.clone();
    if kind == "rocev2" {
        spec["transport"]["dcqcn"] = json!("off");
        spec["transport"]["window_percent"] = json!(0);
    }
    spec
}

/// Every other host writes to host 0.
fn incast(hosts: u32, bytes: u64) -> Job {
    let mut job = Job::new(hosts);
    for host in 1..hosts {
        job.ranks[host as usize].push(entry(WRITE, 0, 0, bytes));
    }
    job
}

fn dropped(outcome: &Outcome) -> u64 {
    ["dropped_headroom", "dropped_queue", "dropped_watchdog"].iter().map(|name| counter(outcome, name)).sum()
}

/// As [`unaccounted`], with the causes that a lossless class adds.
fn accounts(outcome: &Outcome) -> i64 {
    unaccounted(outcome) - (counter(outcome, "dropped_headroom") + counter(outcome, "dropped_watchdog")) as i64
}

// [I36]
#[test]
fn the_computed_headroom_loses_nothing_and_half_of_it_does() {
    for (rate, delay) in [(100, 600_000), (200, 600_000), (400, 2_000_000), (1600, 600_000)] {
        let net = Net { rate: rate * GBPS, delay, ..STAR };
        let run = |percent| {
            let pfc = json!({"headroom_percent": percent, "buffer_bytes": 64 << 20});
            let outcome = incast(65, 2 << 20).run(&lossless(&net, "rocev2", &pfc));
            assert_eq!((outcome.status, accounts(&outcome)), (Status::Done, 0));
            assert!(counter(&outcome, "pauses_sent") > 64, "{rate} Gbit/s: {:?}", outcome.counters);
            dropped(&outcome)
        };
        assert_eq!(run(100), 0, "{rate} Gbit/s");
        assert!(run(50) > 0, "{rate} Gbit/s");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_dropped_whatever_the_buffer_cables_and_load(
        (leaves, spines, hosts_per_leaf) in (1..4u32, 1..3u32, 2..9u32),
        rate in prop::sample::select(vec![30 * GBPS, 100 * GBPS, 400 * GBPS]),
        delay in 0..3_000_000u64,
        (shift, offset, reserve) in (0..7u32, 0..20_000u64, 0..20_000u64),
        spare in 0..2_000_000u64,
        kind in prop::sample::select(vec!["metaroce", "rocev2"]),
        priority in any::<bool>(),
        bytes in 100_000..2_000_000u64,
        all in any::<bool>(),
    ) {
        let switching = (false, priority, true);
        let net = Net { planes: 1, leaves, spines, hosts_per_leaf, rate, delay, ecn: (0, 0), switching, ..SMALL };
        let mut pfc = json!({
            "xoff_shift": shift, "xon_offset_bytes": offset, "reserve_bytes": reserve, "buffer_bytes": 1,
        });
        let hosts = net.hosts();
        let job = if all { all_to_all(hosts, bytes / 40, 4) } else { incast(hosts, bytes) };
        // The refusal says what the headroom of the fullest switch takes.
        let mut least = 0u64;
        while let Err(refusal) = job.try_run(&lossless(&net, kind, &pfc)) {
            let told = refusal.split("at least ").nth(1).and_then(|rest| rest.split(':').next());
            let needed: u64 = told.and_then(|n| n.parse().ok()).expect("a number of bytes");
            prop_assert!(needed > least, "{refusal}");
            least = needed;
            pfc["buffer_bytes"] = json!(needed);
        }
        pfc["buffer_bytes"] = json!(least + spare);
        let outcome = job.run(&lossless(&net, kind, &pfc));
        prop_assert_eq!(outcome.status, Status::Done, "{:?} {:?}", outcome.deadlock, outcome.stalled);
        prop_assert_eq!(accounts(&outcome), 0);
        prop_assert_eq!(dropped(&outcome), 0, "{:?}", outcome.counters);
    }
}

#[test]
fn headroom_too_small_to_be_lossless_is_refused_with_what_is_needed() {
    let run = |pfc: Value| incast(65, 1 << 20).try_run(&lossless(&STAR, "rocev2", &pfc));
    let refusal = run(json!({"headroom_bytes": 20_000})).expect_err("too small");
    assert!(refusal.starts_with("fabric.pfc.headroom_bytes: 20000 is not allowed; allowed: 0 "), "{refusal}");
    let needed = refusal.split("at least ").nth(1).and_then(|rest| rest.split(',').next()).expect("a number");
    let needed: u64 = needed.parse().expect("of bytes");
    // 2 x 600 ns at 200 Gbit/s, 453 quanta, three packets of 4194 bytes on the wire, four pause frames.
    assert_eq!(needed, 30_000 + 453 * 512 / 8 + 1 + 3 * 4194 + 4 * 84);
    assert!(run(json!({"headroom_bytes": needed - 1})).is_err());
    assert_eq!(dropped(&run(json!({"headroom_bytes": needed})).expect("enough")), 0);
    // On purpose.
    assert!(run(json!({"headroom_bytes": 20_000, "headroom_percent": 99})).is_ok());
}

#[test]
fn bad_settings_are_refused_by_name() {
    let run = |change: &dyn Fn(&mut Value)| {
        let mut spec = lossless(&STAR, "rocev2", &json!({}));
        change(&mut spec);
        incast(65, 1000).try_run(&spec).expect_err("refused")
    };
    let refusal = run(&|spec| spec["fabric"]["pfc"]["xoff_shift"] = json!(17));
    assert_eq!(refusal, "fabric.pfc.xoff_shift: 17 is not allowed; allowed: 0 to 16");
    let refusal = run(&|spec| spec["fabric"]["pfc"]["headroom_percent"] = json!(0));
    assert_eq!(refusal, "fabric.pfc.headroom_percent: 0 is not allowed; allowed: 1 to 1000");
    let refusal = run(&|spec| spec["fabric"]["pfc"]["buffer_bytes"] = json!(1 << 20));
    assert!(refusal.starts_with("fabric.pfc.buffer_bytes: 1048576 is not allowed; allowed: at least 5"), "{refusal}");
    let refusal = run(&|spec| spec["fabric"]["trim"] = json!(true));
    assert!(
        refusal.starts_with("fabric.trim: true is not allowed; allowed: false where data is lossless"),
        "{refusal}"
    );
    assert!(run(&|spec| spec["fabric"]["pfc"]["headrom"] = json!(1)).contains("unknown field `headrom`"));
}

/// Where no queue is long, a lossless class changes nothing but what is counted.
#[test]
fn without_pauses_a_lossless_class_is_a_lossy_one_that_loses_nothing() {
    let net = Net { planes: 1, leaves: 2, spines: 2, ecn: (0, 0), queue: 1 << 30, ..SMALL };
    let job = all_to_all(8, 30_000, 4);
    for kind in ["metaroce", "rocev2"] {
        let run = |on: bool| {
            let mut spec = lossless(&net, kind, &json!({"buffer_bytes": 1u64 << 40}));
            spec["fabric"]["lossless"] = json!(on);
            if kind == "metaroce" {
                spec["transport"]["hints"] = json!("off");
            }
            job.run_checked(spec, "int32")
        };
        let (lossy, lossless) = (run(false), run(true));
        assert_eq!(counter(&lossless, "pauses_sent"), 0);
        assert_eq!(
            (lossy.time, &lossy.wqe_done, &lossy.wqe_placed),
            (lossless.time, &lossless.wqe_done, &lossless.wqe_placed)
        );
        assert_eq!(lossy.counters, lossless.counters[..lossy.counters.len()]);
    }
}

/// Pauses go upstream from the congested port to the hosts, and only on the way of the packets that meet there.
#[test]
fn pauses_spread_hop_by_hop_to_the_senders() {
    let net = Net { planes: 1, leaves: 3, spines: 1, hosts_per_leaf: 3, ecn: (0, 0), ..SMALL };
    let mut job = Job::new(9);
    for host in [1, 3, 4, 5, 6, 7, 8] {
        job.ranks[host as usize].push(entry(WRITE, 0, 0, 8 << 20));
    }
    let outcome = job.run(&lossless(&net, "rocev2", &json!({"buffer_bytes": 2 << 20})));
    assert_eq!((outcome.status, dropped(&outcome)), (Status::Done, 0));
    let paused: Vec<u32> = outcome.pauses.iter().map(|p| p.link).collect();
    // From the spine to leaf 0 (back on its cable) and host 1, from leaves 1 and 2 to the spine, from their hosts.
    let mut expected: Vec<u32> = vec![2 * net.spine_cable(0, 0, 0) + 1];
    expected.extend([1, 2].map(|leaf| 2 * net.spine_cable(leaf, 0, 0)));
    expected.extend([1, 3, 4, 5, 6, 7, 8].map(|host| 2 * net.host_cable(host, 0)));
    expected.sort_unstable();
    assert_eq!(paused, expected);
    assert!(outcome.pauses.iter().all(|p| p.count > 0 && p.time > metaroce_wire::Time::ZERO && p.time < outcome.time));
    assert_eq!(counter(&outcome, "paused_ps"), outcome.pauses.iter().map(|p| p.time.0).sum::<u64>());
}

/// Switches in a ring with one host each; rank r writes to the host `hops` switches on.
fn ring(switches: u32, hops: u32, pfc: &Value) -> (Value, Job) {
    let (mut a, mut b): (Vec<u32>, Vec<u32>) = (0..switches).map(|i| (i, switches + i)).unzip();
    a.extend(switches..2 * switches);
    b.extend((0..switches).map(|i| switches + (i + 1) % switches));
    let rows = a.len();
    let mut spec = lossless(&Net { hosts_per_leaf: switches, ..STAR }, "rocev2", pfc);
    spec["fabric"]["switches"] = json!({"plane": vec![0; switches as usize], "tier": vec![1; switches as usize]});
    spec["fabric"]["links"] = json!({
        "a": a, "b": b, "rate_bps": vec![100 * GBPS; rows], "delay_ps": vec![600_000; rows],
        "queue_bytes": vec![1 << 20; rows], "ecn_kmin_bytes": vec![0; rows], "ecn_kmax_bytes": vec![0; rows],
        "ecn_pmax": vec![0.0; rows],
    });
    let mut job = Job::new(switches);
    for rank in 0..switches {
        job.ranks[rank as usize].push(entry(WRITE, (rank + hops) % switches, 0, 16 << 20));
    }
    (spec, job)
}

#[test]
fn a_cyclic_buffer_dependency_deadlocks_and_its_cycle_is_named() {
    let (spec, job) = ring(7, 3, &json!({"buffer_bytes": 2 << 20}));
    let outcome = job.run(&spec);
    assert_eq!(outcome.status, Status::Deadlock, "{:?} {:?}", outcome.time, outcome.counters);
    // Once round, in the order of the ring: row 7 + i leads from switch i to the next.
    let mut cycle = outcome.deadlock.clone();
    cycle.sort_unstable();
    assert_eq!(cycle, (7..14).map(|row| 2 * row).collect::<Vec<u32>>());
    assert!(outcome.deadlock.windows(2).all(|w| w[1] == w[0] + 2 || (w[0], w[1]) == (26, 14)));
    assert_eq!((dropped(&outcome), accounts(&outcome)), (0, 0));
    assert!(!outcome.stalled.is_empty());
    // Found in the first milliseconds, not when timers give up.
    assert!(outcome.time.0 < 5_000_000_000, "{:?}", outcome.time);
}

#[test]
fn a_time_limit_before_the_first_look_reports_the_deadlock_too() {
    let (mut spec, job) = ring(7, 3, &json!({"buffer_bytes": 2 << 20}));
    spec["time_limit_ps"] = json!(900_000_000u64);
    let outcome = job.run(&spec);
    assert_eq!((outcome.status, outcome.deadlock.len()), (Status::Deadlock, 7));
}

#[test]
fn the_watchdog_breaks_a_deadlock_at_the_price_of_loss() {
    let pfc = json!({
        "buffer_bytes": 2 << 20, "watchdog": true, "watchdog_detect_ps": 1_000_000_000u64,
        "watchdog_restore_ps": 1_000_000_000u64,
    });
    let (mut spec, job) = ring(7, 3, &pfc);
    spec["transport"]["retry_count"] = json!(1000);
    let outcome = job.run(&spec);
    assert_eq!(outcome.status, Status::Done, "{:?}", outcome.stalled);
    assert!(counter(&outcome, "watchdog_storms") > 0 && counter(&outcome, "dropped_watchdog") > 0);
    assert_eq!(accounts(&outcome), 0);
}

/// A link that goes down while paused starts anew.
#[test]
fn packets_are_accounted_for_through_faults_and_pauses() {
    let net = Net { planes: 1, leaves: 2, spines: 2, hosts_per_leaf: 4, ecn: (0, 0), ..SMALL };
    for kind in ["metaroce", "rocev2"] {
        for (row, at) in (0..net.hosts() + 4).zip([20u64, 50, 90].into_iter().cycle()) {
            let mut spec = lossless(&net, kind, &json!({"buffer_bytes": 2 << 20}));
            let fault = |us: u64, up| json!({"at_ps": us * 1_000_000, "target": "link", "id": row, "up": up});
            spec["faults"] = json!([fault(at, false), fault(at + 40, true)]);
            spec["fabric"]["reroute_delay_ps"] = json!(10_000_000);
            if kind == "rocev2" {
                spec["transport"]["retry_count"] = json!(100);
                spec["transport"]["adaptive_base_ps"] = json!(100_000_000u64);
            }
            let outcome = incast(8, 4 << 20).run(&spec);
            assert_eq!(
                (outcome.status, accounts(&outcome)),
                (Status::Done, 0),
                "{kind}, row {row}: {:?}",
                outcome.stalled
            );
        }
    }
}
