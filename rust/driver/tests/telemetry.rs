//! Time series of connections and paths: they change nothing, agree with the totals, and are refused
//! where they would not fit.

mod common;

use std::collections::BTreeMap;

use common::{Entry, Job, MTU, Net, RECV, SEND, SMALL, WRITE, all_reduce, all_to_all, counter, entry};
use metaroce_driver::{ConnectionTable, Outcome, PathTable, Status, Tables};
use metaroce_proto::Health;
use proptest::prelude::*;
use serde_json::{Value, json};

const US: u64 = 1_000_000;

fn tables(outcome: &Outcome) -> &Tables {
    outcome.telemetry.as_ref().expect("telemetry was asked for")
}

/// All that a run tells, but for the telemetry and its switch.
fn told(outcome: &Outcome) -> String {
    let Outcome { status, time, iterations, digest, counters, plane_bytes, stalled, wqe_done, .. } = outcome;
    format!("{status:?} {time:?} {iterations:?} {digest} {counters:?} {plane_bytes:?} {stalled:?} {wqe_done:?}")
}

fn recorded(spec: &Value, interval: u64) -> Value {
    let mut spec = spec.clone();
    spec["record_paths_ps"] = json!(interval);
    spec
}

fn lengths(tables: &Tables) -> (Vec<usize>, Vec<usize>) {
    let (mut connections, mut paths) = (Vec::new(), Vec::new());
    let ConnectionTable { time_ps, .. } = &tables.connections;
    let rows = (time_ps.len(), tables.paths.time_ps.len());
    let width = |name: &str| match name {
        "state" | "plane" => 1,
        "path" | "ecn_permille" => 2,
        "src" | "dst" => 4,
        _ => 8,
    };
    tables.connections.clone().into_columns(|name, bytes| connections.push(bytes.len() / width(name)));
    tables.paths.clone().into_columns(|name, bytes| {
        paths.push(bytes.len() / if name.ends_with("_bytes") { 4 } else { width(name) });
    });
    connections.push(rows.0);
    paths.push(rows.1);
    (connections, paths)
}

/// Rows of the last sample.
fn last(times: &[u64]) -> std::ops::Range<usize> {
    times.partition_point(|t| t < times.last().unwrap_or(&0))..times.len()
}

fn at_end(paths: &PathTable, column: &[u64]) -> u64 {
    column[last(&paths.time_ps)].iter().sum()
}

/// What must hold of any recorded run.
fn check(outcome: &Outcome, kind: &str, interval: u64) -> Result<(), TestCaseError> {
    let Tables { connections, paths } = tables(outcome);
    let (of_connections, of_paths) = lengths(tables(outcome));
    for lengths in [of_connections, of_paths] {
        prop_assert!(lengths.iter().all(|&n| n == lengths[0]), "{:?}", lengths);
    }
    for times in [&connections.time_ps, &paths.time_ps] {
        prop_assert!(times.is_sorted());
        prop_assert_eq!(times.last(), Some(&outcome.time.0));
        let regular = |&&t: &&u64| t != outcome.time.0;
        prop_assert!(times.iter().filter(regular).all(|t| t % interval == 0));
    }
    prop_assert_eq!(at_end(paths, &paths.sent), counter(outcome, "data_packets_sent"));
    prop_assert_eq!(at_end(paths, &paths.lost_gap), counter(outcome, "gap_detections"));
    let by_time = if kind.starts_with("rocev2") { "timeouts" } else { "timer_detections" };
    prop_assert_eq!(at_end(paths, &paths.lost_tail), counter(outcome, by_time));
    let marks = if kind.starts_with("rocev2") { "cnps" } else { "ecn_marks" };
    prop_assert!(at_end(paths, &paths.marked) <= counter(outcome, marks), "a mark may be on its way");
    prop_assert!(paths.ecn_permille.iter().all(|&share| share <= 1000));
    never_falls(paths)?;
    let mut in_flight: BTreeMap<(u64, u32, u32), u64> = BTreeMap::new();
    for row in 0..paths.time_ps.len() {
        let key = (paths.time_ps[row], paths.src[row], paths.dst[row]);
        *in_flight.entry(key).or_default() += u64::from(paths.in_flight_bytes[row]);
        prop_assert!(usize::from(paths.state[row]) < Health::NAMES.len());
    }
    prop_assert_eq!(in_flight.len(), connections.time_ps.len(), "each connection once a sample");
    for row in 0..connections.time_ps.len() {
        let key = (connections.time_ps[row], connections.src[row], connections.dst[row]);
        prop_assert_eq!(in_flight.get(&key), Some(&connections.in_flight_bytes[row]));
        prop_assert!(connections.acked_bytes[row] <= connections.sent_bytes[row]);
    }
    Ok(())
}

/// Totals of a path, sample after sample.
fn never_falls(paths: &PathTable) -> Result<(), TestCaseError> {
    let mut before: BTreeMap<(u32, u32, u16), [u64; 4]> = BTreeMap::new();
    for row in 0..paths.time_ps.len() {
        let now = [paths.sent[row], paths.lost_gap[row], paths.lost_tail[row], paths.marked[row]];
        let old = before.insert((paths.src[row], paths.dst[row], paths.path[row]), now).unwrap_or_default();
        prop_assert!(old.iter().zip(&now).all(|(old, now)| old <= now), "{:?} after {:?}", now, old);
    }
    Ok(())
}

/// A lossy run, with planes that go down and come back.
fn spec(kind: &str, loss: f64, faults: &[(u64, u32, bool)], seed: u64) -> Value {
    let mut spec = Net { queue: 200_000, ecn: (20_000, 60_000), ..SMALL }.spec(kind, 8);
    spec["seed"] = json!(seed);
    spec["loss"] = json!({"probability": loss});
    let fault =
        |&(us, plane, up): &(u64, u32, bool)| json!({"at_ps": us * US, "target": "plane", "id": plane, "up": up});
    spec["faults"] = json!(faults.iter().map(fault).collect::<Vec<_>>());
    spec["time_limit_ps"] = json!(800 * US);
    spec
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn recording_changes_nothing_and_agrees_with_the_totals(
        kind in prop::sample::select(vec!["metaroce", "rocev2", "rocev2-sr", "mrc"]),
        loss in prop::sample::select(vec![0.0, 0.01, 0.2]),
        faults in prop::collection::vec((0..300u64, 0..2u32, any::<bool>()), 0..4),
        ring in any::<bool>(),
        interval in prop::sample::select(vec![7_777_777, 30 * US, 10_000 * US]),
        seed in any::<u64>(),
    ) {
        let job = if ring { all_reduce(8, 60_000, 4) } else { all_to_all(8, 10_000, 4) };
        let spec = spec(kind, loss, &faults, seed);
        let (plain, outcome) = (job.run(&spec), job.run(&recorded(&spec, interval)));
        prop_assert_eq!(told(&plain), told(&outcome));
        prop_assert!(plain.telemetry.is_none());
        check(&outcome, kind, interval)?;
    }
}

#[test]
fn a_lossless_run_ends_with_all_bytes_sent_and_acknowledged() {
    for kind in ["metaroce", "rocev2", "rocev2-sr", "mrc"] {
        let outcome = Job::write(8, 7, 100_001).run(&recorded(&SMALL.spec(kind, 8), 2 * US));
        let Tables { connections, paths } = tables(&outcome);
        let end = last(&connections.time_ps).start;
        assert_eq!(connections.src.iter().zip(&connections.dst).find(|&pair| pair != (&0, &7)), None, "one sender");
        let done = [connections.sent_bytes[end], connections.acked_bytes[end], connections.unsent_bytes[end]];
        assert_eq!(done, [100_001, 100_001, 0], "{kind}");
        assert_eq!(connections.in_flight_bytes[end], 0);
        assert_eq!(connections.time_ps.len() as u64, outcome.time.0.div_ceil(2 * US) + 1);
        assert!(paths.state.iter().all(|&state| state == Health::Up as u8));
    }
}

#[test]
fn a_sample_shows_the_state_after_all_events_of_its_time() {
    let outcome = Job::write(8, 7, 100_000).run(&recorded(&SMALL.spec("metaroce", 8), 10_000 * US));
    let Tables { connections, paths } = tables(&outcome);
    assert_eq!(connections.time_ps, [0, outcome.time.0]);
    // At time 0 each of the two ports has pulled one packet.
    assert_eq!((connections.sent_bytes[0], connections.in_flight_bytes[0]), (2 * MTU, 2 * MTU));
    let first = 0..paths.time_ps.len() / 2;
    assert_eq!(paths.sent[first.clone()].iter().sum::<u64>(), 2);
    assert_eq!(paths.in_flight_bytes[first].iter().filter(|&&b| u64::from(b) == MTU).count(), 2);
    assert!(paths.srtt_ps.iter().all(|&t| t > 0) && paths.window_bytes.iter().all(|&w| w > 0));
    assert!(connections.hint_bps[1] > 300 * common::GBPS, "an only sender is granted all of both ports");
}

#[test]
fn paths_of_a_dead_plane_are_shown_as_down() {
    let mut spec = spec("metaroce", 0.0, &[(20, 1, false)], 1);
    spec["fabric"]["reroute_delay_ps"] = json!(1_000 * US);
    let outcome = Job::write(8, 7, 8 << 20).run(&recorded(&spec, US));
    let paths = &tables(&outcome).paths;
    let of_plane = |plane: u8| {
        let rows = last(&paths.time_ps).filter(move |&row| paths.plane[row] == plane);
        rows.map(|row| Health::NAMES[paths.state[row] as usize]).collect::<Vec<_>>()
    };
    assert!(!of_plane(1).is_empty() && of_plane(1).iter().all(|&state| state == "down"), "{:?}", of_plane(1));
    assert!(of_plane(0).iter().all(|&state| state == "up"));
    assert!(paths.state.contains(&(Health::Suspect as u8)), "silent before it is given up");
    check(&outcome, "metaroce", US).expect("totals survive the end of an epoch");
}

#[test]
fn a_stalled_run_and_one_at_its_limit_end_as_they_would() {
    for kind in ["metaroce", "rocev2", "rocev2-sr", "mrc"] {
        let mut spec = spec(kind, 0.0, &[(5, 0, false), (5, 1, false)], 1);
        for (limit, status) in [(json!(50 * US + 1), Status::Bound), (json!(null), Status::Stalled)] {
            spec["time_limit_ps"] = limit;
            let job = all_reduce(8, 60_000, 4);
            let (plain, outcome) = (job.run(&spec), job.run(&recorded(&spec, 40_000 * US)));
            assert_eq!(outcome.status, status);
            assert_eq!(told(&plain), told(&outcome));
            check(&outcome, kind, 40_000 * US).expect("sound tables");
        }
    }
}

#[test]
fn only_the_connections_of_the_ranks_asked_for_are_recorded() {
    let job = all_to_all(8, 2_000, 4);
    let mut spec = recorded(&SMALL.spec("metaroce", 8), US);
    let all = job.run(&spec);
    spec["record_paths_ranks"] = json!([5, 2]);
    let some = job.run(&spec);
    assert_eq!(told(&all), told(&some));
    let row = |t: &ConnectionTable, i: usize| (t.time_ps[i], t.src[i], t.dst[i], t.sent_bytes[i], t.window_bytes[i]);
    let rows = |t: &ConnectionTable| (0..t.time_ps.len()).map(|i| row(t, i)).collect::<Vec<_>>();
    let mut wanted = rows(&tables(&all).connections);
    wanted.retain(|r| r.1 == 5 || r.1 == 2);
    let mut found = rows(&tables(&some).connections);
    assert_eq!(found[0].1, 5, "in the order asked for");
    wanted.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, wanted);
}

#[test]
fn what_cannot_be_recorded_is_refused_in_one_line() {
    let told = |change: fn(&mut Value)| {
        let mut spec = SMALL.spec("metaroce", 8);
        change(&mut spec);
        let mut job = Job::write(8, 1, 10 * MTU);
        // A second write after a long silence.
        job.ranks[0].push(Entry { start: 1_000_000 * US, ..entry(WRITE, 1, 0, MTU) });
        job.try_run(&spec).expect_err("refused")
    };
    let cases: [(&[&str], String); 5] = [
        (&["record_paths_ps", "0", "at least 1"], told(|s| s["record_paths_ps"] = json!(0))),
        (&["record_paths_ps", "1000", "20000000 rows"], told(|s| s["record_paths_ps"] = json!(1000))),
        (&["record_paths_ranks", "record_paths_ps"], told(|s| s["record_paths_ranks"] = json!([0]))),
        (
            &["record_paths_ranks[1]", "8", "below 8"],
            told(|s| (s["record_paths_ps"], s["record_paths_ranks"]) = (json!(US), json!([0, 8]))),
        ),
        (
            &["record_paths_ranks[1]", "3", "distinct"],
            told(|s| (s["record_paths_ps"], s["record_paths_ranks"]) = (json!(US), json!([3, 3]))),
        ),
    ];
    for (words, message) in cases {
        assert_eq!(message.lines().count(), 1, "{message}");
        for word in words {
            assert!(message.contains(word), "{word} missing in: {message}");
        }
    }
}

/// What else happens in the window of the end comes after the last sample, however many are due before it.
#[test]
fn a_sample_due_between_the_end_and_that_of_its_window_is_not_waited_for() {
    // One message fails early; the others are on their way then.
    let mut job = all_to_all(8, 100_000, 4);
    job.ranks[0].push(entry(SEND, 1, 0, 2 * MTU));
    job.ranks[1].push(entry(RECV, 0, 0, MTU));
    for kind in ["metaroce", "rocev2"] {
        for interval in [20_000, 100_000, 170_000] {
            let mut spec = recorded(&spec(kind, 0.0, &[], 1), interval);
            spec["record_paths_ranks"] = json!([0]);
            let outcome = job.run(&spec);
            assert_eq!(outcome.status, Status::Stalled);
            assert_eq!(tables(&outcome).connections.time_ps.last(), Some(&outcome.time.0), "{kind}, {interval} ps");
        }
    }
}

#[test]
fn the_shortest_interval_of_a_run_without_rows_ends() {
    let mut job = Job::new(2);
    job.ranks[0].push(Entry { start: 1_000_000_000 * US, ..entry(common::COPY, 0, 0, 1) });
    let outcome = job.run(&recorded(&SMALL.spec("metaroce", 2), 1));
    assert_eq!((outcome.status, tables(&outcome).paths.time_ps.len()), (Status::Done, 0));
}
