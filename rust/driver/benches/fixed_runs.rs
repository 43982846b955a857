//! Runs that never change, for counts of instructions: `benches/instructions.py` gives one of their names as argument,
//! and Callgrind counts anew where [`set_up`], [`counted_run`] and [`results`] begin. Without a name all are run, and
//! their counters shown.

use std::hint::black_box;

use metaroce_driver::bench::Run;
use metaroce_driver::{Data, Outcome, Spec};
use serde_json::{Value, json};

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Entry, GBPS, Job, MTU, MULTIPLANE_4X64, RECV, SEND, WRITE, all_reduce, counter, entry};

/// Three tiers of full bisection: `radix` ports each way of a switch below the core, `pods` ports of a core switch.
struct FatTree {
    pods: u32,
    radix: u32,
    rate: u64,
}

impl FatTree {
    const fn hosts(&self) -> u32 {
        self.pods * self.radix * self.radix
    }

    /// As the packaged topologies: cables of 1 us, marking from 0.2 to 0.8 of the bandwidth-delay product of 14 us,
    /// queues twice as long as that.
    fn spec(&self, transport: Value) -> Value {
        let (hosts, radix, tors) = (self.hosts(), self.radix, self.pods * self.radix);
        let (first_tor, first_agg, first_core) = (hosts, hosts + tors, hosts + 2 * tors);
        let mut cables: Vec<(u32, u32)> = (0..hosts).map(|host| (host, first_tor + host / radix)).collect();
        for i in 0..tors {
            let pod = i / radix * radix;
            cables.extend((pod..pod + radix).map(|agg| (first_tor + i, first_agg + agg)));
        }
        for i in 0..tors {
            let first = first_core + i % radix * radix;
            cables.extend((first..first + radix).map(|core| (first_agg + i, core)));
        }
        let tiers = [(1, tors), (2, tors), (3, radix * radix)];
        let tier: Vec<u32> = tiers.iter().flat_map(|&(tier, count)| vec![tier; count as usize]).collect();
        let (rows, product) = (cables.len(), 14 * self.rate / 8_000_000);
        json!({
            "seed": 1,
            "fabric": {
                "hosts": hosts,
                "planes": 1,
                "switches": {"plane": vec![0; tier.len()], "tier": tier},
                "links": {
                    "a": cables.iter().map(|c| c.0).collect::<Vec<_>>(),
                    "b": cables.iter().map(|c| c.1).collect::<Vec<_>>(),
                    "rate_bps": vec![self.rate; rows],
                    "delay_ps": vec![1_000_000; rows],
                    "queue_bytes": vec![2 * product; rows],
                    "ecn_kmin_bytes": vec![product / 5; rows],
                    "ecn_kmax_bytes": vec![product * 4 / 5; rows],
                    "ecn_pmax": vec![1.0; rows],
                },
            },
            "transport": transport,
            "hosts_of_ranks": (0..hosts).collect::<Vec<_>>(),
            "memory_bytes": 1u64 << 32,
        })
    }
}

const TREE_64: FatTree = FatTree { pods: 4, radix: 4, rate: 400 * GBPS };
const TREE_128: FatTree = FatTree { pods: 8, radix: 4, rate: 100 * GBPS };
const TREE_1024: FatTree = FatTree { pods: 16, radix: 8, rate: 100 * GBPS };

/// Every rank writes to another one. `ranks` is a power of 2, so that no rank comes twice and none writes to itself.
fn permutation(ranks: u32, packets: u64) -> Job {
    let mut job = Job::new(ranks);
    for (rank, list) in (0..).zip(&mut job.ranks) {
        list.push(entry(WRITE, (5 * rank + 37) % ranks, 0, packets * MTU));
    }
    job
}

/// `steps` messages to the next rank, each after the one before it has come from the other side.
fn dependent_ring(ranks: u32, steps: u32, packets: u64) -> Job {
    let mut job = Job::new(ranks);
    for (rank, list) in (0..).zip(&mut job.ranks) {
        list.extend((0..steps).map(|_| entry(RECV, (rank + ranks - 1) % ranks, 0, packets * MTU)));
        list.extend((0..steps).map(|step| Entry {
            deps: step.checked_sub(1).into_iter().collect(),
            ..entry(SEND, (rank + 1) % ranks, 0, packets * MTU)
        }));
    }
    job
}

/// Every rank to every other one, `window` of them at a time.
fn all_to_all(ranks: u32, window: u32, packets: u64) -> Job {
    let mut job = Job::new(ranks);
    for (rank, list) in (0..).zip(&mut job.ranks) {
        list.extend((1..ranks).map(|k| entry(RECV, (rank + ranks - k) % ranks, 0, packets * MTU)));
        list.extend((1..ranks).map(|k| Entry {
            deps: (k > window).then(|| ranks - 2 + k - window).into_iter().collect(),
            ..entry(SEND, (rank + k) % ranks, 0, packets * MTU)
        }));
    }
    job
}

fn lossy(mut spec: Value, transport: Value, probability: f64) -> Value {
    spec["transport"] = transport;
    spec["loss"] = json!({"probability": probability});
    spec["record_wqes"] = json!(false);
    spec
}

type Make = fn() -> (Job, Value);

const RUNS: [(&str, Make); 7] = [
    ("permutation-128", || (permutation(128, 256), TREE_128.spec(json!({"kind": "metaroce"})))),
    ("permutation-1024", || (permutation(1024, 32), TREE_1024.spec(json!({"kind": "metaroce"})))),
    ("ring-64", || (dependent_ring(64, 16, 64), TREE_64.spec(json!({"kind": "metaroce"})))),
    ("alltoall-64", || (all_to_all(64, 8, 8), TREE_64.spec(json!({"kind": "metaroce"})))),
    ("explicit-queues-128", || {
        let mut spec = TREE_128.spec(json!({"kind": "metaroce"}));
        spec["fabric"]["explicit_queues"] = json!(true);
        (permutation(128, 128), spec)
    }),
    ("all-reduce-64-multiplane-lossy", || {
        (
            all_reduce(64, 64 * 4 * MTU, 1),
            lossy(MULTIPLANE_4X64.spec("metaroce", 64), json!({"kind": "metaroce"}), 0.01),
        )
    }),
    ("all-reduce-64-rocev2-lossy", || {
        let transport = json!({"kind": "rocev2", "timer": "adaptive"});
        (all_reduce(64, 64 * 4 * MTU, 1), lossy(MULTIPLANE_4X64.spec("rocev2", 64), transport, 0.001))
    }),
];

/// Everything before the first event, the program not counted.
#[inline(never)]
fn set_up<'a>(spec: &'a Spec, data: Data) -> Run<'a> {
    black_box(Run::new(spec, data).expect("a valid run"))
}

/// From the first event to the last.
#[inline(never)]
fn counted_run(run: &mut Run) {
    black_box(run.run()).expect("nobody interrupts");
}

/// What is no longer counted.
#[inline(never)]
fn results(run: Run) -> Outcome {
    black_box(run.outcome())
}

/// One line of JSON.
fn show(name: &str, make: Make) {
    let (job, spec) = make();
    let outcome = job
        .lower(&spec, |spec, data| {
            let mut run = set_up(spec, data);
            counted_run(&mut run);
            results(run)
        })
        .expect("a valid specification");
    let of = |key: &str| counter(&outcome, key);
    let (hops, data, events) = (of("link_hops"), of("data_link_hops"), of("events"));
    let status = format!("{:?}", outcome.status);
    println!("{}", json!({"run": name, "status": status, "link_hops": hops, "data_link_hops": data, "events": events}));
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if std::env::args().any(|argument| argument == "--list") {
        RUNS.iter().for_each(|(name, _)| println!("{name}"));
        return;
    }
    for (name, make) in RUNS {
        if wanted.is_empty() || wanted.iter().any(|one| one == name) {
            show(name, make);
        }
    }
}
