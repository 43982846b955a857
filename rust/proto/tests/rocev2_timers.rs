//! What a RoCEv2 QP does after a loss, a timeout or an idle time: the adaptive ladder and slow restart.

mod pair;

use metaroce_proto::{
    CompletionStatus, DcqcnPreset, Endpoint, Environment, Recovery, RoceConfig, TransportConfig, WorkRequest,
};
use metaroce_wire::{Body, HostId, Packet, Rate, RoceAckKind, Time, lengths};
use proptest::prelude::*;

use pair::schedule::{check_all, message, post_schedule, random_fate};
use pair::{Fate, Pair};

const RATE: Rate = Rate::from_gbps(200);
const MTU: u64 = 4096;
/// Of the environment, for slow restart.
const BASE_RTT: Time = Time::from_us(5);

fn single() -> RoceConfig {
    RoceConfig { qps_per_plane: 1, window_percent: 0, dcqcn: DcqcnPreset::Off, ..RoceConfig::default() }
}

fn pair(config: &RoceConfig, planes: usize, delay: Time) -> Pair {
    let make = |host| {
        let environment = Environment { host: HostId(host), ports: vec![RATE; planes], base_rtt: BASE_RTT, routes: 8 };
        Endpoint::new(&TransportConfig::RoceV2(config.clone()), environment)
    };
    Pair::new([make(0), make(1)], planes, RATE, delay)
}

fn write(wr_id: u32, len: u64) -> WorkRequest {
    let at = u64::from(wr_id) << 22;
    WorkRequest { wr_id, local: at, len, remote: at, ..WorkRequest::default() }
}

fn is_data(packet: &Packet) -> bool {
    matches!(packet.body, Body::RoceData(_))
}

/// When data packets left, in us.
fn left_at(pair: &Pair) -> Vec<u64> {
    pair.log.iter().filter(|(_, packet)| is_data(packet)).map(|(at, _)| at.0 / 1_000_000).collect()
}

fn statuses(pair: &Pair) -> Vec<CompletionStatus> {
    pair.completions[0].iter().map(|c| c.status).collect()
}

#[test]
fn the_ladder_waits_2_4_8_and_16_milliseconds_whatever_the_exponent() {
    for timeout_exponent in [1, 14, 18] {
        let mut pair = pair(&RoceConfig { timeout_exponent, ..single() }, 1, Time::from_us(2));
        pair.fate(|packet| if is_data(packet) { Fate::Lost } else { Fate::Arrives });
        pair.post(0, write(1, MTU));
        pair.run();
        assert_eq!(left_at(&pair), [0, 2_000, 6_000, 14_000, 30_000, 46_000, 62_000, 78_000]);
        assert_eq!(statuses(&pair), [CompletionStatus::RetryExceeded]);
    }
}

#[test]
fn progress_puts_the_ladder_back_to_its_first_step() {
    let mut pair = pair(&single(), 1, Time::from_us(2));
    let mut sent = 0;
    // The third sending of each packet comes through.
    pair.fate(move |packet| {
        sent += u32::from(is_data(packet));
        if is_data(packet) && sent % 3 != 0 { Fate::Lost } else { Fate::Arrives }
    });
    for wr_id in 0..3 {
        pair.post(0, write(wr_id, MTU));
        pair.run();
    }
    let left = left_at(&pair);
    assert_eq!(left.len(), 9);
    for round in left.chunks(3) {
        assert_eq!(round.iter().map(|at| at - round[0]).collect::<Vec<_>>(), [0, 2_000, 6_000]);
    }
}

/// Users with 30 ms of round trip see resends whatever they set; with more than the ladder's 94 ms the QP fails,
/// though nothing was lost.
#[test]
fn a_round_trip_beyond_the_ladder_causes_resends_and_then_the_error() {
    for (one_way_ms, timeouts, status) in [
        (0, 0, CompletionStatus::Success),
        (2, 1, CompletionStatus::Success),
        (15, 4, CompletionStatus::Success),
        (40, 7, CompletionStatus::Success),
        (60, 8, CompletionStatus::RetryExceeded),
    ] {
        let mut pair = pair(&single(), 1, Time::from_us(one_way_ms * 1_000 + 2));
        pair.post(0, write(1, 10 * MTU));
        pair.run();
        let counters = *pair.ends[0].counters();
        let label = format!("{one_way_ms} ms one way");
        assert_eq!((statuses(&pair), counters.timeouts), (vec![status], timeouts), "{label}");
        assert_eq!(counters.resent, 10 * timeouts.min(7), "{label}: all in flight, each time");
        assert_eq!(pair.ends[1].counters().placed, 10, "{label}");
    }
}

#[test]
fn a_longer_ladder_suits_a_longer_round_trip() {
    let config = RoceConfig { adaptive_base_ps: 100_000_000_000, ..single() };
    let mut pair = pair(&config, 1, Time::from_us(40_000));
    pair.post(0, write(1, 10 * MTU));
    pair.run();
    assert_eq!((statuses(&pair), pair.ends[0].counters().resent), (vec![CompletionStatus::Success], 0));
}

/// Bytes that left in each base round trip from `from_us` on, over those at line rate, in hundredths.
fn shares(pair: &Pair, from: Time) -> [u64; 5] {
    let mut shares = [0; 5];
    for (at, _) in pair.log.iter().filter(|(at, packet)| is_data(packet) && *at >= from) {
        if let Some(bin) = shares.get_mut((at.since(from).0 / BASE_RTT.0) as usize) {
            *bin += 100 * pair.wire(lengths::roce_data(4096, false)).0;
        }
    }
    shares.map(|share| share / BASE_RTT.0)
}

fn assert_ramp(shares: [u64; 5]) {
    for (share, expected) in shares.into_iter().zip([12, 25, 50, 99, 99]) {
        assert!(share.abs_diff(expected) <= 4, "{shares:?}");
    }
}

#[test]
fn a_loss_or_a_timeout_restarts_at_an_eighth_and_doubles_every_round_trip() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        for twice in [false, true] {
            let config = RoceConfig { slow_restart: true, recovery, ..single() };
            let mut pair = pair(&config, 1, Time::from_us(2));
            let mut left = 1 + u32::from(twice);
            pair.fate(move |packet| {
                let lost = matches!(&packet.body, Body::RoceData(data) if data.psn == 200) && left > 0;
                left -= u32::from(lost);
                if lost { Fate::Lost } else { Fate::Arrives }
            });
            pair.post(0, write(0, 1_000 * MTU));
            pair.run();
            // The first control packet that is no ACK tells of the loss; the timer tells its resend itself.
            let told = pair.arrivals.iter().find(|(_, _, p)| match &p.body {
                Body::RoceAck(ack) => ack.kind == RoceAckKind::SequenceNak,
                body => matches!(body, Body::RoceSack(_)),
            });
            let resent = pair.log.iter().rfind(|(_, p)| matches!(&p.body, Body::RoceData(d) if d.psn == 200));
            let from = if twice { resent.expect("a resend").0 } else { told.expect("a gap").0 };
            // With selective repeat and no window, new data goes on during the timeout, and is all there then.
            if recovery == Recovery::GoBackN || !twice {
                assert_ramp(shares(&pair, from));
            }
            assert!(pair.placed_once(1, 0, 1_000 * MTU));
            let idle = pair.ends[0].counters().timeouts;
            assert_eq!(idle, u64::from(twice), "{recovery:?}");
        }
    }
}

#[test]
fn an_idle_time_restarts_only_where_that_is_on_and_only_when_it_is_long() {
    // 500 packets take 84 us, and are acknowledged 4 us later.
    for (slow_restart_idle, again_us, ramps) in [(true, 140, true), (true, 115, false), (false, 140, false)] {
        let mut pair = pair(&RoceConfig { slow_restart: true, slow_restart_idle, ..single() }, 1, Time::from_us(2));
        pair.post(0, write(0, 500 * MTU));
        let again = Time::from_us(again_us);
        pair.run_until(again);
        let at_first = shares(&pair, Time::ZERO);
        assert!(at_first.iter().all(|&share| share > 93), "line rate from the start: {at_first:?}");
        pair.now = again;
        pair.post(0, write(1, 500 * MTU));
        pair.run();
        if ramps {
            assert_ramp(shares(&pair, again));
        } else {
            assert!(shares(&pair, again).iter().all(|&share| share > 93), "{:?}", shares(&pair, again));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    // [I1] [I3] [I5] [I6] [I15]
    #[test]
    fn slow_restart_never_loses_or_repeats_a_byte(
        messages in prop::collection::vec(message(), 1..20),
        loss_permille in 0..150u64,
        seed in any::<u64>(),
        selective in any::<bool>(),
        dcqcn in any::<bool>(),
        planes in 1..4usize,
    ) {
        let config = RoceConfig {
            recovery: if selective { Recovery::SelectiveRepeat } else { Recovery::GoBackN },
            dcqcn: if dcqcn { DcqcnPreset::Nic } else { DcqcnPreset::Off },
            slow_restart: true,
            slow_restart_idle: true,
            qps_per_plane: 2,
            retry_count: 60,
            ..RoceConfig::default()
        };
        let mut pair = pair(&config, planes, Time::from_us(2));
        pair.fate(random_fate(seed, loss_permille, true));
        post_schedule(&mut pair, &messages);
        pair.run();
        check_all(&pair, &messages)?;
    }
}
