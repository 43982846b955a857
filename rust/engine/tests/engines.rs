//! Properties of message engines on random programs that are sure to end.

mod common;

use common::*;
use metaroce_engine::offload::Hardware;
use metaroce_wire::Time;
use proptest::prelude::*;

const ENGINES: usize = 3;
const WORDS: u32 = 8;

#[derive(Clone, Debug)]
struct Case {
    job: Job,
    hardware: Hardware,
    /// How long each transfer takes, again and again.
    takes: Vec<u64>,
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let one = (0..6usize, 0..32u8, 0..6u32, 1..3_000u64).prop_map(|(kind, flow, sync, bytes)| {
        let entry = match kind {
            0 => recv(1, 0, bytes),
            1 => send(1, 0, bytes),
            2 => Entry { op: WRITE, ..send(1, 0, bytes) },
            3 => copy(bytes),
            4 => sum(0, MEMORY / 2, bytes),
            _ => noop(),
        };
        // Half of all wait for nothing.
        entry.flow(if flow & 16 == 0 { flow & 15 } else { flow & FUSED }).sync(sync)
    });
    prop::collection::vec(one, 1..12)
}

fn cases() -> impl Strategy<Value = Case> {
    let subgraph = (0..ENGINES as u32, 0..4u32, 0..30_000u64, 0..3u8, entries());
    let costs = (0..3usize, 1..20u32, any::<bool>(), 0..2_000u64);
    let takes = prop::collection::vec(0..40_000u64, 1..9);
    // Subgraph i may wait for the word of an earlier one, which that sets at its end.
    let waits = prop::collection::vec((0..2usize, 0..8usize, 0..3u32), 8);
    (prop::collection::vec(subgraph, 1..8), costs, takes, waits).prop_map(|(list, costs, takes, waits)| {
        let mut subgraphs: Vec<Subgraph> = Vec::new();
        for (i, (engine, packet, release, priority, mut entries)) in list.into_iter().enumerate() {
            for (at, entry) in entries.iter_mut().enumerate() {
                entry.sync = entry.sync.min(at as u32);
            }
            let (is_waiting, on, comparison) = waits[i];
            if is_waiting == 1 && i > 0 {
                let value = if comparison == 2 { 6 } else { 7 };
                let at = entries.len() / 2;
                entries.iter_mut().for_each(|entry| entry.sync = 0);
                entries.insert(at, wait((on % i) as u64, comparison, value));
            }
            entries.push(set(i as u64, 7).flow(SYNC));
            subgraphs.push(Subgraph { engine, packet, release, priority, entries });
        }
        let (cost, outstanding, copies_sends, post) = costs;
        let mut hardware = Hardware { outstanding, copies_sends, words: WORDS, ..hardware(ENGINES) };
        hardware.units_bps = [8, 16, 24][cost] * 1_000_000_000_000;
        hardware.engines.iter_mut().for_each(|engine| engine.post = Time(post));
        hardware.engines[2].direct = cost == 1;
        Case { job: Job::one(&subgraphs), hardware, takes }
    })
}

/// Entry, its operation and flow fields, the first of its subgraph, its engine.
fn each(job: &Job) -> Vec<(Entry, usize, u32)> {
    let mut first = 0;
    let mut all = Vec::new();
    for subgraph in &job.ranks[0] {
        all.extend(subgraph.entries.iter().map(|&entry| (entry, first, subgraph.engine)));
        first = all.len();
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn programs_end_and_nothing_issues_too_early(case in cases()) {
        let plan = case.job.plan(&case.hardware).expect("a program");
        let takes = |entry: u32| case.takes[entry as usize % case.takes.len()];
        let trace = run(&plan, takes);
        let device = trace.device.as_ref().expect("a device");
        prop_assert!(trace.finished, "{:?}", device.blocked(9));
        let all = each(&case.job);
        let issue = 10;
        let ended = |i: usize| trace.ended[&(i as u32)];
        for (i, &(entry, first, _)) in all.iter().enumerate() {
            let begun = trace.issued[i] - issue;
            prop_assert!(i == first || trace.issued[i - 1] <= begun, "entry {i} issues in order");
            prop_assert!(ended(i) >= trace.issued[i]);
            for (before, (earlier, ..)) in all.iter().enumerate().take(i).skip(first) {
                let is_sent = matches!(earlier.op, SEND | WRITE);
                let must = entry.flow & SYNC != 0
                    || entry.flow & RX_SYNC != 0 && earlier.op == RECV
                    || entry.flow & TX_SYNC != 0 && is_sent
                    || earlier.flow & FENCE != 0
                    || entry.sync as usize == i - before;
                prop_assert!(!must || ended(before) <= begun, "entry {i} waits for entry {before}");
            }
            if entry.op == WAIT {
                let setter = all.iter().position(|(other, ..)| other.op == SET && other.local == entry.local);
                prop_assert!(ended(setter.expect("one")) <= begun, "entry {i} waits for its word");
            }
        }
    }

    #[test]
    fn busy_times_add_up(case in cases()) {
        let plan = case.job.plan(&case.hardware).expect("a program");
        let trace = run(&plan, |entry| case.takes[entry as usize % case.takes.len()]);
        let device = trace.device.as_ref().expect("a device");
        let all = each(&case.job);
        let usage: Vec<_> = device.usage(Time(trace.at)).collect();
        let mut work = 0;
        for (engine, used) in usage.iter().enumerate() {
            let own: Vec<_> = (0..all.len()).filter(|&i| all[i].2 as usize == engine).collect();
            let subgraphs = case.job.ranks[0].iter().filter(|s| s.engine as usize == engine).count() as u64;
            prop_assert_eq!((used.issued, used.cpu), (own.len() as u64, 100 * subgraphs + 10 * own.len() as u64));
            prop_assert!(used.cpu + used.stall <= trace.at);
            // One entry at a time.
            let mut times: Vec<u64> = own.iter().map(|&i| trace.issued[i]).collect();
            times.sort_unstable();
            prop_assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 10));
            let sent = |entry: &Entry| {
                case.hardware.copies_sends && matches!(entry.op, SEND | WRITE) && entry.flow & FUSED == 0
            };
            let through = own.iter().map(|&i| all[i].0).filter(|e| matches!(e.op, COPY | SUM) || sent(e));
            let bytes: u64 = through.map(|entry| entry.bytes).sum();
            // A byte takes a picosecond alone, and at most as long as all shares make it.
            let (one, shared) = (8, case.hardware.units_bps / 1_000_000_000_000 / ENGINES as u64);
            let slowest = (8 * bytes).div_ceil(shared.min(one)) + own.len() as u64;
            prop_assert!(used.unit >= bytes && used.unit <= slowest, "{bytes} bytes in {} ps", used.unit);
            work += bytes;
        }
        prop_assert!(trace.at >= 8 * work / (case.hardware.units_bps / 1_000_000_000_000));
        // Never more outstanding than allowed, and as many as the device says.
        let transfers = (0..all.len()).filter(|&i| matches!(all[i].0.op, SEND | RECV | WRITE));
        let mut changes: Vec<(u64, i64)> = Vec::new();
        for i in transfers {
            changes.extend([(trace.issued[i] - 10, 1), (trace.ended[&(i as u32)], -1)]);
        }
        changes.sort_unstable();
        let most = changes.iter().scan(0, |now, change| { *now += change.1; Some(*now) }).max().unwrap_or(0);
        prop_assert!(most <= i64::from(case.hardware.outstanding), "{most}");
        prop_assert!(most <= i64::from(device.outstanding_most()) && device.outstanding_most() <= case.hardware.outstanding);
    }
}
