//! What switches do instead of ECMP where several ports lead closer: flowlets, sprayed packets, and
//! routes that a controller has laid. All of it is optional; transports other than RoCEv2 need none (F9).

use std::collections::BTreeMap;

use metaroce_wire::{Envelope, HostId, Time};
use rand_core::Rng;
use rand_pcg::Pcg32;

use crate::explicit::{DATA, Queues};
use crate::fabric::{Fabric, SwitchState, ecmp, mixed};
use crate::loss::{BALANCE, stream};
use crate::port::Port;
use crate::spec::{Balance, Ecmp, FabricSpec, SpecError, Switching};

/// Most rows of a flowlet table. Ours: more than switch silicon has.
pub const MAX_FLOWLETS: u32 = 1 << 20;

/// What the choices of all switches remember.
#[derive(Clone, Debug)]
pub(crate) struct Balancer {
    gap: Time,
    /// One stream of random numbers a switch.
    draws: Vec<Pcg32>,
    /// Rows of the flowlet table of each switch.
    entries: u32,
    /// When a packet of the row came last; rows of switch s from `s × entries` on.
    seen: Vec<u64>,
    /// Its link + 1; 0 where there is none yet.
    links: Vec<u32>,
    /// Routes that the controller has laid.
    pub pins: BTreeMap<Pin, u32>,
}

/// Where and for whom a link is pinned: switch, source, destination.
pub(crate) type Pin = (u32, HostId, HostId);

/// A switch that has a choice to make.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    switch: u32,
    now: Time,
    hops: &'a [u32],
    ports: &'a [Port],
    queues: &'a Queues,
}

/// Refuses what a flowlet table cannot be.
pub(crate) fn check(switching: &Switching) -> Result<(), SpecError> {
    if switching.flowlet_gap == Time::ZERO {
        return Err(SpecError::range("fabric.flowlet_gap_ps", 0, "at least 1"));
    }
    if !(1..=MAX_FLOWLETS).contains(&switching.flowlet_entries) {
        let allowed = format!("1 to {MAX_FLOWLETS}");
        return Err(SpecError::range("fabric.flowlet_entries", switching.flowlet_entries, allowed));
    }
    Ok(())
}

impl Fabric {
    /// The link by which the switch at the end of `packet.link` sends the packet on, however it balances.
    #[inline(never)]
    pub(crate) fn balance(&mut self, now: Time, packet: &Envelope) -> Option<u32> {
        let (&state, target) = self.hop(packet);
        if target.column == state.own_column {
            return Some(target.down);
        }
        let choice = self.routes.choices[(state.offset + target.column) as usize];
        let hops = &self.routes.hops[choice.first() as usize..][..choice.count() as usize];
        if hops.len() < 2 {
            return hops.first().copied();
        }
        let switch = self.ends[packet.link as usize] - self.hosts;
        let place = Place { switch, now, hops, ports: &self.ports, queues: &self.queues };
        let (balancer, kind) = (&mut self.balancer, self.switching.balance);
        let pick = match kind {
            Balance::Ecmp => ecmp(self.ecmp, &state, packet, choice.count()),
            Balance::Spray => balancer.any(place),
            Balance::SprayLeast => {
                let first = balancer.any(place);
                shortest(place, first)
            }
            Balance::Flowlet | Balance::FlowletRandom => balancer.flowlet(place, flow(self.ecmp, &state, packet), kind),
            Balance::Pinned => {
                let pin = balancer.pins.get(&(switch, packet.src, packet.dst));
                let pinned = pin.and_then(|link| hops.iter().position(|hop| hop == link));
                pinned.map_or_else(|| ecmp(self.ecmp, &state, packet, choice.count()), |pick| pick as u32)
            }
        };
        Some(hops[pick as usize])
    }
}

/// What a switch takes a packet to belong to: what its hash reads, all bits of it.
fn flow(kind: Ecmp, switch: &SwitchState, packet: &Envelope) -> u32 {
    mixed(switch, packet, if kind == Ecmp::Qp { packet.qp } else { 0 })
}

impl Balancer {
    pub(crate) fn new(spec: &FabricSpec) -> Balancer {
        let Switching { balance, flowlet_gap, flowlet_entries, .. } = spec.switching;
        let switches = spec.switches.len();
        let rows = if balance.has_flowlets() { switches * flowlet_entries as usize } else { 0 };
        Balancer {
            gap: flowlet_gap,
            draws: (0..switches as u64).map(|switch| stream(spec.seed, switch, BALANCE)).collect(),
            entries: flowlet_entries,
            seen: vec![0; rows],
            links: vec![0; rows],
            pins: BTreeMap::new(),
        }
    }

    /// A port at random.
    fn any(&mut self, place: Place) -> u32 {
        let draw = u64::from(self.draws[place.switch as usize].next_u32());
        ((draw * place.hops.len() as u64) >> u32::BITS) as u32
    }

    /// The port that `flow` had, if it has not paused and the port still leads closer; else another, or
    /// the same one where no queue is shorter.
    fn flowlet(&mut self, place: Place, flow: u32, kind: Balance) -> u32 {
        let row = place.switch as usize * self.entries as usize + (flow % self.entries) as usize;
        let quiet = place.now.0 - std::mem::replace(&mut self.seen[row], place.now.0);
        let had = place.hops.iter().position(|link| link + 1 == self.links[row]).map(|pick| pick as u32);
        let pick = match had {
            Some(pick) if quiet < self.gap.0 => pick,
            Some(pick) if kind == Balance::Flowlet => shortest(place, pick),
            None if kind == Balance::Flowlet => {
                let first = self.any(place);
                shortest(place, first)
            }
            _ => self.any(place),
        };
        self.links[row] = place.hops[pick as usize] + 1;
        pick
    }
}

/// The port with the shortest queue, in time; `first` where no other is shorter.
fn shortest(place: Place, first: u32) -> u32 {
    let backlog = |pick: u32| match place.hops[pick as usize] as usize {
        link if !place.queues.ports.is_empty() => place.queues.ahead(link, place.now, DATA),
        link => place.ports[link].backlog(place.now),
    };
    let in_turn = (first..place.hops.len() as u32).chain(0..first);
    in_turn.min_by_key(|&pick| backlog(pick)).unwrap_or(first)
}
