//! Who talks from which host: a rank has one host, or one in each of two networks. Hosts that are apart
//! (`fabric.islands`) stand where those stand that they can reach.

use std::collections::BTreeSet;

use metaroce_engine::Program;
use metaroce_fabric::Fabric;
use metaroce_proto::{Environment, TransportConfig};
use metaroce_wire::{ConnId, HostId, PlaneId, Time, lengths};
use serde::{Deserialize, Serialize};

use crate::spec::{DriverError, Spec};
use crate::world::full_packet;

/// A second network, by which ranks of different domains talk.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleOut {
    /// Host of each rank in it.
    pub hosts_of_ranks: Vec<u32>,
    /// Domain of each rank.
    pub domain_of_rank: Vec<u32>,
}

/// A rank's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// Rank at the other side.
    pub peer: u32,
    /// Host of this side.
    pub host: u32,
    /// Its number there.
    pub id: ConnId,
}

/// Connections of each rank, sorted by peer.
pub(crate) type Connections = Vec<Vec<Connection>>;

/// In place of a host: there is none.
const NONE: u32 = u32::MAX;

impl Spec {
    /// The hosts by which ranks `a` and `b` talk.
    pub(crate) fn hosts_between(&self, a: u32, b: u32) -> (u32, u32) {
        let (a, b) = (a as usize, b as usize);
        let apart = |out: &&ScaleOut| out.domain_of_rank[a] != out.domain_of_rank[b];
        let hosts = self.scale_out.as_ref().filter(apart).map_or(&self.hosts_of_ranks, |out| &out.hosts_of_ranks);
        (hosts[a], hosts[b])
    }

    /// The hosts of a rank.
    pub(crate) fn hosts_of(&self, rank: usize) -> impl Iterator<Item = u32> {
        let second = self.scale_out.as_ref().and_then(|out| out.hosts_of_ranks.get(rank));
        self.hosts_of_ranks.get(rank).into_iter().chain(second).copied()
    }

    /// The rank of each host, if it has one.
    pub(crate) fn rank_of_host(&self) -> Vec<u32> {
        let mut ranks = vec![NONE; self.fabric.hosts as usize];
        for rank in 0..self.hosts_of_ranks.len() {
            self.hosts_of(rank).for_each(|host| ranks[host as usize] = rank as u32);
        }
        ranks
    }

    /// The other host of each host's rank, if it has two; empty if no rank has.
    pub(crate) fn other_hosts(&self) -> Vec<u32> {
        let Some(out) = &self.scale_out else { return Vec::new() };
        let mut others = vec![NONE; self.fabric.hosts as usize];
        for (&a, &b) in self.hosts_of_ranks.iter().zip(&out.hosts_of_ranks) {
            (others[a as usize], others[b as usize]) = (b, a);
        }
        others
    }
}

/// The second host of the rank of `host`.
#[inline]
pub(crate) fn other_host(others: &[u32], host: usize) -> Option<usize> {
    others.get(host).filter(|&&other| other != NONE).map(|&other| other as usize)
}

/// Pairs of ranks that the program makes talk, the lower first, in order.
pub(crate) fn pairs(program: &Program) -> Vec<(u32, u32)> {
    let mut pairs = Vec::new();
    for rank in 0..program.ranks() {
        let mut peers: Vec<u32> = program.talks(rank).map(|(_, peer)| peer).collect();
        peers.sort_unstable();
        peers.dedup();
        pairs.extend(peers.into_iter().map(|peer| (peer.min(rank as u32), peer.max(rank as u32))));
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// Each rank has a host of its own, or two; a connection is between hosts with the same planes that reach each other.
pub(crate) fn check_hosts(spec: &Spec, ranks: usize) -> Result<(), DriverError> {
    let length = |field: &str, length: usize, what: &str| match length == ranks {
        true => Ok(()),
        false => {
            Err(DriverError::config(field, format!("length {length}"), format!("one {what} for each of {ranks} ranks")))
        }
    };
    let mut seen = BTreeSet::new();
    let mut check = |field: &str, hosts: &[u32]| {
        length(field, hosts.len(), "host")?;
        let bad = |&(_, &host): &(usize, &u32)| host >= spec.fabric.hosts || !seen.insert(host);
        match hosts.iter().enumerate().find(bad) {
            Some((rank, host)) => {
                let allowed = format!("distinct hosts below {}", spec.fabric.hosts);
                Err(DriverError::config(&format!("{field}[{rank}]"), host, allowed))
            }
            None => Ok(()),
        }
    };
    check("hosts_of_ranks", &spec.hosts_of_ranks)?;
    if let Some(out) = &spec.scale_out {
        check("scale_out.hosts_of_ranks", &out.hosts_of_ranks)?;
        length("scale_out.domain_of_rank", out.domain_of_rank.len(), "domain")?;
    }
    Ok(())
}

/// Refuses ranks that talk and cannot, and hosts to which the transport leaves no plane.
pub(crate) fn check_islands(spec: &Spec, fabric: &Fabric, pairs: &[(u32, u32)]) -> Result<(), DriverError> {
    if !spec.fabric.islands {
        return Ok(());
    }
    let ports = |host: u32| fabric.ports_of(HostId(host)).count();
    for &(a, b) in pairs {
        let (host_a, host_b) = spec.hosts_between(a, b);
        let who = format!("ranks {a} and {b}, hosts {host_a} and {host_b}");
        if ports(host_a) != ports(host_b) {
            let value = format!("{} and {} planes ({who})", ports(host_a), ports(host_b));
            return Err(DriverError::config("fabric.links", value, "as many planes for hosts that talk"));
        }
        let apart = |&plane: &usize| {
            let plane = PlaneId(plane as u8);
            !fabric.connects(HostId(host_a), HostId(host_b), plane)
        };
        if let Some(plane) = (0..ports(host_a)).find(apart) {
            let value = format!("no route in plane {plane} ({who})");
            return Err(DriverError::config("fabric.links", value, "hosts that talk connected in all their planes"));
        }
    }
    let TransportConfig::MetaRoce(config) = &spec.transport else { return Ok(()) };
    let left = |host: u32| (0..ports(host)).any(|plane| config.denied_planes >> plane & 1 == 0);
    let hosts = (0..spec.hosts_of_ranks.len()).flat_map(|rank| spec.hosts_of(rank));
    match { hosts }.find(|&host| !left(host)) {
        Some(host) => {
            let allowed = format!("bits that leave host {host} one of its {} planes", ports(host));
            Err(DriverError::config("transport.denied_planes", config.denied_planes, allowed))
        }
        None => Ok(()),
    }
}

/// Where each host stands.
pub(crate) fn environments(spec: &Spec, fabric: &Fabric) -> impl Iterator<Item = Environment> {
    let planes = (0..spec.fabric.planes).map(|plane| PlaneId(plane as u8));
    let far: Vec<_> = planes.map(|plane| (plane, fabric.slowest_hosts(plane, full_packet(spec)))).collect();
    let everywhere = (!spec.fabric.islands).then(|| (base_rtt(spec, fabric, &far), fabric.routes()));
    (0..spec.fabric.hosts).map(HostId).map(move |host| {
        let apart = || (rtt_from(spec, fabric, host, &far), fabric.routes_of(host));
        let (base_rtt, routes) = everywhere.unwrap_or_else(apart);
        Environment { host, ports: fabric.ports_of(host).collect(), base_rtt, routes }
    })
}

/// Round trip of a full data packet and its acknowledgement between the farthest hosts.
fn base_rtt(spec: &Spec, fabric: &Fabric, far: &[(PlaneId, Vec<HostId>)]) -> Time {
    let mut longest = Time::ZERO;
    for (plane, far) in far {
        for &a in far {
            for &b in far.iter().filter(|&&b| b != a) {
                longest = longest.max(round_trip(spec, fabric, (a, b), *plane));
            }
        }
    }
    longest
}

/// The same from `host` to the farthest that it reaches; alone, to its switches and back.
fn rtt_from(spec: &Spec, fabric: &Fabric, host: HostId, far: &[(PlaneId, Vec<HostId>)]) -> Time {
    let mut longest = Time::ZERO;
    for (plane, far) in far.iter().filter(|(plane, _)| fabric.port_rate(host, *plane).is_some()) {
        let reached = far.iter().filter(|&&other| other != host && fabric.connects(host, other, *plane));
        let trips = reached.map(|&other| round_trip(spec, fabric, (host, other), *plane));
        longest = longest.max(trips.max().unwrap_or_else(|| round_trip(spec, fabric, (host, host), *plane)));
    }
    longest
}

fn round_trip(spec: &Spec, fabric: &Fabric, (a, b): (HostId, HostId), plane: PlaneId) -> Time {
    let (data, ack) = (full_packet(spec), lengths::mr_ack(0));
    fabric.idle_time(a, b, plane, data) + fabric.idle_time(b, a, plane, ack)
}
