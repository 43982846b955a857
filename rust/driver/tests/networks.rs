//! Ranks with two hosts, one in the network of their rack and one between racks.

mod common;

use common::{
    Entry, GBPS, Job, MTU, NOOP, RECV, SEND, WRITE, WRITE_IMM, all_reduce, all_to_all, counter, entry, unaccounted,
};
use metaroce_driver::{Denied, Region, Status};
use metaroce_engine::pattern::{Expect, Fill};
use serde_json::{Value, json};

/// Racks of 2, 2 and 1 ranks: 3 planes up of 800 Gbit/s, 1 out of 100 Gbit/s.
const RACKS: [u32; 3] = [2, 2, 1];
const RANKS: u32 = 5;
const UP: Side = Side { planes: 3, rate: 800 * GBPS, delay: 1_250_000 };
const OUT: Side = Side { planes: 1, rate: 100 * GBPS, delay: 3_000_000 };
const TRANSPORTS: [&str; 4] = ["metaroce", "rocev2", "rocev2-sr", "mrc"];

#[derive(Clone, Copy)]
struct Side {
    planes: u32,
    rate: u64,
    delay: u64,
}

impl Side {
    /// Time of one packet from host to host, alone.
    fn alone(&self, len: u64) -> u64 {
        2 * (self.delay + (8 * len * 1_000_000_000_000).div_ceil(self.rate))
    }
}

/// Ranks that are shuffled over the accelerators. Accelerator a has hosts a and 5 + a.
fn spec(kind: &str) -> Value {
    let (mut plane_of, mut links) = (Vec::new(), Vec::new());
    for plane in 0..UP.planes {
        let mut host = 0;
        for size in RACKS {
            plane_of.push(plane);
            for _ in 0..size {
                links.push((host, 2 * RANKS + plane_of.len() as u32 - 1, UP));
                host += 1;
            }
        }
    }
    plane_of.push(0);
    links.extend((RANKS..2 * RANKS).map(|host| (host, 2 * RANKS + plane_of.len() as u32 - 1, OUT)));
    let rows = links.len();
    let transport = match kind {
        "rocev2-sr" => json!({"kind": "rocev2", "recovery": "selective-repeat"}),
        _ => json!({"kind": kind}),
    };
    json!({
        "seed": 1,
        "fabric": {
            "hosts": 2 * RANKS,
            "planes": UP.planes,
            "islands": true,
            "switches": {"plane": plane_of, "tier": vec![1; plane_of.len()]},
            "links": {
                "a": links.iter().map(|l| l.0).collect::<Vec<_>>(),
                "b": links.iter().map(|l| l.1).collect::<Vec<_>>(),
                "rate_bps": links.iter().map(|l| l.2.rate).collect::<Vec<_>>(),
                "delay_ps": links.iter().map(|l| l.2.delay).collect::<Vec<_>>(),
                "queue_bytes": vec![4 << 20; rows],
                "ecn_kmin_bytes": vec![200 << 10; rows],
                "ecn_kmax_bytes": vec![800 << 10; rows],
                "ecn_pmax": vec![0.2; rows],
            },
        },
        "transport": transport,
        "hosts_of_ranks": [3, 0, 2, 4, 1],
        "scale_out": {"hosts_of_ranks": [8, 5, 7, 9, 6], "domain_of_rank": [1, 0, 1, 2, 0]},
        "memory_bytes": 1u64 << 32,
        "record_wqes": true,
    })
}

/// Ranks of the spec that share a rack, and one of another.
const SELF: u32 = 0;
const NEIGHBOUR: u32 = 2;
const STRANGER: u32 = 1;

/// Length on the wire of a Write of `bytes` that one packet holds.
fn on_wire(kind: &str, bytes: u64) -> u64 {
    // Of 20 bytes preamble and gap, 18 Ethernet, 20 IPv4, 8 UDP, then the transport's own.
    66 + bytes
        + match kind {
            "metaroce" => 52,
            "mrc" => 44,
            _ => 32,
        }
}

#[test]
fn an_idle_write_takes_what_the_cables_of_its_network_take() {
    for kind in TRANSPORTS {
        for bytes in [8, 1000, MTU] {
            for (to, side) in [(NEIGHBOUR, UP), (STRANGER, OUT)] {
                let outcome = Job::write(RANKS, to, bytes).run(&spec(kind));
                assert_eq!(outcome.status, Status::Done);
                assert_eq!(outcome.wqe_placed, [side.alone(on_wire(kind, bytes))], "{kind} {bytes} to {to}");
            }
        }
    }
}

/// Element i of what a rank is to hold at `offset` is element i of what `from` was given.
fn watch(job: &mut Job, (rank, offset): (u32, u64), from: u32, count: u64) {
    job.fills.push(Fill { rank: from, offset: 0, count, index: 0 });
    job.expects.push(Expect { rank, offset, count, from, index: 0 });
}

#[test]
fn both_networks_of_a_rank_are_busy_at_once() {
    let bytes = 4 << 20;
    for kind in TRANSPORTS {
        let times = |to: &[u32]| {
            let mut job = Job::new(RANKS);
            job.memory = 3 * bytes;
            for &to in to {
                job.ranks[SELF as usize].push(Entry { remote: bytes, ..entry(WRITE, to, 0, bytes) });
                job.expects.push(Expect { rank: to, offset: bytes, count: bytes / 4, from: SELF, index: 0 });
            }
            job.fills.push(Fill { rank: SELF, offset: 0, count: bytes / 4, index: 0 });
            let outcome = job.run_checked(spec(kind), "float32");
            assert_eq!((outcome.status, outcome.check), (Status::Done, Some((0, to.len() as u64 * bytes / 4))));
            outcome.wqe_done
        };
        let alone = [times(&[NEIGHBOUR])[0], times(&[STRANGER])[0]];
        assert_eq!(times(&[NEIGHBOUR, STRANGER]), alone, "{kind}: they share nothing");
        assert!(alone[1] > 8 * alone[0], "{kind}: {alone:?}");
    }
}

/// A token goes from host to host and changes networks at every rank: nothing else makes a host look at what is posted.
#[test]
fn what_completes_at_one_host_of_a_rank_starts_what_the_other_sends() {
    for kind in TRANSPORTS {
        let (hops, bytes) = ([(SELF, NEIGHBOUR), (NEIGHBOUR, STRANGER), (STRANGER, 4), (4, 3), (3, SELF)], 10_000u64);
        let mut job = Job::new(RANKS);
        job.memory = 2 * bytes;
        for (k, &(from, to)) in hops.iter().enumerate() {
            let own = &mut job.ranks[from as usize];
            // What came last lies where the next hop takes it from.
            let deps = if k == 0 { vec![] } else { (0..own.len() as u32).collect() };
            own.push(Entry { deps, ..entry(SEND, to, 0, bytes) });
            let own = &mut job.ranks[to as usize];
            own.push(entry(RECV, from, if to == SELF { bytes } else { 0 }, bytes));
            own.push(Entry { deps: vec![own.len() as u32 - 1], ..entry(NOOP, 0, 0, 0) });
        }
        watch(&mut job, (SELF, bytes), SELF, bytes / 4);
        let outcome = job.run_checked(spec(kind), "float32");
        assert_eq!((outcome.status, outcome.check), (Status::Done, Some((0, bytes / 4))), "{kind}");
    }
}

/// Immediate data has waited for its receive, which is complete as soon as it is posted: at a host where nothing happens.
#[test]
fn what_posting_at_the_other_host_completes_goes_on() {
    for kind in ["metaroce", "mrc"] {
        let mut job = Job::new(RANKS);
        job.ranks[STRANGER as usize].push(entry(WRITE_IMM, SELF, 0, 100));
        job.ranks[NEIGHBOUR as usize].push(Entry { start: 100_000_000, ..entry(SEND, SELF, 0, 100) });
        job.ranks[NEIGHBOUR as usize].push(entry(RECV, SELF, 0, 100));
        let then = |after: u32, next: Entry| Entry { deps: vec![after], ..next };
        job.ranks[SELF as usize] = vec![
            entry(RECV, NEIGHBOUR, 0, 100),
            then(0, entry(RECV, STRANGER, 0, 100)),
            then(1, entry(SEND, NEIGHBOUR, 0, 100)),
        ];
        let outcome = job.run(&spec(kind));
        assert_eq!(outcome.status, Status::Done, "{kind}");
        assert_eq!(outcome.wqe_done[0], outcome.wqe_done[1], "{kind}: rank 0 is first in the columns");
    }
}

#[test]
fn collectives_across_racks_are_right_under_loss_and_nothing_is_lost_count_of() {
    for kind in TRANSPORTS {
        for (name, job) in [("all_reduce", all_reduce(RANKS, 50_000, 4)), ("alltoall", all_to_all(RANKS, 20_000, 4))] {
            let mut spec = spec(kind);
            spec["loss"] = json!({"probability": 0.02});
            let outcome = job.run_checked(spec, "int32");
            assert_eq!((outcome.status, outcome.check.map(|c| c.0)), (Status::Done, Some(0)), "{kind} {name}");
            assert!(counter(&outcome, "dropped_loss") > 0 && counter(&outcome, "dropped_no_route") == 0);
            assert_eq!(unaccounted(&outcome), 0);
        }
    }
}

#[test]
fn a_plane_that_is_down_is_down_in_both_networks_and_a_switch_in_its_own() {
    let run = |to: u32, fault: Value| {
        let mut spec = spec("metaroce");
        spec["faults"] = json!([{"at_ps": 0, "target": fault[0], "id": fault[1], "up": false}]);
        spec["time_limit_ps"] = json!(20_000_000_000u64);
        let outcome = Job::write(RANKS, to, 1 << 20).run(&spec);
        (outcome.status, outcome.plane_bytes)
    };
    let (status, planes) = run(NEIGHBOUR, json!(["plane", 0]));
    assert_eq!((status, planes[0]), (Status::Done, 0));
    assert_ne!(run(STRANGER, json!(["plane", 0])).0, Status::Done, "the only plane out");
    // Switches of plane 1: one a rack, none between racks.
    assert_eq!(run(STRANGER, json!(["plane", 1])), (Status::Done, vec![1 << 20, 0, 0]));
    // Rack 1 is where the two ranks are; rack 0 has a switch of its own.
    let (status, planes) = run(NEIGHBOUR, json!(["switch", 4]));
    assert_eq!((status, planes[1]), (Status::Done, 0));
    let (status, planes) = run(NEIGHBOUR, json!(["switch", 3]));
    assert!(status == Status::Done && planes.iter().all(|&bytes| bytes > 0));
}

#[test]
fn telemetry_and_stalls_name_ranks_of_both_networks() {
    let mut asked = spec("metaroce");
    asked["record_paths_ps"] = json!(1_000_000);
    asked["record_paths_ranks"] = json!([SELF]);
    let mut job = Job::new(RANKS);
    job.ranks[SELF as usize] = [NEIGHBOUR, STRANGER].map(|to| entry(WRITE, to, 0, 1 << 20)).to_vec();
    let tables = job.run(&asked).telemetry.expect("was asked for");
    let mut pairs: Vec<(u32, u32)> = tables.connections.src.into_iter().zip(tables.connections.dst).collect();
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(pairs, [(SELF, STRANGER), (SELF, NEIGHBOUR)]);
    let mut stuck = spec("metaroce");
    stuck["faults"] = json!([{"at_ps": 0, "target": "switch", "id": 9, "up": false}]);
    let outcome = job.run(&stuck);
    assert_eq!(outcome.status, Status::Stalled);
    let flows: Vec<(u32, u32)> = outcome.stalled.iter().map(|flow| (flow.src, flow.dst)).collect();
    assert!(flows.contains(&(SELF, STRANGER)), "{flows:?}");
}

#[test]
fn regions_and_planes_of_both_networks_are_the_ranks_own() {
    let mut job = Job::new(RANKS);
    for (k, to) in [NEIGHBOUR, STRANGER].into_iter().enumerate() {
        job.ranks[SELF as usize].push(Entry { rkey: 1, remote: 100 * k as u64, ..entry(WRITE, to, 0, 5000) });
        job.regions.push(Region { rank: to, offset: 4096, len: 8192, access: 1 });
    }
    job.denied.push(Denied { rank: SELF, peer: NEIGHBOUR, plane: 1 });
    let mut open = spec("metaroce");
    open["memory_bytes"] = json!(1 << 20);
    let outcome = job.run(&open);
    assert_eq!((outcome.status, outcome.plane_bytes[1]), (Status::Done, 0));
    job.denied = vec![Denied { rank: SELF, peer: STRANGER, plane: 0 }];
    let message = job.try_run(&open).expect_err("its only plane");
    assert!(message.contains("deny_plane[0]: 0 is not allowed"), "{message}");
    job.denied = vec![Denied { rank: SELF, peer: STRANGER, plane: 2 }];
    assert!(job.try_run(&open).expect_err("has no such port").contains("deny_plane[0]: 2 is not allowed"));
    job.denied.clear();
    job.regions[1].access = 0;
    assert_ne!(job.run(&open).status, Status::Done, "the region of the rank is closed in the second network too");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let told = |change: &dyn Fn(&mut Value)| {
        let mut spec = spec("metaroce");
        change(&mut spec);
        let mut job = Job::write(RANKS, STRANGER, 1000);
        job.ranks[SELF as usize].push(entry(WRITE, NEIGHBOUR, 0, 1000));
        job.try_run(&spec).expect_err("refused")
    };
    let cases: [(&[&str], String); 9] = [
        (
            &["no route in plane 0", "ranks 0 and 1, hosts 3 and 0", "connected in all their planes"],
            told(&|s| s["scale_out"] = json!(null)),
        ),
        (
            &["3 and 1 planes", "ranks 0 and 1, hosts 3 and 5"],
            told(&|s| {
                s["hosts_of_ranks"] = json!([8, 0, 2, 4, 1]);
                s["scale_out"]["hosts_of_ranks"][0] = json!(3);
            }),
        ),
        (
            &["scale_out.hosts_of_ranks", "length 4", "5 ranks"],
            told(&|s| {
                s["scale_out"]["hosts_of_ranks"] = json!([8, 5, 7, 9]);
            }),
        ),
        (
            &["scale_out.domain_of_rank", "length 1", "5 ranks"],
            told(&|s| s["scale_out"]["domain_of_rank"] = json!([0])),
        ),
        (&["scale_out.hosts_of_ranks[1]", "0", "distinct"], told(&|s| s["scale_out"]["hosts_of_ranks"][1] = json!(0))),
        (
            &["scale_out.hosts_of_ranks[2]", "10", "below 10"],
            told(&|s| s["scale_out"]["hosts_of_ranks"][2] = json!(10)),
        ),
        (&["threads", "2", "1 with islands or scale_out"], told(&|s| s["threads"] = json!(2))),
        (&["no link of host 5 in plane 1", "one a plane"], told(&|s| s["fabric"]["islands"] = json!(false))),
        (
            &["transport.denied_planes", "1", "host 8", "1 planes"],
            told(&|s| s["transport"]["denied_planes"] = json!(1)),
        ),
    ];
    for (words, message) in cases {
        assert_eq!(message.lines().count(), 1, "{message}");
        for word in words {
            assert!(message.contains(word), "{word} missing in: {message}");
        }
    }
}

#[path = "../../engine/tests/common/mod.rs"]
mod engines;

#[test]
fn message_engines_post_at_both_hosts_of_a_rank() {
    let (ranks, per_rank, elements) = (u64::from(RANKS), 3, 20_000);
    let job = engines::ring(ranks, per_rank, elements, true);
    let count = per_rank * elements;
    for kind in TRANSPORTS {
        let mut spec = spec(kind);
        spec["offload"] = json!({
            "issue_ps": vec![250_000; 3], "start_ps": vec![1_100_000; 3], "post_ps": vec![0; 3], "direct": vec![false; 3],
            "event_ps": 3_600_000, "dispatch_ps": 2_900_000, "unit_bps": 1_864_000_000_000u64,
            "units_bps": 22_400_000_000_000u64, "outstanding": 24_576, "words": 4, "copies_sends": false,
        });
        spec["payload"] = json!({"dtype": "float32"});
        spec["memory_bytes"] = json!((ranks + 2) * count * engines::ELEMENT);
        let parsed = metaroce_driver::Spec::parse(&spec.to_string()).expect("a spec");
        let data = metaroce_driver::Data {
            program: job.columns(),
            fills: (0..RANKS).map(|rank| Fill { rank, offset: 0, count: ranks * count, index: 0 }).collect(),
            expects: (0..RANKS)
                .map(|rank| {
                    let index = u64::from(rank) * count;
                    let from = metaroce_engine::pattern::ALL_RANKS;
                    Expect { rank, offset: index * engines::ELEMENT, count, from, index }
                })
                .collect(),
            memory: None,
            regions: Vec::new(),
            denied: Vec::new(),
        };
        let outcome = metaroce_driver::simulate(&parsed, data, &mut || false).expect("a run");
        assert_eq!((outcome.status, outcome.check), (Status::Done, Some((0, ranks * count))), "{kind}");
    }
}
