//! The worked ring of the design under random delays: exact as it is, and not without what it waits for.

mod common;

use common::*;
use metaroce_engine::Dtype;
use metaroce_engine::offload::{EngineCosts, Hardware};
use metaroce_engine::pattern::{ALL_RANKS, Expect, Fill};
use metaroce_engine::rehearse::{Delays, Ending, Payload, Rehearsal, Verdict};
use metaroce_wire::Time;

const SEEDS: std::ops::Range<u64> = 0..50;

fn delays(least: u64, unit: u64) -> Delays {
    Delays { least: Time(least), most: Time(20_000_000), unit: Time(unit) }
}

/// About those of the published device.
fn real(engines: usize) -> Hardware {
    let engine = EngineCosts { issue: Time(250_000), start: Time(1_100_000), post: Time(0), direct: false };
    Hardware {
        engines: vec![engine; engines],
        event: Time(3_600_000),
        dispatch: Time(2_900_000),
        unit_bps: 1_864_000_000_000,
        units_bps: 22_400_000_000_000,
        outstanding: 24_576,
        words: 1,
        copies_sends: false,
    }
}

fn verdicts(job: &Job, shape: (u64, u64, u64), hardware: &Hardware) -> Vec<Verdict> {
    verdicts_of(job, shape, hardware, 20_000_000)
}

/// The same with operations that take at most `unit` longer.
fn verdicts_of(job: &Job, (ranks, engines, elements): (u64, u64, u64), hardware: &Hardware, unit: u64) -> Vec<Verdict> {
    let plan = job.plan(hardware).expect("a program");
    let count = engines * elements;
    let payload = Payload {
        dtype: Dtype::Float32,
        memory: ((ranks + 2) * count * ELEMENT) as usize,
        fills: (0..ranks as u32).map(|rank| Fill { rank, offset: 0, count: ranks * count, index: 0 }).collect(),
        expects: (0..ranks)
            .map(|rank| Expect {
                rank: rank as u32,
                offset: rank * count * ELEMENT,
                count,
                from: ALL_RANKS,
                index: rank * count,
            })
            .collect(),
    };
    let mut rehearsal = Rehearsal::new(plan, payload, delays(100_000, unit)).expect("memory");
    SEEDS.map(|seed| rehearsal.run(seed, &mut || false).expect("nobody interrupts")).collect()
}

fn is_exact(verdict: &Verdict) -> bool {
    verdict.ending == Ending::Done && verdict.check.0 == 0 && verdict.check.1 > 0
}

#[test]
fn the_worked_ring_is_the_published_one() {
    let entries = ring_entries((0, 4), (0, 1), 1, true);
    let seen: Vec<(u8, u64, u32)> = entries.iter().map(|e| (e.op, e.local / ELEMENT, e.sync)).collect();
    let published = [
        (RECV, 4, 0),
        (SEND, 3, 0),
        (RECV, 5, 0),
        (SUM, 2, 3),
        (SEND, 2, 1),
        (RECV, 4, 2),
        (SUM, 1, 4),
        (SEND, 1, 1),
        (SUM, 0, 3),
        (SET, 0, 1),
    ];
    assert_eq!(seen, published);
    assert_eq!(ring_entries((3, 16), (5, 16), 8, true).len(), 46);
}

#[test]
fn rings_are_exact_under_any_delays() {
    for (ranks, engines, elements) in [(4, 1, 100), (4, 4, 33), (16, 16, 5), (2, 3, 1), (3, 2, 7)] {
        for hoisted in [true, false] {
            let shape = (ranks, engines, elements);
            let verdicts = verdicts(&ring(ranks, engines, elements, hoisted), shape, &real(engines as usize));
            for (seed, verdict) in SEEDS.zip(&verdicts) {
                assert!(is_exact(verdict), "{shape:?}, seed {seed}: {verdict:?}");
            }
            assert_ne!(verdicts[7].time, verdicts[8].time, "delays are random");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_rehearsal() {
    let run = || verdicts(&ring(4, 4, 9, false), (4, 4, 9), &real(4));
    assert_eq!(run(), run());
}

/// How many rehearsals of the worked example are not exact once `change` has been at each subgraph.
fn found((ranks, engines, elements): (u64, u64, u64), change: impl Fn(&mut Vec<Entry>)) -> usize {
    let mut job = ring(ranks, engines, elements, true);
    job.ranks.iter_mut().flatten().for_each(|subgraph| change(&mut subgraph.entries));
    let verdicts = verdicts(&job, (ranks, engines, elements), &real(engines as usize));
    verdicts.iter().filter(|verdict| !is_exact(verdict)).count()
}

#[test]
fn a_missing_dependency_is_found() {
    for shape in [(4, 1, 100), (4, 4, 33)] {
        // Of the entries that wait for others; the last, SET, changes no sum.
        for removed in [3, 4, 6, 7, 8] {
            let found = found(shape, |entries| entries[removed].sync = 0);
            assert!(found > 10, "{shape:?}: entry {removed} need not wait? {found} of 50");
        }
        // Entry 5 waits for a free slot. It does so anyway: it issues after entry 4, and that waits for the same.
        assert_eq!(found(shape, |entries| entries[5].sync = 0), 0);
        let swapped = |sync| {
            move |entries: &mut Vec<Entry>| {
                entries.swap(4, 5);
                (entries[4].sync, entries[5].sync, entries[8].sync) = (sync, 2, 4);
            }
        };
        assert_eq!(found(shape, swapped(1)), 0);
        assert!(found(shape, swapped(0)) > 0, "{shape:?}: a slot is overwritten");
    }
}

#[test]
fn hoisted_receives_are_there_before_messages() {
    let rnr = |hoisted| {
        let verdicts = verdicts_of(&ring(16, 16, 2, hoisted), (16, 16, 2), &real(16), 0);
        verdicts.iter().map(|verdict| verdict.rnr).sum::<u64>()
    };
    let (naive, hoisted) = (rnr(false), rnr(true));
    let messages = 50 * 16 * 16 * 15;
    println!("messages before their receive: naive {naive}, hoisted {hoisted} of {messages}");
    assert!(naive > 2 * hoisted && naive > messages / 20, "naive {naive}, hoisted {hoisted} of {messages}");
}

#[test]
fn what_cannot_go_on_or_does_not_fit_is_told() {
    let mut job = ring(4, 1, 10, true);
    job.ranks[2][0].entries[1].op = NOOP;
    let stalled = &verdicts(&job, (4, 1, 10), &real(1))[0];
    assert_eq!(stalled.ending, Ending::Stalled);
    assert!(stalled.reason.contains("RECV from rank 2 (entry 5 of rank 3), which has not landed"), "{stalled:?}");
    let mut job = ring(4, 1, 10, true);
    job.ranks[3][0].entries[0].bytes = 39;
    let failed = &verdicts(&job, (4, 1, 10), &real(1))[0];
    assert_eq!(failed.ending, Ending::Failed);
    assert!(failed.reason.contains("SEND of 40 bytes from rank 2 to rank 3"), "{failed:?}");
}

#[test]
fn messages_at_the_end_of_time_end_the_rehearsal() {
    let late = Subgraph { release: u64::MAX - 10_000_000, ..subgraph(0, &[send(1, 0, 4)]) };
    let job = Job { ranks: vec![vec![late], vec![subgraph(0, &[recv(0, 0, 4)])]], sets: Vec::new() };
    let payload = Payload { dtype: Dtype::Int8, memory: 4, fills: Vec::new(), expects: Vec::new() };
    let mut rehearsal =
        Rehearsal::new(job.plan(&real(1)).expect("a program"), payload, delays(20_000_000, 0)).expect("memory");
    let verdict = rehearsal.run(1, &mut || false).expect("nobody interrupts");
    assert_eq!((verdict.ending, verdict.time), (Ending::Done, Time::NEVER));
}

#[test]
fn writes_land_and_tell_whoever_waits() {
    // Rank 0 writes a sum to rank 1, whose receive of no bytes is what its own SUM waits for.
    let element = ELEMENT;
    let first = Entry { op: WRITE, peer: 1, local: 0, remote: 2 * element, bytes: element, ..Entry::default() };
    let told = Entry { op: WRITE_IMM, local: element, remote: 3 * element, ..first };
    let job = Job {
        ranks: vec![
            vec![subgraph(0, &[first, told])],
            vec![subgraph(
                0,
                &[recv(0, 0, 0), sum(0, 2 * element, element).flow(RX_SYNC), sum(element, 3 * element, element)],
            )],
        ],
        sets: Vec::new(),
    };
    let plan = job.plan(&real(1)).expect("a program");
    let fills = (0..2).map(|rank| Fill { rank, offset: 0, count: 2, index: 0 }).collect();
    let expects = vec![Expect { rank: 1, offset: 0, count: 2, from: ALL_RANKS, index: 0 }];
    let payload = Payload { dtype: Dtype::Int32, memory: 4 * element as usize, fills, expects };
    let mut rehearsal = Rehearsal::new(plan, payload, delays(100, 20_000_000)).expect("memory");
    for seed in SEEDS {
        let verdict = rehearsal.run(seed, &mut || false).expect("nobody interrupts");
        assert!(is_exact(&verdict), "seed {seed}: {verdict:?}");
    }
}

#[test]
fn many_short_rehearsals_can_be_interrupted() {
    let plan = Job::one(&[subgraph(0, &[noop()])]).plan(&real(1)).expect("a program");
    let payload = Payload { dtype: Dtype::Int8, memory: 1, fills: Vec::new(), expects: Vec::new() };
    let mut rehearsal = Rehearsal::new(plan, payload, delays(0, 0)).expect("memory");
    let ended = (0..1 << 15).map(|seed| rehearsal.run(seed, &mut || true)).take_while(Option::is_some).count();
    assert!(ended < 1 << 14, "{ended}");
}
