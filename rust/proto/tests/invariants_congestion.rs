//! Invariants of windows, hints, pace and planes.

mod pair;

use std::collections::BTreeMap;

use metaroce_proto::{CompletionKind, ControllerKind, Hints, MetaRoceConfig};
use metaroce_wire::{Body, PlaneId, Rate, Time, lengths};
use proptest::prelude::*;

use pair::operations::config;
use pair::schedule::draws;
use pair::sprayed::{DELAY, MTU, RATE, ack, data, pair_with, sent, write};
use pair::watch::{look, window_changes};
use pair::{Fate, Pair};

/// One Write of `packets`, over planes of 200 Gbit/s.
fn flow(
    config: &MetaRoceConfig,
    planes: usize,
    packets: u64,
    fate: impl FnMut(Time, &metaroce_wire::Packet) -> Fate + 'static,
) -> Pair {
    let mut pair = pair_with(config, planes, DELAY);
    pair.fate_at(fate);
    pair.post(0, write(1, 0, 0, packets * MTU));
    pair
}

/// Payload bytes that begin in `[from, to)`, by plane.
fn bytes_between(pair: &Pair, from: Time, to: Time) -> BTreeMap<PlaneId, u64> {
    let mut bytes = BTreeMap::new();
    for (_, packet) in pair.log.iter().filter(|(at, _)| *at >= from && *at < to) {
        if let Some(data) = data(packet) {
            *bytes.entry(packet.envelope.plane).or_default() += u64::from(data.segment.len);
        }
    }
    bytes
}

fn cases(cases: u32) -> ProptestConfig {
    let set = std::env::var("PROPTEST_CASES").is_ok();
    let default = ProptestConfig::default();
    ProptestConfig { cases: if set { default.cases } else { cases }, ..default }
}

proptest! {
    #![proptest_config(cases(60))]

    // [I20] [F5.state-of-a-path] [F8.mark-trims-its-path] [F8.dctcp-cut] [F8.ecn-aimd]
    #[test]
    fn marks_cut_their_own_path_once_in_a_round_trip(
        paths_per_plane in 2..9u32,
        ack_every in 1..9u32,
        marked in 1..1000u64,
        path in 0..8u16,
        seed in any::<u64>(),
    ) {
        let path = path % paths_per_plane as u16;
        let config = MetaRoceConfig { paths_per_plane, ack_every, ..MetaRoceConfig::default() };
        let mut draw = draws(seed);
        let mut pair = flow(&config, 1, 2000, move |_, packet| match data(packet) {
            Some(data) if data.header.path == path && draw() < marked => Fate::Marked,
            _ => Fate::Arrives,
        });
        let changes = window_changes(&mut pair);
        pair.run();
        let cuts: Vec<Time> = {
            let changes = changes.borrow();
            let cuts = changes.iter().filter(|(_, _, before, after)| after < before);
            let other = cuts.clone().find(|(_, of, ..)| *of != usize::from(path));
            prop_assert_eq!(other, None, "seed {}", seed);
            cuts.map(|(at, ..)| *at).collect()
        };
        prop_assert!(marked < 100 || !cuts.is_empty());
        // The shortest round trip that there is.
        let round_trip = Time(2 * DELAY.0);
        prop_assert!(cuts.windows(2).all(|w| w[1].since(w[0]) >= round_trip), "{:?}", cuts);
    }

    // [I21] [F8.loss-cuts-nothing]
    #[test]
    fn loss_without_marks_lowers_no_window(config in config(), lost in 1..200u64, seed in any::<u64>()) {
        let config = MetaRoceConfig { cut_on_loss: false, controller: ControllerKind::Aimd, ..config };
        let mut draw = draws(seed);
        let mut pair = flow(&config, 2, 1000, move |_, _| if draw() < lost { Fate::Lost } else { Fate::Arrives });
        let changes = window_changes(&mut pair);
        pair.run();
        // A path that was given up and comes back starts anew: no cut.
        let died: u64 = pair.ends.iter().map(|end| end.counters().paths_died).sum();
        let cut = changes.borrow().iter().filter(|(_, _, before, after)| after < before).count() as u64;
        prop_assert!(cut <= died, "{} cuts, {} paths died", cut, died);
        prop_assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
    }

    // [F5.state-of-a-path] [F6.ack-coalesced]
    #[test]
    fn every_path_is_reported_whatever_others_report(
        config in config(),
        planes in 1..5usize,
        packets in 200..800u64,
        seed in any::<u64>(),
    ) {
        let mut draw = draws(seed);
        let mut pair = flow(&config, planes, packets, move |_, _| if draw() < 5 { Fate::Lost } else { Fate::Arrives });
        pair.run();
        let mut untold: BTreeMap<u16, u32> = BTreeMap::new();
        let mut arrivals = pair.arrivals.iter().filter(|(_, end, _)| *end == 1).peekable();
        for (at, packet) in &pair.log {
            while let Some((_, _, arrived)) = arrivals.next_if(|(then, ..)| then < at) {
                if let Some(data) = data(arrived) {
                    *untold.entry(data.header.path).or_default() += 1;
                }
            }
            if let Some(ack) = ack(packet) {
                untold.insert(ack.path, 0);
            }
            // What waits for its port to be free may be counted already.
            let most = untold.values().max().copied().unwrap_or_default();
            prop_assert!(most <= 2 * config.ack_every + 1, "{} packets of a path were not reported at {}", most, at);
        }
    }

    // [I23] [F8.small-start]
    #[test]
    fn an_old_hint_has_no_effect(config in config(), planes in 1..5usize, idle in 1..200u64, lost in 0..1000u64, seed in any::<u64>()) {
        // Acknowledgements are lost at will, and with them hints.
        let config = MetaRoceConfig { hints: Hints::Window, ..config };
        let mut draw = draws(seed);
        let mut pair = flow(&config, planes, 300, move |now, packet| {
            if ack(packet).is_some() && now < Time::from_us(40) && draw() < lost { Fate::Lost } else { Fate::Arrives }
        });
        let start = {
            pair.run_until(Time::ZERO);
            look(&pair.ends[0]).map(|(connection, _)| connection.window)
        };
        pair.run();
        prop_assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
        let quiet = pair.active_at;
        pair.now = quiet + Time::from_us(idle);
        pair.post(0, write(2, 0, 0, 300 * MTU));
        pair.run_until(pair.now);
        let window = look(&pair.ends[0]).map(|(connection, _)| connection.window);
        // Eight base round trips after the last acknowledgement.
        if idle > 8 * 5 {
            prop_assert_eq!(window, start);
        }
        pair.run();
        prop_assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1, 2]);
    }

    // [I25]
    #[test]
    fn a_paced_sender_sends_its_rate_and_one_burst(
        share in 1..100u32,
        planes in 1..5usize,
        paths_per_plane in 1..9u32,
        ack_every in 1..9u32,
        marked in 0..50u64,
        seed in any::<u64>(),
    ) {
        let config = MetaRoceConfig { hints: Hints::Pace, hint_target_percent: share, paths_per_plane, ack_every, ..MetaRoceConfig::default() };
        let mut draw = draws(seed);
        let mut pair = flow(&config, planes, 400, move |_, _| if draw() < marked { Fate::Marked } else { Fate::Arrives });
        pair.run();
        prop_assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
        let rate = Rate(RATE.0 * planes as u64 / 100 * u64::from(share));
        let first = pair.arrivals.iter().find(|(_, end, _)| *end == 0).map(|(at, ..)| *at).expect("an acknowledgement");
        // A bucket that holds four packets and what is being sent, filled at the rate of the hints.
        let mut bucket = (first, 4 * MTU as i64 + MTU as i64);
        for (at, data) in sent(&pair).iter().filter(|(at, _)| *at > first) {
            let earned = rate.bytes_in(at.since(bucket.0)).0 as i64 + 1;
            bucket = (*at, (bucket.1 + earned).min(5 * MTU as i64) - i64::from(data.segment.len));
            prop_assert!(bucket.1 >= 0, "ahead of {} bit/s by {} bytes at {}", rate.0, -bucket.1, at);
        }
    }

    // [I26] [I29] [F3.packet-spray] [F4.free-port-pulls] [F4.nic-picks-plane]
    #[test]
    fn one_connection_fills_all_its_planes_alike(
        planes in 1..9usize,
        paths_per_plane in 1..9u32,
        ack_every in 1..9u32,
        packets in 8_000..12_000u64,
    ) {
        let config = MetaRoceConfig { paths_per_plane, ack_every, ..MetaRoceConfig::default() };
        let mut pair = flow(&config, planes, packets, |_, _| Fate::Arrives);
        // After ten round trips of the configured fabric, while all planes have something to send.
        let from = Time::from_us(50);
        let to = from + Time(pair.wire(lengths::mr_data(4096)).0 * (packets / planes as u64) / 2);
        pair.run();
        let bytes = bytes_between(&pair, from, to);
        let full = RATE.bytes_in(Time(to.0 - from.0)).0 * MTU / u64::from(lengths::mr_data(4096));
        let all: u64 = bytes.values().sum();
        prop_assert!(all * 100 >= full * planes as u64 * 97, "{:?} of {} bytes each", bytes, full);
        let (least, most) = (bytes.values().min(), bytes.values().max());
        prop_assert!(bytes.len() == planes && least.zip(most).is_some_and(|(l, m)| m * 98 <= l * 100), "{:?}", bytes);
    }

    // [F4.share-of-window] [I29]
    #[test]
    fn planes_share_a_window_that_is_too_small_for_them(
        planes in 2..5usize,
        paths_per_plane in 1..9u32,
        share in 5..50u32,
    ) {
        let config = MetaRoceConfig { paths_per_plane, hint_target_percent: share, hint_headroom_percent: 0, ..MetaRoceConfig::default() };
        let mut pair = flow(&config, planes, 4_000, |_, _| Fate::Arrives);
        pair.run_until(Time::from_us(150));
        let bytes = bytes_between(&pair, Time::from_us(30), Time::from_us(150));
        let (least, most) = (bytes.values().min(), bytes.values().max());
        let full = RATE.bytes_in(Time::from_us(120)).0;
        // A packet more than its share in one plane, one less in another, each round trip: what cannot be shared.
        prop_assert!(bytes.values().all(|bytes| bytes * 100 < full * 80), "the window limits: {:?}", bytes);
        prop_assert!(bytes.len() == planes && least.zip(most).is_some_and(|(l, m)| m - l <= 60 * MTU), "{:?}", bytes);
    }

    // [F10.one-controller] [F10.state-of-a-pair]
    #[test]
    fn streams_share_the_window_and_the_paths_of_their_connection(
        paths_per_plane in 1..9u32,
        planes in 1..5usize,
        streams in 1..200u16,
    ) {
        let config = MetaRoceConfig { paths_per_plane, ..MetaRoceConfig::default() };
        let mut pair = pair_with(&config, planes, DELAY);
        for stream in 0..streams {
            pair.post(0, write(stream.into(), stream, u64::from(stream) * 10 * MTU, 10 * MTU));
        }
        pair.run_until(Time::from_us(1));
        let (connection, paths) = look(&pair.ends[0]).expect("it has posted");
        prop_assert_eq!(paths.len(), paths_per_plane as usize * planes);
        prop_assert!(connection.in_flight <= connection.window.max(MTU));
        pair.run();
        let mut done = pair.succeeded(0, CompletionKind::Sent);
        done.sort_unstable();
        prop_assert_eq!(done, (0..u32::from(streams)).collect::<Vec<_>>());
    }

    // [I22] [F8.hint-is-share] [F8.hint-in-every-ack]
    #[test]
    fn hints_to_the_only_sender_are_the_target_and_no_more(
        config in config(),
        planes in 1..5usize,
        share in 1..101u32,
        packets in 1..200u64,
    ) {
        let config = MetaRoceConfig { hints: Hints::Window, hint_target_percent: share, ..config };
        let mut pair = flow(&config, planes, packets, |_, _| Fate::Arrives);
        pair.run();
        let target = RATE.0 * planes as u64 / 100 * u64::from(share);
        for (_, packet) in &pair.log {
            if let Body::MrAck(ack) = &packet.body {
                let hint = ack.hint.decode().map_or(0, |rate| rate.0);
                prop_assert!(hint > 0 && hint <= target && hint >= target - target / 1000 - 1_000_000, "{}", hint);
            }
        }
    }
}
