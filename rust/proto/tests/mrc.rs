//! Behaviour of the MRC-like transport, as packet scripts over links of fixed delay between two endpoints, and as
//! properties under anything that happens to packets.

mod pair;

use std::collections::{BTreeMap, BTreeSet};

use metaroce_proto::{
    CompletionKind, CompletionStatus, Counters, Endpoint, Entropies, Environment, Health, MrcConfig, PathSample,
    PostError, ReceiveRequest, Sample, TransportConfig, WorkRequest,
};
use metaroce_wire::{
    Body, Bytes, Class, HostId, MrcData, MrcSack, Opcode, Packet, PlaneId, Rate, Rkey, Stamp, StreamId, Time, Verdict,
    lengths,
};
use proptest::prelude::*;

use pair::operations::{
    Operation, check_completions, check_memory, check_what_completions_mean, operations, post, weather,
};
use pair::schedule::{check_all, message, post_schedule, random_fate};
use pair::{Fate, Pair};

const RATE: Rate = Rate::from_gbps(200);
const DELAY: Time = Time::from_us(2);
const RTT: Time = Time::from_us(5);
const MTU: u64 = 4096;

fn pair_with(config: &MrcConfig, planes: usize) -> Pair {
    let make = |host| {
        let environment = Environment { host: HostId(host), ports: vec![RATE; planes], base_rtt: RTT, routes: 8 };
        Endpoint::new(&TransportConfig::Mrc(config.clone()), environment)
    };
    Pair::new([make(0), make(1)], planes, RATE, DELAY)
}

fn pair(planes: usize) -> Pair {
    pair_with(&MrcConfig::default(), planes)
}

fn write(wr_id: u32, at: u64, len: u64) -> WorkRequest {
    WorkRequest { wr_id, local: at, len, remote: at, ..WorkRequest::default() }
}

fn send(wr_id: u32, stream: u16, at: u64, len: u64) -> WorkRequest {
    WorkRequest { opcode: Opcode::Send, stream: StreamId(stream), ..write(wr_id, at, len) }
}

fn receive(wr_id: u32, stream: u16, at: u64, len: u64) -> ReceiveRequest {
    ReceiveRequest { wr_id, stream: StreamId(stream), local: at, len }
}

fn data(packet: &Packet) -> Option<&MrcData> {
    match &packet.body {
        Body::MrcData(data) => Some(data),
        _ => None,
    }
}

fn sack(packet: &Packet) -> Option<&MrcSack> {
    match &packet.body {
        Body::MrcSack(sack) => Some(sack),
        _ => None,
    }
}

fn psn(packet: &Packet) -> Option<u32> {
    data(packet).map(|data| data.word.psn().wire())
}

/// Loses the data packets with these numbers, each as often as it is named.
fn lose(mut numbers: Vec<u32>) -> impl FnMut(&Packet) -> Fate {
    move |packet| match psn(packet).and_then(|psn| numbers.iter().position(|&n| n == psn)) {
        Some(at) => {
            numbers.remove(at);
            Fate::Lost
        }
        None => Fate::Arrives,
    }
}

fn totals(pair: &Pair) -> Counters {
    let mut totals = *pair.ends[0].counters();
    totals.add(pair.ends[1].counters());
    totals
}

/// When each copy of number `number` began to leave.
fn departures(pair: &Pair, number: u32) -> Vec<Time> {
    pair.log.iter().filter(|(_, packet)| psn(packet) == Some(number)).map(|(at, _)| *at).collect()
}

/// Entropy values as end 0 sees them.
fn values(pair: &Pair) -> Vec<PathSample> {
    let mut all = Vec::new();
    pair.ends[0].observe(&mut |sample| {
        if let Sample::Path(path) = sample {
            all.push(path);
        }
    });
    all
}

fn down(pair: &Pair, plane: u8) -> usize {
    values(pair).iter().filter(|v| v.plane == PlaneId(plane) && v.health == Health::Down).count()
}

/// Data packets into a plane: when, with which source port.
fn sent_into(pair: &Pair, plane: u8) -> Vec<(Time, u16)> {
    let of_plane = pair.log.iter().filter(|(_, p)| p.envelope.plane == PlaneId(plane) && data(p).is_some());
    of_plane.map(|(at, packet)| (*at, packet.envelope.entropy)).collect()
}

#[test]
fn an_idle_write_arrives_at_the_closed_form_time() {
    for len in [1, 4096, 4097, 100_000, 1 << 20] {
        let mut pair = pair(1);
        pair.post(0, write(1, 0, len));
        pair.run();
        let packet = |k: u64| u64::from(lengths::mrc_data((len - k * MTU).min(MTU) as u32, false));
        let wire: u64 = (0..len.div_ceil(MTU)).map(packet).sum();
        assert_eq!(pair.message_done_at, [RATE.time_for(Bytes(wire)) + DELAY], "{len} bytes");
        let sack = RATE.time_for(Bytes(u64::from(lengths::mrc_sack())));
        assert_eq!(pair.completed_at[0], [pair.message_done_at[0] + sack + DELAY]);
        assert_eq!((totals(&pair).resent, totals(&pair).probes), (0, 0));
    }
}

#[test]
fn packets_are_sprayed_over_all_values_of_all_planes() {
    for entropies in [Entropies::Consecutive, Entropies::Hashed] {
        let mut pair = pair_with(&MrcConfig { entropies, ..MrcConfig::default() }, 4);
        pair.post(0, write(1, 0, 1280 * MTU));
        pair.run();
        for plane in 0..4 {
            let sent = sent_into(&pair, plane);
            assert!((310..330).contains(&sent.len()), "{} of 1280 into plane {plane}", sent.len());
            let ports: BTreeSet<u16> = sent.iter().map(|&(_, port)| port).collect();
            assert_eq!(ports.len(), 32, "128 values in 4 planes");
            assert!(ports.iter().all(|&port| port >= 0xC000));
            let turns = sent.windows(32).filter(|w| w.iter().map(|s| s.1).collect::<BTreeSet<_>>().len() == 32);
            assert_eq!(turns.count(), sent.len() - 31, "each once in a rotation");
        }
    }
}

#[test]
fn ports_beyond_the_eighth_are_left_alone() {
    let mut pair = pair(9);
    pair.post(0, write(1, 0, 90 * MTU));
    pair.run();
    assert!((0..8).all(|plane| !sent_into(&pair, plane).is_empty()));
    assert!(sent_into(&pair, 8).is_empty());
}

#[test]
fn a_hole_is_not_taken_for_a_loss_before_a_window_and_a_half_is_out_of_order() {
    // A window of 45 packets: 67 out of order, or the largest window.
    let mut pair = pair(1);
    pair.fate(lose(vec![10]));
    pair.post(0, write(1, 0, 300 * MTU));
    pair.run();
    let totals = totals(&pair);
    assert_eq!((totals.resent, totals.gap_detections, totals.timeouts, totals.duplicates), (1, 1, 0, 0));
    let slot = RATE.time_for(Bytes(u64::from(lengths::mrc_data(4096, false)))).0;
    let [_, again] = departures(&pair, 10)[..] else { panic!("sent twice") };
    let packets = again.since(DELAY + DELAY).0 / slot;
    assert!((54..62).contains(&packets), "resent when {packets} packets had arrived");
}

#[test]
fn a_packet_that_is_late_is_no_loss() {
    let mut pair = pair(1);
    pair.fate(|packet| if psn(packet) == Some(10) { Fate::Delayed(Time::from_us(6)) } else { Fate::Arrives });
    pair.post(0, write(1, 0, 300 * MTU));
    pair.run();
    assert_eq!((totals(&pair).resent, totals(&pair).duplicates), (0, 0));
}

#[test]
fn a_lost_tail_is_asked_for() {
    let mut pair = pair(1);
    pair.fate(lose(vec![19]));
    pair.post(0, write(1, 0, 20 * MTU));
    pair.run();
    let totals = totals(&pair);
    assert_eq!(
        (totals.probes, totals.resent, totals.timeouts),
        (2, 1, 0),
        "what is missing; and the value that lost it"
    );
    let [first, again] = departures(&pair, 19)[..] else { panic!("sent twice") };
    // The last acknowledgement, a round trip and the target of delay later a probe, and its answer.
    let expected = first + RTT + RTT + RTT + RTT;
    assert!(again < expected && again + RTT > expected, "{again}, about {expected}");
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
}

#[test]
fn a_lost_probe_or_a_lost_resend_is_made_up_for() {
    for (probes, copies) in [(1, 1), (0, 2), (1, 3)] {
        let mut pair = pair(1);
        let (mut probes_left, mut data) = (probes, lose(vec![19; copies]));
        pair.fate(move |packet| match packet.body {
            Body::MrcProbe(_) if probes_left > 0 => {
                probes_left -= 1;
                Fate::Lost
            }
            _ => data(packet),
        });
        pair.post(0, write(1, 0, 20 * MTU));
        pair.run();
        assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
        assert!(pair.completed_at[0][0] < Time::from_us(150 * copies as u64), "{}", pair.completed_at[0][0]);
        assert!(totals(&pair).resent >= copies as u64);
    }
}

// [I17]
#[test]
fn lost_acknowledgements_are_asked_for_and_cost_no_data() {
    let mut pair = pair(1);
    let mut left = 100;
    pair.fate(move |packet| match sack(packet) {
        Some(_) if left > 0 => {
            left -= 1;
            if left < 97 { Fate::Arrives } else { Fate::Lost }
        }
        _ => Fate::Arrives,
    });
    pair.post(0, write(1, 0, 4 * MTU));
    pair.run();
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
    let totals = totals(&pair);
    assert!(totals.probes > 0 && totals.timeouts == 0, "{totals:?}");
    assert_eq!((totals.resent, totals.duplicates), (0, 0), "the answer to a probe tells what has arrived");
}

#[test]
fn the_timer_is_the_last_resort_and_is_1024_ns_times_a_power_of_two() {
    for exponent in [7, 9] {
        let mut pair = pair_with(&MrcConfig { timeout_exponent: exponent, ..MrcConfig::default() }, 1);
        // No probe comes through either.
        let mut data = lose(vec![2]);
        pair.fate(move |packet| match packet.body {
            Body::MrcProbe(_) => Fate::Lost,
            _ => data(packet),
        });
        pair.post(0, write(1, 0, 3 * MTU));
        pair.run();
        let [first, again] = departures(&pair, 2)[..] else { panic!("sent twice") };
        // The probe of the value that lost it goes first.
        let wait = again.since(first).0 - (1_024_000 << exponent);
        assert_eq!(Time(wait), RATE.time_for(Bytes(u64::from(lengths::mrc_probe()))));
        assert_eq!((totals(&pair).timeouts, totals(&pair).timer_detections), (1, 1));
    }
}

// [I5] [I15]
#[test]
fn retries_are_linear_at_first_then_double_and_end_in_a_qp_error() {
    let config = MrcConfig { linear_retries: 3, exponential_retries: 4, ..MrcConfig::default() };
    let mut pair = pair_with(&config, 2);
    pair.fate(|packet| if packet.envelope.src == HostId(0) { Fate::Lost } else { Fate::Arrives });
    for k in 0..3 {
        pair.post(0, write(k, 0, MTU));
        pair.post_receive(0, receive(10 + k, 0, 0, MTU));
    }
    pair.run();
    let ends: Vec<_> = pair.completions[0].iter().map(|c| (c.wr_id, c.status)).collect();
    use CompletionStatus::{Flushed, RetryExceeded};
    let expected = [(0, RetryExceeded), (1, Flushed), (2, Flushed), (10, Flushed), (11, Flushed), (12, Flushed)];
    assert_eq!(ends, expected);
    let unit = 131_072_000;
    let spans: Vec<u64> = departures(&pair, 0).windows(2).map(|w| w[1].since(w[0]).0 / (unit / 100)).collect();
    assert_eq!(spans, [100, 100, 100, 100, 200, 400, 800]);
    let end = pair.completed_at[0][0];
    assert!(end.since(Time((4 + 2 + 4 + 8 + 16) * unit)) < RTT, "{end}");
    let stuck = pair.ends[0].stuck();
    assert_eq!(stuck[0].bytes_left, 3 * MTU);
    assert!(stuck[0].reason.starts_with("QP in the error state: 8 timeouts in a row"), "{}", stuck[0].reason);
    let connection = pair.connection;
    assert_eq!(pair.ends[0].post(pair.now, connection, write(9, 0, 1)), Err(PostError::Failed(connection.0)));
    pair.post_receive(0, receive(20, 0, 0, MTU));
    pair.run();
    assert_eq!(pair.completions[0].last().map(|c| (c.wr_id, c.status)), Some((20, Flushed)));
}

#[test]
fn a_trimmed_packet_is_told_at_once_and_its_value_is_passed_over_but_not_distrusted() {
    let mut pair = pair(1);
    let mut cut = false;
    pair.fate(move |packet| match psn(packet) {
        Some(10) if !cut => {
            cut = true;
            Fate::Trimmed
        }
        _ => Fate::Arrives,
    });
    pair.post(0, write(1, 0, 100 * MTU));
    pair.run();
    let totals = totals(&pair);
    assert_eq!((totals.naks, totals.resent, totals.paths_died, totals.probes), (1, 1, 0, 0));
    let [first, again] = departures(&pair, 10)[..] else { panic!("sent twice") };
    assert!(again.since(first) < RTT, "one round trip: {}", again.since(first));
    let nacks = pair.log.iter().filter_map(|(_, packet)| match &packet.body {
        Body::MrcNack(nack) => Some((nack.reason, nack.echo)),
        _ => None,
    });
    assert_eq!(nacks.collect::<Vec<_>>(), [(Verdict::Trimmed, Stamp::of(first))]);
}

#[test]
fn a_marked_value_is_skipped_in_the_next_rotation() {
    let config = MrcConfig { entropy_count: 8, backup_count: 0, ..MrcConfig::default() };
    let mut pair = pair_with(&config, 1);
    let mut first = true;
    pair.fate(move |packet| {
        let marked = first && data(packet).is_some();
        first &= !marked;
        if marked { Fate::Marked } else { Fate::Arrives }
    });
    pair.post(0, write(1, 0, 150 * MTU));
    pair.run();
    let sent = sent_into(&pair, 0);
    let marked_port = sent[0].1;
    let at: Vec<usize> = (0..sent.len()).filter(|&k| sent[k].1 == marked_port).collect();
    let gaps: Vec<usize> = at.windows(2).map(|w| w[1] - w[0]).collect();
    assert_eq!(gaps.iter().filter(|&&gap| gap == 15).count(), 1, "{gaps:?}");
    assert!(gaps.iter().all(|gap| [8, 15, 7].contains(gap)), "{gaps:?}");
    let told: Vec<bool> = pair.log.iter().filter_map(|(_, p)| sack(p).map(|sack| sack.reflected.marked)).collect();
    assert_eq!(told.iter().filter(|&&marked| marked).count(), 1, "a mark is told once");
}

#[test]
fn an_acknowledgement_reflects_plane_and_entropy_of_what_it_answers_and_goes_back_that_way() {
    let mut pair = pair(2);
    pair.post(0, write(1, 0, 60 * MTU));
    pair.run();
    let sent: BTreeSet<(PlaneId, u16)> = pair
        .log
        .iter()
        .filter(|(_, packet)| data(packet).is_some())
        .map(|(_, packet)| (packet.envelope.plane, packet.envelope.entropy))
        .collect();
    let mut seen = 0;
    for (_, packet) in &pair.log {
        let Some(sack) = sack(packet) else { continue };
        let way = (packet.envelope.plane, packet.envelope.entropy);
        assert_eq!((sack.reflected.plane, sack.reflected.entropy), way);
        assert!(sent.contains(&way) && packet.envelope.class == Class::Control);
        seen += 1;
    }
    assert!((15..40).contains(&seen), "{seen} acknowledgements of 60 packets, four to one");
}

#[test]
fn a_value_that_swallowed_a_packet_is_left_and_comes_back_when_a_probe_is_answered() {
    let config = MrcConfig { entropy_count: 8, backup_count: 0, min_active: 1, ..MrcConfig::default() };
    let mut pair = pair_with(&config, 1);
    pair.ends[0].record();
    let from = Time::from_us(400);
    let port = std::rc::Rc::new(std::cell::Cell::new(None));
    let seen = port.clone();
    pair.fate_at(move |now, packet| {
        if packet.envelope.src != HostId(0) {
            return Fate::Arrives;
        }
        // The route of the first packet is dead for a while.
        let dead = seen.get().unwrap_or(packet.envelope.entropy);
        seen.set(Some(dead));
        if packet.envelope.entropy == dead && now < from { Fate::Lost } else { Fate::Arrives }
    });
    for k in 0..8 {
        pair.post(0, write(k, 0, 512 * MTU));
    }
    pair.run();
    assert_eq!(pair.succeeded(0, CompletionKind::Sent).len(), 8);
    let totals = totals(&pair);
    assert_eq!((totals.paths_died, totals.paths_revived), (1, 1));
    let port = port.get().expect("a first packet");
    let used: Vec<Time> = sent_into(&pair, 0).into_iter().filter(|&(_, p)| p == port).map(|(at, _)| at).collect();
    let gap = used.windows(2).map(|w| (w[1].since(w[0]), w[1])).max().expect("several");
    assert!(gap.0 > Time::from_us(350) && gap.1 > from && gap.1 < from + Time::from_us(120), "{gap:?}");
    let probes: Vec<Time> = pair
        .log
        .iter()
        .filter(|(_, p)| matches!(p.body, Body::MrcProbe(_)) && p.envelope.entropy == port)
        .map(|(at, _)| *at)
        .collect();
    assert!((4..=6).contains(&probes.len()), "at once, then each 100 us: {probes:?}");
}

// [I16] [I28]
#[test]
fn a_dead_plane_is_left_within_round_trips_and_used_again_soon_after_it_returns() {
    let (dies, returns) = (Time::from_us(100), Time::from_us(500));
    let mut pair = pair(4);
    pair.ends[0].record();
    pair.fate_at(move |now, packet| {
        let dead = packet.envelope.plane == PlaneId(2) && now >= dies && now < returns;
        if dead { Fate::Lost } else { Fate::Arrives }
    });
    for k in 0..64 {
        pair.post(0, write(k, 0, 1 << 20));
    }
    pair.run_until(Time::from_us(300));
    assert_eq!(down(&pair, 2), 40, "32 values and their 8 backups");
    assert!([0, 1, 3].iter().all(|&plane| down(&pair, plane) == 0));
    pair.run();
    assert_eq!(pair.succeeded(0, CompletionKind::Sent).len(), 64);
    let sent: Vec<Time> = sent_into(&pair, 2).into_iter().map(|(at, _)| at).collect();
    let last = sent.iter().filter(|&&at| at < returns).max().expect("some");
    assert!(*last < dies + Time::from_us(60), "used until {last}");
    let again = sent.iter().find(|&&at| at > *last).expect("used again");
    assert!(*again < returns + Time::from_us(120), "used again at {again}");
    for plane in [0, 1, 3] {
        let sent = sent_into(&pair, plane);
        let gap = sent.windows(2).map(|w| w[1].0.since(w[0].0)).max().expect("several");
        assert!(gap < RTT, "plane {plane} falls silent for {gap}");
    }
    let totals = totals(&pair);
    assert_eq!((totals.paths_died, totals.paths_revived, totals.timeouts), (40, 40, 0));
    assert_eq!(totals.placed_bytes, 64 << 20);
}

#[test]
fn some_values_stay_in_use_when_all_seem_bad() {
    let config = MrcConfig { entropy_count: 32, backup_count: 8, min_active: 4, ..MrcConfig::default() };
    let mut pair = pair_with(&config, 2);
    pair.ends[0].record();
    pair.fate_at(|now, _| if now < Time::from_us(3_000) { Fate::Lost } else { Fate::Arrives });
    pair.post(0, write(1, 0, 1 << 20));
    pair.run_until(Time::from_us(2_900));
    assert_eq!(down(&pair, 0) + down(&pair, 1), 36);
    pair.run();
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
}

#[test]
fn a_denied_plane_carries_nothing_and_the_last_one_cannot_be_denied() {
    let mut pair = pair(2);
    let (connection, now) = (pair.connection, pair.now);
    assert_eq!(pair.ends[0].deny(now, connection, PlaneId(0), true), Ok(()));
    assert_eq!(pair.ends[0].deny(now, connection, PlaneId(1), true), Err(PostError::NoPlaneLeft(1)));
    assert_eq!(pair.ends[0].deny(now, connection, PlaneId(2), true), Err(PostError::NoPlaneLeft(2)));
    pair.post(0, write(1, 0, 100 * MTU));
    pair.run();
    assert_eq!((sent_into(&pair, 0).len(), sent_into(&pair, 1).len()), (0, 100));
    assert_eq!(pair.ends[0].deny(pair.now, connection, PlaneId(0), false), Ok(()));
    pair.post(0, write(2, 0, 100 * MTU));
    pair.run();
    assert!((45..=55).contains(&sent_into(&pair, 0).len()));
}

#[test]
fn numbers_wrap_at_24_bits() {
    let config = MrcConfig { first_psn: (1 << 24) - 50, ..MrcConfig::default() };
    let mut pair = pair_with(&config, 2);
    pair.fate(random_fate(3, 30, true));
    for k in 0..4 {
        pair.post_receive(1, receive(k, 0, u64::from(k) << 20, 1 << 20));
        pair.post(0, send(k, 0, u64::from(k) << 20, 100 * MTU));
    }
    pair.run();
    assert_eq!(pair.succeeded(1, CompletionKind::Received), [0, 1, 2, 3]);
    assert!((0..4).all(|k| pair.placed_once(1, k << 20, 100 * MTU)));
    let numbers: BTreeSet<u32> = pair.log.iter().filter_map(|(_, packet)| psn(packet)).collect();
    assert_eq!(numbers.len(), 400);
    assert!(numbers.contains(&((1 << 24) - 1)) && numbers.contains(&0) && numbers.contains(&349));
}

// [I13]
#[test]
fn no_more_numbers_are_on_the_way_than_are_granted() {
    for mpr in [1, 2] {
        let mut pair = pair_with(&MrcConfig { mpr, timeout_exponent: 9, ..MrcConfig::default() }, 4);
        // The first is lost for long: the cumulative number stays.
        pair.fate_at(|now, packet| match psn(packet) {
            Some(0) if now < Time::from_us(400) => Fate::Lost,
            _ => Fate::Arrives,
        });
        pair.post(0, write(1, 0, 2000 * MTU));
        pair.run_until(Time::from_us(400));
        let greatest = pair.log.iter().filter_map(|(_, packet)| psn(packet)).max();
        assert_eq!(greatest, Some(128 * mpr - 1));
        pair.run();
        assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
    }
}

#[test]
fn a_write_with_immediate_waits_for_its_receive_and_for_what_is_before_it() {
    let mut pair = pair(2);
    pair.fate(lose(vec![3]));
    pair.post(0, write(1, 0, 10 * MTU));
    let notify = WorkRequest { opcode: Opcode::WriteImm, imm: 77, ..write(2, 1 << 20, MTU) };
    pair.post(0, notify);
    pair.post(0, WorkRequest { len: 0, imm: 78, wr_id: 3, ..notify });
    pair.post_receive(1, receive(5, 0, 0, 0));
    pair.run();
    let got = |pair: &Pair| pair.completions[1].iter().map(|c| (c.wr_id, c.imm, c.bytes)).collect::<Vec<_>>();
    assert_eq!(got(&pair), [(5, Some(77), MTU)]);
    assert!(pair.completed_at[1][0] >= pair.message_done_at[0]);
    assert_eq!(totals(&pair).naks, 0, "MRC knows no receiver that is not ready");
    pair.post_receive(1, receive(6, 0, 0, 0));
    pair.run();
    assert_eq!(got(&pair), [(5, Some(77), MTU), (6, Some(78), 0)]);
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1, 2, 3]);
}

#[test]
fn only_writes_and_what_libraries_make_of_sends_are_supported() {
    let mut pair = pair(1);
    for opcode in [Opcode::Read, Opcode::CompareSwap, Opcode::FetchAdd, Opcode::Flush] {
        let connection = pair.connection;
        let asked = WorkRequest { opcode, ..write(1, 0, 8) };
        assert_eq!(pair.ends[0].post(Time::ZERO, connection, asked), Err(PostError::Unsupported(opcode)));
    }
    assert!([Opcode::Write, Opcode::WriteImm, Opcode::Send].iter().all(|&o| pair.ends[0].supports(o)));
}

#[test]
fn a_send_without_a_receive_waits_for_it() {
    let mut pair = pair(1);
    pair.post(0, send(1, 0, 0, 5 * MTU));
    pair.run_until(Time::from_us(50));
    assert!(totals(&pair).rnr >= 10 && totals(&pair).placed == 0);
    pair.post_receive(1, receive(7, 0, 0, 5 * MTU));
    pair.run();
    assert_eq!(pair.succeeded(1, CompletionKind::Received), [7]);
    assert_eq!((totals(&pair).timeouts, totals(&pair).paths_died), (0, 0), "no route is to blame");
}

#[test]
fn a_refused_address_fails_its_stream_and_no_other() {
    let mut pair = pair(1);
    pair.post(0, write(1, 0, 100));
    pair.post(0, WorkRequest { rkey: Rkey(5), ..write(2, 0, 10 * MTU) });
    pair.post(0, write(3, 0, 100));
    pair.post(0, WorkRequest { stream: StreamId(1), ..write(4, 100_000, 20 * MTU) });
    pair.run();
    let ends: BTreeMap<u32, CompletionStatus> = pair.completions[0].iter().map(|c| (c.wr_id, c.status)).collect();
    use CompletionStatus::{AccessError, Flushed, Success};
    assert_eq!(ends.into_iter().collect::<Vec<_>>(), [(1, Success), (2, AccessError), (3, Flushed), (4, Success)]);
    assert!(pair.placed_once(1, 100_000, 20 * MTU));
    // What is left of the numbers arrives empty, so that later ones are not held up.
    pair.post(0, WorkRequest { stream: StreamId(1), ..write(5, 200_000, MTU) });
    pair.run();
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1, 4, 5]);
    assert_eq!(totals(&pair).timeouts, 0);
}

#[test]
fn small_windows_take_turns_on_the_planes() {
    let config = MrcConfig { start_window_percent: 1, window_cap_percent: 1, ..MrcConfig::default() };
    let mut pair = pair_with(&config, 4);
    pair.post(0, write(1, 0, 400 * MTU));
    pair.run();
    for plane in 0..4 {
        assert!((95..=105).contains(&sent_into(&pair, plane).len()), "{} of 400", sent_into(&pair, plane).len());
    }
}

fn config() -> impl Strategy<Value = MrcConfig> {
    let ports = prop_oneof![Just(Entropies::Consecutive), Just(Entropies::Hashed)];
    let evs = (1..40u32, 0..20u32, 1..6u32, 0..8u32);
    let first = prop_oneof![Just(0u32), Just((1 << 24) - 7), 0..1u32 << 24];
    let numbers = (0..3u32, 1..9u32, 1..300u32, 1..200u32);
    (ports, evs, first, numbers, any::<bool>()).prop_map(|(entropies, evs, first_psn, numbers, quick_adapt)| {
        let (entropy_count, backup_count, min_active, linear_retries) = evs;
        let (mpr, ack_every, reorder_percent, window) = numbers;
        MrcConfig {
            entropies,
            entropy_count,
            backup_count,
            min_active,
            linear_retries,
            mpr,
            first_psn,
            ack_every,
            reorder_percent,
            start_window_percent: window,
            window_cap_percent: window,
            quick_adapt,
            ..MrcConfig::default()
        }
    })
}

/// What in flight means, at every moment: what is shown of a connection is the sum over its entropy values.
fn watch_windows(pair: &mut Pair) -> std::rc::Rc<std::cell::RefCell<Option<String>>> {
    let wrong = std::rc::Rc::new(std::cell::RefCell::new(None));
    let told = wrong.clone();
    pair.watch(move |now, ends| {
        for end in ends {
            let (mut whole, mut parts, mut window) = (0, 0, 0);
            end.observe(&mut |sample| match sample {
                Sample::Connection(c) => (whole, window) = (c.in_flight, c.window),
                Sample::Path(p) => parts += u64::from(p.in_flight),
            });
            if end.poll_timeout() < now {
                told.borrow_mut().get_or_insert(format!("a timeout of the past at {now}"));
            }
            if whole != parts || window > 0 && window < MTU {
                told.borrow_mut().get_or_insert(format!("{whole} in flight, {parts} by value, {window} at {now}"));
            }
        }
    });
    wrong
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
        config in config(),
        planes in 1..5usize,
    ) {
        let mut pair = pair_with(&config, planes);
        pair.fate(random_fate(seed, loss_permille, marked));
        post_schedule(&mut pair, &messages);
        pair.run();
        check_all(&pair, &messages)?;
    }

    // [I1] [I2] [I3] [I5] [I6] [I7] [I10] [I15]
    #[test]
    fn whatever_happens_to_packets_verbs_mean_what_they_say(
        operations in operations(true),
        config in config(),
        planes in 1..5usize,
        weather in weather(),
    ) {
        // Writes for what it does not have.
        let known = |o: Operation| match o.opcode {
            Opcode::Write | Opcode::Send | Opcode::WriteImm => o,
            _ => Operation { opcode: Opcode::Write, len: o.len.max(1), ..o },
        };
        let operations: Vec<Operation> = operations.into_iter().map(known).collect();
        let mut pair = pair_with(&config, planes);
        pair.fate(weather.fate());
        let wrong = watch_windows(&mut pair);
        post(&mut pair, &operations);
        pair.run();
        prop_assert_eq!(wrong.borrow().clone(), None);
        check_completions(&pair, &operations)?;
        check_memory(&pair, &operations)?;
        check_what_completions_mean(&pair, &operations)?;
        prop_assert!(pair.ends.iter().all(|end| end.stuck().is_empty()));
    }

    // Without loss nothing is sent twice, however much planes and routes differ in length: within a window.
    #[test]
    fn reordering_within_a_window_is_not_taken_for_loss(
        lens in prop::collection::vec(1..300_000u64, 1..8),
        planes in 1..5usize,
        skew in prop::collection::vec(0..2_000u64, 64),
        marked in 0..200u64,
        seed in any::<u64>(),
    ) {
        let mut pair = pair(planes);
        let mut draw = pair::schedule::draws(seed);
        pair.fate(move |packet| match data(packet) {
            Some(_) if draw() < marked => Fate::Marked,
            Some(_) => Fate::Delayed(Time::from_ns(skew[usize::from(packet.envelope.entropy % 64)])),
            None => Fate::Arrives,
        });
        for (k, &len) in lens.iter().enumerate() {
            pair.post(0, write(k as u32, k as u64 * 300_000, len));
        }
        pair.run();
        prop_assert_eq!(pair.succeeded(0, CompletionKind::Sent).len(), lens.len());
        prop_assert_eq!((totals(&pair).resent, totals(&pair).duplicates), (0, 0));
    }
}

#[test]
fn progress_shortens_the_timer_of_what_left_before_it() {
    let mut pair = pair_with(&MrcConfig { linear_retries: 0, ..MrcConfig::default() }, 1);
    let wrong = watch_windows(&mut pair);
    // Silence for long; then the second packet alone comes through, and the first is long overdue.
    pair.fate_at(|now, packet| {
        let through = packet.envelope.src == HostId(1) || now > Time::from_us(3_000);
        let second = now > Time::from_us(1_000) && psn(packet) == Some(1);
        if through || second && now < Time::from_us(2_500) { Fate::Delayed(Time::from_us(600)) } else { Fate::Lost }
    });
    pair.post(0, write(1, 0, 2 * MTU));
    pair.run();
    assert_eq!(wrong.borrow().clone(), None);
    assert_eq!(pair.succeeded(0, CompletionKind::Sent), [1]);
}

#[test]
fn identical_runs_are_identical() {
    let run = || {
        let mut pair = pair(4);
        pair.fate(random_fate(11, 20, true));
        for k in 0..10 {
            pair.post(0, write(k, 0, 300_000));
        }
        pair.run();
        pair.log.iter().map(|(at, packet)| format!("{at} {packet:?}")).collect::<Vec<String>>()
    };
    assert!(run() == run());
}
