//! Pause frames and priorities at explicit ports, to the picosecond, driven by hand.

mod common;

use common::{built, spec};
use metaroce_fabric::{
    Admission, Cable, Call, DEADLOCK_CHECK, Departure, Fabric, FabricSpec, Lossless, PAUSE_FRAME, PfcConfig, Step,
    Switching,
};
use metaroce_wire::{Bytes, Class, Envelope, HostId, Rate, Time};

const RATE: Rate = Rate::from_gbps(100);
const DELAY: Time = Time::from_ns(600);
const FRAME: u32 = 4000;
/// 394 quanta of 512 bits at 100 Gbit/s.
const RESPONSE: Time = Time(394 * 512 * 10);

fn build(hosts: u32, ends: &[(u32, u32)], switching: Switching) -> Fabric {
    let (queue, none) = (Bytes(1 << 20), Bytes(0));
    let cable = |&(a, b): &(u32, u32)| Cable { a, b, rate: RATE, delay: DELAY, queue, kmin: none, kmax: none, pmax: 0 };
    let last = ends.iter().map(|&(_, b)| b).max().expect("a switch");
    let switches = vec![(0, 1); (last - hosts + 1) as usize];
    let cables = ends.iter().map(cable).collect();
    built(&FabricSpec { switching, reroute_delay: Time::ZERO, ..spec(hosts, 1, &switches, cables) })
}

/// Three hosts on a switch; link 2h leads from host h to it, link 2h + 1 back.
fn star(switching: Switching) -> Fabric {
    build(3, &[(0, 3), (1, 3), (2, 3)], switching)
}

fn lossless(pfc: PfcConfig) -> Switching {
    Switching { lossless: Some(Lossless { pfc, frame: FRAME }), ..Switching::default() }
}

/// Bytes in 2 x 600 ns and 394 quanta, three packets, four pause frames.
const HEADROOM: u64 = 15_000 + 394 * 512 / 8 + 1 + 3 * FRAME as u64 + 4 * PAUSE_FRAME as u64;

/// A link may hold one packet: the first that waits pauses it.
fn strict() -> Switching {
    let buffer_bytes = (u64::from(FRAME) << 16) + 3 * HEADROOM;
    lossless(PfcConfig { buffer_bytes, xoff_shift: 16, reserve_bytes: 0, ..PfcConfig::default() })
}

/// A packet of `src` for `dst`, of three hosts, that has reached the first switch.
fn packet(src: u32, dst: u32, class: Class, len: u32) -> Envelope {
    let (src_id, dst) = (HostId(src), HostId(dst));
    Envelope { src: src_id, dst, len, class, link: 2 * src, ..Envelope::default() }
}

fn time(bytes: u32) -> Time {
    RATE.time_for(Bytes(u64::from(bytes)))
}

fn calls(fabric: &mut Fabric) -> Vec<(Time, Call)> {
    let mut calls: Vec<_> = std::iter::from_fn(|| fabric.next_call()).collect();
    calls.reverse();
    calls
}

#[test]
fn a_pause_frame_waits_for_the_packet_in_service_and_acts_after_the_response() {
    let mut fabric = star(strict());
    let now = Time::from_us(5);
    // A packet for host 1, the sender to come, is in service on the way back for another 3000 bytes.
    let back = fabric.enqueue(Time(now.0 - time(1000).0), &mut packet(2, 1, Class::Data, FRAME), 0);
    assert_eq!(back, Admission::Arrives(now + time(3000) + DELAY));
    assert_eq!(
        fabric.enqueue(now, &mut packet(2, 0, Class::Data, FRAME), 1),
        Admission::Arrives(now + time(FRAME) + DELAY)
    );
    assert_eq!(calls(&mut fabric), []);
    // Host 1's waits for that one: its link is to pause.
    assert_eq!(fabric.enqueue(now, &mut packet(1, 0, Class::Data, FRAME), 2), Admission::Waits);
    let acts = now + time(3000) + time(PAUSE_FRAME) + DELAY + RESPONSE;
    assert_eq!(calls(&mut fabric), [(acts, Call::Pause(2, true)), (now + time(FRAME), Call::Dequeue(1))]);
    // What is queued on the way back leaves after the pause frame; the dequeue that was called for comes again.
    assert_eq!(fabric.enqueue(now, &mut packet(0, 1, Class::Control, 100), 3), Admission::Waits);
    assert_eq!(calls(&mut fabric), [(now + time(3000) + time(PAUSE_FRAME), Call::Dequeue(3))]);
    // When it leaves, the buffer is empty, and the sender may go on; that frame finds the way back free.
    let later = now + time(FRAME);
    let arrives = later + time(FRAME) + DELAY;
    assert_eq!(fabric.dequeue(later, 1), Some(Departure { slot: 2, arrives }));
    assert_eq!(calls(&mut fabric), [(later + time(PAUSE_FRAME) + DELAY + RESPONSE, Call::Pause(2, false))]);
    // Host 1 is paused from the one to the other.
    assert_eq!(fabric.pause(acts, 2, true).map(|(host, _)| host), Some(HostId(1)));
    let ends = later + time(PAUSE_FRAME) + DELAY + RESPONSE;
    assert_eq!(fabric.pause(ends, 2, false).map(|(host, _)| host), Some(HostId(1)));
    let pauses = fabric.pauses(ends);
    assert_eq!(pauses.iter().map(|p| (p.link, p.count, p.time)).collect::<Vec<_>>(), [(2, 1, Time(ends.0 - acts.0))]);
}

#[test]
fn without_a_pause_both_classes_leave_in_the_order_they_came() {
    let mut fabric = star(lossless(PfcConfig::default()));
    let now = Time::from_us(1);
    let first = fabric.enqueue(now, &mut packet(1, 0, Class::Data, FRAME), 0);
    assert_eq!(first, Admission::Arrives(now + time(FRAME) + DELAY));
    for (slot, class) in [(1, Class::Data), (2, Class::Control), (3, Class::Data)] {
        assert_eq!(fabric.enqueue(now, &mut packet(1, 0, class, 1000), slot), Admission::Waits);
    }
    let mut at = now + time(FRAME);
    for slot in 1..4 {
        let arrives = at + time(1000) + DELAY;
        assert_eq!(fabric.dequeue(at, 1), Some(Departure { slot, arrives }));
        at += time(1000);
    }
    assert_eq!(fabric.dequeue(at, 1), None);
}

#[test]
fn a_paused_switch_port_sends_control_packets_and_no_data() {
    // Host 0 on switch 3, hosts 1 and 2 on switch 4; link 6 leads from the one to the other.
    let mut fabric = build(3, &[(0, 3), (1, 4), (2, 4), (3, 4)], strict());
    let now = Time::from_us(5);
    fabric.enqueue(now, &mut packet(2, 1, Class::Data, FRAME), 0);
    let from_far = Envelope { link: 6, ..packet(0, 1, Class::Data, FRAME) };
    assert_eq!(fabric.enqueue(now, &mut { from_far }, 1), Admission::Waits);
    let acts = now + time(PAUSE_FRAME) + DELAY + RESPONSE;
    assert_eq!(calls(&mut fabric)[0], (acts, Call::Pause(6, true)));
    assert_eq!(fabric.pause(acts, 6, true), None);
    assert_eq!(calls(&mut fabric), [(acts + DEADLOCK_CHECK, Call::Check)]);
    // Data waits, whatever the transmitter does; control leaves.
    assert_eq!(fabric.enqueue(acts, &mut packet(0, 1, Class::Data, FRAME), 2), Admission::Waits);
    let calls_of_host = calls(&mut fabric);
    assert!(calls_of_host.iter().all(|(_, call)| matches!(call, Call::Pause(0, true))), "{calls_of_host:?}");
    assert_eq!(fabric.enqueue(acts, &mut packet(0, 1, Class::Control, 100), 3), Admission::Waits);
    assert_eq!(calls(&mut fabric), [(acts, Call::Dequeue(6))]);
    let arrives = acts + time(100) + DELAY;
    assert_eq!(fabric.dequeue(acts, 6), Some(Departure { slot: 3, arrives }));
    assert_eq!(calls(&mut fabric), []);
    assert!(fabric.deadlock().is_empty(), "all that waits for host 1 will leave");
    // The last switch drains and revokes the pause.
    let drained = now + time(FRAME);
    assert_eq!(fabric.dequeue(drained, 3).map(|departure| departure.slot), Some(1));
    let ends = drained + time(PAUSE_FRAME) + DELAY + RESPONSE;
    assert_eq!(calls(&mut fabric), [(ends, Call::Pause(6, false))]);
    assert_eq!(fabric.pause(ends, 6, false), None);
    assert_eq!(calls(&mut fabric), [(ends, Call::Dequeue(6))]);
    assert_eq!(fabric.dequeue(ends, 6).map(|departure| departure.slot), Some(2));
}

#[test]
fn control_goes_first_and_overlaps_with_no_data_where_ports_are_explicit() {
    let switching = Switching { control_priority: true, explicit_queues: true, ..Switching::default() };
    let mut fabric = star(switching);
    let now = Time::from_us(1);
    for slot in 0..4 {
        fabric.enqueue(now, &mut packet(1, 0, Class::Data, FRAME), slot);
    }
    fabric.enqueue(now, &mut packet(1, 0, Class::Control, 100), 4);
    let mut at = now + time(FRAME);
    let mut order = Vec::new();
    for _ in 0..4 {
        let departure = fabric.dequeue(at, 1).expect("one that waits");
        order.push(departure.slot);
        at = Time(departure.arrives.0 - DELAY.0);
    }
    assert_eq!(order, [4, 1, 2, 3]);
    assert_eq!(at, now + time(4 * FRAME + 100));
    // A host's port stays busy-until.
    let mut from_host = packet(1, 0, Class::Data, FRAME);
    assert_eq!(fabric.inject(now, &mut from_host), Step::Arrives(now + time(FRAME) + DELAY));
}
