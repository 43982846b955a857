//! Max-min fair rates of routes over resources, kept up to date as routes come and go.
//!
//! A route uses some resources, each with a weight (the part of its rate that crosses there). Rates are max-min fair
//! when no resource is over capacity and every active route has a *bottleneck*: a full resource on which no route has
//! more. That certificate makes repair possible: after a change only the routes near it are shared out anew
//! (progressive filling, Bertsekas and Gallager, *Data Networks*, 6.5.2), and the set grows until the certificate holds
//! for all. So rates are exact, and a change costs what it touches.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Relative slack of "full" and "no more than".
const SLACK: f64 = 1e-6;
/// Rates keep 32 bits of mantissa, so that flows which are alike stay alike to the last bit.
const DROPPED_BITS: u64 = 20;
/// Repairs that have grown so often start from nothing instead.
const MOST_GROWTHS: usize = 8;
const NONE: u32 = u32::MAX;

/// One use of a resource by a route.
#[derive(Clone, Copy, Debug)]
struct Use {
    resource: u32,
    /// Place in the list of the resource while the route is active.
    at: u32,
    weight: f64,
}

#[derive(Clone, Debug, Default)]
struct Resource {
    capacity: f64,
    /// Of all active routes.
    load: f64,
    /// Active routes that it holds back.
    held: u32,
    /// Uses by active routes.
    uses: Vec<u32>,
    /// While sharing out: what the set may take, and the weights of those in it that have no rate yet.
    room: f64,
    waiting: f64,
}

impl Resource {
    /// What each waiting route can get, as ordered bits: rounded, so that what should be equal is.
    fn level(&self) -> u64 {
        let level = (self.room / self.waiting).max(0.0);
        (level.to_bits() + (1 << (DROPPED_BITS - 1))) & !((1 << DROPPED_BITS) - 1)
    }
}

#[derive(Clone, Copy, Debug)]
struct Route {
    first: u32,
    rate: f64,
    bottleneck: u32,
    active: bool,
    /// Of the set that is shared out now.
    chosen: bool,
    frozen: bool,
}

/// Routes, resources, and their rates.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    resources: Vec<Resource>,
    routes: Vec<Route>,
    uses: Vec<Use>,
    /// Route of each use.
    owner: Vec<u32>,
    /// The set.
    set: Vec<u32>,
    /// Resources of the set.
    near: Vec<u32>,
    /// Resources that a route has left since the last settling.
    left: Vec<u32>,
    /// Routes that the last settling gave another rate.
    changed: Vec<u32>,
    before: Vec<(u32, f64)>,
    active: usize,
}

impl Sharing {
    /// Resources of these capacities, bit/s, and no routes.
    pub fn new(capacities: impl IntoIterator<Item = f64>) -> Sharing {
        let resource = |capacity| Resource { capacity, ..Resource::default() };
        Sharing { resources: capacities.into_iter().map(resource).collect(), ..Sharing::default() }
    }

    /// One more resource; answers its number.
    pub fn add_resource(&mut self, capacity: f64) -> u32 {
        self.resources.push(Resource { capacity, ..Resource::default() });
        self.resources.len() as u32 - 1
    }

    /// One more route, idle, over (resource, weight) pairs; answers its number.
    pub fn add_route(&mut self, uses: impl IntoIterator<Item = (u32, f64)>) -> u32 {
        let number = self.routes.len() as u32;
        let first = self.uses.len() as u32;
        self.uses.extend(uses.into_iter().map(|(resource, weight)| Use { resource, at: 0, weight }));
        self.owner.resize(self.uses.len(), number);
        self.routes.push(Route { first, rate: 0.0, bottleneck: NONE, active: false, chosen: false, frozen: false });
        number
    }

    /// Capacity of a resource, to be changed before the first route is active.
    pub fn capacity_mut(&mut self, resource: u32) -> &mut f64 {
        &mut self.resources[resource as usize].capacity
    }

    /// Rate of a route, bit/s, as of the last [`Sharing::settle`].
    pub fn rate(&self, route: u32) -> f64 {
        self.routes[route as usize].rate
    }

    /// (Resource, weight) pairs of a route.
    pub fn uses_of(&self, route: u32) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.uses[self.range(route)].iter().map(|u| (u.resource, u.weight))
    }

    fn range(&self, route: u32) -> std::ops::Range<usize> {
        let end = self.routes.get(route as usize + 1).map_or(self.uses.len(), |next| next.first as usize);
        self.routes[route as usize].first as usize..end
    }

    /// The route wants all it can get.
    pub fn start(&mut self, route: u32) {
        for index in self.range(route) {
            let list = &mut self.resources[self.uses[index].resource as usize].uses;
            self.uses[index].at = list.len() as u32;
            list.push(index as u32);
        }
        self.routes[route as usize].active = true;
        self.active += 1;
        self.choose(route);
    }

    /// The route wants nothing.
    pub fn stop(&mut self, route: u32) {
        let rate = std::mem::replace(&mut self.routes[route as usize].rate, 0.0);
        self.routes[route as usize].active = false;
        self.active -= 1;
        self.release(route);
        for index in self.range(route) {
            let Use { resource, at, weight } = self.uses[index];
            let entry = &mut self.resources[resource as usize];
            entry.load -= rate * weight;
            entry.uses.swap_remove(at as usize);
            if let Some(&moved) = entry.uses.get(at as usize) {
                self.uses[moved as usize].at = at;
            }
            self.left.push(resource);
        }
    }

    /// Nothing holds the route back any more.
    fn release(&mut self, route: u32) {
        let bottleneck = std::mem::replace(&mut self.routes[route as usize].bottleneck, NONE);
        if bottleneck != NONE {
            self.resources[bottleneck as usize].held -= 1;
        }
    }

    fn choose(&mut self, route: u32) {
        let entry = &mut self.routes[route as usize];
        if entry.active && !entry.chosen {
            entry.chosen = true;
            self.set.push(route);
        }
    }

    /// Makes rates fair again; answers the routes whose rate has changed.
    pub fn settle(&mut self) -> &[u32] {
        self.changed.clear();
        // Who was held back where there is room now, or where there are more who want it.
        let mut touched = std::mem::take(&mut self.left);
        touched.extend(self.set.iter().flat_map(|&route| self.uses[self.range(route)].iter().map(|u| u.resource)));
        touched.sort_unstable();
        touched.dedup();
        for &resource in &touched {
            self.choose_held_back(resource);
        }
        touched.clear();
        self.left = touched;
        self.before.clear();
        let routes = &mut self.routes;
        self.set.retain(|&route| {
            routes[route as usize].chosen = routes[route as usize].active;
            routes[route as usize].active
        });
        let mut growths = 0;
        while !self.set.is_empty() {
            growths += 1;
            if self.set.len() < self.active && (2 * self.set.len() > self.active || growths > MOST_GROWTHS) {
                self.choose_all();
            }
            let (known, routes) = (self.before.len(), &self.routes);
            self.before.extend(self.set[known..].iter().map(|&route| (route, routes[route as usize].rate)));
            self.share_out();
            if !self.grow() {
                break;
            }
        }
        for &(route, before) in &self.before {
            let entry = &mut self.routes[route as usize];
            entry.chosen = false;
            if entry.rate != before {
                self.changed.push(route);
            }
        }
        self.set.clear();
        self.changed.sort_unstable();
        &self.changed
    }

    fn choose_all(&mut self) {
        for route in 0..self.routes.len() as u32 {
            self.choose(route);
        }
    }

    /// Takes into the set whoever has `resource` as bottleneck.
    fn choose_held_back(&mut self, resource: u32) {
        if self.resources[resource as usize].held == 0 {
            return;
        }
        for at in 0..self.resources[resource as usize].uses.len() {
            let route = self.owner[self.resources[resource as usize].uses[at] as usize];
            if self.routes[route as usize].bottleneck == resource {
                self.choose(route);
            }
        }
    }

    /// Progressive filling of what the routes outside the set leave.
    fn share_out(&mut self) {
        self.near.clear();
        for at in 0..self.set.len() {
            let route = self.set[at];
            self.release(route);
            self.routes[route as usize].frozen = false;
            let rate = self.routes[route as usize].rate;
            for index in self.range(route) {
                let Use { resource, weight, .. } = self.uses[index];
                let entry = &mut self.resources[resource as usize];
                if entry.waiting == 0.0 {
                    self.near.push(resource);
                    entry.room = entry.capacity - entry.load;
                }
                entry.waiting += weight;
                entry.room += rate * weight;
            }
        }
        let resources = &self.resources;
        let mut heap: BinaryHeap<Reverse<(u64, u32)>> =
            self.near.iter().map(|&r| Reverse((resources[r as usize].level(), r))).collect();
        while let Some(Reverse((bits, resource))) = heap.pop() {
            let entry = &self.resources[resource as usize];
            if entry.waiting <= SLACK {
                continue;
            }
            let now = entry.level();
            if now > bits {
                heap.push(Reverse((now, resource)));
                continue;
            }
            self.freeze(resource, f64::from_bits(now));
        }
        for &resource in &self.near {
            let entry = &mut self.resources[resource as usize];
            (entry.waiting, entry.load) = (0.0, entry.capacity - entry.room);
        }
    }

    /// `resource` is full: whoever of the set waits there gets `rate`.
    fn freeze(&mut self, resource: u32, rate: f64) {
        for at in 0..self.resources[resource as usize].uses.len() {
            let route = self.owner[self.resources[resource as usize].uses[at] as usize];
            let entry = &mut self.routes[route as usize];
            if !entry.chosen || entry.frozen {
                continue;
            }
            (entry.frozen, entry.rate, entry.bottleneck) = (true, rate, resource);
            self.resources[resource as usize].held += 1;
            for index in self.range(route) {
                let Use { resource, weight, .. } = self.uses[index];
                let entry = &mut self.resources[resource as usize];
                entry.room -= rate * weight;
                entry.waiting -= weight;
            }
        }
        self.resources[resource as usize].waiting = 0.0;
    }

    /// Takes into the set whoever lacks a bottleneck, or has what is due to another; answers whether there was one.
    fn grow(&mut self) -> bool {
        let before = self.set.len();
        if before == self.active {
            return false; // filled from nothing
        }
        for at in 0..self.near.len() {
            let resource = self.near[at];
            let entry = &self.resources[resource as usize];
            let over = entry.load > entry.capacity * (1.0 + SLACK);
            if entry.load < entry.capacity * (1.0 - SLACK) {
                self.choose_held_back(resource);
            } else if over || entry.held > 0 {
                let due = self.due(resource) * (1.0 + SLACK);
                let mut unfair = false;
                for at in 0..self.resources[resource as usize].uses.len() {
                    let route = self.owner[self.resources[resource as usize].uses[at] as usize];
                    if over || self.routes[route as usize].rate > due {
                        unfair = true;
                        self.choose(route);
                    }
                }
                if unfair {
                    // Those of the set may have more already: it is then the others that are to gain.
                    self.choose_held_back(resource);
                }
            }
        }
        self.set.len() > before
    }

    /// The least rate of those that `resource` holds back.
    fn due(&self, resource: u32) -> f64 {
        let routes =
            self.resources[resource as usize].uses.iter().map(|&u| &self.routes[self.owner[u as usize] as usize]);
        routes.filter(|route| route.bottleneck == resource).map(|route| route.rate).fold(f64::INFINITY, f64::min)
    }
}
