//! Paths that die and return (F3, F7), connections that fail, and what holds under any loss.

mod pair;

use std::cell::Cell;
use std::rc::Rc;

use metaroce_proto::{CompletionKind, CompletionStatus, MetaRoceConfig, PostError};
use metaroce_wire::{Body, PlaneId, Time, lengths};
use proptest::prelude::*;

use pair::schedule::{check_all, check_completions, draws, message, post_schedule, random_fate};
use pair::sprayed::{DELAY, MTU, ROUTES, data, longest_gap, lose, pair, pair_with, receive, sent_into, totals, write};
use pair::{Fate, Pair};

/// A switch for all packets of a plane, both ways.
fn breakable(pair: &mut Pair, plane: u8) -> Rc<Cell<bool>> {
    let up = Rc::new(Cell::new(true));
    let script = Rc::clone(&up);
    pair.fate(
        move |packet| {
            if packet.envelope.plane == PlaneId(plane) && !script.get() { Fate::Lost } else { Fate::Arrives }
        },
    );
    up
}

/// Posts `messages` Writes of 100 packets.
fn post_all(pair: &mut Pair, messages: u32) {
    for k in 0..messages {
        pair.post(0, write(k, 0, u64::from(k) * 100 * MTU, 100 * MTU));
    }
}

// [F5.slow-path-stalls-nobody] [F5.down-after-expiries] [I16] [I28]
#[test]
fn a_dead_plane_stalls_no_other_and_what_was_on_it_arrives() {
    let mut pair = pair(2);
    let up = breakable(&mut pair, 1);
    post_all(&mut pair, 60);
    pair.run_until(Time::from_us(100));
    up.set(false);
    pair.run_until(Time::from_us(3_000));
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), (0..60).collect::<Vec<_>>());
    assert!((0..60).all(|k| pair.placed_once(1, k * 100 * MTU, 100 * MTU)));
    assert_eq!(totals(&pair).paths_died, u64::from(ROUTES));
    // The live plane sends back to back all the time, from the first grant on.
    let live: Vec<Time> = sent_into(&pair, 0).into_iter().filter(|at| *at > Time::from_us(10)).collect();
    assert!(live[live.len() - 1] > Time::from_us(900), "all of the rest went through one plane");
    let gap = longest_gap(&live);
    assert!(gap <= pair.wire(lengths::mr_data(4096) + lengths::mr_ack(4)), "idle for {gap}");
    // Detection is a matter of a few round trips; then only probes try the dead plane.
    let last_data = *sent_into(&pair, 1).last().expect("used before");
    assert!(last_data > Time::from_us(99) && last_data < Time::from_us(200), "{last_data}");
}

// [F5.probe-revives] [I28]
#[test]
fn probes_revive_the_paths_of_a_plane_that_returns() {
    let mut pair = pair(2);
    let up = breakable(&mut pair, 1);
    post_all(&mut pair, 120);
    pair.run_until(Time::from_us(100));
    up.set(false);
    pair.run_until(Time::from_us(700));
    let before = sent_into(&pair, 1).len();
    assert_eq!(totals(&pair).paths_died, u64::from(ROUTES));
    up.set(true);
    pair.run_until(Time::from_us(900));
    assert_eq!(totals(&pair).paths_revived, u64::from(ROUTES));
    let resumed: Vec<Time> = sent_into(&pair, 1).split_off(before);
    // A probe in 100 us, a round trip, and the plane is full again.
    assert!(resumed[0] > Time::from_us(700) && resumed[0] < Time::from_us(806), "{}", resumed[0]);
    pair.run_until(Time::from_us(1000));
    let shares = [0, 1].map(|plane| sent_into(&pair, plane).iter().filter(|at| **at > Time::from_us(900)).count());
    assert!(shares[1] * 20 >= shares[0] * 19, "planes carry {shares:?} packets in the same time");
    pair.run();
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), (0..120).collect::<Vec<_>>());
    assert!((0..120).all(|k| pair.placed_once(1, k * 100 * MTU, 100 * MTU)));
}

// [F3.connection-has-paths] [F3.port-may-change] [F3.epoch] [F5.slow-path-stalls-nobody] [F5.down-after-expiries]
#[test]
fn one_dead_path_takes_no_other_path_down() {
    let mut pair = pair(1);
    pair.fate(|packet| match data(packet) {
        Some(data) if data.header.path == 3 && data.header.epoch == 0 && data.header.pps > 5 => Fate::Lost,
        _ => Fate::Arrives,
    });
    post_all(&mut pair, 20);
    pair.run();
    assert_eq!((totals(&pair).paths_died, totals(&pair).paths_revived), (1, 1));
    // It came back by another entropy: the fate was that of the old route.
    let entropies: Vec<u16> = pair
        .log
        .iter()
        .filter_map(|(_, p)| data(p).filter(|d| d.header.path == 3).map(|d| (d.header.epoch, p.envelope.entropy)))
        .fold(Vec::new(), |mut seen, (epoch, entropy)| {
            seen.resize(usize::from(epoch) + 1, entropy);
            seen
        });
    assert_eq!(entropies.len(), 2);
    assert_ne!(entropies[0], entropies[1]);
    assert!((0..20).all(|k| pair.placed_once(1, k * 100 * MTU, 100 * MTU)));
}

// [I5] [I15] [I16]
#[test]
fn without_any_path_the_first_request_reports_it_and_the_rest_are_flushed() {
    let config = MetaRoceConfig { dead_after_ps: 20_000_000_000, ..MetaRoceConfig::default() };
    let mut pair = pair_with(&config, 2, DELAY);
    let up = Rc::new(Cell::new(true));
    let script = Rc::clone(&up);
    pair.fate(move |_| if script.get() { Fate::Arrives } else { Fate::Lost });
    post_all(&mut pair, 20);
    for k in 0..3 {
        pair.post_receive(0, receive(100 + k, 1, 0, MTU));
    }
    pair.run_until(Time::from_us(30));
    let done = pair.completions[0].len();
    assert!(done > 0 && done < 10, "{done} before the end");
    up.set(false);
    pair.run();
    use CompletionStatus::{Flushed, RetryExceeded, Success};
    let ends: Vec<_> = pair.completions[0].iter().map(|c| c.status).collect();
    let first = ends.iter().position(|s| *s != Success).expect("a failure");
    assert_eq!(ends[first], RetryExceeded);
    assert!(ends[first + 1..].iter().all(|s| *s == Flushed));
    let ids: Vec<u32> = pair.completions[0].iter().map(|c| c.wr_id).collect();
    assert_eq!(ids, (0..20).chain(100..103).collect::<Vec<_>>(), "each once, in order");
    assert!(pair.active_at > Time::from_us(20_000) && pair.active_at < Time::from_us(60_000), "{}", pair.active_at);
    let stuck = pair.ends[0].stuck();
    assert_eq!(stuck.len(), 1);
    assert!(stuck[0].bytes_left > 0 && stuck[0].reason.starts_with("connection failed"), "{:?}", stuck[0]);
    let connection = pair.connection;
    let refused = pair.ends[0].post(pair.now, connection, write(99, 0, 0, 1));
    assert_eq!(refused, Err(PostError::Failed(connection.0)));
}

// [I5] [I15]
#[test]
fn a_receive_posted_after_the_failure_is_flushed() {
    let config = MetaRoceConfig { dead_after_ps: 1_000_000_000, ..MetaRoceConfig::default() };
    let mut pair = pair_with(&config, 1, DELAY);
    pair.fate(|_| Fate::Lost);
    pair.post(0, write(1, 0, 0, MTU));
    pair.run();
    pair.post_receive(0, receive(20, 0, 0, MTU));
    pair.run();
    let last = pair.completions[0].last().map(|c| (c.wr_id, c.status));
    assert_eq!(last, Some((20, CompletionStatus::Flushed)));
}

#[test]
fn an_idle_connection_leaves_no_timer() {
    let mut pair = pair(2);
    let mut draw = draws(3);
    pair.fate(move |_| if draw() < 50 { Fate::Lost } else { Fate::Arrives });
    for round in 0..3u64 {
        pair.post(0, write(1, 0, 0, 100 * MTU));
        pair.post(1, write(1, 0, 0, 10 * MTU));
        pair.run_until(Time::from_us(1000 * (round + 1)));
        assert_eq!(pair.completions.each_ref().map(Vec::len), [round as usize + 1; 2]);
        assert_eq!(pair.ends.each_ref().map(|end| end.poll_timeout()), [Time::NEVER; 2], "round {round}");
    }
}

#[test]
fn a_packet_sent_while_a_probe_is_due_is_watched_like_any_other() {
    let mut pair = pair(1);
    // Three copies take their path down; the fourth leaves on another one while nothing is in flight.
    pair.fate(lose(|_| true, 4));
    pair.post(0, write(1, 0, 0, MTU));
    pair.run_until(Time::from_us(110));
    assert_eq!(totals(&pair).paths_died, 1);
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1], "before the first probe is answered");
}

#[test]
fn a_connection_that_is_done_stops_probing() {
    let mut pair = pair(2);
    let up = breakable(&mut pair, 1);
    post_all(&mut pair, 60);
    pair.run_until(Time::from_us(100));
    up.set(false);
    pair.run_until(Time::from_us(20_000));
    assert_eq!(pair.completions[0].len(), 60);
    assert_eq!(pair.ends[0].poll_timeout(), Time::NEVER, "nothing is waited for");
    // And starts again with the next request.
    up.set(true);
    post_all(&mut pair, 60);
    pair.run();
    assert_eq!(pair.completions[0].len(), 120);
    assert_eq!(totals(&pair).paths_revived, u64::from(ROUTES));
}

#[test]
fn identical_runs_are_identical() {
    let run = |seed| {
        let mut pair = pair(4);
        let mut draw = draws(seed);
        pair.fate(move |_| match draw() {
            0..30 => Fate::Lost,
            30..60 => Fate::Marked,
            _ => Fate::Arrives,
        });
        post_all(&mut pair, 10);
        pair.run();
        pair.log.iter().map(|(at, packet)| format!("{at} {packet:?}")).collect::<Vec<_>>()
    };
    assert!(run(1) == run(1));
    assert!(run(1) != run(2));
}

// [F11.extensions]
#[test]
fn a_plane_that_the_host_does_not_have_is_refused_and_so_is_the_last_one() {
    let mut pair = pair(2);
    let connection = pair.connection;
    let end = &mut pair.ends[0];
    for plane in [2, 7, 8, 200, u8::MAX] {
        for denied in [true, false] {
            let refused = end.deny(Time::ZERO, connection, PlaneId(plane), denied);
            assert_eq!(refused, Err(PostError::NoPlaneLeft(plane)));
        }
    }
    assert_eq!(end.deny(Time::ZERO, connection, PlaneId(1), true), Ok(()));
    assert_eq!(end.deny(Time::ZERO, connection, PlaneId(0), true), Err(PostError::NoPlaneLeft(0)));
    post_all(&mut pair, 3);
    pair.run();
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [0, 1, 2]);
    assert!(sent_into(&pair, 1).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    // [F1.own-destination] [F2.write-carries-address] [F6.own-sequence] [F9.nothing-else-needed] [I1] [I3] [I5] [I6] [I12]
    #[test]
    fn loss_never_loses_or_repeats_a_byte(
        messages in prop::collection::vec(message(), 1..25),
        loss_permille in 0..200u64,
        marked in any::<bool>(),
        seed in any::<u64>(),
        paths_per_plane in 1..9u32,
        planes in 1..5usize,
    ) {
        let config = MetaRoceConfig { paths_per_plane, ..MetaRoceConfig::default() };
        let mut pair = pair_with(&config, planes, DELAY);
        pair.fate(random_fate(seed, loss_permille, marked));
        post_schedule(&mut pair, &messages);
        pair.run();
        check_all(&pair, &messages)?;
        // Numbers and epochs never go back on a path.
        let mut last = std::collections::BTreeMap::new();
        for (_, packet) in &pair.log {
            if let Body::MrData(data) = &packet.body {
                let seen = last.insert((packet.envelope.src, data.header.path), (data.header.epoch, data.header.pps));
                prop_assert!(seen.is_none_or(|seen| seen < (data.header.epoch, data.header.pps)));
            }
        }
    }

    // [I11]
    #[test]
    fn nothing_is_resent_where_nothing_is_lost(
        messages in prop::collection::vec(message(), 1..25),
        paths_per_plane in 1..9u32,
        planes in 1..5usize,
    ) {
        let config = MetaRoceConfig { paths_per_plane, ..MetaRoceConfig::default() };
        let mut pair = pair_with(&config, planes, DELAY);
        post_schedule(&mut pair, &messages);
        pair.run();
        check_completions(&pair, &messages)?;
        let totals = totals(&pair);
        prop_assert_eq!((totals.resent, totals.duplicates, totals.gap_detections, totals.timer_detections), (0, 0, 0, 0));
    }
}
