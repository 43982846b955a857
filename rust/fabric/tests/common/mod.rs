//! Fabrics made by hand, and packets that cross them.

#![allow(dead_code, reason = "each test file uses a part of the fixture")]

use metaroce_fabric::{Cable, Drop, Ecmp, End, Fabric, FabricSpec, LossConfig, Step, Switch, Switching};
use metaroce_wire::{Bytes, Class, Envelope, HostId, Rate, Time};

/// Switches of (plane, tier), and nothing else that a test has to ask for.
pub fn spec(hosts: u32, planes: u32, switches: &[(u32, u32)], cables: Vec<Cable>) -> FabricSpec {
    FabricSpec {
        hosts,
        planes,
        switches: switches.iter().map(|&(plane, tier)| Switch { plane, tier }).collect(),
        cables,
        ecmp: Ecmp::Linear,
        switching: Switching::default(),
        reroute_delay: Time::from_us(1000),
        loss: LossConfig::default(),
        seed: 1,
        islands: false,
    }
}

pub fn built(spec: &FabricSpec) -> Fabric {
    Fabric::new(spec).expect("a valid fabric")
}

/// Without a queue that ends or marks.
pub fn cable(a: u32, b: u32) -> Cable {
    let (rate, delay) = (Rate::from_gbps(200), Time::from_ns(600));
    Cable { a, b, rate, delay, queue: Bytes(1 << 40), kmin: Bytes(0), kmax: Bytes(0), pmax: 0 }
}

/// `planes` planes of `leaves` leaves with so many hosts each, and `spines`.
pub fn leaf_spine(planes: u32, leaves: u32, hosts_per_leaf: u32, spines: u32) -> FabricSpec {
    let hosts = leaves * hosts_per_leaf;
    let (mut switches, mut cables) = (Vec::new(), Vec::new());
    for plane in 0..planes {
        let first = hosts + switches.len() as u32;
        cables.extend((0..hosts).map(|host| cable(host, first + host / hosts_per_leaf)));
        for leaf in 0..leaves {
            cables.extend((0..spines).map(|spine| cable(first + leaf, first + leaves + spine)));
        }
        switches.extend((0..leaves + spines).map(|i| (plane, if i < leaves { 1 } else { 2 })));
    }
    spec(hosts, planes, &switches, cables)
}

/// Of 1000 bytes.
pub fn packet(src: u32, dst: u32, entropy: u16, class: Class) -> Envelope {
    let (src, dst) = (HostId(src), HostId(dst));
    let hash = Envelope::address_hash(src, dst);
    Envelope { src, dst, hash, len: 1000, entropy, class, ..Envelope::default() }
}

/// The links that a packet crosses, and whether it arrives or is lost.
pub fn follow(fabric: &mut Fabric, now: Time, mut packet: Envelope) -> (Vec<u32>, bool) {
    let mut links = Vec::new();
    let mut step = fabric.inject(now, &mut packet);
    loop {
        links.push(packet.link);
        match step {
            Step::Dropped(cause) => {
                assert_eq!(cause, Drop::Loss);
                return (links, false);
            }
            Step::Arrives(at) => match fabric.end(&packet) {
                End::Host(host) => {
                    assert_eq!(host, packet.dst);
                    fabric.deliver();
                    return (links, true);
                }
                End::Switch | End::Nowhere => step = fabric.forward(at, &mut packet),
            },
        }
    }
}
