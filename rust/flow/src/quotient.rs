//! A plane folded along its symmetry: switches that cannot be told apart become one, and the links between two such
//! classes one resource.
//!
//! Leaves stay apart; other switches are told apart by their tier and by what they are connected to, again and again
//! until nothing changes (colour refinement, which ends at the coarsest equitable partition: Cardon and Crochemore 1982).
//! Traffic that ECMP or spraying splits evenly loads all members of a class alike, so the folded plane says what the
//! whole one would: a fat tree of 100,000 hosts has as many resources as leaves and pods, whatever its spines and cores.

use std::collections::{BTreeMap, VecDeque};

use crate::spec::{FabricColumns, FlowError};

const NONE: u32 = u32::MAX;

/// All links from one class to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bundle {
    pub to: u32,
    /// Together, bit/s.
    pub capacity: f64,
    /// Of one switch, bit/s.
    pub rate: f64,
    /// Of one link: picoseconds a byte, and propagation.
    pub byte_ps: f64,
    pub delay: u64,
}

/// A host's cable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Port {
    pub leaf: u32,
    pub rate: u64,
    pub delay: u64,
}

/// A folded plane. Classes 0.. are the leaves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quotient {
    /// Of each host.
    pub ports: Vec<Port>,
    /// Bundles of class c: `bundles[first[c]..first[c + 1]]`.
    pub first: Vec<u32>,
    pub bundles: Vec<Bundle>,
}

/// A switch's link: its far end, rate and delay.
type Link = (u32, u64, u64);
/// Links that are alike: the class of their far ends, rate, delay, and how many they are.
type Ends = (u32, u64, u64, u32);

impl Quotient {
    /// Folds plane `plane`.
    pub(crate) fn new(fabric: &FabricColumns, plane: u32) -> Result<Quotient, FlowError> {
        let hosts = fabric.hosts;
        let switches = fabric.switch_plane.len();
        let mut ports = vec![Port { leaf: NONE, rate: 0, delay: 0 }; hosts as usize];
        let mut links: Vec<Vec<Link>> = vec![Vec::new(); switches];
        let mut class = vec![NONE; switches];
        let mut leaves = 0;
        for row in 0..fabric.a.len() {
            let (low, high) = (fabric.a[row].min(fabric.b[row]), fabric.a[row].max(fabric.b[row]));
            let (rate, delay, switch) = (fabric.rate_bps[row], fabric.delay_ps[row], (high - hosts) as usize);
            if fabric.switch_plane[switch] != plane {
                continue;
            }
            if low < hosts {
                if class[switch] == NONE {
                    class[switch] = leaves;
                    leaves += 1;
                }
                ports[low as usize] = Port { leaf: class[switch], rate, delay };
            } else {
                links[switch].push((low - hosts, rate, delay));
                links[(low - hosts) as usize].push((switch as u32, rate, delay));
            }
        }
        if let Some(host) = ports.iter().position(|port| port.leaf == NONE) {
            return Err(FlowError::of(
                "fabric.links",
                format!("no link of host {host} in plane {plane}"),
                "one a plane",
            ));
        }
        for (switch, class) in class.iter_mut().enumerate() {
            if fabric.switch_plane[switch] == plane && *class == NONE {
                *class = leaves + fabric.switch_tier[switch];
            }
        }
        let classes = refine(&mut class, &links, leaves);
        Ok(fold(ports, &links, &class, classes))
    }

    fn bundles_of(&self, class: u32) -> std::ops::Range<usize> {
        self.first[class as usize] as usize..self.first[class as usize + 1] as usize
    }

    /// Hops from each class to `leaf`.
    pub(crate) fn distances(&self, leaf: u32) -> Vec<u32> {
        let mut distance = vec![NONE; self.first.len() - 1];
        let mut frontier = VecDeque::from([leaf]);
        distance[leaf as usize] = 0;
        while let Some(class) = frontier.pop_front() {
            for bundle in &self.bundles[self.bundles_of(class)] {
                if distance[bundle.to as usize] == NONE {
                    distance[bundle.to as usize] = distance[class as usize] + 1;
                    frontier.push_back(bundle.to);
                }
            }
        }
        distance
    }

    /// From `from` down `distances`: calls `uses` with each bundle and the part of the traffic that crosses it. Answers
    /// picoseconds a byte and propagation of the way, or None without one.
    pub(crate) fn spread(&self, from: u32, distances: &[u32], mut uses: impl FnMut(usize, f64)) -> Option<(f64, u64)> {
        let (mut byte_ps, mut delay) = (0.0, 0);
        if distances[from as usize] == NONE {
            return None;
        }
        let mut here = vec![(from, 1.0)];
        while distances[here[0].0 as usize] > 0 {
            let mut next: Vec<(u32, f64)> = Vec::new();
            let mut longest = (0.0, 0);
            for &(class, part) in &here {
                let closer = |b: &&Bundle| distances[b.to as usize] < distances[class as usize];
                let range = self.bundles_of(class);
                let total: f64 = self.bundles[range.clone()].iter().filter(closer).map(|b| b.rate).sum();
                for at in range.filter(|&at| closer(&&self.bundles[at])) {
                    let bundle = &self.bundles[at];
                    let share = part * bundle.rate / total;
                    uses(at, share);
                    if (bundle.byte_ps, bundle.delay) > longest {
                        longest = (bundle.byte_ps, bundle.delay);
                    }
                    match next.iter_mut().find(|(to, _)| *to == bundle.to) {
                        Some((_, sum)) => *sum += share,
                        None => next.push((bundle.to, share)),
                    }
                }
            }
            byte_ps += longest.0;
            delay += longest.1;
            here = next;
        }
        Some((byte_ps, delay))
    }
}

/// Tells switches apart by their links until nothing changes; answers the number of classes, numbered from 0 without
/// gaps, leaves first.
fn refine(class: &mut [u32], links: &[Vec<Link>], leaves: u32) -> u32 {
    let mut classes = 0;
    loop {
        let mut known: BTreeMap<(u32, Vec<Ends>), u32> = BTreeMap::new();
        let mut next = class.to_vec();
        let mut count = leaves;
        for switch in (0..class.len()).filter(|&s| class[s] != NONE && class[s] >= leaves) {
            let mut ends: Vec<_> =
                links[switch].iter().map(|&(to, rate, delay)| (class[to as usize], rate, delay, 1)).collect();
            ends.sort_unstable();
            ends.dedup_by(|one, kept| {
                let same = (one.0, one.1, one.2) == (kept.0, kept.1, kept.2);
                kept.3 += if same { one.3 } else { 0 };
                same
            });
            next[switch] = *known.entry((class[switch], ends)).or_insert_with(|| {
                count += 1;
                count - 1
            });
        }
        class.copy_from_slice(&next);
        if count == classes {
            return count;
        }
        classes = count;
    }
}

fn fold(ports: Vec<Port>, links: &[Vec<Link>], class: &[u32], classes: u32) -> Quotient {
    let mut members = vec![0u32; classes as usize];
    let mut example = vec![NONE; classes as usize];
    for (switch, &class) in class.iter().enumerate().filter(|&(_, &class)| class != NONE) {
        members[class as usize] += 1;
        if example[class as usize] == NONE {
            example[class as usize] = switch as u32;
        }
    }
    let (mut first, mut bundles) = (vec![0], Vec::new());
    for own in 0..classes {
        let mut ends: Vec<Link> = links[example[own as usize] as usize]
            .iter()
            .map(|&(to, rate, delay)| (class[to as usize], rate, delay))
            .collect();
        ends.sort_unstable();
        for group in ends.chunk_by(|one, other| one.0 == other.0).filter(|group| group[0].0 != own) {
            let rate: f64 = group.iter().map(|&(_, rate, _)| rate as f64).sum();
            let slowest = group.iter().map(|&(_, rate, _)| rate).min().unwrap_or(1);
            bundles.push(Bundle {
                to: group[0].0,
                capacity: rate * f64::from(members[own as usize]),
                rate,
                byte_ps: byte_ps(slowest),
                delay: group.iter().map(|&(_, _, delay)| delay).max().unwrap_or(0),
            });
        }
        first.push(bundles.len() as u32);
    }
    Quotient { ports, first, bundles }
}

/// Picoseconds a byte at `rate` bit/s.
pub(crate) fn byte_ps(rate: u64) -> f64 {
    8e12 / rate as f64
}
