//! Programs for message engines on the real transports and fabric.

#[path = "../../engine/tests/common/mod.rs"]
mod engines;

mod common;

use common::{CABLE, GBPS, MTU, Net, SMALL, counter, told, unaccounted};
use engines::{ELEMENT, Entry, Job, Subgraph, WRITE_IMM, noop, recv, ring, send, set, subgraph, wait};
use metaroce_driver::{Data, Outcome, RehearsalSpec, Spec, Status, rehearse, simulate};
use metaroce_engine::Column;
use metaroce_engine::pattern::{ALL_RANKS, Expect, Fill};
use serde_json::{Value, json};

fn offload(engines: usize) -> Value {
    json!({
        "issue_ps": vec![250_000; engines], "start_ps": vec![1_100_000; engines], "post_ps": vec![50_000; engines],
        "direct": vec![false; engines], "event_ps": 3_600_000, "dispatch_ps": 2_900_000,
        "unit_bps": 1_864_000_000_000u64, "units_bps": 22_400_000_000_000u64,
        "outstanding": 24_576, "words": 4, "copies_sends": false,
    })
}

/// When the first subgraph of each engine has started, ps.
const STARTED: u64 = 3_600_000 + 2_900_000 + 1_100_000;
const ISSUE: u64 = 250_000;

fn try_run(job: &Job, spec: &Value, data: (Vec<Fill>, Vec<Expect>)) -> Result<Outcome, String> {
    let spec: Spec = Spec::parse(&spec.to_string()).map_err(|e| e.to_string())?;
    let (fills, expects) = data;
    let program = job.columns();
    let data = Data { program, fills, expects, memory: None, regions: Vec::new(), denied: Vec::new() };
    simulate(&spec, data, &mut || false).map_err(|e| e.to_string())
}

fn run(job: &Job, spec: &Value) -> Outcome {
    try_run(job, spec, (Vec::new(), Vec::new())).expect("a run")
}

fn spec(net: Net, kind: &str, ranks: u32, engines: usize) -> Value {
    let mut spec = net.spec(kind, ranks);
    spec["offload"] = offload(engines);
    spec
}

/// Telemetry, which looks at all nodes at once, asks for the order of times.
#[test]
fn engines_do_the_same_whether_nodes_or_times_come_first() {
    let job = ring(8, 4, 3_000, true);
    for kind in ["metaroce", "mrc", "rocev2-sr"] {
        for loss in [0.0, 0.02] {
            let mut spec = spec(SMALL, kind, 8, 4);
            spec["memory_bytes"] = json!(10 * 4 * 3_000 * ELEMENT);
            spec["loss"] = json!({"probability": loss});
            let by_node = run(&job, &spec);
            spec["record_paths_ps"] = json!(1u64 << 50);
            let by_time = run(&job, &spec);
            assert_eq!(told(&by_node), told(&by_time), "{kind} {loss}");
            assert_eq!(format!("{:?}", by_node.engines), format!("{:?}", by_time.engines), "{kind} {loss}");
            assert_eq!(by_node.wqe_issued, by_time.wqe_issued, "{kind} {loss}");
        }
    }
}

#[test]
fn rings_are_exact_on_every_transport_even_with_loss() {
    let (ranks, engines, elements) = (8, 4, 3_000);
    let job = ring(ranks, engines, elements, true);
    let count = engines * elements;
    for kind in ["metaroce", "mrc", "rocev2-sr"] {
        for loss in [0.0, 0.02] {
            let mut spec = spec(SMALL, kind, ranks as u32, engines as usize);
            spec["payload"] = json!({"dtype": "float32"});
            spec["memory_bytes"] = json!((ranks + 2) * count * ELEMENT);
            spec["loss"] = json!({"probability": loss});
            let all = 0..ranks as u32;
            let fills = all.clone().map(|rank| Fill { rank, offset: 0, count: ranks * count, index: 0 }).collect();
            let expect = |rank: u32| {
                let first = u64::from(rank) * count;
                Expect { rank, offset: first * ELEMENT, count, from: ALL_RANKS, index: first }
            };
            let outcome = try_run(&job, &spec, (fills, all.map(expect).collect())).expect("a run");
            assert_eq!((outcome.status, outcome.check), (Status::Done, Some((0, ranks * count))), "{kind} {loss}");
            assert_eq!(unaccounted(&outcome), 0);
            let engines = outcome.engines.expect("engines");
            assert_eq!(engines.rank.len(), 32);
            assert!(engines.issued.iter().all(|&issued| issued == 22) && engines.stall_ps.iter().all(|&ps| ps > 0));
            assert!(outcome.wqe_issued.iter().zip(&outcome.wqe_done).all(|(issued, done)| issued <= done));
        }
    }
}

#[test]
fn a_message_takes_issue_post_wire_and_nothing_else() {
    // One switch: serialisation twice, the header once more in the packet, two cables.
    let net = Net { planes: 1, leaves: 1, spines: 0, hosts_per_leaf: 2, ..SMALL };
    let job = Job {
        ranks: vec![vec![subgraph(0, &[send(1, 0, 8), noop().sync(1)])], vec![subgraph(0, &[recv(0, 0, 8)])]],
        sets: Vec::new(),
    };
    let outcome = run(&job, &spec(net, "metaroce", 2, 1));
    assert_eq!(outcome.status, Status::Done);
    let issued = STARTED + ISSUE;
    assert_eq!(outcome.wqe_issued[0], issued);
    // From post to placement it is the same as without engines.
    let mut plain = common::Job::new(2);
    plain.ranks[0].push(common::entry(common::SEND, 1, 0, 8));
    plain.ranks[1].push(common::entry(common::RECV, 0, 0, 8));
    let alone = plain.run(&net.spec("metaroce", 2));
    assert_eq!(outcome.wqe_placed[0], issued + 50_000 + alone.wqe_placed[0]);
    assert_eq!(outcome.wqe_done[0], issued + 50_000 + alone.wqe_done[0]);
    assert_eq!(outcome.wqe_done[1], outcome.wqe_done[0] + ISSUE);
    assert!(2 * CABLE < alone.wqe_placed[0] && alone.wqe_placed[0] < 2 * CABLE + 8 * 2 * 200 * 1_000 * GBPS / net.rate);
}

#[test]
fn receives_come_late_and_early() {
    // The receiver is triggered 100 us later: its peer is told not to be ready, and the message arrives all the same.
    for (release, early) in [(0, true), (100_000_000, false)] {
        let receiver = Subgraph { release, ..subgraph(0, &[recv(0, 0, 10 * MTU)]) };
        let job = Job { ranks: vec![vec![subgraph(0, &[send(1, 0, 10 * MTU)])], vec![receiver]], sets: Vec::new() };
        let outcome = run(&job, &spec(SMALL, "metaroce", 2, 1));
        assert_eq!((outcome.status, counter(&outcome, "rnr") == 0), (Status::Done, early));
    }
    // With a word from the receiver first there is no such message.
    let ready = Entry { op: WRITE_IMM, ..send(0, 0, 0) };
    let receiver = Subgraph { release: 100_000_000, ..subgraph(0, &[recv(0, 0, 10 * MTU), ready.stream(1)]) };
    let sender = subgraph(0, &[recv(1, 0, 0).stream(1), send(1, 0, 10 * MTU).sync(1)]);
    let outcome =
        run(&Job { ranks: vec![vec![sender], vec![receiver]], sets: Vec::new() }, &spec(SMALL, "metaroce", 2, 1));
    assert_eq!((outcome.status, counter(&outcome, "rnr")), (Status::Done, 0));
}

#[test]
fn iterations_and_words_repeat() {
    let job = Job { sets: vec![(0, 1, 5, 20_000_000)], ..Job::one(&[subgraph(0, &[wait(1, 0, 5), noop()])]) };
    let mut spec = spec(SMALL, "metaroce", 2, 1);
    (spec["iterations"], spec["warmup"]) = (json!(3), json!(1));
    let outcome = run(&job, &spec);
    let length = 20_000_000 + 2 * ISSUE;
    let spans: Vec<_> = outcome.iterations.iter().map(|(begin, end)| (begin.0, end.0)).collect();
    assert_eq!(spans, [1, 2, 3].map(|i| (i * length, (i + 1) * length)));
    assert_eq!(outcome.engines.expect("engines").issued, [8, 0]);
    assert_eq!(outcome.wqe_issued, [4 * length - ISSUE, 4 * length]);
}

#[test]
fn what_stalls_names_the_entries_that_cannot_issue() {
    let job = Job {
        ranks: vec![
            vec![subgraph(0, &[recv(1, 0, 8), noop().sync(1)]), subgraph(1, &[wait(2, 1, 3), set(0, 1)])],
            vec![subgraph(0, &[noop()])],
        ],
        sets: Vec::new(),
    };
    let outcome = run(&job, &spec(SMALL, "metaroce", 2, 2));
    assert_eq!(outcome.status, Status::Stalled);
    let told: Vec<_> = outcome.stalled.iter().map(|flow| (flow.src, flow.dst, flow.reason.as_str())).collect();
    let receive =
        "engine 0: NOOP (entry 1 of rank 0) waits for RECV from rank 1 (entry 0 of rank 0), which has not landed";
    assert_eq!(
        told[..2],
        [(0, 1, receive), (0, 0, "engine 1: WAIT (entry 2 of rank 0) waits for word 2 == 3; it is 0")]
    );
}

#[test]
fn a_failed_post_stops_the_run() {
    // The peer never posts a receive: retries end, with the connection, and with them the run.
    let job =
        Job { ranks: vec![vec![subgraph(0, &[send(1, 0, 8), send(1, 0, 8).flow(1)])], Vec::new()], sets: Vec::new() };
    let mut spec = spec(SMALL, "rocev2-sr", 2, 1);
    spec["transport"]["rnr_retry"] = json!(2);
    let outcome = run(&job, &spec);
    assert_eq!(outcome.status, Status::Stalled);
}

#[test]
fn what_engines_do_not_do_is_refused() {
    let job = Job::one(&[subgraph(0, &[noop()])]);
    let told = |change: &dyn Fn(&mut Value)| {
        let mut spec = spec(SMALL, "metaroce", 2, 1);
        change(&mut spec);
        try_run(&job, &spec, (Vec::new(), Vec::new())).expect_err("refused")
    };
    for (message, parts) in [
        (told(&|s| s["on_error"] = json!("continue")), ["on_error", "continue", "stop with offload"]),
        (told(&|s| s["threads"] = json!(2)), ["threads", "2", "1 with offload"]),
        (told(&|s| s["offload"]["post_ps"] = json!([])), ["offload.post_ps", "length 0", "length 1"]),
        (told(&|s| s["offload"]["units_bps"] = json!(0)), ["offload.units_bps", "0", "at least 1"]),
        (told(&|s| s["offload"]["more"] = json!(0)), ["unknown field", "more", "issue_ps"]),
        (told(&|s| drop(s.as_object_mut().expect("one").remove("offload"))), ["offload", "nothing", "subgraphs"]),
    ] {
        assert!(parts.iter().all(|part| message.contains(part)) && !message.contains('\n'), "{message}: {parts:?}");
    }
    let mut plain = common::Job::new(2);
    plain.ranks[0].push(common::entry(common::NOOP, 0, 0, 0));
    let message = plain.try_run(&spec(SMALL, "metaroce", 2, 1)).expect_err("refused");
    assert!(message.contains("offload: engines is not allowed"), "{message}");
}

#[test]
fn regions_are_not_rehearsed() {
    // With keys of regions a WRITE may go beyond memory: nobody checks it before the run.
    let beyond = Entry { op: WRITE_IMM, remote: 1 << 30, ..send(1, 0, 8) };
    let mut program = Job::one(&[subgraph(0, &[beyond])]).columns();
    program.rkey = Column::of([1].into_iter());
    let spec = json!({
        "memory_bytes": 64, "dtype": "int8", "offload": offload(1), "least_ps": 0, "most_ps": 1,
    });
    let spec = RehearsalSpec::parse(&spec.to_string()).expect("a rehearsal");
    let data =
        Data { program, fills: Vec::new(), expects: Vec::new(), memory: None, regions: Vec::new(), denied: Vec::new() };
    let message = rehearse(&spec, data, &[1], &mut || false).expect_err("refused").to_string();
    assert!(message.contains("rkey: a column is not allowed; allowed: none in a rehearsal"), "{message}");
}
