//! Behaviour of the MetaRoCE-style transport, as packet scripts over links of fixed delay between
//! two endpoints: repair of losses (F6), placement (F1, F2), and the window (F8).

mod pair;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use metaroce_proto::{CompletionKind, CompletionStatus, MetaRoceConfig, WorkRequest};
use metaroce_wire::{ConnId, PlaneId, Rate, RateHint, Rkey, Sending, StreamId, Time, lengths};

use pair::schedule::draws;
use pair::sprayed::{
    DELAY, MTU, RATE, RTT, ack, data, lose, pair, pair_with, receive, send, sent, single, totals, write,
};
use pair::{Fate, MEMORY, Pair};

// --- F6: selective acknowledgement per path, resend of exactly what is missing ---

// [F6.gap-is-loss] [F6.exactly-the-missing] [F6.same-path] [F6.at-once] [F6.new-number]
#[test]
fn a_gap_resends_exactly_that_packet_on_the_path_that_lost_it_at_once() {
    let mut pair = pair(1);
    let lost = 77;
    pair.fate(lose(move |data| data.segment.packet == lost, 1));
    pair.post(0, write(1, 0, 0, 200 * MTU));
    pair.run();
    let sent = sent(&pair);
    let copies: Vec<_> = sent.iter().filter(|(_, data)| data.segment.packet == lost).collect();
    let [(first_at, first), (again_at, again)] = copies[..] else {
        panic!("{} copies of the lost packet", copies.len());
    };
    assert_eq!(
        sent.iter().filter(|(_, data)| data.header.sending == Sending::Again).count(),
        1,
        "nothing else is sent again"
    );
    assert_eq!(again.header.path, first.header.path);
    assert!(again.header.pps > first.header.pps, "a new number, so that its own loss would be a gap again");
    // The path's next packet shows the gap; its acknowledgement starts the resend, which waits for
    // the packet on the wire at most.
    let next =
        sent.iter().find(|(_, data)| data.header.path == first.header.path && data.header.pps == first.header.pps + 1);
    let shown_at = next.expect("the path goes on").0 + pair.wire(lengths::mr_data(4096)) + DELAY;
    let known_at = shown_at + pair.wire(lengths::mr_ack(1)) + DELAY;
    assert!(*again_at >= known_at, "{again_at} is before the gap was known at {known_at}, sent {first_at}");
    let slack = pair.wire(lengths::mr_data(4096) + lengths::mr_ack(4));
    assert!(again_at.since(known_at) <= slack, "{} too late", again_at.since(known_at));
    let totals = totals(&pair);
    assert_eq!((totals.gap_detections, totals.timer_detections, totals.duplicates), (1, 0, 0));
    assert!(pair.placed_once(1, 0, 200 * MTU));
}

// [F6.sack-256] [F6.exactly-the-missing]
#[test]
fn every_lost_packet_of_a_burst_is_resent_once() {
    let mut pair = single();
    pair.fate(lose(|data| (40..46).contains(&data.segment.packet) || data.segment.packet == 48, 1));
    pair.post(0, write(1, 0, 0, 200 * MTU));
    pair.run();
    let again: Vec<u32> =
        sent(&pair).iter().filter(|(_, d)| d.header.sending == Sending::Again).map(|(_, d)| d.segment.packet).collect();
    assert_eq!(again, (40..46).chain([48]).collect::<Vec<_>>());
    assert_eq!((totals(&pair).timer_detections, totals(&pair).duplicates), (0, 0));
}

// [F6.tail-timer] [I17]
#[test]
fn a_lost_last_packet_recovers_without_a_new_post() {
    for times in 1..4 {
        let mut pair = single();
        pair.fate(lose(|data| data.segment.packet == 19, times));
        pair.post(0, write(1, 0, 0, 20 * MTU));
        pair.run();
        assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
        assert!(pair.placed_once(1, 0, 20 * MTU));
        let totals = totals(&pair);
        assert_eq!((totals.resent, totals.timer_detections, totals.gap_detections), (times.into(), times.into(), 0));
        // srtt + 4 rttvar + slack each; the third expiry in a row doubles.
        let done = pair.message_done_at[0];
        assert!(done < Time::from_us(5 + 25 * u64::from(times)), "{done} after {times} losses");
    }
}

// [I3] [I17]
#[test]
fn a_lost_last_acknowledgement_recovers_without_a_second_placement() {
    let mut pair = single();
    let mut losses = 3;
    pair.fate(move |packet| {
        let lost = losses > 0 && ack(packet).is_some_and(|ack| ack.max_pps >= 19);
        losses -= u32::from(lost);
        if lost { Fate::Lost } else { Fate::Arrives }
    });
    pair.post_receive(1, receive(9, 0, 0, 20 * MTU));
    pair.post(0, send(1, 0, 0, 20 * MTU));
    pair.run();
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
    assert_eq!(pair.succeeded(1, CompletionKind::Received), [9]);
    let totals = totals(&pair);
    // One acknowledgement for the last two packets is lost, and one for each copy of them.
    assert_eq!((totals.resent, totals.duplicates, totals.placed), (4, 4, 20));
    assert!(pair.active_at < Time::from_us(100), "{}", pair.active_at);
}

// [F6.new-number]
#[test]
fn a_lost_retransmission_is_just_another_gap() {
    let mut pair = single();
    pair.fate(lose(|data| data.segment.packet == 10, 2));
    pair.post(0, write(1, 0, 0, 200 * MTU));
    pair.run();
    let totals = totals(&pair);
    assert_eq!((totals.gap_detections, totals.timer_detections, totals.resent), (2, 0, 2));
    assert!(pair.placed_once(1, 0, 200 * MTU));
}

// [I11]
#[test]
fn lost_acknowledgements_cost_no_resend_while_later_ones_arrive() {
    let mut pair = single();
    let mut draw = draws(5);
    pair.fate(move |packet| if ack(packet).is_some() && draw() < 300 { Fate::Lost } else { Fate::Arrives });
    for k in 0..20 {
        pair.post(0, write(k, 0, u64::from(k) * 100 * MTU, 100 * MTU));
    }
    pair.run();
    // Only the last ones have no later acknowledgement that covers them.
    assert!(totals(&pair).resent <= 2, "{}", totals(&pair).resent);
    assert_eq!(totals(&pair).gap_detections, 0);
}

// [F8.loss-cuts-nothing] [I21]
#[test]
fn loss_alone_cuts_no_window() {
    for (loss_permille, seed) in [(10, 1u64), (100, 2), (200, 3)] {
        let mut pair = pair(2);
        let mut draw = draws(seed);
        pair.fate(move |_| if draw() < loss_permille { Fate::Lost } else { Fate::Arrives });
        for k in 0..40 {
            pair.post(0, write(k, 0, u64::from(k) * 100 * MTU, 100 * MTU));
        }
        pair.run();
        assert_eq!(pair.succeeded(0, CompletionKind::Sent).len(), 40);
        // From the first grant until all has been sent once, no port falls idle: what is in flight
        // beyond a round trip covers the repair.
        for plane in 0..2 {
            let of_plane = pair.log.iter().filter(|(_, p)| p.envelope.plane == PlaneId(plane));
            let starts: Vec<(Time, bool)> =
                of_plane.filter_map(|(at, p)| data(p).map(|d| (*at, d.segment.backlog > 0))).collect();
            let busy: Vec<Time> = starts.iter().filter(|(at, more)| *at > RTT && *more).map(|(at, _)| *at).collect();
            let span = busy[busy.len() - 1].since(busy[0]);
            let needed = pair.wire(lengths::mr_data(4096) * (busy.len() as u32 - 1));
            let share = needed.0 * 1000 / span.0;
            assert!(share >= 985, "plane {plane} busy {share} ‰ at loss {loss_permille} ‰, seed {seed}");
        }
    }
}

// [F6.gap-is-loss] [I11]
#[test]
fn nothing_is_sent_twice_on_paths_that_lose_nothing() {
    let mut pair = pair(4);
    let mut draw = draws(11);
    pair.fate(move |_| if draw() < 20 { Fate::Marked } else { Fate::Arrives });
    for k in 0..60u32 {
        let (at, len) = (u64::from(k) * 400_000, 1 + u64::from(k) * 5_555);
        let (from, stream) = ((k % 2) as usize, (k % 3) as u16);
        pair.post_receive(1 - from, receive(k, stream, at, len));
        pair.post(from, send(k, stream, at, len));
        pair.run_until(Time::from_us(4 * u64::from(k)));
    }
    pair.run();
    let totals = totals(&pair);
    assert_eq!((totals.resent, totals.duplicates, totals.gap_detections, totals.timer_detections), (0, 0, 0, 0));
    assert_eq!(pair.succeeded(0, CompletionKind::Sent).len() + pair.succeeded(1, CompletionKind::Sent).len(), 60);
}

// --- F1, F2: placement on arrival, matching by index ---

// [F1.placed-on-arrival] [I6] [I7]
#[test]
fn a_later_message_is_placed_before_an_earlier_one_and_completes_after_it() {
    let mut pair = single();
    pair.fate(lose(|data| data.segment.message == 0 && data.segment.packet == 9, 1));
    for k in 0..2 {
        let len = if k == 0 { 10 } else { 3 } * MTU;
        pair.post_receive(1, receive(10 + k, 0, u64::from(k) << 20, len));
        pair.post(0, send(k, 0, u64::from(k) << 20, len));
    }
    pair.run();
    let at = |tag: u32| pair.placements.iter().filter(move |(.., p)| p.tag == tag).map(|(at, ..)| *at);
    let (last_of_second, last_of_first) = (at(1).max().expect("placed"), at(0).max().expect("placed"));
    assert!(last_of_second < last_of_first, "{last_of_second} {last_of_first}");
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [0, 1]);
    assert_eq!(pair.succeeded(1, CompletionKind::Received), [10, 11]);
}

// [F1.placed-on-arrival] [F2.send-carries-match] [F2.index-on-stream]
#[test]
fn a_send_lands_in_its_own_receive_though_earlier_sends_are_missing() {
    let mut pair = single();
    pair.fate(lose(|data| data.segment.message < 2, 1));
    for k in 0..4u32 {
        pair.post_receive(1, receive(10 + k, 0, u64::from(k) * 10_000, 1000 + u64::from(k)));
        pair.post(0, send(k, 0, u64::from(k) * 10_000, 1000 + u64::from(k)));
    }
    pair.run();
    let order: Vec<(u32, u64)> = pair.placements.iter().map(|(.., p)| (p.tag, p.address)).collect();
    assert_eq!(order[..2], [(2, 20_000), (3, 30_000)]);
    assert_eq!(order[2..], [(0, 0), (1, 10_000)]);
    assert_eq!(pair.succeeded(1, CompletionKind::Received), [10, 11, 12, 13]);
}

// [F1.no-head-of-line-blocking] [F10.many-streams] [I6]
#[test]
fn a_loss_on_one_stream_delays_no_completion_of_another() {
    let mut pair = pair(1);
    let broken = Rc::new(Cell::new(true));
    let script = Rc::clone(&broken);
    pair.fate(move |packet| match data(packet) {
        Some(data) if data.segment.stream == StreamId(0) && data.segment.message == 0 && script.get() => Fate::Lost,
        _ => Fate::Arrives,
    });
    // Past the start window: the lost packets would fill it.
    pair.post(0, write(200, 1, 0, MTU));
    pair.run_until(Time::from_us(6));
    for k in 0..10u32 {
        for stream in 0..2u16 {
            let (id, at) = (k + 100 * u32::from(stream), u64::from(k) * 20_000 + u64::from(stream) * 500_000);
            pair.post_receive(1, receive(id, stream, at, 3 * MTU));
            pair.post(0, send(id, stream, at, 3 * MTU));
        }
    }
    pair.run_until(Time::from_us(60));
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [200].into_iter().chain(100..110).collect::<Vec<_>>());
    assert_eq!(pair.succeeded(1, CompletionKind::Received), (100..110).collect::<Vec<_>>());
    broken.set(false);
    pair.run();
    assert_eq!(pair.succeeded(0, CompletionKind::Sent)[11..], (0..10).collect::<Vec<_>>());
    assert_eq!(pair.succeeded(1, CompletionKind::Received)[10..], (0..10).collect::<Vec<_>>());
}

// [I2]
#[test]
fn a_write_outside_the_registered_region_writes_nothing() {
    for (remote, rkey) in [(MEMORY, 0), (MEMORY - 99, 0), (u64::MAX - MTU + 1, 0), (MEMORY - MTU - 5, 0), (0, 7)] {
        let config = MetaRoceConfig { dead_after_ps: 1_000_000_000, ..MetaRoceConfig::default() };
        let mut pair = pair_with(&config, 1, DELAY);
        pair.post(0, WorkRequest { remote, rkey: Rkey(rkey), ..write(1, 0, 0, 2 * MTU) });
        pair.run();
        let inside = MEMORY.saturating_sub(remote).min(MTU) * u64::from(rkey == 0) / MTU;
        assert_eq!(pair.placements.len() as u64, inside, "address {remote}, key {rkey}");
        assert!(totals(&pair).refused > 0);
        assert_eq!(pair.completions[0].len(), 1);
        assert_ne!(pair.completions[0][0].status, CompletionStatus::Success);
    }
}

// [I2]
#[test]
fn a_send_longer_than_its_receive_writes_nothing() {
    let config = MetaRoceConfig { dead_after_ps: 1_000_000_000, ..MetaRoceConfig::default() };
    let mut pair = pair_with(&config, 1, DELAY);
    pair.post_receive(1, receive(7, 0, 0, 3 * MTU - 1));
    pair.post(0, send(1, 0, 0, 3 * MTU));
    pair.run();
    assert!(pair.placements.is_empty());
    assert!(pair.succeeded(1, CompletionKind::Received).is_empty());
}

// [F2.send-waits-for-receive]
#[test]
fn a_send_waits_for_its_receive() {
    let mut pair = pair(1);
    pair.post(0, send(1, 0, 0, 5 * MTU));
    pair.run_until(Time::from_us(30));
    assert!(totals(&pair).rnr > 0 && pair.placements.is_empty());
    pair.post_receive(1, receive(7, 0, 0, 5 * MTU));
    pair.run();
    assert_eq!(pair.succeeded(1, CompletionKind::Received), [7]);
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
}

// --- F8: small start, then what the receiver grants ---

/// Most packets sent and not acknowledged, before and after the first acknowledgement reached the sender.
fn most_in_flight(pair: &Pair, delay: Time) -> (i64, i64) {
    let mut steps: Vec<(Time, i64)> = Vec::new();
    for (at, packet) in &pair.log {
        if data(packet).is_some() {
            steps.push((*at, 1));
        } else if ack(packet).is_some() {
            steps.push((*at + pair.wire(packet.envelope.len) + delay, -1));
        }
    }
    // An acknowledgement makes room at the instant at which it arrives.
    steps.sort_unstable();
    let (mut now, mut granted, mut most) = (0, false, (0, 0));
    for (_, step) in steps {
        now += step;
        granted |= step < 0;
        if granted { most.1 = most.1.max(now) } else { most.0 = most.0.max(now) }
    }
    most
}

// [F8.small-start] [F8.hint-as-window] [F8.hint-in-every-ack] [F8.hint-is-share]
#[test]
fn the_window_is_an_equal_part_before_the_first_hint_and_the_granted_share_after_it() {
    for target in [50, 25, 20] {
        // A part of the inbound rate and no headroom, so that the window is what limits.
        let (hint_target_percent, hint_headroom_percent, ack_every) = (target, 0, 1);
        let config =
            MetaRoceConfig { hint_target_percent, hint_headroom_percent, ack_every, ..MetaRoceConfig::default() };
        let mut pair = pair_with(&config, 1, DELAY);
        pair.ends[0].crowd(ConnId(0), 6);
        pair.post(0, write(1, 0, 0, 2000 * MTU));
        pair.run();
        let bdp = RATE.bytes_in(RTT).0;
        let hints: BTreeSet<u16> = pair.log.iter().filter_map(|(_, p)| ack(p).map(|a| a.hint.0)).collect();
        let share = RateHint::encode(Rate(RATE.0 / 100 * u64::from(target)));
        assert_eq!(hints, BTreeSet::from([share.0]), "a lone sender is granted all of the target");
        let round_trip = DELAY + DELAY + pair.wire(lengths::mr_data(4096)) + pair.wire(lengths::mr_ack(0));
        let granted = share.decode().expect("a hint").bytes_in(round_trip).0 + MTU;
        let expected = ((bdp / 6 / MTU) as i64, (granted / MTU) as i64);
        assert_eq!(most_in_flight(&pair, DELAY), expected, "in flight at {target} %");
    }
}
