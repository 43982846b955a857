//! Each operation through the driver, with payload: bytes, completions, errors.

mod common;

use common::{
    COMPARE_SWAP, Entry, FETCH_ADD, FLUSH, Job, NOOP, Net, READ, RECV, SEND, SMALL, WRITE, WRITE_IMM, counter, entry,
    unaccounted,
};
use metaroce_driver::{Denied, Outcome, Region, Status, WqeResult};
use serde_json::{Value, json};

const NET: Net = SMALL;
const NONE: u64 = u64::MAX;
const MEMORY: usize = 1 << 17;
const BYTES: u64 = 20_000;
/// Where the regions of a rank begin that peers reach: all of its upper half.
const OPEN: u64 = MEMORY as u64 / 2;

fn ok(bytes: u64) -> WqeResult {
    WqeResult { status: 0, bytes, imm: NONE }
}

fn ended(status: u8, bytes: u64) -> WqeResult {
    WqeResult { status, bytes, imm: NONE }
}

/// Two ranks with different bytes everywhere.
fn job() -> Job {
    let mut job = Job::new(2);
    job.memory = MEMORY as u64;
    job.initial = Some((0..2 * MEMORY).map(|i| (i * 7 + i / 251 + i / MEMORY) as u8).collect());
    job
}

const KINDS: [&str; 2] = ["metaroce", "rocev2"];

fn spec(change: impl Fn(&mut Value)) -> Value {
    spec_of("metaroce", change)
}

fn spec_of(kind: &str, change: impl Fn(&mut Value)) -> Value {
    let mut spec = NET.spec(kind, 2);
    spec["on_error"] = json!("continue");
    spec["payload"] = json!({"dtype": "int8"});
    spec["memory_bytes"] = json!(MEMORY);
    change(&mut spec);
    spec
}

fn bytes(memory: &[u8], rank: usize, at: u64, len: u64) -> &[u8] {
    &memory[rank * MEMORY + at as usize..][..len as usize]
}

fn word(memory: &[u8], rank: usize, at: u64) -> u64 {
    u64::from_le_bytes(bytes(memory, rank, at, 8).try_into().expect("8 bytes"))
}

fn region(rank: u32, offset: u64, len: u64, access: u8) -> Region {
    Region { rank, offset, len, access }
}

fn run(job: &Job, spec: &Value) -> (Outcome, Vec<u8>) {
    let mut outcome = job.run(spec);
    let memory = outcome.memory.take().expect("given back");
    (outcome, memory)
}

// [F11.verbs]
#[test]
fn writes_with_immediate_data_complete_a_receive_with_it() {
    let mut job = job();
    job.ranks[0].push(Entry { remote: OPEN, imm: 77, ..entry(WRITE_IMM, 1, 0, BYTES) });
    job.ranks[0].push(Entry { imm: 78, ..entry(WRITE_IMM, 1, 0, 0) });
    job.ranks[1].push(entry(RECV, 0, 0, 0));
    job.ranks[1].push(Entry { start: 40_000_000, ..entry(RECV, 0, 0, 0) });
    for kind in KINDS {
        let (outcome, memory) = run(&job, &spec_of(kind, |_| {}));
        assert_eq!(outcome.status, Status::Done);
        assert_eq!(bytes(&memory, 1, OPEN, BYTES), bytes(&memory, 0, 0, BYTES));
        let imm = |imm, bytes| WqeResult { imm, ..ok(bytes) };
        assert_eq!(outcome.wqe_results, [ok(BYTES), ok(0), imm(77, BYTES), imm(78, 0)], "{kind}");
    }
}

#[test]
fn reads_fetch_and_a_flush_comes_after_the_write_before_it() {
    for loss in [0.0, 0.1] {
        let mut job = job();
        job.ranks[0].push(Entry { remote: OPEN, ..entry(WRITE, 1, 0, BYTES) });
        job.ranks[0].push(entry(FLUSH, 1, 0, 0));
        job.ranks[0].push(Entry { remote: OPEN, deps: vec![1], ..entry(READ, 1, OPEN, BYTES) });
        let (outcome, memory) = run(&job, &spec(|s| s["loss"] = json!({"probability": loss})));
        assert_eq!(outcome.wqe_results, [ok(BYTES), ok(0), ok(BYTES)]);
        assert_eq!(bytes(&memory, 0, OPEN, BYTES), bytes(&memory, 0, 0, BYTES));
    }
}

#[test]
fn a_fenced_read_sees_the_write_before_it_without_a_flush() {
    for kind in KINDS {
        for loss in [0.0, 0.1] {
            let mut job = job();
            job.ranks[0].push(Entry { remote: OPEN, ..entry(WRITE, 1, 0, BYTES) });
            job.ranks[0].push(Entry { remote: OPEN, flags: 1, ..entry(READ, 1, OPEN, BYTES) });
            let (outcome, memory) = run(&job, &spec_of(kind, |s| s["loss"] = json!({"probability": loss})));
            assert_eq!(outcome.wqe_results, [ok(BYTES), ok(BYTES)]);
            assert_eq!(bytes(&memory, 0, OPEN, BYTES), bytes(&memory, 0, 0, BYTES), "{kind}");
        }
    }
}

// [I8]
#[test]
fn atomics_take_effect_once_each_and_return_what_was_there() {
    let mut job = job();
    let at = OPEN + 64;
    for k in 0..50u64 {
        job.ranks[0].push(Entry { remote: at, operands: [k + 1, 0], ..entry(FETCH_ADD, 1, 8 * k, 8) });
    }
    let initial = job.initial.clone().expect("set");
    let before = word(&initial, 1, at);
    let sum = before.wrapping_add((1..=50).sum());
    job.ranks[0].push(Entry { remote: at, operands: [sum, 5], ..entry(COMPARE_SWAP, 1, 8 * 50, 8) });
    job.ranks[0].push(Entry { remote: at, operands: [sum, 6], ..entry(COMPARE_SWAP, 1, 8 * 51, 8) });
    for kind in KINDS {
        let (outcome, memory) = run(&job, &spec_of(kind, |s| s["loss"] = json!({"probability": 0.1})));
        assert!(outcome.wqe_results.iter().all(|result| *result == ok(8)), "{:?}", outcome.wqe_results);
        let mut stands = before;
        for k in 0..50u64 {
            assert_eq!(word(&memory, 0, 8 * k), stands, "answer {k} of {kind}");
            stands = stands.wrapping_add(k + 1);
        }
        assert_eq!((word(&memory, 0, 8 * 50), word(&memory, 0, 8 * 51), word(&memory, 1, at)), (sum, 5, 5));
    }
}

#[test]
fn requests_and_answers_are_accounted_for() {
    for kind in KINDS {
        for seed in 0..20 {
            let mut job = job();
            for k in 0..6 {
                job.ranks[0].push(Entry { remote: OPEN, stream: k, ..entry(READ, 1, OPEN, BYTES) });
                job.ranks[1].push(Entry { remote: OPEN, stream: k, ..entry(FETCH_ADD, 0, u64::from(k) * 8, 8) });
            }
            let lossy = |s: &mut Value| {
                s["loss"] = json!({"probability": 0.05});
                s["seed"] = json!(seed);
                s["fabric"]["control_priority"] = json!(seed % 2 == 0);
            };
            let (outcome, _) = run(&job, &spec_of(kind, lossy));
            assert_eq!((outcome.status, unaccounted(&outcome)), (Status::Done, 0), "{kind}, seed {seed}");
            let once = counter(&outcome, "placed_bytes");
            assert_eq!(once, 6 * (BYTES + 8), "{kind}, seed {seed}: each byte is placed once");
        }
    }
}

// [I9]
#[test]
fn a_fenced_write_does_not_overtake_the_read_before_it() {
    let mut job = job();
    job.ranks[0].push(Entry { remote: OPEN, ..entry(READ, 1, OPEN, BYTES) });
    job.ranks[0].push(Entry { remote: OPEN, flags: 1, ..entry(WRITE, 1, 0, BYTES) });
    let old = job.initial.clone().expect("set");
    for kind in KINDS {
        let (outcome, memory) = run(&job, &spec_of(kind, |s| s["loss"] = json!({"probability": 0.1})));
        assert_eq!(outcome.wqe_results, [ok(BYTES), ok(BYTES)]);
        assert_eq!(bytes(&memory, 0, OPEN, BYTES), bytes(&old, 1, OPEN, BYTES), "{kind}");
        assert_eq!(bytes(&memory, 1, OPEN, BYTES), bytes(&old, 0, 0, BYTES), "{kind}");
    }
}

// [I2] [I5]
#[test]
fn what_a_region_does_not_allow_is_an_access_error_and_flushes_the_stream() {
    let cases = [
        (WRITE, 1, 0, BYTES, 2 | 4),
        (READ, 1, 0, BYTES, 1 | 4),
        (FETCH_ADD, 1, 0, 8, 1 | 2),
        (FETCH_ADD, 1, 4, 8, 7),
        (WRITE, 1, 1, BYTES, 7),
        (WRITE, 1, NONE, BYTES, 7),
        (READ, 1, NONE - 7, 8, 7),
        (WRITE, 0, 0, BYTES, 7),
        (WRITE, 2, 0, BYTES, 7),
    ];
    for (op, rkey, remote, len, access) in cases {
        let mut job = job();
        job.regions.push(region(1, OPEN, BYTES, access));
        job.ranks[0].push(Entry { remote, rkey, ..entry(op, 1, 0, len) });
        job.ranks[0].push(entry(FLUSH, 1, 0, 0));
        // Another stream goes on.
        job.ranks[0].push(Entry { stream: 1, ..entry(SEND, 1, 0, BYTES) });
        job.ranks[1].push(Entry { stream: 1, ..entry(RECV, 0, 0, BYTES) });
        let old = job.initial.clone().expect("set");
        for kind in KINDS {
            job.ranks[0][1].op = if kind == "rocev2" { SEND } else { FLUSH };
            let (outcome, memory) = run(&job, &spec_of(kind, |_| {}));
            let results = outcome.wqe_results;
            assert_eq!((results[0].status, results[1].status), (4, 3), "op {op} rkey {rkey} at {remote} of {kind}");
            match kind {
                // The queue pairs of two hosts share its QPs, and end together.
                "rocev2" => assert_eq!(results[2..], [ended(3, BYTES), ended(3, 0)]),
                _ => assert_eq!(results[2..], [ok(BYTES), ok(BYTES)]),
            }
            // Packets before the one that leaves the region are inside it (F1), and placed.
            let from = if remote == 1 { OPEN + BYTES } else { OPEN };
            let rest = MEMORY as u64 - from;
            let same = bytes(&memory, 1, from, rest) == bytes(&old, 1, from, rest);
            assert!(same, "op {op} rkey {rkey} at {remote} of {kind} wrote");
        }
    }
}

#[test]
fn an_error_ends_the_run_unless_it_is_to_go_on() {
    let mut job = job();
    job.regions.push(region(1, OPEN, BYTES, 0));
    job.ranks[0].push(Entry { rkey: 1, ..entry(WRITE, 1, 0, BYTES) });
    job.ranks[0].push(Entry { deps: vec![0], ..entry(NOOP, 0, 0, 0) });
    let (stopped, _) = run(&job, &spec(|s| s["on_error"] = json!("stop")));
    assert_eq!((stopped.status, stopped.wqe_results[0].status, stopped.wqe_results[1].status), (Status::Stalled, 4, 7));
    let (went_on, _) = run(&job, &spec(|_| {}));
    assert_eq!((went_on.status, went_on.wqe_results[0].status, went_on.wqe_results[1].status), (Status::Done, 4, 0));
}

#[test]
fn a_send_longer_than_its_receive_is_a_length_error_at_both_ends() {
    let mut job = job();
    job.ranks[0].push(entry(SEND, 1, 0, BYTES));
    job.ranks[1].push(entry(RECV, 0, 0, BYTES - 1));
    job.ranks[1].push(entry(RECV, 0, 0, BYTES));
    for kind in KINDS {
        let (outcome, _) = run(&job, &spec_of(kind, |_| {}));
        let status: Vec<u8> = outcome.wqe_results.iter().map(|result| result.status).collect();
        assert_eq!(status, [5, 5, 3], "{kind}");
    }
}

#[test]
fn a_send_without_a_receive_ends_with_receiver_not_ready() {
    let mut job = job();
    job.ranks[0].push(entry(SEND, 1, 0, BYTES));
    job.ranks[0].push(entry(SEND, 1, 0, BYTES));
    for kind in KINDS {
        let limit = |spec: &mut Value| {
            if kind == "rocev2" {
                spec["transport"]["rnr_retry"] = json!(6);
            }
        };
        let (outcome, _) = run(&job, &spec_of(kind, limit));
        assert_eq!(outcome.status, Status::Done);
        // They leave by different ports at once, so that either may be the first to be refused.
        let mut status: Vec<u8> = outcome.wqe_results.iter().map(|result| result.status).collect();
        status.sort_unstable();
        assert_eq!(status, [2, 3], "{kind}");
    }
}

#[test]
fn an_unreachable_peer_ends_everything_once() {
    let mut job = job();
    for _ in 0..3 {
        job.ranks[0].push(entry(WRITE, 1, 0, BYTES));
    }
    job.ranks[0].push(entry(RECV, 1, 0, BYTES));
    job.ranks[0].push(Entry { deps: vec![0], ..entry(WRITE, 1, 0, BYTES) });
    job.ranks[0].push(Entry { deps: vec![0], ..entry(RECV, 1, 0, BYTES) });
    let down = |plane: u32| json!({"at_ps": 0, "target": "plane", "id": plane, "up": false});
    for kind in KINDS {
        let (outcome, _) = run(&job, &spec_of(kind, |s| s["faults"] = json!([down(0), down(1)])));
        let status: Vec<u8> = outcome.wqe_results.iter().map(|result| result.status).collect();
        assert_eq!((outcome.status, status), (Status::Done, vec![1, 3, 3, 3, 3, 3]), "{kind}");
    }
}

#[test]
fn an_unsignaled_success_is_marked_and_an_unsignaled_error_is_told() {
    let mut job = job();
    job.regions.push(region(1, OPEN, BYTES, 1));
    job.ranks[0].push(Entry { rkey: 1, flags: 2, ..entry(WRITE, 1, 0, BYTES) });
    job.ranks[0].push(Entry { rkey: 1, flags: 2, ..entry(WRITE, 1, 0, BYTES + 1) });
    for kind in KINDS {
        let (outcome, _) = run(&job, &spec_of(kind, |_| {}));
        assert_eq!(outcome.wqe_results, [ended(8, BYTES), ended(4, BYTES + 1)], "{kind}");
    }
}

#[test]
fn what_waits_for_a_moment_starts_at_that_moment() {
    let mut job = job();
    job.ranks[0].push(Entry { start: 5_000_000, ..entry(NOOP, 0, 0, 0) });
    job.ranks[0].push(Entry { deps: vec![0], ..entry(WRITE, 1, 0, BYTES) });
    let (outcome, _) = run(&job, &spec(|_| {}));
    assert_eq!((outcome.status, outcome.wqe_done[0]), (Status::Done, 5_000_000));
    assert!(outcome.wqe_done[1] > 5_000_000);
}

// [F11.extensions]
#[test]
fn a_denied_plane_carries_nothing_of_that_side() {
    let mut job = job();
    job.denied.push(Denied { rank: 0, peer: 1, plane: 0 });
    job.ranks[0].push(entry(WRITE, 1, 0, BYTES));
    let (outcome, _) = run(&job, &spec(|_| {}));
    assert_eq!((outcome.wqe_results[0], outcome.plane_bytes), (ok(BYTES), vec![0, BYTES]));
}

#[test]
fn what_cannot_be_is_refused_with_column_and_value() {
    let told = |change: &dyn Fn(&mut Job, &mut Value)| {
        let (mut job, mut spec) = (job(), spec(|_| {}));
        job.ranks[0].push(entry(WRITE, 1, 0, BYTES));
        change(&mut job, &mut spec);
        job.try_run(&spec).expect_err("refused")
    };
    let no_flush = told(&|job, spec| {
        spec["transport"]["kind"] = json!("rocev2");
        job.ranks[0][0] = entry(FLUSH, 1, 0, 0);
    });
    let cases: [(&[&str], String); 14] = [
        (&["op[0]", "FLUSH", "rocev2", "READ, COMPARE_SWAP, FETCH_ADD"], no_flush),
        (&["op[0]", "11", "0 to 10"], told(&|j, _| j.ranks[0][0].op = 11)),
        (&["bytes[0]", "9", "8"], told(&|j, _| j.ranks[0][0] = entry(FETCH_ADD, 1, 0, 9))),
        (&["bytes[0]", "1", "0"], told(&|j, _| j.ranks[0][0] = entry(FLUSH, 1, 0, 1))),
        (&["bytes[0]", "0", "at least 1"], told(&|j, _| j.ranks[0][0] = entry(READ, 1, 0, 0))),
        (&["flags[0]", "4", "0 to 3"], told(&|j, _| j.ranks[0][0].flags = 4)),
        (&["remote[0]", "131072"], told(&|j, _| j.ranks[0][0] = Entry { remote: 131_072, ..entry(READ, 1, 0, 8) })),
        (&["region_rank[0]", "2"], told(&|j, _| j.regions.push(region(2, 0, 1, 0)))),
        (&["region_offset[0]", "1"], told(&|j, _| j.regions.push(region(0, 1, MEMORY as u64, 0)))),
        (&["region_access[0]", "8", "0 to 7"], told(&|j, _| j.regions.push(region(0, 0, 1, 8)))),
        (&["deny_peer[0]", "5"], told(&|j, _| j.denied.push(Denied { rank: 0, peer: 5, plane: 0 }))),
        (&["deny_plane[0]", "2", "below 2"], told(&|j, _| j.denied.push(Denied { rank: 0, peer: 1, plane: 2 }))),
        (
            &["deny_plane[1]", "another"],
            told(&|j, _| j.denied.extend([0, 1].map(|plane| Denied { rank: 0, peer: 1, plane }))),
        ),
        (&["on_error", "iteration"], told(&|_, s| s["iterations"] = json!(2))),
    ];
    for (words, message) in cases {
        assert_eq!(message.lines().count(), 1, "{message}");
        for word in words {
            assert!(message.contains(word), "{word} missing in: {message}");
        }
    }
}
