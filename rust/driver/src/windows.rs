//! The event queue of a run in which nodes are looked at one after the other.
//!
//! What happens at a node in a window, the least delay of a link, reaches no other node in it. So all events of a
//! node in a window may come before those of the next node: each finds in the cache what the one before it left there.
//! At a node the order is that of [`EventQueue`]: (time, name). Events of a node in a window are a chain of chunks;
//! those of the node after the open one are taken out ahead, so that what they touch can be asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use metaroce_wire::Time;

use crate::chains::{Chains, End};
use crate::event::{self, SHORT_BITS};
use crate::queue::EventQueue;

/// Windows of the ring; what is due later waits in a heap. Ours: 32 us where links take one, more than a full queue.
const RING: usize = 32;
/// Nodes whose events are taken out ahead. Ours: what they touch is asked for in so many steps.
pub(crate) const AHEAD: usize = 3;
/// Events on their way into chains at one time. Ours.
const HELD: usize = 8;
const NIL: u32 = u32::MAX;
/// The name of an event.
const SHORT: u64 = (1 << SHORT_BITS) - 1;
/// Nothing held.
const NONE: (u32, u32, u64) = (0, NIL, 0);

/// Slots of time that the events of a node are dealt into before they are sorted, and most events of which that pays.
const SLOTS: usize = 64;
const FEW: usize = 16;
const MANY: usize = 8 * SLOTS;

/// Pending events: their time in the window above their [`event::short`] name.
#[derive(Debug)]
pub struct Windows {
    /// Events of the open node, and the first of them that has not popped.
    due: Vec<u64>,
    next: usize,
    /// Those that it has added itself, the first one last.
    own: Vec<u64>,
    node: usize,
    /// When the window begins, and when it is over or no more is to pop; its length, and 2^64 ÷ that, rounded up.
    start: u64,
    end: u64,
    width: u64,
    inverse: u64,
    /// An event of the window is in slot event ÷ 2^`slot_shift`.
    slot_shift: u32,
    /// Place of the window in the ring.
    place: usize,
    nodes: usize,
    chains: Chains<16>,
    /// By place, then node.
    ends: Box<[End]>,
    /// Bit b of word w of a place: node 64 w + b has events.
    occupied: Box<[u64]>,
    /// Nodes with events, by place.
    busy: [u32; RING],
    /// The nodes that come next in the window, `nodes` where there is none, and their events, not sorted.
    ahead: [usize; AHEAD],
    /// The nodes below have been seen in this window.
    seen: usize,
    taken: [Vec<u64>; AHEAD],
    /// Places, nodes and events of the last ones that were pushed to be held.
    held: [(u32, u32, u64); HELD],
    first_held: usize,
    /// Times and names above nodes.
    far: BinaryHeap<Reverse<(u128, u32)>>,
    /// Some events of the window come too late to pop.
    is_cut: bool,
}

/// Longest window: a time in it fits above a short name.
pub(crate) const MAX_WIDTH: Time = Time(1 << (u64::BITS - SHORT_BITS));

impl Windows {
    /// An empty queue of so many nodes with windows `width` long, from 2 ps to [`MAX_WIDTH`].
    pub fn new(nodes: usize, width: Time) -> Windows {
        assert!((Time(2)..=MAX_WIDTH).contains(&width), "windows of {width}");
        Windows {
            due: Vec::new(),
            next: 0,
            own: Vec::new(),
            node: nodes,
            start: 0,
            end: 0,
            width: width.0,
            inverse: u64::MAX / width.0 + 1,
            slot_shift: SHORT_BITS + (width.0.ilog2() + 1).saturating_sub(SLOTS.ilog2()),
            place: 0,
            nodes,
            chains: Chains::default(),
            ends: vec![End::default(); RING * nodes].into(),
            occupied: vec![0; RING * nodes.div_ceil(64)].into(),
            busy: [0; RING],
            ahead: [nodes; AHEAD],
            seen: 0,
            taken: Default::default(),
            held: [NONE; HELD],
            first_held: 0,
            far: BinaryHeap::new(),
            is_cut: false,
        }
    }

    /// Adds an event of `node`: in this window only of the open one, and no arrival, or before the first pops.
    #[inline(always)]
    pub fn push(&mut self, time: Time, node: u32, name: u64) {
        if time.0 < self.end && self.node == node as usize {
            debug_assert!(event::arriving(name).is_none(), "what arrives comes from another node");
            self.push_own((time.0 - self.start) << SHORT_BITS | event::short(name));
        } else {
            self.push_away(time, node, name);
        }
    }

    /// The same where it is of another window.
    #[inline]
    pub fn push_away(&mut self, time: Time, node: u32, name: u64) {
        match self.near(time, name) {
            Some((place, event)) => self.put(place, node as usize, event),
            None => self.push_far(time, node, name),
        }
    }

    /// The same, but into its chain only after [`HELD`] others, or when all are released: where that ends is not in the
    /// cache before it is asked for.
    #[inline]
    pub fn push_held(&mut self, time: Time, node: u32, name: u64) {
        let Some((place, event)) = self.near(time, name) else { return self.push_far(time, node, name) };
        self.chains.prefetch_end(self.ends[place * self.nodes + node as usize]);
        self.first_held = (self.first_held + 1) % HELD;
        let held = std::mem::replace(&mut self.held[self.first_held], (place as u32, node, event));
        self.put_held(held);
    }

    /// Puts all that is held where it belongs.
    #[inline]
    pub fn release(&mut self) {
        for at in 0..HELD {
            let held = std::mem::replace(&mut self.held[at], NONE);
            self.put_held(held);
        }
    }

    #[inline]
    fn push_own(&mut self, event: u64) {
        let later = self.own.iter().rposition(|&other| other > event);
        self.own.insert(later.map_or(0, |at| at + 1), event);
    }

    #[cold]
    #[inline(never)]
    fn push_far(&mut self, time: Time, node: u32, name: u64) {
        self.far.push(Reverse((u128::from(time.0) << u64::BITS | u128::from(name), node)));
    }

    #[inline]
    fn put_held(&mut self, (place, node, event): (u32, u32, u64)) {
        if node != NIL {
            self.put(place as usize, node as usize, event);
        }
    }

    /// The place of what the ring takes, and what to keep there.
    #[inline]
    fn near(&self, time: Time, name: u64) -> Option<(usize, u64)> {
        let from_now = time.0 - self.start;
        let windows = self.windows_in(from_now);
        if windows >= RING {
            return None;
        }
        let in_window = from_now - windows as u64 * self.width;
        Some(((self.place + windows) % RING, in_window << SHORT_BITS | event::short(name)))
    }

    #[inline]
    fn put(&mut self, place: usize, node: usize, event: u64) {
        if !self.chains.put(&mut self.ends[place * self.nodes + node], event) {
            self.put_in_new(place, node, event);
        }
    }

    /// `from_now` ÷ the width, of what the ring takes.
    #[inline]
    const fn windows_in(&self, from_now: u64) -> usize {
        ((from_now as u128 * self.inverse as u128) >> u64::BITS) as usize
    }

    #[inline(never)]
    fn put_in_new(&mut self, place: usize, node: usize, event: u64) {
        let end = &mut self.ends[place * self.nodes + node];
        if end.is_empty() {
            self.occupied[place * self.nodes.div_ceil(64) + node / 64] |= 1 << (node % 64);
            self.busy[place] += 1;
        }
        self.chains.put_in_new(end, event);
    }

    /// Opens the next node that has events, of this window or of the next one that has any and begins by `last`, the
    /// last instant that may pop from now on. Answers which. `link` tells by which one the packet in a slot arrives.
    pub fn turn(&mut self, last: Time, link: impl Fn(u32) -> u32) -> Option<usize> {
        if self.ahead[0] == self.nodes && !self.advance(last) {
            return None;
        }
        self.end = (self.start + self.width).min(last.0.saturating_add(1));
        (self.node, self.next) = (self.ahead[0], 0);
        self.sort_taken();
        if self.due.windows(2).fold(false, |any, pair| any | event::alike(pair[0], pair[1])) {
            self.sort_alike(link);
        }
        if self.due.last().is_some_and(|&event| self.time_of(event).0 >= self.end) {
            self.cut();
        }
        self.take();
        Some(self.node)
    }

    /// When an event of the open node is due.
    #[inline]
    pub const fn time_of(&self, event: u64) -> Time {
        Time(self.start + (event >> SHORT_BITS))
    }

    /// Time and short name of the next event of the open node.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, u64)> {
        let due = self.due.get(self.next);
        if let Some(&own) = self.own.last()
            && due.is_none_or(|&event| own < event)
        {
            self.own.pop();
            return Some((self.time_of(own), own & SHORT));
        }
        let due = due.map(|&event| (self.time_of(event), event & SHORT));
        self.next += 1;
        due
    }

    /// All events of the open node, which adds none itself.
    #[inline]
    pub fn all(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.due)
    }

    /// Takes the list back.
    #[inline]
    pub fn take_back(&mut self, all: Vec<u64>) {
        self.due = all;
        self.due.clear();
    }

    /// The open node and slots of packets that arrive there; or one of the [`AHEAD`] that come next in this window.
    #[inline]
    pub fn at(&self, ahead: usize) -> Option<(usize, impl Iterator<Item = u32> + '_)> {
        let (node, events) = match ahead.checked_sub(1) {
            None => (self.node, &self.due),
            Some(ahead) => (self.ahead[ahead], &self.taken[ahead]),
        };
        (node < self.nodes).then(|| (node, events.iter().filter_map(|&event| event::from_short(event & SHORT).ok())))
    }

    /// Makes the events taken ahead, in their order, those of the open node.
    fn sort_taken(&mut self) {
        if !(FEW..MANY).contains(&self.taken[0].len()) {
            std::mem::swap(&mut self.due, &mut self.taken[0]);
            self.due.sort_unstable();
            return;
        }
        // Dealt by time first: then they are nearly sorted.
        let slot = |event: u64| (event >> self.slot_shift) as usize % SLOTS;
        let mut ends = [0u16; SLOTS];
        self.taken[0].iter().for_each(|&event| ends[slot(event)] += 1);
        let mut end = 0;
        ends.iter_mut().for_each(|count| {
            end += *count;
            *count = end;
        });
        self.due.clear();
        self.due.resize(self.taken[0].len(), 0);
        for &event in self.taken[0].iter().rev() {
            let end = &mut ends[slot(event)];
            *end -= 1;
            self.due[*end as usize] = event;
        }
        let mut last = 0;
        for at in 0..self.due.len() {
            match self.due[at] {
                event if event < last => self.sort_in(at),
                event => last = event,
            }
        }
    }

    /// Puts the event at `from` where it belongs among those before, which are sorted.
    #[inline]
    fn sort_in(&mut self, from: usize) {
        let (event, mut at) = (self.due[from], from);
        while at > 0 && self.due[at - 1] > event {
            self.due[at] = self.due[at - 1];
            at -= 1;
        }
        self.due[at] = event;
    }

    /// Sorts arrivals at one time whose order their names do not tell.
    #[cold]
    fn sort_alike(&mut self, link: impl Fn(u32) -> u32) {
        let mut due = self.all();
        for alike in due.chunk_by_mut(|&a, &b| event::alike(a, b)) {
            alike.sort_by_key(|&event| event::order(self.time_of(event), link(event::slot(event))));
        }
        self.due = due;
    }

    /// Puts back what comes after the last instant that pops.
    #[cold]
    fn cut(&mut self) {
        self.is_cut = true;
        let first = self.due.partition_point(|&event| self.time_of(event).0 < self.end);
        for at in first..self.due.len() {
            self.put(self.place, self.node, self.due[at]);
        }
        self.due.truncate(first);
    }

    /// Goes on to the next window with events.
    fn advance(&mut self, last: Time) -> bool {
        let near = self.first_busy();
        let far = self.first_far().map(|time| ((time.0 - self.start) / self.width) as usize);
        let Some(windows) = near.into_iter().chain(far).min() else { return false };
        let start = self.start + windows as u64 * self.width;
        if start > last.0 || self.is_cut {
            return false;
        }
        (self.start, self.place) = (start, (self.place + windows) % RING);
        while let Some(time) = self.first_far()
            && time.0 - self.start < RING as u64 * self.width
            && let Some(Reverse((event, node))) = self.far.pop()
        {
            self.push_away(time, node, event as u64);
        }
        self.seen = 0;
        (0..AHEAD).for_each(|_| self.take());
        true
    }

    /// Takes out the events of one more node of this window, if there is one.
    fn take(&mut self) {
        self.ahead.rotate_left(1);
        self.taken.rotate_left(1);
        let Windows { ahead: [.., ahead], taken: [.., taken], .. } = self;
        taken.clear();
        *ahead = self.nodes;
        let first = self.occupied_from(self.seen);
        if first == self.nodes {
            return;
        }
        (self.ahead[AHEAD - 1], self.seen) = (first, first + 1);
        let words = self.nodes.div_ceil(64);
        self.occupied[self.place * words + first / 64] &= !(1 << (first % 64));
        self.busy[self.place] -= 1;
        // As they were put: what comes by one link is in its order, which leaves less to sort.
        self.chains.take(&mut self.ends[self.place * self.nodes + first], &mut self.taken[AHEAD - 1]);
        self.look_ahead(first + 1);
    }

    /// Asks for the chunks of the next node from `node` on, whose first one was asked for before, and for that of the
    /// one behind it.
    #[inline]
    fn look_ahead(&self, node: usize) {
        let ends = &self.ends[self.place * self.nodes..][..self.nodes];
        let next = self.occupied_from(node);
        let Some(&end) = ends.get(next) else { return };
        self.chains.prefetch_others(end);
        if let Some(&end) = ends.get(self.occupied_from(next + 1)) {
            self.chains.prefetch_last(end);
        }
    }

    /// The first node of this window from `node` on that has events.
    #[inline]
    fn occupied_from(&self, node: usize) -> usize {
        let words = &self.occupied[self.place * self.nodes.div_ceil(64)..][..self.nodes.div_ceil(64)];
        let Some(&word) = words.get(node / 64) else { return self.nodes };
        let bits = word & (u64::MAX << (node % 64));
        if bits != 0 {
            return node / 64 * 64 + bits.trailing_zeros() as usize;
        }
        let later = words.iter().enumerate().skip(node / 64 + 1).find(|&(_, &bits)| bits != 0);
        later.map_or(self.nodes, |(word, bits)| word * 64 + bits.trailing_zeros() as usize)
    }

    /// The first window of the ring with events, from this one on.
    fn first_busy(&self) -> Option<usize> {
        (0..RING).find(|windows| self.busy[(self.place + windows) % RING] > 0)
    }

    fn first_far(&self) -> Option<Time> {
        self.far.peek().map(|&Reverse((event, _))| Time((event >> u64::BITS) as u64))
    }

    /// When the next event is due, if no node is open.
    pub fn next_time(&self) -> Option<Time> {
        let windows = self.first_busy().unwrap_or(0);
        let (place, start) = ((self.place + windows) % RING, self.start + windows as u64 * self.width);
        let near = self.ends[place * self.nodes..][..self.nodes].iter().flat_map(|&end| self.chains.iter(end));
        near.map(|event| Time(start + (event >> SHORT_BITS))).chain(self.first_far()).min()
    }
}

/// Pending events in one of two orders.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one in a run, and what a packet touches of it is in place")]
pub(crate) enum Schedule {
    /// (time, name), whatever the node.
    Strict(EventQueue),
    /// Node by node in windows.
    ByNode(Windows),
}

impl Schedule {
    /// Adds an event of `node`.
    #[inline]
    pub fn push(&mut self, time: Time, node: u32, name: u64) {
        match self {
            Schedule::Strict(queue) => queue.push(time, name),
            Schedule::ByNode(queue) => queue.push(time, node, name),
        }
    }

    /// The same for an event that is due no sooner than in the least delay of a link.
    #[inline]
    pub fn push_away(&mut self, time: Time, node: u32, name: u64) {
        match self {
            Schedule::Strict(queue) => queue.push(time, name),
            Schedule::ByNode(queue) => queue.push_away(time, node, name),
        }
    }

    /// When the next event is due.
    pub fn next_time(&self) -> Option<Time> {
        match self {
            Schedule::Strict(queue) => queue.next_time(),
            Schedule::ByNode(queue) => queue.next_time(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A step of numbers that are as good as random.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn an_event_is_in_the_window_of_its_time_to_the_last_instant() {
        for width in (2..1000).chain((0..1000).map(|less| MAX_WIDTH.0 - less)) {
            let queue = Windows::new(1, Time(width));
            for window in 0..RING as u64 {
                let instants = [window * width, (window + 1) * width - 1].map(|instant| queue.windows_in(instant));
                assert_eq!(instants, [window as usize; 2], "windows of {width} ps");
            }
        }
    }

    proptest! {
        /// Each event pops once, at each node in order of time and name, and windows follow each other.
        #[test]
        fn nodes_have_their_events_in_order(
            nodes in 1..200usize,
            width in prop_oneof![2..30u64, 2..5_000u64],
            first in 1..400usize,
            last in 100_000..400_000u64,
            mut seed: u64,
        ) {
            let mut queue = Windows::new(nodes, Time(width));
            // By node, time and name.
            let mut left = BTreeSet::new();
            // Of arrivals, each by a link of its own.
            let links: Vec<u32> = (0..4_000).map(|_| next(&mut seed) as u32 % (1 << 23)).collect();
            let mut names = 0;
            let mut add = |queue: &mut Windows, left: &mut BTreeSet<_>, at: u64, (node, away): (usize, bool), seed: &mut u64| {
                names += 1;
                let name = match next(seed) % 4 {
                    0 => event::other(event::Kind::Timer, names),
                    1 => event::other(event::Kind::PortFree, u32::MAX - names),
                    // What a node adds in its own window is no arrival.
                    _ if !away => event::other(event::Kind::Start, names),
                    _ => event::arrival(Time(at), links[names as usize], names),
                };
                left.insert((node, at, name));
                if away && next(seed).is_multiple_of(2) {
                    queue.push_held(Time(at), node as u32, name);
                } else {
                    queue.push(Time(at), node as u32, name);
                }
            };
            for _ in 0..first {
                let (at, node) = (next(&mut seed) % (3 * width), next(&mut seed) as usize % nodes);
                add(&mut queue, &mut left, at, (node, true), &mut seed);
            }
            queue.release();
            let (mut window, mut budget) = (0, 3_000);
            while let Some(node) = queue.turn(Time(last), |slot| links[slot as usize]) {
                while let Some((Time(now), name)) = queue.pop() {
                    let arrival = |slot: u32| event::arrival(Time(now), links[slot as usize], slot);
                    let name = event::from_short(name).map_or_else(|name| name, arrival);
                    prop_assert!(now <= last && now / width >= window);
                    window = now / width;
                    let due = left.range((node, 0, 0)..).next().copied();
                    prop_assert_eq!(due, Some((node, now, name)), "of the node, the first that is left");
                    left.remove(&(node, now, name));
                    for _ in 0..next(&mut seed) % 3 {
                        budget -= 1;
                        if budget < 0 {
                            break;
                        }
                        if next(&mut seed).is_multiple_of(4) {
                            let at = now + next(&mut seed) % width;
                            add(&mut queue, &mut left, at, (node, false), &mut seed);
                        } else {
                            let at = now + width + next(&mut seed) % (width << (next(&mut seed) % 8));
                            let node = next(&mut seed) as usize % nodes;
                            add(&mut queue, &mut left, at, (node, true), &mut seed);
                        }
                    }
                }
                queue.release();
            }
            prop_assert!(left.iter().all(|&(_, at, _)| at > last));
            prop_assert_eq!(queue.next_time(), left.iter().map(|&(_, at, _)| Time(at)).min());
        }
    }
}
