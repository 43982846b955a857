//! Links, switches and planes that fail while data flows: what is left goes on, what was lost is
//! repaired, and a run without any way ends with a typed stall.

mod common;

use common::{GBPS, Job, MULTIPLANE_4X64, Net, SMALL, all_to_all, counter, unaccounted};
use metaroce_driver::{Outcome, Status};
use serde_json::{Value, json};

const NET: Net = Net { planes: 4, leaves: 2, spines: 4, hosts_per_leaf: 2, ..MULTIPLANE_4X64 };
const US: u64 = 1_000_000;
/// Long enough that what arrives twice (its acknowledgement died with the plane) hardly shows.
const BIN: u64 = 20 * US;

fn fault(at_us: u64, target: &str, id: u32, up: bool) -> Value {
    json!({"at_ps": at_us * US, "target": target, "id": id, "up": up})
}

fn run(net: &Net, kind: &str, bytes: u64, faults: Vec<Value>) -> Outcome {
    let mut spec = net.spec(kind, net.hosts());
    spec["faults"] = json!(faults);
    spec["record_bin_ps"] = json!(BIN);
    let outcome = Job::write(net.hosts(), net.hosts() - 1, bytes).run(&spec);
    assert_eq!(unaccounted(&outcome), 0);
    outcome
}

/// Bins of a plane from `from` us to `to` us, in percent of a full one.
fn percent(outcome: &Outcome, net: &Net, plane: usize, from: u64, to: u64) -> Vec<u64> {
    // Payload of full packets at line rate.
    let full = net.rate / 8 * (BIN / US) / 1_000_000 * 4096 / 4210;
    let bins = &outcome.plane_bins[plane][(from * US / BIN) as usize..(to * US / BIN) as usize];
    bins.iter().map(|bytes| bytes * 100 / full).collect()
}

/// The last full bin of the flow, us.
fn end(outcome: &Outcome) -> u64 {
    outcome.wqe_placed[0] / BIN * BIN / US
}

// [F5.slow-path-stalls-nobody] [I16] [I28]
#[test]
fn a_plane_that_dies_stalls_no_other() {
    let outcome = run(&NET, "metaroce", 48 << 20, vec![fault(200, "plane", 1, false)]);
    assert_eq!(outcome.status, Status::Done);
    assert_eq!(counter(&outcome, "placed_bytes"), 48 << 20);
    for plane in [0, 2, 3] {
        let shares = percent(&outcome, &NET, plane, 20, end(&outcome));
        assert!(shares.len() > 25 && shares.iter().all(|share| *share >= 90), "plane {plane}: {shares:?}");
    }
    assert!(percent(&outcome, &NET, 1, 20, 180).iter().all(|share| *share >= 90));
    let after = (200 * US / BIN) as usize;
    assert!(outcome.plane_bins[1][after..].iter().all(|bytes| *bytes == 0), "nothing arrives by a dead plane");
}

// [F5.probe-revives] [I28]
#[test]
fn a_plane_that_returns_is_used_again() {
    let faults = vec![fault(200, "plane", 1, false), fault(400, "plane", 1, true)];
    let outcome = run(&NET, "metaroce", 64 << 20, faults);
    assert_eq!(outcome.status, Status::Done);
    assert_eq!(counter(&outcome, "paths_died"), counter(&outcome, "paths_revived"));
    assert!(counter(&outcome, "paths_died") >= 4);
    // A probe each 100 us.
    let shares = percent(&outcome, &NET, 1, 540, end(&outcome));
    assert!(shares.len() > 5 && shares.iter().all(|share| *share >= 90), "{shares:?}");
}

// [I16] [I28]
#[test]
fn mrc_leaves_a_plane_that_dies_and_uses_it_again_when_it_returns() {
    let faults = vec![fault(200, "plane", 1, false), fault(400, "plane", 1, true)];
    let outcome = run(&NET, "mrc", 64 << 20, faults);
    assert_eq!(outcome.status, Status::Done);
    assert_eq!(counter(&outcome, "placed_bytes"), 64 << 20);
    // 32 entropy values and 8 backups.
    assert_eq!((counter(&outcome, "paths_died"), counter(&outcome, "paths_revived")), (40, 40));
    assert_eq!(counter(&outcome, "timeouts"), 0);
    for plane in [0, 2, 3] {
        let shares = percent(&outcome, &NET, plane, 20, end(&outcome));
        assert!(shares.len() > 25 && shares.iter().all(|share| *share >= 50), "plane {plane}: {shares:?}");
    }
    let shares = percent(&outcome, &NET, 1, 540, end(&outcome));
    assert!(shares.len() > 5 && shares.iter().all(|share| *share >= 90), "{shares:?}");
}

// [F5.slow-path-stalls-nobody]
#[test]
fn a_dead_host_link_costs_its_plane_alone() {
    let cable = NET.host_cable(3, 2);
    let faults = vec![fault(100, "link", cable, false), fault(300, "link", cable, true)];
    let outcome = run(&NET, "metaroce", 48 << 20, faults);
    assert_eq!(outcome.status, Status::Done);
    for plane in [0, 1, 3] {
        let shares = percent(&outcome, &NET, plane, 20, end(&outcome));
        assert!(shares.iter().all(|share| *share >= 90), "plane {plane}: {shares:?}");
    }
    assert!(percent(&outcome, &NET, 2, 440, end(&outcome)).iter().all(|share| *share >= 90));
}

// [F3.port-may-change]
#[test]
fn a_dead_spine_link_or_spine_leaves_its_plane_working() {
    let targets = [("link", NET.spine_cable(0, 1, 2)), ("link", NET.spine_cable(1, 1, 2)), ("switch", NET.spine(1, 2))];
    for (target, id) in targets {
        let faults = vec![fault(100, target, id, false), fault(400, target, id, true)];
        let outcome = run(&NET, "metaroce", 48 << 20, faults);
        assert_eq!(outcome.status, Status::Done);
        for plane in [0, 1, 3] {
            let shares = percent(&outcome, &NET, plane, 20, end(&outcome));
            assert!(shares.iter().all(|share| *share >= 90), "{target} {id}, plane {plane}: {shares:?}");
        }
        // Three of four routes are left to the flow, and a host link is filled by any.
        let shares = percent(&outcome, &NET, 2, 160, end(&outcome));
        assert!(shares.iter().all(|share| *share >= 70), "{target} {id}: {shares:?}");
        assert!(counter(&outcome, "dropped_link_down") + counter(&outcome, "dropped_no_route") > 0);
    }
}

// [I1]
#[test]
fn payload_survives_planes_that_flap() {
    for kind in ["metaroce", "rocev2", "rocev2-sr", "mrc"] {
        let job = all_to_all(8, 50_000, 4);
        let mut spec = SMALL.spec(kind, 8);
        spec["faults"] = json!([
            fault(10, "plane", 0, false),
            fault(40, "plane", 0, true),
            fault(60, "plane", 1, false),
            fault(200, "plane", 1, true),
        ]);
        spec["fabric"]["reroute_delay_ps"] = json!(20 * US);
        let outcome = job.run_checked(spec, "float32");
        assert_eq!((outcome.status, unaccounted(&outcome)), (Status::Done, 0), "{kind}");
        assert_eq!(outcome.check.map(|(wrong, _)| wrong), Some(0));
    }
}

// [I15]
#[test]
fn all_links_dead_for_good_end_in_a_stall_that_names_the_flows() {
    for kind in ["metaroce", "rocev2", "rocev2-sr", "mrc"] {
        let faults = (0..4).map(|plane| fault(50, "plane", plane, false)).collect();
        let outcome = run(&NET, kind, 16 << 20, faults);
        assert_eq!(outcome.status, Status::Stalled, "{kind}");
        let flow = &outcome.stalled[0];
        assert_eq!((flow.src, flow.dst, flow.stream), (0, 3, 0));
        assert!(flow.bytes_left > 8 << 20 && flow.bytes_left <= 16 << 20, "{}", flow.bytes_left);
        assert!(!flow.reason.is_empty());
        assert_eq!(outcome.wqe_done[0], u64::MAX);
        assert!(outcome.time.0 < 5_000_000 * US, "{}", outcome.time);
    }
}

// [I15]
#[test]
fn a_collective_without_links_stalls_soon() {
    for kind in ["metaroce", "rocev2", "rocev2-sr", "mrc"] {
        let job = all_to_all(8, 100_000, 4);
        let mut spec = SMALL.spec(kind, 8);
        spec["memory_bytes"] = json!(job.memory);
        spec["faults"] = json!([fault(20, "plane", 0, false), fault(20, "plane", 1, false)]);
        let outcome = job.run(&spec);
        assert_eq!(outcome.status, Status::Stalled, "{kind}");
        assert!(!outcome.stalled.is_empty() && outcome.stalled.len() <= 64);
        assert!(outcome.stalled.iter().all(|f| f.src < 8 && f.dst < 8 && f.src != f.dst && !f.reason.is_empty()));
        assert!(counter(&outcome, "events") < 2_000_000, "{}", counter(&outcome, "events"));
    }
}

#[test]
fn a_receive_that_nobody_sends_to_stalls_though_a_plane_is_down() {
    let mut job = Job::write(8, 7, 4 << 20);
    job.ranks[7].push(common::entry(common::RECV, 0, 0, 100));
    let mut spec = SMALL.spec("metaroce", 8);
    spec["faults"] = json!([fault(20, "plane", 0, false)]);
    let outcome = job.run(&spec);
    assert_eq!(outcome.status, Status::Stalled);
    assert_ne!(outcome.wqe_done[0], u64::MAX);
}

#[test]
fn the_time_limit_bounds_a_run() {
    let mut spec = NET.spec("rocev2", 4);
    spec["time_limit_ps"] = json!(100 * US);
    let outcome = Job::write(4, 3, 64 << 20).run(&spec);
    assert_eq!((outcome.status, outcome.time.0), (Status::Bound, 100 * US));
    assert_eq!(unaccounted(&outcome), 0);
    assert!(outcome.payload_line_rate > 700 * GBPS);
}
