//! Shortest-path ECMP routes, per plane: for each switch and each leaf, the ports that lead one
//! hop closer. Built from what the switches know to be up; a switch drops its own dead ports from
//! its choices at once, and distances follow when the change has become known.

use std::collections::{BTreeMap, VecDeque};

/// Ports of a choice, as a range of `hops`: 22 bits of start, 10 of length. Small, because the
/// table of all choices is what a large fabric misses in the cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice(u32);

impl Choice {
    const COUNT_BITS: u32 = 10;

    fn new(first: usize, count: usize) -> Choice {
        assert!(
            count < 1 << Self::COUNT_BITS && first < 1 << (32 - Self::COUNT_BITS),
            "more ports than a choice can name"
        );
        Choice((first as u32) << Self::COUNT_BITS | count as u32)
    }

    /// First of its hops.
    pub(crate) const fn first(self) -> u32 {
        self.0 >> Self::COUNT_BITS
    }

    /// Number of its hops.
    pub(crate) const fn count(self) -> u32 {
        self.0 & ((1 << Self::COUNT_BITS) - 1)
    }
}

/// One directed link between two switches, as routing sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub link: u32,
    pub from: u32,
    pub to: u32,
    /// Known to be up in the whole plane.
    pub known_up: bool,
    /// Up right now, as its transmitter sees.
    pub up: bool,
}

/// Routes of all planes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    /// By switch, then by leaf of its plane.
    pub choices: Vec<Choice>,
    pub hops: Vec<u32>,
}

/// The switches of a plane: their numbers, and which of them are leaves (have hosts).
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaneShape {
    pub switches: Vec<u32>,
    pub leaves: Vec<u32>,
}

impl Routes {
    /// Routes for `planes`, whose switch s keeps its choices from `offsets[s]` on.
    pub(crate) fn build(planes: &[PlaneShape], offsets: &[u32], edges: &[Edge]) -> Routes {
        let switches = offsets.len();
        let mut from = vec![Vec::new(); switches];
        let mut into = vec![Vec::new(); switches];
        for (index, edge) in edges.iter().enumerate() {
            from[edge.from as usize].push(index);
            into[edge.to as usize].push(index);
        }
        let size = planes.iter().map(|p| p.switches.len() * p.leaves.len()).sum();
        let mut routes = Routes { choices: vec![Choice::default(); size], hops: Vec::new() };
        // Many leaves share a choice: keep each list of ports once.
        let (mut known, mut ports) = (BTreeMap::<Vec<u32>, usize>::new(), Vec::new());
        for plane in planes {
            for (column, &leaf) in plane.leaves.iter().enumerate() {
                let distance = distances(leaf, switches, edges, &into);
                for &switch in &plane.switches {
                    let closer = |e: &&Edge| e.up && e.known_up && distance[e.to as usize] < distance[switch as usize];
                    ports.clear();
                    ports.extend(from[switch as usize].iter().map(|&i| &edges[i]).filter(closer).map(|e| e.link));
                    let first = known.get(ports.as_slice()).copied().unwrap_or_else(|| {
                        known.insert(ports.clone(), routes.hops.len());
                        routes.hops.extend(&ports);
                        routes.hops.len() - ports.len()
                    });
                    routes.choices[offsets[switch as usize] as usize + column] = Choice::new(first, ports.len());
                }
            }
        }
        routes
    }
}

/// Hops from every switch to `leaf` over links known to be up.
fn distances(leaf: u32, switches: usize, edges: &[Edge], into: &[Vec<usize>]) -> Vec<u32> {
    let mut distance = vec![u32::MAX; switches];
    let mut frontier = VecDeque::from([leaf]);
    distance[leaf as usize] = 0;
    while let Some(switch) = frontier.pop_front() {
        for &index in &into[switch as usize] {
            let edge = &edges[index];
            if edge.known_up && distance[edge.from as usize] == u32::MAX {
                distance[edge.from as usize] = distance[switch as usize] + 1;
                frontier.push_back(edge.from);
            }
        }
    }
    distance
}
