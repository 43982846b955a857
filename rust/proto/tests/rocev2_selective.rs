//! Selective repeat of the RoCEv2 baseline, as packet scripts over a link of fixed delay between two
//! endpoints, and as properties under random loss.

mod pair;

use metaroce_proto::{
    CompletionKind, CompletionStatus, Counters, DcqcnPreset, Endpoint, Environment, ReceiveRequest, Recovery,
    RoceConfig, Sample, TransportConfig, WorkRequest,
};
use metaroce_wire::{Body, Class, HostId, Opcode, Packet, Rate, Rkey, RoceSack, Time};
use proptest::prelude::*;

use pair::schedule::{check_all, draws, message, post_schedule, random_fate};
use pair::{Fate, Pair};

const RATE: Rate = Rate::from_gbps(200);
const DELAY: Time = Time::from_us(2);
const MTU: u64 = 4096;

/// One QP with a window that fills the link, so that a script sees one sequence.
fn single() -> RoceConfig {
    RoceConfig { qps_per_plane: 1, window_percent: 200, dcqcn: DcqcnPreset::Off, ..many() }
}

fn many() -> RoceConfig {
    RoceConfig { recovery: Recovery::SelectiveRepeat, ..RoceConfig::default() }
}

fn pair_at(config: &RoceConfig, planes: usize, delay: Time) -> Pair {
    let make = |host| {
        let base_rtt = delay + delay + Time::from_us(1);
        let environment = Environment { host: HostId(host), ports: vec![RATE; planes], base_rtt, routes: 8 };
        Endpoint::new(&TransportConfig::RoceV2(config.clone()), environment)
    };
    Pair::new([make(0), make(1)], planes, RATE, delay)
}

fn pair(config: &RoceConfig, planes: usize) -> Pair {
    pair_at(config, planes, DELAY)
}

fn write(wr_id: u32, at: u64, len: u64) -> WorkRequest {
    WorkRequest { wr_id, local: at, len, remote: at, ..WorkRequest::default() }
}

fn psn(packet: &Packet) -> Option<u32> {
    match &packet.body {
        Body::RoceData(data) => Some(data.psn),
        _ => None,
    }
}

/// Loses the data packets with these sequence numbers, in order of appearance.
fn lose(mut psns: Vec<u32>) -> impl FnMut(&Packet) -> Fate {
    move |packet| match psn(packet) {
        Some(psn) if psns.first() == Some(&psn) => {
            psns.remove(0);
            Fate::Lost
        }
        _ => Fate::Arrives,
    }
}

fn sent(pair: &Pair) -> Vec<u32> {
    pair.log.iter().filter_map(|(_, packet)| psn(packet)).collect()
}

fn sacks(pair: &Pair) -> Vec<RoceSack> {
    let of = |packet: &Packet| match &packet.body {
        Body::RoceSack(sack) => Some(*sack),
        _ => None,
    };
    pair.log.iter().filter_map(|(_, packet)| of(packet)).collect()
}

fn totals(pair: &Pair) -> Counters {
    let mut totals = *pair.ends[0].counters();
    totals.add(pair.ends[1].counters());
    totals
}

#[test]
fn a_lost_packet_alone_is_sent_again_a_round_trip_later() {
    let mut pair = pair(&single(), 1);
    pair.fate(lose(vec![10]));
    pair.post(0, write(1, 0, 100 * MTU));
    pair.run();
    let counted = totals(&pair);
    assert_eq!((counted.resent, counted.duplicates, counted.timeouts, counted.placed), (1, 0, 0, 100));
    assert_eq!((counted.naks, counted.dropped_ahead, counted.gap_detections), (0, 0, 1));
    assert!(pair.placed_once(1, 0, 100 * MTU));
    // The packet after it shows the loss: its wire time and a round trip later, but for the one on the wire.
    let at: Vec<Time> = pair.log.iter().filter(|(_, p)| psn(p) == Some(10)).map(|(at, _)| *at).collect();
    let packet = pair.wire(4178);
    let wait = at[1].since(at[0]);
    let least = packet + packet + DELAY + DELAY;
    assert!(wait > least && wait < least + packet + Time::from_ns(10), "{wait} for {least} and a packet");
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
}

#[test]
fn each_arrival_beyond_a_gap_is_answered_with_all_that_is_known() {
    let mut pair = pair(&single(), 1);
    pair.fate(lose(vec![3, 5]));
    pair.post(0, write(1, 0, 20 * MTU));
    pair.run();
    let told = sacks(&pair);
    let first: Vec<(u32, u32)> = told.iter().take(3).map(|s| (s.expected, s.arrived)).collect();
    assert_eq!(first, [(3, 4), (3, 6), (3, 7)]);
    for sack in &told {
        for k in 0..64 {
            let Some(number) = sack.arrived.checked_sub(k + 1) else { continue };
            let missing = number == 5 || number == 3 && sack.expected == 3;
            assert_eq!(sack.bits >> k & 1 == 0, missing, "{number} in {sack:?}");
        }
    }
    assert_eq!(sent(&pair)[20..], [3, 5], "only what is missing");
}

#[test]
fn a_lost_resend_waits_for_the_long_timer_and_a_lost_tail_for_the_short_one() {
    for (lost, packets, wait_us, resent) in
        [(vec![10, 10], 50, 320, 2), (vec![19], 20, 100, 1), (vec![18, 19], 20, 100, 2), (vec![17, 18, 19], 20, 320, 3)]
    {
        let mut pair = pair(&RoceConfig { ack_every: 1, ..single() }, 1);
        let label = format!("{lost:?} of {packets}");
        pair.fate(lose(lost));
        pair.post(0, write(1, 0, packets * MTU));
        pair.run();
        let counted = totals(&pair);
        assert_eq!((counted.timeouts, counted.resent, counted.duplicates), (1, resent, 0), "{label}");
        let wait = Time::from_us(wait_us);
        assert!(pair.active_at > wait && pair.active_at < wait + Time::from_us(25), "{label}: {}", pair.active_at);
    }
}

#[test]
fn new_data_goes_out_during_recovery_as_far_as_the_window_reaches() {
    // Its resend lost too, packet 5 holds the window until the timer: so many packets from there.
    for (percent, window) in [(100, 30), (200, 61), (400, 122)] {
        let mut pair = pair(&RoceConfig { window_percent: percent, ..single() }, 1);
        pair.fate(lose(vec![5, 5]));
        pair.post(0, write(1, 0, 1_000 * MTU));
        pair.run_until(Time::from_us(200));
        assert_eq!(sent(&pair).iter().max(), Some(&(5 + window - 1)), "{percent} %");
        pair.run();
        assert_eq!((totals(&pair).duplicates, totals(&pair).timeouts), (0, 1));
    }
}

#[test]
fn lost_selective_acknowledgements_cost_nothing() {
    let mut pair = pair(&single(), 1);
    let (mut losses, mut count) = (lose(vec![10, 14, 30]), 0);
    pair.fate(move |packet| {
        count += u32::from(packet.envelope.class == Class::Control);
        if packet.envelope.class == Class::Control && count % 2 == 0 { Fate::Lost } else { losses(packet) }
    });
    pair.post(0, write(1, 0, 200 * MTU));
    pair.run();
    let counted = totals(&pair);
    assert_eq!((counted.resent, counted.duplicates, counted.timeouts), (3, 0, 0));
}

#[test]
fn timers_leave_room_for_the_round_trip() {
    // 30 ms there and back: 100 us would expire 300 times before the first acknowledgement.
    let mut pair = pair_at(&RoceConfig { ack_every: 1, ..single() }, 1, Time::from_us(15_000));
    pair.fate(lose(vec![1]));
    pair.post(0, write(1, 0, 2 * MTU));
    pair.run();
    let counted = totals(&pair);
    assert_eq!((counted.resent, counted.timeouts, counted.duplicates), (1, 1, 0));
    // The first is acknowledged, two round trips of timer from then, one of the resend.
    assert!(pair.active_at < Time::from_us(120_010), "{}", pair.active_at);
}

// [I5] [I15]
#[test]
fn exhausted_retries_fail_the_first_request_and_flush_the_rest() {
    let mut pair = pair(&single(), 1);
    pair.fate(|packet| if psn(packet).is_some() { Fate::Lost } else { Fate::Arrives });
    for k in 0..3 {
        pair.post(0, write(k, 0, 20 * MTU));
    }
    pair.run();
    use CompletionStatus::{Flushed, RetryExceeded};
    let ends: Vec<_> = pair.completions[0].iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(0, RetryExceeded), (1, Flushed), (2, Flushed)]);
    assert_eq!(pair.ends[0].stuck()[0].reason, "QP 0: no progress in 8 timeouts of 320 us to 2 ms");
    // (1 + 2 + 4 + 5 × 8) × 320 us, and the wire in between.
    assert!(pair.active_at > Time::from_us(47 * 320) && pair.active_at < Time::from_us(47 * 320 + 100));
}

#[test]
fn sends_without_receives_wait_for_them() {
    let mut pair = pair(&single(), 1);
    for k in 0..6u32 {
        let at = u64::from(k) * 2 * MTU;
        pair.post(0, WorkRequest { opcode: Opcode::Send, ..write(k, at, 2 * MTU) });
    }
    pair.run_until(Time::from_us(505));
    let early = totals(&pair);
    assert_eq!((early.placed, early.timeouts), (0, 0), "it answers, so no timer runs");
    assert!(early.rnr > 20, "{}", early.rnr);
    assert_eq!(pair.ends[0].stuck()[0].reason, "QP 0: no receive posted at the peer");
    for k in 0..6u32 {
        pair.post_receive(
            1,
            ReceiveRequest { wr_id: k, stream: Default::default(), local: u64::from(k) * 2 * MTU, len: 2 * MTU },
        );
    }
    let before = pair.now;
    pair.run();
    assert_eq!(pair.succeeded(1, CompletionKind::Received), [0, 1, 2, 3, 4, 5]);
    assert!(pair.active_at < before + Time::from_us(60), "{} after {before}", pair.active_at);
}

#[test]
fn a_refused_address_fails_the_request_even_beyond_a_gap() {
    let mut pair = pair(&single(), 1);
    pair.fate(lose(vec![0]));
    pair.post(0, write(1, 0, MTU));
    pair.post(0, WorkRequest { rkey: Rkey(5), ..write(2, MTU, 100) });
    pair.run();
    assert!(pair.completions[0].iter().any(|c| c.status == CompletionStatus::AccessError));
    assert_eq!((pair.completions[0].len(), totals(&pair).refused), (2, 1));
}

/// Largest span of sequence numbers in flight on a QP, in packets.
fn most_in_flight(pair: &Pair) -> u32 {
    let mut most = 0;
    pair.ends[0].observe(&mut |sample| {
        if let Sample::Path(path) = sample {
            most = most.max(path.in_flight / MTU as u32);
        }
    });
    most
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    // [I1] [I3] [I5] [I6]
    #[test]
    fn loss_never_loses_or_repeats_a_byte(
        messages in prop::collection::vec(message(), 1..25),
        loss_permille in 0..200u64,
        marked in any::<bool>(),
        seed in any::<u64>(),
        qps_per_plane in 1..4u32,
        planes in 1..4usize,
        window_percent in prop::sample::select(vec![0, 1, 25, 200]),
    ) {
        let config = RoceConfig { qps_per_plane, window_percent, retry_count: 60, ..many() };
        let mut pair = pair(&config, planes);
        pair.fate(random_fate(seed, loss_permille, marked));
        post_schedule(&mut pair, &messages);
        pair.run();
        check_all(&pair, &messages)?;
    }

    /// Where acknowledgements arrive, only what was lost is sent again, and exactly as often.
    // [I11]
    #[test]
    fn nothing_is_sent_again_that_was_not_lost(
        packets in 1..600u64,
        loss_permille in 0..300u64,
        seed in any::<u64>(),
        window_percent in prop::sample::select(vec![0, 50, 100, 200, 1000]),
    ) {
        let config = RoceConfig { window_percent, ack_every: 1, retry_count: 60, ..single() };
        let mut pair = pair(&config, 1);
        let mut draw = draws(seed);
        pair.fate(move |packet| if psn(packet).is_some() && draw() < loss_permille { Fate::Lost } else { Fate::Arrives });
        let window = if window_percent == 0 { u32::MAX } else { 125_000 * window_percent / 100 / MTU as u32 };
        pair.post(0, write(1, 0, packets * MTU));
        for us in 0..400 {
            pair.run_until(Time::from_us(us));
            prop_assert!(most_in_flight(&pair) <= window);
        }
        pair.run();
        let counted = totals(&pair);
        let lost = sent(&pair).len() as u64 - packets;
        prop_assert_eq!((counted.placed, counted.duplicates, counted.resent), (packets, 0, lost));
    }
}
