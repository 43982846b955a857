//! Cyclic buffer dependencies that have closed: links that wait for each other for ever.

use std::collections::BTreeMap;

use crate::explicit::NIL;
use crate::fabric::Fabric;

/// What egress ports hold of a link.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Link that it came by.
    from: usize,
    /// Link that it waits for.
    to: usize,
    bytes: u64,
}

impl Fabric {
    /// A cycle of links each of which waits for the next: its sender is paused because of packets that wait for the
    /// next link, and no packet that can still leave would end the pause. Empty if there is none.
    ///
    /// Exact: starts from all paused links and takes off those that go on once everything else has drained, until none
    /// is left to take off. New packets can only make it worse; a fault, a new route or the watchdog can end it.
    pub fn deadlock(&self) -> Vec<u32> {
        let mut stuck: Vec<bool> = self.flow.links.iter().map(|ingress| ingress.told).collect();
        if !stuck.contains(&true) {
            return Vec::new();
        }
        let held = self.held();
        loop {
            let before = stuck.clone();
            self.take_off_live(&held, &mut stuck);
            if stuck == before {
                break;
            }
        }
        cycle(&held, &stuck)
    }

    fn held(&self) -> Vec<Held> {
        let mut bytes = BTreeMap::new();
        for to in 0..self.queues.ports.len() {
            for entry in self.queues.data(to).filter(|entry| entry.from != NIL) {
                *bytes.entry((entry.from as usize, to)).or_insert(0) += u64::from(entry.len);
            }
        }
        bytes.into_iter().map(|((from, to), bytes)| Held { from, to, bytes }).collect()
    }

    fn take_off_live(&self, held: &[Held], stuck: &mut [bool]) {
        let flow = &self.flow;
        let mut left = vec![0; stuck.len()];
        held.iter().filter(|h| stuck[h.to]).for_each(|h| left[h.from] += h.bytes);
        // What stays when all that can leave has left: headroom goes first.
        let rest = |link: usize| {
            let ingress = &flow.links[link];
            let gone = ingress.bytes + ingress.headroom_used - left[link];
            let of_headroom = gone.min(ingress.headroom_used);
            (ingress.bytes - (gone - of_headroom), ingress.headroom_used - of_headroom)
        };
        let mut used = vec![0; self.switches.len()];
        for (link, ingress) in flow.links.iter().enumerate() {
            if let Some(used) = used.get_mut(ingress.switch as usize) {
                *used += flow.shared(rest(link).0);
            }
        }
        for (link, stuck) in stuck.iter_mut().enumerate().filter(|(_, stuck)| **stuck) {
            let switch = flow.links[link].switch;
            *stuck = !flow.may_go_on(switch, used[switch as usize], rest(link));
        }
    }
}

/// Follows what the first stuck link waits for until a link comes again.
fn cycle(held: &[Held], stuck: &[bool]) -> Vec<u32> {
    let next = |link: usize| held.iter().find(|h| h.from == link && stuck[h.to]).map(|h| h.to);
    let mut way: Vec<usize> = Vec::new();
    let mut at = stuck.iter().position(|&stuck| stuck);
    while let Some(link) = at {
        if let Some(start) = way.iter().position(|&l| l == link) {
            return way[start..].iter().map(|&link| link as u32).collect();
        }
        way.push(link);
        at = next(link);
    }
    Vec::new()
}
