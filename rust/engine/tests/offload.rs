//! Exact times of message engines: closed forms of small programs.

mod common;

use common::*;
use metaroce_engine::offload::{Hardware, Usage};
use metaroce_wire::Time;

fn trace(job: &Job, hardware: &Hardware) -> Trace {
    let trace = run(&job.plan(hardware).expect("a program"), |_| 0);
    assert!(trace.finished, "{:?}", trace.device.expect("a device").blocked(9));
    trace
}

fn usage(trace: &Trace) -> Vec<Usage> {
    trace.device.as_ref().expect("a device").usage(Time(trace.at)).collect()
}

#[test]
fn entries_of_a_subgraph_issue_one_after_the_other() {
    for k in 1..20u64 {
        let job = Job::one(&[subgraph(0, &vec![noop(); k as usize])]);
        let trace = trace(&job, &hardware(1));
        let times: Vec<u64> = (1..=k).map(|i| STARTED + 10 * i).collect();
        assert_eq!(trace.issued, times);
        assert_eq!(trace.ended.clone().into_values().collect::<Vec<_>>(), times);
        let usage = usage(&trace);
        assert_eq!((usage[0].issued, usage[0].cpu, usage[0].stall, usage[0].unit), (k, 100 + 10 * k, 0, 0));
    }
}

#[test]
fn subgraphs_of_one_engine_take_turns() {
    let job = Job::one(&[subgraph(0, &[noop(); 3]), subgraph(0, &[noop(); 2]), subgraph(1, &[noop(); 2])]);
    let trace = trace(&job, &hardware(2));
    // Both starts, then a, b, a, b, a; the other engine knows nothing of it.
    let first = DISPATCHED + 200;
    assert_eq!(trace.issued[..3], [first + 10, first + 30, first + 50]);
    assert_eq!(trace.issued[3..5], [first + 20, first + 40]);
    assert_eq!(trace.issued[5..], [STARTED + 10, STARTED + 20]);
}

#[test]
fn the_lower_priority_number_goes_first() {
    let low = Subgraph { priority: 7, ..subgraph(0, &[noop(); 3]) };
    let high = Subgraph { priority: 2, ..subgraph(0, &[noop(); 2]) };
    let trace = trace(&Job::one(&[low, high]), &hardware(1));
    // All of the second, its start included, before anything of the first.
    assert_eq!(trace.issued[3..], [STARTED + 10, STARTED + 20]);
    assert_eq!(trace.issued[..3], [STARTED + 130, STARTED + 140, STARTED + 150]);
}

#[test]
fn packets_are_dispatched_in_order_one_at_a_time() {
    let packet = |packet, release| Subgraph { packet, release, ..subgraph(packet, &[noop()]) };
    for (release, second) in [(0, DISPATCHED + 1_000), (500, DISPATCHED + 1_000), (50_000, 61_000)] {
        // The packet with the greater number comes first in the list.
        let trace = trace(&Job::one(&[packet(3, release), packet(1, 0)]), &hardware(4));
        assert_eq!(trace.issued, [second + 110, DISPATCHED + 110]);
    }
    // A packet comes with the latest of its subgraphs.
    let late = Subgraph { release: 7_000, ..subgraph(1, &[noop()]) };
    let trace = trace(&Job::one(&[subgraph(0, &[noop()]), late]), &hardware(2));
    assert_eq!(trace.issued, [STARTED + 7_010; 2]);
}

#[test]
fn direct_engines_wait_for_nobody() {
    let mut hardware = hardware(2);
    hardware.engines[1].direct = true;
    let direct = |release| Subgraph { release, ..subgraph(1, &[noop()]) };
    let trace = trace(&Job::one(&[direct(40), subgraph(0, &[noop()]), direct(7)]), &hardware);
    // The second is ready to start before the first has, and so before that issues.
    assert_eq!(trace.issued, [227, STARTED + 10, 217]);
}

#[test]
fn a_transfer_is_at_the_nic_after_its_latency_which_occupies_nothing() {
    let job = Job::one(&[subgraph(0, &[send(1, 0, 8), send(1, 0, 8), noop()])]);
    let trace = run(&job.plan(&hardware(1)).expect("a program"), |entry| 1_000 - 900 * u64::from(entry));
    assert_eq!(trace.posted.clone().into_values().collect::<Vec<_>>(), [STARTED + 13, STARTED + 23]);
    assert_eq!(trace.issued, [STARTED + 10, STARTED + 20, STARTED + 30]);
    assert_eq!(trace.ended.clone().into_values().collect::<Vec<_>>(), [STARTED + 1_013, STARTED + 123, STARTED + 30]);
    assert_eq!(trace.device.expect("a device").outstanding_most(), 2);
}

#[test]
fn a_unit_alone_has_its_own_rate_and_all_share_what_there_is() {
    // 8 bits a picosecond alone, 32 in all.
    for active in 1..=16u64 {
        let rate = 8.min(32 / active);
        let job: Vec<Subgraph> = (0..active).map(|engine| subgraph(engine as u32, &[copy(1_000)])).collect();
        let mut hardware = hardware(16);
        hardware.units_bps = 32_000_000_000_000 / active * active;
        let trace = trace(&Job::one(&job), &hardware);
        let rate = if 32 % active == 0 {
            rate * 1_000_000_000_000
        } else {
            (32_000_000_000_000 / active).min(8_000_000_000_000)
        };
        let takes = 8_000u64 * 1_000_000_000_000;
        assert!(trace.ended.values().all(|&end| end == STARTED + 10 + takes.div_ceil(rate)), "{active}: {trace:?}");
        let usage = usage(&trace);
        assert!(usage[..active as usize].iter().all(|u| u.unit == takes.div_ceil(rate) && u.unit_wait == 0));
        assert_eq!(usage[active as usize..].iter().map(|u| u.unit).sum::<u64>(), 0);
    }
}

#[test]
fn late_joiners_slow_the_others_down_from_then_on() {
    let mut hardware = hardware(2);
    hardware.units_bps = 8_000_000_000_000;
    // Engine 1 joins 300 ps after engine 0: it issues 30 entries first.
    let mut late = vec![noop(); 30];
    late.push(copy(400));
    let trace = trace(&Job::one(&[subgraph(0, &[copy(1_000)]), subgraph(1, &late)]), &hardware);
    let begin = STARTED + 10;
    // 8,000 bits: 2,400 alone at 8 a ps, then 4 each; 3,200 of the other take 800 ps, in which 3,200 more are done; the
    // last 2,400 alone again.
    assert_eq!((trace.ended[&0], trace.ended[&31]), (begin + 300 + 800 + 300, begin + 300 + 800));
}

#[test]
fn operations_of_an_engine_queue_for_its_unit() {
    let job = Job::one(&[subgraph(0, &[copy(1_000), sum(0, MEMORY / 2, 500), copy(100)])]);
    let trace = trace(&job, &hardware(1));
    let begin = STARTED + 10;
    assert_eq!(trace.ended.clone().into_values().collect::<Vec<_>>(), [begin + 1_000, begin + 1_500, begin + 1_600]);
    let usage = usage(&trace)[0];
    assert_eq!((usage.unit, usage.unit_wait), (1_600, 990 + 1_480));
}

#[test]
fn flow_fields_hold_back_what_they_say() {
    // A receive takes 5,000 ps, a send 2,000, a copy 100.
    let times = |entries: &[Entry]| {
        let job = Job::one(&[subgraph(0, entries)]);
        let plan = job.plan(&hardware(1)).expect("a program");
        let trace = run(&plan, |entry| if entries[entry as usize].op == RECV { 5_000 } else { 2_000 });
        assert!(trace.finished);
        trace.issued.iter().map(|issued| issued - STARTED).collect::<Vec<_>>()
    };
    let (rx, tx, cp, last) = (recv(1, 0, 8), send(1, 0, 8), copy(100), noop());
    assert_eq!(times(&[rx, tx, cp, last]), [10, 20, 30, 40]);
    assert_eq!(times(&[rx, tx, cp, last.flow(SYNC)])[3], 10 + 3 + 5_000 + 10);
    assert_eq!(times(&[rx, tx, cp, last.flow(RX_SYNC)])[3], 10 + 3 + 5_000 + 10);
    assert_eq!(times(&[rx, tx, cp, last.flow(TX_SYNC)])[3], 20 + 3 + 2_000 + 10);
    assert_eq!(times(&[tx, cp, last.flow(RX_SYNC)])[2], 30);
    assert_eq!(times(&[rx, cp, last.flow(TX_SYNC)])[2], 30);
    assert_eq!(times(&[rx, tx, cp, last.sync(1)])[3], 30 + 100 + 10);
    assert_eq!(times(&[rx, tx, cp, last.sync(2)])[3], 20 + 3 + 2_000 + 10);
    assert_eq!(times(&[rx, tx, cp, last.sync(3)])[3], 10 + 3 + 5_000 + 10);
    assert_eq!(times(&[rx, tx.flow(FENCE), cp, last])[2..], [20 + 3 + 2_000 + 10, 20 + 3 + 2_000 + 20]);
    // The fence of an entry does not keep it from issuing itself, and one that is complete keeps nobody.
    assert_eq!(times(&[rx, last.flow(FENCE), cp]), [10, 20, 30]);
    // What issues later is in order, even if it could go.
    assert_eq!(times(&[rx, last.sync(1), last])[1..], [10 + 3 + 5_000 + 10, 10 + 3 + 5_000 + 20]);
    // A WRITE counts as a send, a receive does not.
    let write = Entry { op: WRITE, ..tx };
    assert_eq!(times(&[write, last.flow(TX_SYNC)])[1], 10 + 3 + 2_000 + 10);
}

#[test]
fn a_wait_issues_when_its_word_is_set_by_another_subgraph() {
    for (comparison, values, expected) in [(0, [1, 3, 4], 20), (1, [4, 1, 3], 30), (2, [3, 1, 4], 30)] {
        let setter: Vec<Entry> = values.iter().map(|&value| set(5, value)).collect();
        let job = Job::one(&[subgraph(0, &[wait(5, comparison, 3), noop()]), subgraph(1, &setter)]);
        let trace = trace(&job, &hardware(2));
        assert_eq!(trace.issued[..2], [STARTED + expected + 10, STARTED + expected + 20], "{comparison}");
        assert_eq!(usage(&trace)[0].stall, expected);
    }
}

#[test]
fn words_are_set_from_outside() {
    let job = Job {
        sets: vec![(0, 1, 9, 40_000), (1, 1, 9, 3), (0, 1, 2, 700)],
        ..Job::one(&[subgraph(0, &[wait(1, 0, 9)])])
    };
    assert_eq!(trace(&job, &hardware(1)).issued, [40_010]);
    let early = Job { sets: vec![(0, 1, 9, 700)], ..job };
    assert_eq!(trace(&early, &hardware(1)).issued, [STARTED + 10]);
}

#[test]
fn no_more_transfers_than_allowed_are_outstanding() {
    let mut hardware = hardware(2);
    hardware.outstanding = 2;
    let sends = [send(1, 0, 8); 3];
    let job = Job::one(&[subgraph(0, &sends), subgraph(1, &[send(1, 0, 8).stream(1), noop()])]);
    let trace = run(&job.plan(&hardware).expect("a program"), |_| 1_000);
    assert!(trace.finished);
    // One of each engine; when they end, the next two, which are of one CPU.
    let next = STARTED + 10 + 1_003;
    assert_eq!(trace.issued, [STARTED + 10, next + 10, next + 20, STARTED + 10, STARTED + 20]);
    assert_eq!(trace.device.expect("a device").outstanding_most(), 2);
}

#[test]
fn what_is_sent_passes_the_unit_unless_it_was_just_computed() {
    let mut hardware = hardware(1);
    hardware.copies_sends = true;
    let fused = send(1, 0, 1_000).flow(FUSED);
    let trace = trace(&Job::one(&[subgraph(0, &[send(1, 0, 1_000), fused, recv(1, 0, 8)])]), &hardware);
    // The second waits for the first in the unit, or they would leave in another order; the receive does not.
    let begin = STARTED + 10;
    assert_eq!(trace.posted.clone().into_values().collect::<Vec<_>>(), [begin + 1_003, begin + 1_003, begin + 23]);
    assert_eq!(usage(&trace)[0].unit, 1_000);
    let job = Job::one(&[subgraph(0, &[copy(1_000), fused.sync(1)])]);
    assert_eq!(run(&job.plan(&hardware).expect("a program"), |_| 0).posted[&1], begin + 1_000 + 10 + 3);
}

#[test]
fn iterations_repeat_from_zeroed_words() {
    let job = Job::one(&[subgraph(0, &[wait(0, 0, 1), copy(500)]), subgraph(1, &[noop(), set(0, 1)])]);
    let plan = job.plan(&hardware(2)).expect("a program");
    let mut device = metaroce_engine::offload::Device::new(plan, 0);
    for begin in [0, 123_456] {
        device.begin(Time(begin));
        let mut ends = Vec::new();
        while device.poll_timeout() < Time::NEVER {
            let now = device.poll_timeout();
            device.handle_timeout(now);
            while let Some(effect) = device.poll_effect() {
                ends.push((now.0 - begin, effect));
            }
        }
        assert_eq!(device.unfinished(), 0);
        assert_eq!(ends.last().expect("some").0, STARTED + 20 + 20 + 500);
    }
    assert_eq!(device.usage(Time::NEVER).map(|usage| usage.issued).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn what_is_blocked_says_why() {
    let mut hardware = hardware(4);
    hardware.outstanding = 1;
    let job = Job::one(&[
        subgraph(0, &[recv(1, 0, 8), noop().sync(1)]),
        subgraph(1, &[wait(3, 2, 7)]),
        subgraph(2, &[send(1, 0, 8)]),
    ]);
    let mut device = metaroce_engine::offload::Device::new(job.plan(&hardware).expect("a program"), 0);
    device.begin(Time::ZERO);
    while device.poll_timeout() < Time::NEVER {
        device.handle_timeout(device.poll_timeout());
    }
    let reasons: Vec<String> = device.blocked(9).into_iter().map(|blocked| blocked.reason).collect();
    assert_eq!(
        reasons,
        [
            "engine 0: NOOP (entry 1 of rank 0) waits for RECV from rank 1 (entry 0 of rank 0), which has not landed",
            "engine 1: WAIT (entry 2 of rank 0) waits for word 3 > 7; it is 0",
            "engine 2: SEND to rank 1 (entry 3 of rank 0) waits for one of 1 outstanding transfers to end",
        ]
    );
    device.complete(Time(90_000), 0);
    assert_eq!(device.blocked(9).len(), 1, "the word alone");
}

#[test]
fn times_beyond_all_times_are_told() {
    let reasons = |job: &Job, hardware: &Hardware| {
        let trace = run(&job.plan(hardware).expect("a program"), |_| 0);
        assert!(!trace.finished);
        let blocked = trace.device.expect("a device").blocked(9);
        blocked.into_iter().map(|blocked| blocked.reason).collect::<Vec<_>>()
    };
    // CPU-C takes packets in order: what waits behind the first is not released either.
    let late = |packet| Subgraph { packet, release: u64::MAX, ..subgraph(0, &[noop()]) };
    let job = Job::one(&[late(0), late(1)]);
    let told = |entry: u32| format!("engine 0: NOOP (entry {entry} of rank 0) waits for a release that never comes");
    assert_eq!(reasons(&job, &hardware(1)), [told(0), told(1)]);
    let mut direct = hardware(1);
    direct.engines[0].direct = true;
    assert_eq!(reasons(&job, &direct), [told(0), told(1)]);
    let mut slow = hardware(1);
    slow.engines[0].issue = Time(1 << 63);
    let job = Job::one(&[subgraph(0, &[noop(); 2])]);
    assert_eq!(reasons(&job, &slow), ["engine 0: NOOP (entry 1 of rank 0) never ends to issue"]);
}

#[test]
fn programs_that_do_not_fit_are_refused() {
    let told = |job: &Job, change: &dyn Fn(&mut metaroce_engine::Columns), hardware: &Hardware| {
        let mut columns = job.columns();
        change(&mut columns);
        let program = metaroce_engine::Program::new(columns, MEMORY);
        let plan = program.and_then(|p| metaroce_engine::offload::Plan::new(std::sync::Arc::new(p), hardware.clone()));
        plan.expect_err("refused").to_string()
    };
    let good = Job::one(&[subgraph(0, &[noop(), noop()])]);
    let one = |entry: Entry| told(&Job::one(&[subgraph(0, &[noop(), entry])]), &|_| {}, &hardware(1));
    for (message, parts) in [
        (one(wait(8, 0, 1)), ["local[1]", "8", "below 8"]),
        (one(set(9, 1)), ["local[1]", "9", "below 8"]),
        (one(wait(0, 3, 1)), ["imm[1]", "3", "0 (>=)"]),
        (one(noop().sync(2)), ["wqe_sync[1]", "2", "0 to 1"]),
        (one(noop().flow(32)), ["flow[1]", "32", "0 to 31"]),
        (one(Entry { op: READ, ..send(1, 0, 8) }), ["op[1]", "7", "0 to 6, 11, 12"]),
        (one(sum(0, 4, 8)), ["remote[1]", "4", "8 bytes at 0"]),
        (told(&good, &|c| c.deps = vec![0], &hardware(1)), ["deps[0]", "0", "none"]),
        (told(&good, &|c| c.graph.start = vec![0, 1], &hardware(1)), ["subgraph_start[0]", "1", "2 last"]),
        (told(&good, &|c| c.graph.start = vec![0, 2, 2], &hardware(1)), ["subgraph_engine[1]", "1", "length 2"]),
        (told(&good, &|c| c.rank_start = vec![0, 1, 2], &hardware(1)), ["subgraph_start[1]", "2", "entry 1"]),
        (told(&Job::one(&[subgraph(1, &[noop()])]), &|_| {}, &hardware(1)), ["subgraph_engine[0]", "1", "below 1"]),
        (
            told(&Job { sets: vec![(2, 0, 1, 1)], ..good.clone() }, &|_| {}, &hardware(1)),
            ["set_rank[0]", "2", "below 2"],
        ),
        (
            told(&Job { sets: vec![(0, 8, 1, 1)], ..good.clone() }, &|_| {}, &hardware(1)),
            ["set_word[0]", "8", "below 8"],
        ),
        (told(&good, &|c| c.graph.set_rank = vec![0], &hardware(1)), ["set_word", "0", "length 1"]),
        (told(&good, &|_| {}, &Hardware { units_bps: 0, ..hardware(1) }), ["units_bps", "0", "at least 1"]),
        (told(&good, &|_| {}, &Hardware { outstanding: 0, ..hardware(1) }), ["outstanding", "0", "at least 1"]),
        (told(&good, &|c| c.graph = Default::default(), &hardware(1)), ["dep_start", "0", "length 3"]),
    ] {
        assert!(parts.iter().all(|part| message.contains(part)), "{message}: {parts:?}");
    }
    let mut plain = Job::one(&[subgraph(0, &[wait(0, 0, 0)])]).columns();
    plain.graph = Default::default();
    plain.dep_start = vec![0, 0];
    let message = metaroce_engine::Program::new(plain, MEMORY).expect_err("refused").to_string();
    assert!(message.contains("op[0]: 11 is not allowed; allowed: 0 to 10"), "{message}");
}
