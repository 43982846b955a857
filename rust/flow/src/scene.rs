//! From a specification to resources, routes and lanes.

use metaroce_engine::{Op, Program};
use metaroce_fabric::{Cable, Fabric, FabricSpec, LossConfig, Switch, Switching};
use metaroce_proto::transport::rocev2;
use metaroce_proto::{RoceConfig, TransportConfig};
use metaroce_wire::{Bytes, Envelope, HostId, PlaneId, Rate, Time};

use crate::lanes::{Lane, Way};
use crate::quotient::{Quotient, byte_ps};
use crate::share::Sharing;
use crate::spec::{FabricColumns, FlowData, FlowError, FlowSpec};
use crate::transport::{Framing, qps};

/// A pair of ranks, the first of which sends payload to the second.
pub(crate) type Pair = (u32, u32);

/// What a run plays on.
#[derive(Debug)]
pub(crate) struct Scene {
    pub sharing: Sharing,
    pub lanes: Vec<Lane>,
    /// Lane of each route.
    pub lane_of: Vec<u32>,
    /// Sorted. Lanes of pair i: `first[i]..first[i + 1]`.
    pub pairs: Vec<Pair>,
    pub first: Vec<u32>,
    /// A full packet and its acknowledgement between the farthest hosts, picoseconds.
    pub base_rtt: f64,
    /// Of the fastest host, all ports together, bit/s.
    pub host_rate: u64,
}

/// Which resources carry payload, and which acknowledgements.
struct Carried {
    data: Vec<bool>,
    acks: Vec<bool>,
}

impl Carried {
    fn new(resources: usize) -> Carried {
        Carried { data: vec![false; resources], acks: vec![false; resources] }
    }

    /// Acknowledgements of one direction take room from data of the other.
    fn reserve(&self, sharing: &mut Sharing, share: f64) {
        for resource in (0..self.data.len()).filter(|&r| self.data[r] && self.acks[r]) {
            *sharing.capacity_mut(resource as u32) /= 1.0 + share;
        }
    }
}

impl Scene {
    pub(crate) fn new(
        spec: &FlowSpec,
        data: &FlowData,
        program: &Program,
        framing: &Framing,
    ) -> Result<Scene, FlowError> {
        let pairs = pairs(program);
        match &spec.transport {
            TransportConfig::RoceV2(config) => hashed(spec, data, config, framing, pairs),
            TransportConfig::MetaRoce(_) | TransportConfig::Mrc(_) => sprayed(spec, data, framing, pairs),
        }
    }

    /// Number of a pair.
    pub(crate) fn pair(&self, pair: Pair) -> usize {
        self.pairs.partition_point(|&other| other < pair)
    }
}

/// Who sends payload to whom.
fn pairs(program: &Program) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for rank in 0..program.ranks() {
        let begin = pairs.len();
        for wqe in program.of_rank(rank) {
            match wqe.op {
                Op::Send | Op::Write | Op::WriteImm => pairs.push((rank as u32, wqe.peer)),
                Op::Read => pairs.push((wqe.peer, rank as u32)),
                _ => {}
            }
        }
        pairs[begin..].sort_unstable();
        let mut kept = pairs.split_off(begin);
        kept.dedup();
        pairs.append(&mut kept);
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// Planes that are alike count as one of their joint capacity.
struct Group {
    quotient: Quotient,
    planes: u64,
    /// First resource of its hosts (up and down of each in turn) and of its bundles.
    hosts: u32,
    bundles: u32,
}

fn groups(spec: &FlowSpec, fabric: &FabricColumns) -> Result<(Vec<Group>, Sharing), FlowError> {
    let mut groups: Vec<Group> = Vec::new();
    for plane in 0..spec.planes {
        let quotient = Quotient::new(fabric, plane)?;
        match groups.iter_mut().find(|group| group.quotient == quotient) {
            Some(group) => group.planes += 1,
            None => groups.push(Group { quotient, planes: 1, hosts: 0, bundles: 0 }),
        }
    }
    let mut capacities = Vec::new();
    for group in &mut groups {
        group.hosts = capacities.len() as u32;
        capacities.extend(group.quotient.ports.iter().flat_map(|port| [(port.rate * group.planes) as f64; 2]));
    }
    for group in &mut groups {
        group.bundles = capacities.len() as u32;
        capacities.extend(group.quotient.bundles.iter().map(|bundle| bundle.capacity * group.planes as f64));
    }
    Ok((groups, Sharing::new(capacities)))
}

/// A route: its pair, its group of planes, and what it uses.
type Found = (u32, u32, Vec<(u32, f64)>);

/// Routes of sprayed connections, while they are collected by destination.
struct Collected<'a> {
    spec: &'a FlowSpec,
    data: &'a FlowData<'a>,
    pairs: &'a [Pair],
    carried: Carried,
    ways: Vec<Way>,
    routes: Vec<Found>,
}

impl Collected<'_> {
    fn host(&self, rank: u32) -> usize {
        self.data.hosts_of_ranks[rank as usize] as usize
    }

    /// Leaves of both ends of a pair, the destination's first.
    fn leaves(&self, group: &Group, pair: u32) -> (u32, u32) {
        let (from, to) = self.pairs[pair as usize];
        (group.quotient.ports[self.host(to)].leaf, group.quotient.ports[self.host(from)].leaf)
    }

    /// All pairs over one group of planes; answers the base round trip.
    fn add_group(&mut self, number: u32, group: &Group, framing: &Framing) -> Result<f64, FlowError> {
        let mut order: Vec<_> = (0..self.pairs.len() as u32).map(|pair| (self.leaves(group, pair), pair)).collect();
        order.sort_unstable();
        let (mut distances, mut known, mut base_rtt) = (Vec::new(), None, 0.0);
        for same in order.chunk_by(|one, other| one.0 == other.0) {
            let (to, from) = same[0].0;
            if known != Some(to) {
                distances = group.quotient.distances(to);
            }
            if known.is_none() {
                base_rtt = farthest(&group.quotient, &distances, framing);
            }
            known = Some(to);
            let mut middle = Vec::new();
            let way = group.quotient.spread(from, &distances, |bundle, part| middle.push((bundle, part)));
            let Some(way) = way else {
                let (a, b) = self.pairs[same[0].1 as usize];
                let value = format!("hosts {} and {} are not connected", self.host(a), self.host(b));
                return Err(FlowError::of("fabric.links", value, "a route for every pair in every plane"));
            };
            for &(bundle, _) in &middle {
                self.carried.data[group.bundles as usize + bundle] = true;
            }
            for bundle in reversed(&group.quotient, &middle) {
                self.carried.acks[group.bundles as usize + bundle] = true;
            }
            for &(_, pair) in same {
                self.add(pair, (number, group), &middle, way);
            }
        }
        Ok(base_rtt)
    }

    /// One pair, whose leaves are joined by `middle`: bundles and parts, and picoseconds a byte and propagation.
    fn add(&mut self, pair: u32, (number, group): (u32, &Group), middle: &[(usize, f64)], (byte, delay): (f64, u64)) {
        let (from, to) = self.pairs[pair as usize];
        let (src, dst) = (self.host(from), self.host(to));
        let (a, b) = (group.quotient.ports[src], group.quotient.ports[dst]);
        let (up, down) = (group.hosts + 2 * src as u32, group.hosts + 2 * dst as u32 + 1);
        for (data, acks) in [(up, up + 1), (down, down - 1)] {
            self.carried.data[data as usize] = true;
            self.carried.acks[acks as usize] = true;
        }
        let between = middle.iter().map(|&(bundle, part)| (group.bundles + bundle as u32, part));
        self.routes.push((pair, number, [(up, 1.0), (down, 1.0)].into_iter().chain(between).collect()));
        let (way, later) = (&mut self.ways[pair as usize], byte + byte_ps(b.rate));
        way.byte_ps = (way.byte_ps.0.max(later + byte_ps(a.rate)), way.byte_ps.1.max(later));
        way.delay = way.delay.max(delay + a.delay + b.delay);
        way.ports = (self.spec.planes.into(), way.ports.1.max(byte_ps(a.rate)));
    }
}

/// A lane a connection, over all routes of all planes.
fn sprayed(spec: &FlowSpec, data: &FlowData, framing: &Framing, pairs: Vec<Pair>) -> Result<Scene, FlowError> {
    let (groups, mut sharing) = groups(spec, &data.fabric)?;
    let resources = groups.last().map_or(0, |g| g.bundles as usize + g.quotient.bundles.len());
    let (ways, carried) = (vec![Way::default(); pairs.len()], Carried::new(resources));
    let mut collected = Collected { spec, data, pairs: &pairs, carried, ways, routes: Vec::new() };
    let mut base_rtt = 0.0f64;
    for (number, group) in groups.iter().enumerate() {
        base_rtt = base_rtt.max(collected.add_group(number as u32, group, framing)?);
    }
    let Collected { carried, ways, mut routes, .. } = collected;
    carried.reserve(&mut sharing, framing.ack_share());
    routes.sort_by_key(|&(pair, group, _)| (pair, group));
    let lane_of = routes.iter().map(|&(pair, ..)| pair).collect();
    for (_, _, uses) in routes {
        sharing.add_route(uses);
    }
    let each = groups.len() as u32;
    let lane = |(i, way): (usize, &Way)| Lane::new(i as u32 * each..(i as u32 + 1) * each, *way, framing.full());
    Ok(Scene {
        sharing,
        lanes: ways.iter().enumerate().map(lane).collect(),
        lane_of,
        first: (0..=pairs.len() as u32).collect(),
        pairs,
        base_rtt,
        host_rate: host_rate(&data.fabric),
    })
}

/// The bundles that traffic in the other direction of `uses` crosses.
fn reversed(quotient: &Quotient, uses: &[(usize, f64)]) -> Vec<usize> {
    let back = |&(bundle, _): &(usize, f64)| {
        let from = quotient.first.partition_point(|&first| first as usize <= bundle) - 1;
        let to = quotient.bundles[bundle].to as usize;
        (quotient.first[to] as usize..quotient.first[to + 1] as usize)
            .find(|&b| quotient.bundles[b].to as usize == from)
    };
    uses.iter().filter_map(back).collect()
}

/// Base round trip from the farthest leaf of one, with the slowest cables of hosts: fabrics look alike from each leaf.
fn farthest(quotient: &Quotient, distances: &[u32], framing: &Framing) -> f64 {
    let leaves = quotient.ports.iter().map(|port| port.leaf).max().unwrap_or(0);
    let far =
        (0..=leaves).filter(|&leaf| distances[leaf as usize] != u32::MAX).max_by_key(|&leaf| distances[leaf as usize]);
    let (middle_ps, delay) = far.and_then(|leaf| quotient.spread(leaf, distances, |_, _| {})).unwrap_or((0.0, 0));
    let slowest = quotient.ports.iter().map(|port| port.rate).min().unwrap_or(1);
    let cable = quotient.ports.iter().map(|port| port.delay).max().unwrap_or(0);
    let bytes = (framing.full() + framing.ack) as f64;
    bytes * (middle_ps + 2.0 * byte_ps(slowest)) + (2 * (delay + 2 * cable)) as f64
}

/// Rate of the fastest host, all ports together.
fn host_rate(fabric: &FabricColumns) -> u64 {
    let mut rates = vec![0; fabric.hosts as usize];
    for row in 0..fabric.a.len() {
        if let Some(rate) = rates.get_mut(fabric.a[row].min(fabric.b[row]) as usize) {
            *rate += fabric.rate_bps[row];
        }
    }
    rates.into_iter().max().unwrap_or(0)
}

/// A lane a QP, on the route that its port hashes to in the packet model.
fn hashed(
    spec: &FlowSpec,
    data: &FlowData,
    config: &RoceConfig,
    framing: &Framing,
    pairs: Vec<Pair>,
) -> Result<Scene, FlowError> {
    let fabric = Fabric::new(&whole(spec, &data.fabric)).map_err(|e| FlowError::Config(e.to_string()))?;
    let columns = &data.fabric;
    let rates = columns.rate_bps.iter().flat_map(|&rate| [rate as f64; 2]);
    let mut sharing = Sharing::new(rates);
    let mut carried = Carried::new(2 * columns.a.len());
    let base_rtt = base_rtt(spec, &fabric, framing);
    let qps = qps(config, spec.planes);
    let (mut lanes, mut lane_of) = (Vec::new(), Vec::new());
    for &(from, to) in &pairs {
        let hosts = (HostId(data.hosts_of_ranks[from as usize]), HostId(data.hosts_of_ranks[to as usize]));
        for qp in 0..qps {
            let (plane, entropy) = rocev2::route(config, hosts, qp, spec.planes);
            let hash = Envelope::address_hash(hosts.0, hosts.1);
            let packet =
                Envelope { src: hosts.0, dst: hosts.1, hash, entropy, qp: qp as u16, plane, ..Envelope::default() };
            let links = fabric.walk(&packet);
            let way =
                links.iter().map(|&link| (columns.rate_bps[link as usize / 2], columns.delay_ps[link as usize / 2]));
            let all: f64 = way.clone().map(|(rate, _)| byte_ps(rate)).sum();
            let delay: u64 = way.map(|(_, delay)| delay).sum();
            let port = columns.rate_bps[links[0] as usize / 2];
            let rtt = (framing.full() + framing.ack) as f64 * all + 2.0 * delay as f64;
            let window = u64::from(config.window_percent) * Rate(port).bytes_in(Time(base_rtt as u64)).0 / 100;
            for &link in &links {
                carried.data[link as usize] = true;
                carried.acks[link as usize ^ 1] = true;
            }
            let mut uses: Vec<(u32, f64)> = links.into_iter().map(|link| (link, 1.0)).collect();
            if config.window_percent > 0 {
                let packets = (window / framing.mtu).max(rocev2::LEAST_WINDOW);
                uses.push((sharing.add_resource((packets * framing.full()) as f64 * 8e12 / rtt), 1.0));
            }
            let route = sharing.add_route(uses);
            lane_of.push(lanes.len() as u32);
            let way = Way { byte_ps: (all, all - byte_ps(port)), delay, ports: (1, byte_ps(port)) };
            lanes.push(Lane::new(route..route + 1, way, framing.full()));
        }
    }
    carried.reserve(&mut sharing, framing.ack_share());
    Ok(Scene {
        sharing,
        lanes,
        lane_of,
        first: (0..=pairs.len() as u32).map(|i| i * qps).collect(),
        pairs,
        base_rtt,
        host_rate: host_rate(columns),
    })
}

/// The fabric of the packet model, for its hash. Queues and marks are not used.
fn whole(spec: &FlowSpec, columns: &FabricColumns) -> FabricSpec {
    let switches = columns.switch_plane.iter().zip(columns.switch_tier);
    let cable = |i: usize| Cable {
        a: columns.a[i],
        b: columns.b[i],
        rate: Rate(columns.rate_bps[i]),
        delay: Time(columns.delay_ps[i]),
        queue: Bytes(u64::from(u32::MAX)),
        kmin: Bytes(0),
        kmax: Bytes(0),
        pmax: 0,
    };
    FabricSpec {
        hosts: columns.hosts,
        planes: spec.planes,
        switches: switches.map(|(&plane, &tier)| Switch { plane, tier }).collect(),
        cables: (0..columns.a.len()).map(cable).collect(),
        ecmp: spec.ecmp,
        switching: Switching::default(),
        reroute_delay: Time(0),
        loss: LossConfig::default(),
        seed: spec.seed,
        islands: false,
    }
}

fn base_rtt(spec: &FlowSpec, fabric: &Fabric, framing: &Framing) -> f64 {
    let (full, ack) = (framing.full() as u32, framing.ack as u32);
    let mut longest = Time::ZERO;
    for plane in (0..spec.planes).map(|plane| PlaneId(plane as u8)) {
        let far = fabric.slowest_hosts(plane, full);
        // Far from the first is as far as it gets, in fabrics that look alike from every leaf.
        for &b in &far[1..] {
            longest = longest.max(fabric.idle_time(far[0], b, plane, full) + fabric.idle_time(b, far[0], plane, ack));
        }
    }
    longest.0 as f64
}
