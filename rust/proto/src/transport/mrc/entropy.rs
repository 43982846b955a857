//! The entropy values of a QP: which are in use, and what is known of each.
//!
//! States and transitions are public: GOOD; SKIP, passed over once after a mark or a trim; ASSUMED_BAD after silence, until
//! a probe is answered; DENIED by the operator. One assumed bad is replaced by a backup of the same plane, so that planes
//! stay equally loaded (public too). Ours: the numbers of values and backups, the order of both, and the pace of probing.

use std::collections::VecDeque;

use metaroce_wire::Time;

use crate::config::Entropies;
use crate::transport::FIRST_PORT;

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
    /// Nothing speaks against it.
    Good,
    /// Its turn is passed over once.
    Skip,
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

#[derive(Debug)]
struct Plane {
    states: Box<[EvState]>,
    /// When a value was last probed.
    probed_at: Box<[Time]>,
    /// Values in use, and the position of the next.
    active: Vec<u16>,
    next: usize,
    /// Good ones that are not in use.
    backups: VecDeque<u16>,
    /// Values assumed bad, those that were probed longest ago first.
    bad: VecDeque<u16>,
    denied: bool,
}

/// The entropy values of a QP.
#[derive(Debug)]
pub struct Profile {
    numbers: Numbers,
    hash: u32,
    planes: Box<[Plane]>,
    /// Values in use in all planes.
    active: u32,
}

impl Profile {
    /// All good. `hash` tells QPs apart: each has ports of its own, and begins elsewhere.
    pub fn new(numbers: Numbers, hash: u32) -> Profile {
        let all = numbers.active + numbers.backup;
        let plane = |_| Plane {
            states: vec![EvState::Good; all.into()].into(),
            probed_at: vec![Time::ZERO; all.into()].into(),
            active: (0..numbers.active).collect(),
            next: hash as usize % usize::from(numbers.active),
            backups: (numbers.active..all).collect(),
            bad: VecDeque::new(),
            denied: false,
        };
        let active = u32::from(numbers.active) * numbers.planes as u32;
        Profile { numbers, hash, planes: (0..numbers.planes).map(plane).collect(), active }
    }

    /// UDP source port of value `ev`.
    pub fn port(&self, ev: u16) -> u16 {
        let number = u32::from(ev);
        let drawn = match self.numbers.ports {
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
        let number = match self.numbers.ports {
            Entropies::Consecutive => drawn,
            Entropies::Hashed => (drawn ^ drawn >> FOLD).wrapping_mul(UNSTRIDE) & PORT_MASK,
        };
        let all = u32::from(self.numbers.active + self.numbers.backup);
        (number < all).then_some(number as u16)
    }

    /// Number of a value among those of all planes.
    pub fn index(&self, plane: usize, ev: u16) -> usize {
        plane * self.planes[plane].states.len() + usize::from(ev)
    }

    /// The value that came by `plane` with source port `port`.
    pub fn find(&self, plane: usize, port: u16) -> Option<u16> {
        self.value(port).filter(|_| plane < self.planes.len())
    }

    /// The next value of `plane`, in turn.
    #[inline]
    pub fn choose(&mut self, plane: usize) -> Option<u16> {
        let Plane { active, next, states, .. } = &mut self.planes[plane];
        // All may have to be passed over once.
        for _ in 0..=active.len() {
            let ev = *active.get(*next)?;
            *next = if *next + 1 == active.len() { 0 } else { *next + 1 };
            let state = &mut states[usize::from(ev)];
            if *state != EvState::Skip {
                return Some(ev);
            }
            *state = EvState::Good;
        }
        None
    }

    /// Planes with values in use, one bit each.
    #[inline]
    pub fn open_planes(&self) -> u8 {
        self.planes.iter().rev().fold(0, |bits, plane| bits << 1 | u8::from(!plane.active.is_empty()))
    }

    /// Its route is congested.
    pub fn skip(&mut self, plane: usize, ev: u16) {
        let state = &mut self.planes[plane].states[usize::from(ev)];
        if *state == EvState::Good {
            *state = EvState::Skip;
        }
    }

    /// It swallowed a packet. Answers whether it is assumed bad from now on: not if too few would be left.
    pub fn distrust(&mut self, plane: usize, ev: u16) -> bool {
        let set = &mut self.planes[plane];
        if !matches!(set.states[usize::from(ev)], EvState::Good | EvState::Skip) {
            return false;
        }
        let in_use = set.active.iter().position(|&one| one == ev);
        match (in_use, set.backups.pop_front()) {
            (Some(at), Some(backup)) => set.active[at] = backup,
            (Some(_), None) if self.active <= self.numbers.least => return false,
            (Some(at), None) => {
                set.active.remove(at);
                self.active -= 1;
                if at < set.next || set.next == set.active.len() {
                    set.next = set.next.saturating_sub(1);
                }
            }
            // A backup, which carried it before it was one.
            (None, Some(first)) => {
                set.backups.push_front(first);
                set.backups.retain(|&one| one != ev);
            }
            (None, None) => {}
        }
        set.states[usize::from(ev)] = EvState::AssumedBad;
        set.bad.push_front(ev);
        true
    }

    /// It answered a probe, perhaps with a mark. Answers whether it had been assumed bad.
    pub fn trust(&mut self, plane: usize, ev: u16, marked: bool) -> bool {
        let set = &mut self.planes[plane];
        if set.states[usize::from(ev)] != EvState::AssumedBad {
            return false;
        }
        set.bad.retain(|&one| one != ev);
        self.put_back(plane, ev, if marked { EvState::Skip } else { EvState::Good });
        true
    }

    fn put_back(&mut self, plane: usize, ev: u16, state: EvState) {
        let set = &mut self.planes[plane];
        set.states[usize::from(ev)] = state;
        if set.active.len() < usize::from(self.numbers.active) {
            set.active.push(ev);
            self.active += 1;
        } else {
            set.backups.push_back(ev);
        }
    }

    /// Takes a plane out of use, or back into it. False if none would be left.
    pub fn deny(&mut self, plane: usize, denied: bool) -> bool {
        if plane >= self.planes.len() || self.planes[plane].denied == denied {
            return plane < self.planes.len();
        }
        if denied && self.planes.iter().filter(|set| !set.denied).count() == 1 {
            return false;
        }
        let set = &mut self.planes[plane];
        set.denied = denied;
        if denied {
            self.active -= set.active.len() as u32;
            set.active.clear();
            set.backups.clear();
            set.bad.clear();
            set.next = 0;
            set.states.fill(EvState::Denied);
        } else {
            (0..set.states.len() as u16).for_each(|ev| self.put_back(plane, ev, EvState::Good));
        }
        if self.active == 0 {
            self.forgive();
        }
        true
    }

    /// With nothing left to use, what is assumed bad has to do.
    fn forgive(&mut self) {
        for plane in 0..self.planes.len() {
            while let Some(ev) = self.planes[plane].bad.pop_front() {
                self.put_back(plane, ev, EvState::Good);
            }
        }
    }

    /// Values of `plane` whose next probe is due now: one, or several after one was answered.
    pub fn probes_due(&mut self, now: Time, plane: usize, most: usize, interval: Time) -> Vec<u16> {
        let set = &mut self.planes[plane];
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
        !self.planes[plane].bad.is_empty()
    }

    /// State of every value, plane by plane.
    pub fn states(&self) -> impl Iterator<Item = (usize, u16, EvState)> {
        let of_plane = |(plane, set): (usize, &Plane)| -> Vec<_> {
            set.states.iter().enumerate().map(|(ev, &state)| (plane, ev as u16, state)).collect()
        };
        self.planes.iter().enumerate().flat_map(of_plane)
    }

    /// Values in use, and values in all.
    pub fn in_use(&self) -> (u32, u32) {
        (self.active, self.planes.iter().map(|set| set.states.len() as u32).sum())
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
