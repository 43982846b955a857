//! The entropy values of a QP: which are in use, and what is known of each.
//!
//! States and transitions are public: GOOD; SKIP, passed over once after a mark or a trim; ASSUMED_BAD after silence, until
//! a probe is answered; DENIED by the operator. One assumed bad is replaced by a backup of the same plane, so that planes
//! stay equally loaded (public too). Ours: the numbers of values and backups, the order of both, and the pace of probing.

use std::collections::VecDeque;

use metaroce_wire::{Time, prefetch};

use crate::config::Entropies;
use crate::transport::{FIRST_PORT, MAX_PLANES};

/// Bits of a UDP source port that are free.
pub const PORT_BITS: u32 = FIRST_PORT.trailing_zeros();
const PORT_MASK: u32 = (1 << PORT_BITS) - 1;
/// Multiplier of the permutation that draws ports, and its inverse modulo 2¹⁴. Ours.
pub const STRIDE: u32 = 0x0e3b;
const UNSTRIDE: u32 = inverse(STRIDE);
/// Shift of that permutation. Ours; half the width, so that it undoes itself.
pub const FOLD: u32 = PORT_BITS / 2;
/// Values that a probe's answer lets the sender probe at once. Ours: a plane returns in a few round trips.
pub const NEXT_PROBES: usize = 2;

/// The inverse of an odd number modulo 2³².
const fn inverse(odd: u32) -> u32 {
    let (mut x, mut step) = (odd, 0);
    while step < 5 {
        x = x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x)));
        step += 1;
    }
    x
}

/// What is known of an entropy value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvState {
    /// In use, or fit for it: GOOD, and SKIP too, of which [`Profile`] keeps a bit.
    Good,
    /// It swallowed a packet, and has not answered a probe since.
    AssumedBad,
    /// Out of use by order.
    Denied,
}

/// How many entropy values of a QP there are in a plane, and which ports they are.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub planes: usize,
    /// In use at first.
    pub active: u16,
    pub backup: u16,
    /// In use at least, over all planes.
    pub least: u32,
    pub ports: Entropies,
}

/// A bit for each value of all planes, so many of them in place.
const IN_PLACE: usize = 256;

/// What only losses, probes and orders need of a plane.
#[derive(Debug)]
struct Plane {
    /// Whether a value is to be passed over is not said here.
    states: Box<[EvState]>,
    /// When a value was last probed.
    probed_at: Box<[Time]>,
    /// Good ones that are not in use.
    backups: VecDeque<u16>,
    /// Values assumed bad, those that were probed longest ago first.
    bad: VecDeque<u16>,
    denied: bool,
}

/// What packets do not need.
#[derive(Debug)]
struct Rest {
    numbers: Numbers,
    planes: Box<[Plane]>,
    /// Values in use in all planes.
    active: u32,
    /// Bits of the values that have none in place.
    skips: Box<[u64]>,
}

/// The entropy values of a QP. What each packet reads is first, in one cache line.
#[derive(Debug)]
#[repr(C)]
pub struct Profile {
    /// Of each plane, the position of the next value among those in use.
    next: [u16; MAX_PLANES],
    /// How many are in use.
    len: [u16; MAX_PLANES],
    /// Values to be passed over once. Of one that is assumed bad or denied, the bit says nothing.
    skips: [u64; IN_PLACE / 64],
    /// Values in use, `stride` places for each plane.
    active: Box<[u16]>,
    rest: Box<Rest>,
    hash: u32,
    stride: u16,
    /// Values of a plane.
    all: u16,
    /// Planes with values in use, one bit each.
    open: u8,
    ports: Entropies,
}

impl Profile {
    /// All good. `hash` tells QPs apart: each has ports of its own, and begins elsewhere.
    pub fn new(numbers: Numbers, hash: u32) -> Profile {
        let all = numbers.active + numbers.backup;
        let plane = |_| Plane {
            states: vec![EvState::Good; all.into()].into(),
            probed_at: vec![Time::ZERO; all.into()].into(),
            backups: (numbers.active..all).collect(),
            bad: VecDeque::new(),
            denied: false,
        };
        let values = numbers.planes * usize::from(all);
        let rest = Rest {
            numbers,
            planes: (0..numbers.planes).map(plane).collect(),
            active: u32::from(numbers.active) * numbers.planes as u32,
            skips: vec![0; values.saturating_sub(IN_PLACE).div_ceil(64)].into(),
        };
        Profile {
            next: [(hash as usize % usize::from(numbers.active)) as u16; MAX_PLANES],
            len: std::array::from_fn(|plane| if plane < numbers.planes { numbers.active } else { 0 }),
            skips: [0; IN_PLACE / 64],
            active: (0..numbers.planes).flat_map(|_| 0..numbers.active).collect(),
            rest: Box::new(rest),
            hash,
            stride: numbers.active,
            all,
            open: ((1u32 << numbers.planes) - 1) as u8,
            ports: numbers.ports,
        }
    }

    /// The word with the bit of a value, and the bit.
    #[inline]
    fn skip_bit(&mut self, plane: usize, ev: u16) -> (&mut u64, u64) {
        let index = self.index(plane, ev);
        let word = match index.checked_sub(IN_PLACE) {
            None => &mut self.skips[index / 64],
            Some(beyond) => &mut self.rest.skips[beyond / 64],
        };
        (word, 1 << (index % 64))
    }

    /// Values in use of a plane, in their order.
    fn active(&mut self, plane: usize) -> &mut [u16] {
        let first = plane * usize::from(self.stride);
        &mut self.active[first..first + usize::from(self.len[plane])]
    }

    /// Hints the processor at the next value of `plane`.
    #[inline]
    pub fn prefetch(&self, plane: usize) {
        let next = plane * usize::from(self.stride) + usize::from(self.next[plane % MAX_PLANES]);
        self.active.get(next).map(prefetch).unwrap_or_default();
    }

    /// What tells it from others.
    #[inline]
    pub const fn hash(&self) -> u32 {
        self.hash
    }

    /// UDP source port of value `ev`.
    #[inline]
    pub fn port(&self, ev: u16) -> u16 {
        let number = u32::from(ev);
        let drawn = match self.ports {
            Entropies::Consecutive => number,
            Entropies::Hashed => {
                let product = number.wrapping_mul(STRIDE) & PORT_MASK;
                product ^ product >> FOLD
            }
        };
        FIRST_PORT | (drawn.wrapping_add(self.hash) & PORT_MASK) as u16
    }

    /// The value whose port is `port`, if one is.
    fn value(&self, port: u16) -> Option<u16> {
        let drawn = u32::from(port).wrapping_sub(self.hash) & PORT_MASK;
        let number = match self.ports {
            Entropies::Consecutive => drawn,
            Entropies::Hashed => (drawn ^ drawn >> FOLD).wrapping_mul(UNSTRIDE) & PORT_MASK,
        };
        (number < u32::from(self.all)).then_some(number as u16)
    }

    /// Number of a value among those of all planes.
    #[inline]
    pub const fn index(&self, plane: usize, ev: u16) -> usize {
        plane * self.all as usize + ev as usize
    }

    /// The value that came by `plane` with source port `port`.
    #[inline]
    pub fn find(&self, plane: usize, port: u16) -> Option<u16> {
        self.value(port).filter(|_| plane * usize::from(self.stride) < self.active.len())
    }

    /// The next value of `plane`, in turn.
    #[inline]
    pub fn choose(&mut self, plane: usize) -> Option<u16> {
        let (len, first) = (self.len[plane], plane * usize::from(self.stride));
        // All may have to be passed over once.
        for _ in 0..=len {
            let next = self.next[plane];
            if next >= len {
                return None;
            }
            let ev = self.active[first + usize::from(next)];
            self.next[plane] = if next + 1 == len { 0 } else { next + 1 };
            let (word, bit) = self.skip_bit(plane, ev);
            if *word & bit == 0 {
                return Some(ev);
            }
            *word &= !bit;
        }
        None
    }

    /// Planes with values in use, one bit each.
    #[inline]
    pub const fn open_planes(&self) -> u8 {
        self.open
    }

    /// Its route is congested.
    #[inline]
    pub fn skip(&mut self, plane: usize, ev: u16) {
        let (word, bit) = self.skip_bit(plane, ev);
        *word |= bit;
    }

    /// It swallowed a packet. Answers whether it is assumed bad from now on: not if too few would be left.
    pub fn distrust(&mut self, plane: usize, ev: u16) -> bool {
        if self.rest.planes[plane].states[usize::from(ev)] != EvState::Good {
            return false;
        }
        let in_use = self.active(plane).iter().position(|&one| one == ev);
        let set = &mut self.rest.planes[plane];
        match (in_use, set.backups.pop_front()) {
            (Some(at), Some(backup)) => self.active(plane)[at] = backup,
            (Some(_), None) if self.rest.active <= self.rest.numbers.least => return false,
            (Some(at), None) => self.remove(plane, at),
            // A backup, which carried it before it was one.
            (None, Some(first)) => {
                set.backups.push_front(first);
                set.backups.retain(|&one| one != ev);
            }
            (None, None) => {}
        }
        let set = &mut self.rest.planes[plane];
        set.states[usize::from(ev)] = EvState::AssumedBad;
        set.bad.push_front(ev);
        true
    }

    /// Takes the value at position `at` out of use.
    fn remove(&mut self, plane: usize, at: usize) {
        self.active(plane).copy_within(at + 1.., at);
        self.rest.active -= 1;
        self.len[plane] -= 1;
        self.open &= !(u8::from(self.len[plane] == 0) << plane);
        let next = &mut self.next[plane];
        if at < usize::from(*next) || *next == self.len[plane] {
            *next = next.saturating_sub(1);
        }
    }

    /// It answered a probe, perhaps with a mark. Answers whether it had been assumed bad.
    pub fn trust(&mut self, plane: usize, ev: u16, marked: bool) -> bool {
        let set = &mut self.rest.planes[plane];
        if set.states[usize::from(ev)] != EvState::AssumedBad {
            return false;
        }
        set.bad.retain(|&one| one != ev);
        self.put_back(plane, ev, marked);
        true
    }

    fn put_back(&mut self, plane: usize, ev: u16, skipped: bool) {
        let (word, bit) = self.skip_bit(plane, ev);
        *word = if skipped { *word | bit } else { *word & !bit };
        let set = &mut self.rest.planes[plane];
        set.states[usize::from(ev)] = EvState::Good;
        if self.len[plane] < self.stride {
            self.len[plane] += 1;
            self.rest.active += 1;
            self.open |= 1 << plane;
            if let Some(last) = self.active(plane).last_mut() {
                *last = ev;
            }
        } else {
            set.backups.push_back(ev);
        }
    }

    /// Takes a plane out of use, or back into it. False if none would be left.
    pub fn deny(&mut self, plane: usize, denied: bool) -> bool {
        let planes = &mut self.rest.planes;
        if plane >= planes.len() || planes[plane].denied == denied {
            return plane < planes.len();
        }
        if denied && planes.iter().filter(|set| !set.denied).count() == 1 {
            return false;
        }
        let set = &mut planes[plane];
        set.denied = denied;
        if denied {
            set.backups.clear();
            set.bad.clear();
            set.states.fill(EvState::Denied);
            self.rest.active -= u32::from(self.len[plane]);
            (self.len[plane], self.next[plane]) = (0, 0);
            self.open &= !(1 << plane);
        } else {
            (0..self.all).for_each(|ev| self.put_back(plane, ev, false));
        }
        if self.rest.active == 0 {
            self.forgive();
        }
        true
    }

    /// With nothing left to use, what is assumed bad has to do.
    fn forgive(&mut self) {
        for plane in 0..self.rest.planes.len() {
            while let Some(ev) = self.rest.planes[plane].bad.pop_front() {
                self.put_back(plane, ev, false);
            }
        }
    }

    /// Values of `plane` whose next probe is due now: one, or several after one was answered.
    pub fn probes_due(&mut self, now: Time, plane: usize, most: usize, interval: Time) -> Vec<u16> {
        let set = &mut self.rest.planes[plane];
        let mut due = Vec::new();
        while due.len() < most
            && let Some(&ev) = set.bad.front()
            && (set.probed_at[usize::from(ev)] == Time::ZERO || set.probed_at[usize::from(ev)] + interval <= now)
        {
            set.probed_at[usize::from(ev)] = now;
            set.bad.rotate_left(1);
            due.push(ev);
        }
        due
    }

    /// Whether some value of `plane` is assumed bad.
    pub fn has_bad(&self, plane: usize) -> bool {
        !self.rest.planes[plane].bad.is_empty()
    }

    /// State of every value, plane by plane.
    pub fn states(&self) -> impl Iterator<Item = (usize, u16, EvState)> {
        let of_plane = |(plane, set): (usize, &Plane)| -> Vec<_> {
            set.states.iter().enumerate().map(|(ev, &state)| (plane, ev as u16, state)).collect()
        };
        self.rest.planes.iter().enumerate().flat_map(of_plane)
    }

    /// Values in use, and values in all.
    pub fn in_use(&self) -> (u32, u32) {
        (self.rest.active, u32::from(self.all) * self.rest.planes.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Numbers = Numbers { planes: 2, active: 4, backup: 1, least: 2, ports: Entropies::Consecutive };

    #[test]
    fn a_port_names_its_value_whichever_way_ports_are_drawn() {
        for ports in [Entropies::Consecutive, Entropies::Hashed] {
            let profile = Profile::new(Numbers { active: 1000, backup: 24, ports, ..NUMBERS }, 0x9123_4567);
            let mut seen = std::collections::BTreeSet::new();
            for ev in 0..1024 {
                let port = profile.port(ev);
                assert!(port >= FIRST_PORT && seen.insert(port), "{port}");
                assert_eq!(profile.find(1, port), Some(ev));
            }
            assert_eq!(profile.find(2, profile.port(0)), None, "no such plane");
        }
    }

    #[test]
    fn a_marked_value_is_passed_over_once() {
        let mut profile = Profile::new(NUMBERS, 0);
        profile.skip(0, 1);
        let order: Vec<_> = (0..8).filter_map(|_| profile.choose(0)).collect();
        assert_eq!(order, [0, 2, 3, 0, 1, 2, 3, 0]);
        (0..4).for_each(|ev| profile.skip(0, ev));
        assert!(profile.choose(0).is_some(), "all are marked, and one has to do");
    }

    #[test]
    fn a_backup_of_the_plane_takes_the_place_of_a_bad_one_until_a_probe_is_answered() {
        let mut profile = Profile::new(NUMBERS, 0);
        assert!(profile.distrust(0, 2));
        assert!(!profile.distrust(0, 2), "once");
        let order: Vec<_> = (0..4).filter_map(|_| profile.choose(0)).collect();
        assert_eq!(order, [0, 1, 4, 3]);
        let interval = Time::from_us(100);
        assert_eq!(profile.probes_due(Time::from_us(7), 0, 1, interval), [2]);
        assert_eq!(profile.probes_due(Time::from_us(8), 0, 1, interval), [0; 0], "it was asked a moment ago");
        assert_eq!(profile.probes_due(Time::from_us(107), 0, 1, interval), [2]);
        assert!(profile.trust(0, 2, false));
        assert!(!profile.has_bad(0));
        assert!(profile.distrust(0, 0), "2 is the backup now");
        let order: Vec<_> = (0..4).filter_map(|_| profile.choose(0)).collect();
        assert_eq!(order, [2, 1, 4, 3]);
    }

    #[test]
    fn a_dead_plane_empties_but_the_last_values_stay() {
        let mut profile = Profile::new(NUMBERS, 0);
        (0..5).for_each(|ev| assert!(profile.distrust(0, ev)));
        assert_eq!((profile.choose(0), profile.open_planes(), profile.in_use()), (None, 0b10, (4, 10)));
        let distrusted = (0..5).filter(|&ev| profile.distrust(1, ev)).count();
        assert_eq!((distrusted, profile.in_use().0), (3, 2));
        assert!(profile.choose(1).is_some());
    }

    #[test]
    fn a_denied_plane_is_left_and_the_last_one_cannot_be() {
        let mut profile = Profile::new(NUMBERS, 3);
        assert!(profile.distrust(0, 1));
        assert!(profile.deny(0, true) && profile.deny(0, true) && !profile.deny(1, true) && !profile.deny(2, true));
        assert_eq!((profile.choose(0), profile.open_planes()), (None, 0b10));
        assert!(!profile.trust(0, 1, false) && !profile.distrust(0, 1));
        assert!(profile.deny(0, false));
        assert_eq!((profile.open_planes(), profile.in_use().0), (0b11, 8));
    }
}
