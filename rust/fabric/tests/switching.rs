//! Trimming, the class for control packets, marking at the last hop; planes and tiers that differ.

mod common;

use common::{built, spec};
use metaroce_fabric::{Cable, Counters, Drop, End, Fabric, FabricSpec, LossConfig, LossOn, LossPer, Step, Switching};
use metaroce_wire::{Bytes, Class, Ecn, Envelope, HostId, PlaneId, Rate, Time, lengths};

const FULL: u32 = lengths::mr_data(4096);
const QUEUE: u64 = 100_000;
const RATE: Rate = Rate::from_gbps(200);

fn cable(a: u32, b: u32) -> Cable {
    let (queue, kmin, kmax) = (Bytes(QUEUE), Bytes(20_000), Bytes(50_000));
    Cable { a, b, rate: RATE, delay: Time::from_ns(600), queue, kmin, kmax, pmax: u32::MAX }
}

/// `hosts` on one leaf, and one more host behind a second one: host 0.
fn funnel(hosts: u32, switching: Switching) -> FabricSpec {
    let mut cables: Vec<Cable> = (1..hosts).map(|host| cable(host, hosts)).collect();
    cables.extend([cable(0, hosts + 1), cable(hosts, hosts + 1)]);
    FabricSpec { switching, ..spec(hosts, 1, &[(0, 1), (0, 1)], cables) }
}

fn packet(src: u32, dst: u32, class: Class) -> Envelope {
    let (src, dst, hash) = (HostId(src), HostId(dst), 0);
    let len = if class == Class::Data { FULL } else { lengths::mr_ack(0) };
    Envelope { src, dst, hash, len, class, ..Envelope::default() }
}

/// What became of a packet, and when.
#[derive(Clone, Copy, Debug)]
struct Fate {
    at: Time,
    packet: Envelope,
    dropped: Option<Drop>,
}

/// Sends packets at time 0 and brings each to its end, in order of time.
fn run(fabric: &mut Fabric, packets: &[Envelope]) -> Vec<Fate> {
    let mut fates: Vec<Fate> = packets.iter().map(|&packet| Fate { at: Time::ZERO, packet, dropped: None }).collect();
    let mut moving: Vec<usize> = Vec::new();
    for (index, fate) in fates.iter_mut().enumerate() {
        match fabric.inject(Time::ZERO, &mut fate.packet) {
            Step::Arrives(at) => {
                fate.at = at;
                moving.push(index);
            }
            Step::Dropped(cause) => fate.dropped = Some(cause),
        }
    }
    while let Some(next) = (0..moving.len()).min_by_key(|&i| (fates[moving[i]].at, moving[i])) {
        let fate = &mut fates[moving[next]];
        let over = match fabric.end(&fate.packet) {
            End::Host(host) => {
                assert_eq!(host, fate.packet.dst);
                fabric.deliver();
                true
            }
            End::Switch | End::Nowhere => match fabric.forward(fate.at, &mut fate.packet) {
                Step::Arrives(at) => {
                    fate.at = at;
                    false
                }
                Step::Dropped(cause) => {
                    fate.dropped = Some(cause);
                    true
                }
            },
        };
        if over {
            moving.swap_remove(next);
        }
    }
    let Counters { injected, delivered, lost, queue, .. } = *fabric.counters();
    assert_eq!(injected, delivered + lost + queue);
    fates
}

/// `each` data packets of every host to host 0.
fn incast(spec: &FabricSpec, each: u32) -> (Fabric, Vec<Fate>) {
    let mut fabric = built(spec);
    let packets: Vec<Envelope> =
        (0..each).flat_map(|_| (1..spec.hosts).map(|src| packet(src, 0, Class::Data))).collect();
    let fates = run(&mut fabric, &packets);
    (fabric, fates)
}

#[test]
fn a_full_queue_cuts_packets_down_to_their_headers_and_sends_them_on() {
    for control_priority in [false, true] {
        let plain = incast(&funnel(9, Switching::default()), 20).0;
        assert!(plain.counters().queue > 50);
        let trimming = Switching { trim: true, control_priority, ..Switching::default() };
        let (fabric, fates) = incast(&funnel(9, trimming), 20);
        let counters = fabric.counters();
        assert_eq!((counters.queue, counters.delivered, counters.injected), (0, 160, 160));
        let cut: Vec<&Fate> = fates.iter().filter(|f| f.packet.trimmed).collect();
        assert_eq!(cut.len() as u64, counters.trimmed);
        assert!(counters.trimmed > 50);
        for fate in &fates {
            assert_eq!(fate.packet.len, if fate.packet.trimmed { lengths::TRIMMED } else { FULL });
        }
        // Where they go first, the first of them arrives before the queue that it found full is empty.
        let first = cut.iter().map(|f| f.at).min().expect("some");
        let whole = fates.iter().filter(|f| !f.packet.trimmed && f.at < first).count() as u64;
        let queued = QUEUE / u64::from(FULL);
        assert_eq!(whole >= queued, !control_priority, "{whole} packets before it");
    }
}

#[test]
fn trimmed_packets_without_room_are_dropped_and_control_packets_are_never_trimmed() {
    for control_priority in [false, true] {
        let switching = Switching { trim: true, control_priority, ..Switching::default() };
        let (fabric, fates) = incast(&funnel(129, switching), 20);
        let counters = fabric.counters();
        assert!(counters.queue > 0 && counters.trimmed > 0, "{counters:?}");
        let sent_on = fates.iter().filter(|f| f.packet.trimmed && f.dropped.is_none()).count();
        assert_eq!(sent_on as u64, counters.trimmed);
        let mut fabric = built(&funnel(129, switching));
        let acks: Vec<Envelope> = (0..20).flat_map(|_| (1..129).map(|src| packet(src, 0, Class::Control))).collect();
        let fates = run(&mut fabric, &acks);
        assert!(fates.iter().any(|f| f.dropped == Some(Drop::Queue)));
        assert!(fates.iter().all(|f| !f.packet.trimmed));
    }
}

#[test]
fn packets_stay_accounted_for_where_they_are_lost_and_trimmed() {
    for (per, on) in [(LossPer::Packet, LossOn::DataAndAck), (LossPer::Link, LossOn::Data)] {
        let trimming = Switching { trim: true, ..Switching::default() };
        let loss = LossConfig { probability: 0.2, per, on };
        let (fabric, fates) = incast(&FabricSpec { loss, ..funnel(17, trimming) }, 50);
        let counters = fabric.counters();
        assert!(counters.lost > 0 && counters.trimmed > 0, "{counters:?}");
        let dropped = |cause| fates.iter().filter(|f| f.dropped == Some(cause)).count() as u64;
        assert_eq!((dropped(Drop::Loss), dropped(Drop::Queue)), (counters.lost, counters.queue));
    }
}

#[test]
fn an_acknowledgement_passes_queued_data_where_control_goes_first() {
    let arrival = |control_priority| {
        let switching = Switching { control_priority, ..Switching::default() };
        let mut fabric = built(&funnel(4, switching));
        // Hosts 1 and 2 fill the cable between the leaves; host 3's acknowledgement comes in the middle.
        let mut packets: Vec<Envelope> =
            (0..10).flat_map(|_| [packet(1, 0, Class::Data), packet(2, 0, Class::Data)]).collect();
        packets.extend((0..160).map(|_| packet(3, 0, Class::Control)));
        let fates = run(&mut fabric, &packets);
        assert!(fates.iter().all(|f| f.dropped.is_none()));
        let last = fates.iter().map(|f| f.at).max().expect("some");
        (fates[20 + 100].at, last)
    };
    let ((behind, end), (ahead, same_end)) = (arrival(false), arrival(true));
    let full = RATE.time_for(Bytes(u64::from(FULL)));
    assert!(ahead + full < behind, "{ahead:?} and {behind:?}");
    // The link has carried the same bytes: where the last packet is data, it is no earlier.
    assert!(same_end <= end);
}

#[test]
fn a_port_to_a_host_marks_unless_told_not_to() {
    let marks = |last_hop_ecn| {
        let switching = Switching { last_hop_ecn, ..Switching::default() };
        // Hosts of the same leaf: the only queue is the last one.
        let mut fabric = built(&funnel(5, switching));
        let packets: Vec<Envelope> = (0..8).flat_map(|_| (2..5).map(|src| packet(src, 1, Class::Data))).collect();
        let near = run(&mut fabric, &packets).iter().filter(|f| f.packet.ecn == Ecn::Ce).count();
        // To the far host the cable between the leaves has the queue.
        let far = incast(&funnel(5, switching), 6).1.iter().filter(|f| f.packet.ecn == Ecn::Ce).count();
        (near, far)
    };
    let ((near, far), (near_off, far_off)) = (marks(true), marks(false));
    assert!(near > 0 && far > 0);
    assert_eq!((near_off, far_off), (0, far));
}

#[test]
fn planes_of_unequal_cables_have_unequal_idle_times_and_rates() {
    let mut cables: Vec<Cable> = (0..2).flat_map(|plane| [cable(0, 2 + plane), cable(1, 2 + plane)]).collect();
    for slow in &mut cables[2..] {
        slow.rate = Rate::from_gbps(50);
        slow.delay = Time::from_us(3);
    }
    let fabric = built(&spec(2, 2, &[(0, 1), (1, 1)], cables));
    let time = |plane| fabric.idle_time(HostId(0), HostId(1), PlaneId(plane), 1000);
    assert_eq!(time(0), Time(2 * (1000 * 40 + 600_000)));
    assert_eq!(time(1), Time(2 * (1000 * 160 + 3_000_000)));
    assert_eq!(fabric.port_rate(HostId(0), PlaneId(1)), Some(Rate::from_gbps(50)));
}

#[test]
fn three_tiers_multiply_their_choices_and_add_their_cables() {
    // A fat tree of radix 4: 4 pods of 2 ToR (2 hosts) and 2 aggregation switches, 4 cores.
    let (tor, aggregation, core) = (|i| 16 + i, |i| 24 + i, |i| 32 + i);
    let mut cables: Vec<Cable> = (0..16).map(|host| cable(host, tor(host / 2))).collect();
    for i in 0..8 {
        let pod = i / 2;
        cables.extend((0..2).map(|j| cable(tor(i), aggregation(2 * pod + j))));
        cables.extend((0..2).map(|j| cable(aggregation(i), core(2 * (i % 2) + j))));
    }
    let tiers: Vec<(u32, u32)> = (0..20)
        .map(|i| {
            (
                0,
                if i < 8 {
                    1
                } else if i < 16 {
                    2
                } else {
                    3
                },
            )
        })
        .collect();
    let fabric = built(&spec(16, 1, &tiers, cables));
    assert_eq!(fabric.routes(), 4);
    for (to, cables) in [(1, 2), (2, 4), (4, 6), (15, 6)] {
        let idle = fabric.idle_time(HostId(0), HostId(to), PlaneId(0), 1000);
        assert_eq!(idle, Time(cables * (1000 * 40 + 600_000)), "to host {to}");
    }
}

#[test]
fn the_slowest_host_of_each_leaf_stands_for_it_and_of_one_leaf_the_two_slowest() {
    let far = |leaves: u32, slow: &[u32]| {
        let mut cables: Vec<Cable> = (0..6).map(|host| cable(host, 6 + host % leaves)).collect();
        cables.extend((0..leaves).map(|leaf| cable(6 + leaf, 6 + leaves)));
        slow.iter().for_each(|&host| cables[host as usize].rate = Rate::from_gbps(25));
        let tiers: Vec<(u32, u32)> = (0..=leaves).map(|i| (0, if i < leaves { 1 } else { 2 })).collect();
        let fabric = built(&spec(6, 1, &tiers, cables));
        let mut hosts: Vec<u32> = fabric.slowest_hosts(PlaneId(0), FULL).iter().map(|h| h.0).collect();
        hosts.sort_unstable();
        hosts
    };
    assert_eq!(far(2, &[]), [0, 1]);
    assert_eq!(far(2, &[3, 4]), [3, 4]);
    assert_eq!(far(3, &[5]), [0, 1, 5]);
    assert_eq!(far(1, &[]), [0, 1]);
    assert_eq!(far(1, &[2, 5]), [2, 5]);
}
