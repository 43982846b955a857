//! A central controller that lays a route for each host pair before a run: the answer of operators to
//! hash collisions. Where it knows all flows and they are equal, no way of laying them loads a link less.

use std::collections::BTreeMap;

use metaroce_wire::{Bytes, HostId, PlaneId};

use crate::build::MAX_TIERS;
use crate::fabric::Fabric;

/// What a host is going to send to another one.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Sender.
    pub src: HostId,
    /// Receiver.
    pub dst: HostId,
    /// How much; 0 for acknowledgements alone.
    pub bytes: Bytes,
}

/// A pair on its way: the switch that its route has reached, and the one that the route leaves for its end.
#[derive(Clone, Copy, Debug)]
struct Flow {
    src: HostId,
    dst: HostId,
    at: u32,
    to: u32,
}

impl Fabric {
    /// Lays routes for `demands`, all alike in every plane that both ends have a port in, which switches follow with
    /// [`crate::Balance::Pinned`]. Pairs that only acknowledge are laid apart from those that send. Failures
    /// change nothing here: a switch hashes what has lost its route.
    pub fn pin(&mut self, demands: &[Demand]) {
        let (acks, data): (Vec<Demand>, Vec<Demand>) = demands.iter().partition(|demand| demand.bytes == Bytes(0));
        for plane in 0..self.shapes.len() {
            for demands in [&data, &acks] {
                self.pin_plane(PlaneId(plane as u8), demands);
            }
        }
    }

    /// From the leaves up, tier by tier: an assignment of flows to ports that is as even as can be at both
    /// ends of every flow, taking port i up from the one end to meet port i up from the other, as they do
    /// in a folded Clos. In other fabrics the routes are valid and the evenness is not promised.
    fn pin_plane(&mut self, plane: PlaneId, demands: &[Demand]) {
        let begin = |demand: &Demand| {
            let Demand { src, dst, .. } = *demand;
            Some(Flow { src, dst, at: self.attachment(src, plane)?.leaf, to: self.attachment(dst, plane)?.leaf })
        };
        let mut flows: Vec<Flow> = demands.iter().filter_map(begin).collect();
        for _ in 1..MAX_TIERS {
            flows.retain(|flow| flow.at != flow.to && self.hops(plane, flow.at, flow.dst).len() > 1);
            let ends: Vec<(u32, u32)> = flows.iter().map(|flow| (flow.at, flow.to)).collect();
            for (flow, colour) in flows.iter_mut().zip(colours(&ends)) {
                let turn = |hops: &[u32]| hops.get(colour as usize % hops.len().max(1)).copied();
                let Some(up) = turn(self.hops(plane, flow.at, flow.dst)) else { continue };
                self.balancer.pins.insert((flow.at, flow.src, flow.dst), up);
                if let Some(other) = turn(self.hops(plane, flow.to, flow.src)) {
                    flow.to = self.ends[other as usize] - self.hosts;
                }
                flow.at = self.ends[up as usize] - self.hosts;
            }
        }
    }

    /// The links by which `switch` may send to `host`.
    fn hops(&self, plane: PlaneId, switch: u32, host: HostId) -> &[u32] {
        let column = self.attachments[plane.index() * self.hosts as usize + host.index()].column;
        let choice = self.routes.choices[(self.offsets[switch as usize] + column) as usize];
        &self.routes.hops[choice.first() as usize..][..choice.count() as usize]
    }
}

/// Colours for the edges of a bipartite multigraph such that no two at a node are equal, as few as the
/// largest number of edges at a node (König); small ones first.
fn colours(ends: &[(u32, u32)]) -> Vec<u32> {
    let mut degree = BTreeMap::new();
    for &(a, b) in ends {
        *degree.entry((false, a)).or_insert(0u32) += 1;
        *degree.entry((true, b)).or_insert(0u32) += 1;
    }
    let most = degree.values().max().copied().unwrap_or(0);
    let number: BTreeMap<(bool, u32), usize> = degree.into_keys().enumerate().map(|(i, node)| (node, i)).collect();
    let nodes = ends.iter().map(|&(a, b)| [number[&(false, a)], number[&(true, b)]]).collect();
    let mut colouring =
        Colouring { nodes, colour: vec![0; ends.len()], edges: vec![vec![None; most as usize]; number.len()] };
    (0..ends.len()).for_each(|edge| colouring.add(edge));
    colouring.colour
}

struct Colouring {
    /// The two nodes of each edge.
    nodes: Vec<[usize; 2]>,
    colour: Vec<u32>,
    /// By node and colour.
    edges: Vec<Vec<Option<usize>>>,
}

impl Colouring {
    fn add(&mut self, edge: usize) {
        let [a, b] = self.nodes[edge];
        let free = |node: usize| self.edges[node].iter().position(Option::is_none);
        let common = self.edges[a].iter().zip(&self.edges[b]).position(|(x, y)| x.is_none() && y.is_none());
        let (Some(own), Some(other)) = (free(a), free(b)) else { return };
        let colour = common.unwrap_or_else(|| {
            self.swap(b, own, other);
            own
        });
        self.set(edge, colour);
    }

    /// Swaps two colours along the path that leaves `node` by `first`, so that `first` is free there.
    fn swap(&mut self, mut node: usize, first: usize, second: usize) {
        let (mut path, mut colour) = (Vec::new(), first);
        while let Some(edge) = self.edges[node][colour] {
            path.push(edge);
            node = self.nodes[edge][0] + self.nodes[edge][1] - node;
            colour = first + second - colour;
        }
        for &edge in &path {
            for node in self.nodes[edge] {
                self.edges[node][self.colour[edge] as usize] = None;
            }
        }
        for edge in path {
            self.set(edge, first + second - self.colour[edge] as usize);
        }
    }

    fn set(&mut self, edge: usize, colour: usize) {
        self.colour[edge] = colour as u32;
        for node in self.nodes[edge] {
            self.edges[node][colour] = Some(edge);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::mix;

    #[test]
    fn edges_of_a_node_differ_in_colour_and_no_more_colours_are_used_than_needed() {
        for seed in 0..300u64 {
            let draw = |i: u64, n: u64| (mix(mix(seed) ^ i) % n) as u32;
            let (left, right) = (1 + u64::from(draw(0, 9)), 1 + u64::from(draw(1, 9)));
            let ends: Vec<(u32, u32)> =
                (0..u64::from(draw(2, 80))).map(|i| (draw(10 + 2 * i, left), draw(11 + 2 * i, right))).collect();
            let colours = colours(&ends);
            let mut seen = std::collections::BTreeSet::new();
            let mut degrees = BTreeMap::new();
            for (&(a, b), &colour) in ends.iter().zip(&colours) {
                assert!(seen.insert((false, a, colour)) && seen.insert((true, b, colour)), "seed {seed}");
                *degrees.entry((false, a)).or_insert(0) += 1;
                *degrees.entry((true, b)).or_insert(0) += 1;
            }
            let most = degrees.values().max().copied().unwrap_or(0);
            assert!(colours.iter().all(|&colour| colour < most), "seed {seed}: {colours:?} of {most}");
        }
    }
}
