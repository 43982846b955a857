//! Islands: hosts without a port in some planes, and hosts that do not reach each other.

mod common;

use common::{built, spec};
use metaroce_fabric::{
    Balance, Cable, Demand, Drop, End, Fabric, FabricSpec, SpecError, Step, Switch, Switching, Target,
};
use metaroce_wire::{Bytes, Class, Envelope, HostId, PlaneId, Rate, Time};

const FAST: Rate = Rate::from_gbps(800);
const SLOW: Rate = Rate::from_gbps(100);

fn cable(a: u32, b: u32, rate: Rate, delay: Time) -> Cable {
    Cable { a, b, rate, delay, queue: Bytes(1 << 20), kmin: Bytes(0), kmax: Bytes(0), pmax: 0 }
}

/// Two racks of 2 and 1 hosts with 2 planes, and a plane 0 between three more hosts: hosts 3 to 5 on leaves 4 and 5,
/// which two spines join.
fn racks() -> FabricSpec {
    let switches = [(0, 1), (0, 1), (1, 1), (1, 1), (0, 1), (0, 1), (0, 2), (0, 2)];
    let node = |switch: u32| 6 + switch;
    let (near, far) = (Time::from_ns(100), Time::from_ns(900));
    let mut cables = Vec::new();
    for plane in 0..2 {
        cables.extend([0, 1].map(|host| cable(host, node(2 * plane), FAST, near)));
        cables.push(cable(2, node(2 * plane + 1), FAST, near));
    }
    cables.extend([cable(3, node(4), SLOW, far), cable(4, node(4), SLOW, far), cable(5, node(5), SLOW, far)]);
    cables.extend([(4, 6), (4, 7), (5, 6), (5, 7)].map(|(leaf, spine)| cable(node(leaf), node(spine), SLOW, far)));
    let reroute_delay = Time::from_us(1);
    FabricSpec { reroute_delay, islands: true, ..spec(6, 2, &switches, cables) }
}

fn packet(src: u32, dst: u32, plane: u8) -> Envelope {
    let (src, dst) = (HostId(src), HostId(dst));
    Envelope { src, dst, plane: PlaneId(plane), len: 1000, class: Class::Data, ..Envelope::default() }
}

/// When a packet arrives, or why it does not.
fn fate(fabric: &mut Fabric, mut packet: Envelope) -> Result<Time, Drop> {
    let mut step = fabric.inject(Time::ZERO, &mut packet);
    loop {
        let at = match step {
            Step::Arrives(at) => at,
            Step::Dropped(cause) => return Err(cause),
        };
        match fabric.end(&packet) {
            End::Host(host) => {
                assert_eq!(host, packet.dst);
                fabric.deliver();
                return Ok(at);
            }
            _ => step = fabric.forward(at, &mut packet),
        }
    }
}

/// Pairs that reach each other, and the planes of both.
const PAIRS: [(u32, u32, u8); 4] = [(0, 1, 2), (3, 4, 1), (3, 5, 1), (4, 5, 1)];

#[test]
fn packets_of_an_island_arrive_and_others_have_no_route() {
    let fabric = built(&racks());
    for src in 0..6 {
        let planes = if src < 3 { 2 } else { 1 };
        assert_eq!(fabric.ports_of(HostId(src)).count(), planes as usize);
        assert_eq!(fabric.port_rate(HostId(src), PlaneId(1)).is_some(), planes == 2);
        for dst in (0..6).filter(|&dst| dst != src) {
            for plane in 0..planes {
                let known = PAIRS.iter().find(|&&(a, b, _)| (a, b) == (src.min(dst), src.max(dst)));
                let joined = known.is_some_and(|&(.., planes)| plane < planes);
                let name = PlaneId(plane);
                assert_eq!(fabric.connects(HostId(src), HostId(dst), name), joined, "{src} {dst} {plane}");
                assert_eq!(fabric.walk(&packet(src, dst, plane)).is_empty(), !joined, "{src} {dst} {plane}");
                if !joined && dst >= 3 && plane > 0 {
                    continue; // No packet has such an address: the other end has no port there.
                }
                let mut used = fabric.clone();
                let idle = || fabric.idle_time(HostId(src), HostId(dst), name, 1000);
                let expected = if joined { Ok(idle()) } else { Err(Drop::NoRoute) };
                assert_eq!(fate(&mut used, packet(src, dst, plane)), expected, "{src} {dst} {plane}");
                let counters = used.counters();
                assert_eq!((counters.delivered, counters.no_route), if joined { (1, 0) } else { (0, 1) });
            }
        }
    }
}

#[test]
fn a_host_stands_where_its_island_does() {
    let fabric = built(&racks());
    // Two hosts of a rack's switch, the one of the other, and one of each leaf.
    let mut slowest: Vec<u32> = fabric.slowest_hosts(PlaneId(0), 1000).iter().map(|host| host.0).collect();
    slowest.sort_unstable();
    assert!(matches!(slowest[..], [0, 1, 2, 3 | 4, 5]), "{slowest:?}");
    assert_eq!(fabric.slowest_hosts(PlaneId(1), 1000).len(), 3);
    assert_eq!([0, 2, 3].map(|host| fabric.routes_of(HostId(host))), [1, 1, 2]);
    assert_eq!(fabric.routes(), 2);
}

#[test]
fn a_plane_goes_down_in_every_island_and_a_switch_in_its_own() {
    let mut fabric = built(&racks());
    let up = |fabric: &Fabric| PAIRS.map(|(a, b, _)| fate(&mut fabric.clone(), packet(a, b, 0)).is_ok());
    fabric.set(Target::Plane(0), false);
    assert_eq!(up(&fabric), [false; 4]);
    assert!(fate(&mut fabric.clone(), packet(0, 1, 1)).is_ok());
    fabric.set(Target::Plane(0), true);
    fabric.set(Target::Switch(0), false);
    fabric.reroute();
    assert_eq!(up(&fabric), [false, true, true, true]);
}

#[test]
fn pinned_routes_are_laid_where_both_ends_have_ports() {
    let switching = Switching { balance: Balance::Pinned, ..Switching::default() };
    let mut fabric = built(&FabricSpec { switching, ..racks() });
    let demand = |(a, b): (u32, u32)| Demand { src: HostId(a), dst: HostId(b), bytes: Bytes(1) };
    fabric.pin(&[(0, 1), (3, 5), (4, 5), (5, 3)].map(demand));
    for (a, b, _) in PAIRS {
        assert!(fate(&mut fabric, packet(a, b, 0)).is_ok(), "{a} {b}");
    }
}

#[test]
fn ports_are_in_the_first_planes_and_other_fabrics_have_all() {
    let told = |spec: &FabricSpec| match Fabric::new(spec) {
        Err(SpecError::Range { field, value, allowed }) => format!("{field}: {value}; {allowed}"),
        Err(other) => other.to_string(),
        Ok(_) => String::new(),
    };
    let without = |host: u32, plane: u32| {
        let mut spec = racks();
        let leads = |c: &Cable| c.a == host && spec.switches[c.b as usize - 6].plane == plane;
        spec.cables.retain(|c| !leads(c));
        spec
    };
    assert_eq!(told(&without(1, 1)), "");
    assert!(
        told(&without(1, 0)).contains("no link of host 1 in plane 0; the first planes"),
        "{}",
        told(&without(1, 0))
    );
    assert!(told(&without(4, 0)).contains("no link of host 4 in plane 0"));
    assert!(told(&FabricSpec { islands: false, ..racks() }).contains("no link of host 3 in plane 1; one a plane"));
    let mut one_plane = racks();
    one_plane.cables.retain(|c| one_plane.switches[c.a.max(c.b) as usize - 6].plane == 0);
    let message = told(&FabricSpec {
        islands: false,
        planes: 1,
        switches: one_plane.switches.iter().map(|_| Switch { plane: 0, tier: 1 }).collect(),
        ..one_plane
    });
    assert!(message.contains("hosts 0 and 2 are not connected in plane 0"), "{message}");
}
