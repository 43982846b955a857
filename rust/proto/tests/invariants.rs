//! Invariants of safety and reliability, over random schedules of every operation.

mod pair;

use metaroce_proto::{CompletionKind, CompletionStatus, Hints, MetaRoceConfig};
use metaroce_wire::{Body, Time};
use proptest::prelude::*;

use pair::operations::{
    Operation, Weather, check_atomics, check_completions, check_epochs, check_fences, check_memory, check_numbers,
    check_reach, check_same_path, check_what_completions_mean, config, operations, post, weather,
};
use pair::sprayed::{DELAY, pair_with, totals, write};
use pair::watch::{in_flight, look, watch};
use pair::{Fate, Pair};

fn cases(cases: u32) -> ProptestConfig {
    // PROPTEST_CASES, where it is set, says how many instead.
    let set = std::env::var("PROPTEST_CASES").is_ok();
    let default = ProptestConfig::default();
    ProptestConfig { cases: if set { default.cases } else { cases }, ..default }
}

/// A run of `operations` until nothing is waited for.
fn run(operations: &[Operation], config: &MetaRoceConfig, planes: usize, weather: &Weather) -> Pair {
    let mut pair = pair_with(config, planes, DELAY);
    pair.fate(weather.fate());
    post(&mut pair, operations);
    pair.run();
    pair
}

proptest! {
    #![proptest_config(cases(250))]

    // [I1] [I2] [I3] [I5] [I6] [I7] [I8] [I9] [I10] [I15] [F11.verbs] [F9.nothing-else-harms]
    #[test]
    fn whatever_happens_to_packets_verbs_mean_what_they_say(
        operations in operations(true),
        config in config(),
        planes in 1..5usize,
        weather in weather(),
    ) {
        let pair = run(&operations, &config, planes, &weather);
        check_completions(&pair, &operations)?;
        check_memory(&pair, &operations)?;
        check_atomics(&pair, &operations)?;
        check_what_completions_mean(&pair, &operations)?;
        check_fences(&pair, &operations)?;
        prop_assert!(pair.ends.iter().all(|end| end.stuck().is_empty()));
    }

    // [I12] [I13] [I14] [I19] [F6.own-sequence] [F6.new-number] [F8.two-windows]
    #[test]
    fn numbers_windows_and_what_is_in_flight_stay_in_bounds(
        operations in operations(true),
        config in config(),
        planes in 1..5usize,
        weather in weather(),
    ) {
        let mut pair = pair_with(&config, planes, DELAY);
        pair.fate(weather.fate());
        let wrong = watch(&mut pair);
        post(&mut pair, &operations);
        pair.run();
        let first = wrong.borrow().first().cloned();
        prop_assert_eq!(first, None);
        prop_assert_eq!(in_flight(&pair), [0, 0]);
        check_numbers(&pair)?;
        check_reach(&pair)?;
    }

    // [I11] [F6.gap-is-loss] [F1.placed-on-arrival]
    #[test]
    fn nothing_is_sent_twice_where_paths_are_fifo(
        operations in operations(false),
        config in config(),
        planes in 1..5usize,
        skew in prop::collection::vec(0..9u64, 32),
        marked in 0..200u64,
        seed in any::<u64>(),
    ) {
        // Time tells nothing here; each path has a delay of its own.
        let config = MetaRoceConfig { tail_slack_ps: 1_000_000_000_000, ..config };
        let operations: Vec<_> = operations.into_iter().map(|o| Operation { late: false, ..o }).collect();
        let mut pair = pair_with(&config, planes, DELAY);
        let mut draw = pair::schedule::draws(seed);
        pair.fate(move |packet| match &packet.body {
            Body::MrData(_) if draw() < marked => Fate::Marked,
            Body::MrAck(ack) => Fate::Delayed(Time::from_us(skew[ack.path as usize])),
            _ => Fate::Arrives,
        });
        post(&mut pair, &operations);
        pair.run();
        check_completions(&pair, &operations)?;
        let totals = totals(&pair);
        prop_assert_eq!((totals.resent, totals.duplicates, totals.gap_detections, totals.timer_detections), (0, 0, 0, 0));
    }

    // [I11]
    #[test]
    fn lost_acknowledgements_cost_no_more_resends_than_timers_fire(
        operations in operations(false),
        config in config(),
        planes in 1..5usize,
        lost in 0..200u64,
        seed in any::<u64>(),
    ) {
        let config = MetaRoceConfig { down_after: 100, ..config };
        let operations: Vec<_> = operations.into_iter().map(|o| Operation { late: false, ..o }).collect();
        let mut pair = pair_with(&config, planes, DELAY);
        let mut draw = pair::schedule::draws(seed);
        pair.fate(move |packet| match packet.body {
            Body::MrAck(_) if draw() < lost => Fate::Lost,
            _ => Fate::Arrives,
        });
        post(&mut pair, &operations);
        pair.run();
        check_completions(&pair, &operations)?;
        let totals = totals(&pair);
        prop_assert_eq!(totals.gap_detections, 0);
        prop_assert!(totals.resent <= totals.timer_detections, "{:?}", totals);
    }

    // [I18] [F6.same-path] [F6.elsewhere-in-the-end]
    #[test]
    fn resends_stay_on_the_path_that_lost_them_and_leave_it_in_the_end(
        operations in operations(false),
        config in config(),
        planes in 1..5usize,
        same_path_attempts in 0..4u32,
        weather in weather(),
    ) {
        let config = MetaRoceConfig { same_path_attempts, down_after: 100, ..config };
        let operations: Vec<_> = operations.into_iter().map(|o| Operation { late: false, ..o }).collect();
        let pair = run(&operations, &config, planes, &weather);
        check_same_path(&pair, same_path_attempts as usize, planes)?;
    }

    // [I15] [I16] [I27] [F3.epoch] [F5.slow-path-stalls-nobody] [F5.probe-revives]
    #[test]
    fn one_plane_is_enough(
        operations in operations(false),
        config in config(),
        planes in 2..5usize,
        left in 0..4u8,
        dies_at in 0..100u64,
        returns_after in 0..2000u64,
        weather in weather(),
    ) {
        let left = left % planes as u8;
        let mut fate = weather.fate();
        let mut pair = pair_with(&config, planes, DELAY);
        pair.fate_at(move |now, packet| {
            let back = now >= Time::from_us(dies_at + returns_after) && returns_after < 500;
            let dead = packet.envelope.plane.0 != left && now >= Time::from_us(dies_at) && !back;
            if dead { Fate::Lost } else { fate(packet) }
        });
        post(&mut pair, &operations);
        pair.run();
        check_completions(&pair, &operations)?;
        check_memory(&pair, &operations)?;
        check_epochs(&pair)?;
        check_numbers(&pair)?;
        prop_assert!(pair.active_at < Time::from_us(200_000), "{}", pair.active_at);
    }

    // [I5] [I6] [I14] [I15] [I16]
    #[test]
    fn without_any_plane_every_request_ends_in_time(
        operations in operations(false),
        config in config(),
        planes in 1..5usize,
        dies_after in 0..30u64,
    ) {
        let config = MetaRoceConfig { dead_after_ps: 2_000_000_000, ..config };
        let operations: Vec<_> = operations.into_iter().map(|o| Operation { unsignaled: false, after: 0, late: false, ..o }).collect();
        let mut pair = pair_with(&config, planes, DELAY);
        post(&mut pair, &operations);
        pair.run_until(Time::from_us(dies_after));
        pair.fate(|_| Fate::Lost);
        pair.run();
        for end in 0..2 {
            for stream in 0..pair::operations::STREAMS {
                let posted: Vec<u32> = (0..operations.len())
                    .filter(|&k| operations[k].from() == end && operations[k].stream == stream)
                    .map(|k| k as u32)
                    .collect();
                let sent = pair.completions[end].iter().filter(|c| c.kind == CompletionKind::Sent);
                let own: Vec<_> = sent.filter(|c| c.stream.0 == stream).collect();
                prop_assert_eq!(own.iter().map(|c| c.wr_id).collect::<Vec<_>>(), posted);
                let good = own.iter().take_while(|c| c.status == CompletionStatus::Success).count();
                let alike = own[good..].iter().skip(1).all(|c| c.status == CompletionStatus::Flushed);
                prop_assert!(alike, "{:?}", own);
            }
        }
        // Within the time given, and a timeout: the last-resort timer doubles, so that may be as long again.
        prop_assert!(pair.active_at < Time::from_us(dies_after + 5_000), "{}", pair.active_at);
        prop_assert_eq!(in_flight(&pair), [0, 0]);
    }
}

proptest! {
    #![proptest_config(cases(20))]

    // [I13] [F6.sack-256]
    #[test]
    fn no_more_is_in_flight_than_one_vector_describes(
        config in config(),
        messages in 300..1500u32,
        lost in 0..100u64,
        seed in any::<u64>(),
    ) {
        // Windows count bytes, and these are few.
        let config = MetaRoceConfig { paths_per_plane: 1, hints: Hints::Window, ..config };
        let mut draw = pair::schedule::draws(seed);
        let mut pair = pair_with(&config, 1, DELAY);
        pair.fate(move |_| if draw() < lost { Fate::Lost } else { Fate::Arrives });
        let most = std::rc::Rc::new(std::cell::Cell::new(0));
        let found = std::rc::Rc::clone(&most);
        pair.watch(move |_, ends| {
            let in_flight = look(&ends[0]).map_or(0, |(connection, _)| connection.in_flight);
            found.set(in_flight.max(found.get()));
        });
        (0..messages).for_each(|k| pair.post(0, write(k, 0, u64::from(k), 1)));
        pair.run();
        check_reach(&pair)?;
        check_numbers(&pair)?;
        prop_assert_eq!(pair.succeeded(0, CompletionKind::Sent).len(), messages as usize);
        // A byte each, and 64 for a probe.
        let probes = pair.ends[0].counters().probes;
        prop_assert!(most.get() >= 256 && most.get() <= 256 + 64 * probes, "{} in flight", most.get());
    }
}
