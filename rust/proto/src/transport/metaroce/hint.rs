//! Receiver rate hints (F8): the share of this host's inbound bandwidth granted to each sender.
//!
//! That every acknowledgement carries such a share is public; how it is computed is *ours*: max-min
//! water-filling over the senders that are active, each capped by the backlog it advertises, and
//! what nobody asked for dealt out evenly on top, so that a sender with little to send never holds
//! bandwidth idle. While a crowd arrives, its members get an equal part among all that may be coming for a round. The shares granted at one time never add up to more than the target.

use metaroce_wire::{Bytes, Rate, RateHint, Time, prefetch};

#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Sender {
    last_seen: Time,
    /// Until then it gets an equal part among all that may be coming.
    new_until: Time,
    /// Backlog it advertised last, bytes.
    demand: u32,
    /// Position in `active`, or `IDLE`.
    position: u32,
    hint: RateHint,
}

const IDLE: u32 = u32::MAX;

/// Rounds without data after which a sender that still has some holds no share any more. Ours: as long
/// as a hint lives; its packets may be queued behind those of others.
pub const SILENT_ROUNDS: u64 = 8;
/// And for so many turns, in which every active sender sends one full packet. Ours.
pub const SILENT_TURNS: u64 = 4;

/// For each that came lately with another, so many more are expected. Ours: as many as there are rounds in which
/// they may still come, before those that came are forgotten.
pub const CROWD: u64 = SILENT_ROUNDS;

/// Shares of one receiver.
#[derive(Debug)]
#[repr(C)]
pub struct FairShare {
    senders: Vec<Sender>,
    round_end: Time,
    /// How long a sender stays known.
    silence: Time,
    dirty: bool,
    /// Length of a full packet, bytes.
    packet: u32,
    round: Time,
    capacity: Rate,
    active: Vec<u32>,
    /// Reused by the water-filling: (cap, sender).
    caps: Vec<(u64, u32)>,
    /// Senders that were not known and came: in this round, and in the one before; and when this one began.
    joined: (u32, u32),
    joining_since: Time,
}

impl FairShare {
    /// Deals out `capacity`, anew each `round` and whenever a sender comes or goes, to senders of full
    /// packets of `packet` bytes.
    pub fn new(capacity: Rate, packet: u32, round: Time) -> FairShare {
        FairShare {
            capacity,
            packet,
            round,
            round_end: Time::ZERO,
            dirty: false,
            senders: Vec::new(),
            active: Vec::new(),
            caps: Vec::new(),
            joined: (0, 0),
            joining_since: Time::ZERO,
            silence: Time(SILENT_ROUNDS * round.0),
        }
    }

    /// Makes room for one more sender; senders are numbered as connections.
    pub fn add_sender(&mut self) {
        self.senders.push(Sender {
            last_seen: Time::NEVER,
            new_until: Time::ZERO,
            demand: 0,
            position: IDLE,
            hint: RateHint::NONE,
        });
    }

    /// Hints the processor at a sender.
    #[inline]
    pub fn prefetch(&self, sender: usize) {
        self.senders.get(sender).map(prefetch).unwrap_or_default();
    }

    // [F8.hint-is-share]
    /// Data of `sender` arrived that still has `demand` bytes to send. Answers its hint.
    #[inline(always)]
    pub fn on_data(&mut self, now: Time, sender: usize, demand: u32) -> RateHint {
        let state = &mut self.senders[sender];
        let known = state.position != IDLE && now.since(state.last_seen) <= self.silence && now >= state.new_until;
        if known && demand > 0 && now < self.round_end && !self.dirty {
            state.last_seen = now;
            state.demand = demand;
            return state.hint;
        }
        self.on_unusual_data(now, sender, demand)
    }

    /// The same where somebody comes or goes, or a round is over.
    #[inline(never)]
    fn on_unusual_data(&mut self, now: Time, sender: usize, demand: u32) -> RateHint {
        let state = &mut self.senders[sender];
        if state.last_seen == Time::NEVER || now.since(state.last_seen) > self.silence {
            state.new_until = now + self.round;
            self.count_rounds(now);
            self.joined.0 += 1;
        }
        let state = &mut self.senders[sender];
        state.last_seen = now;
        state.demand = demand;
        if demand > 0 && state.position == IDLE {
            state.position = self.active.len() as u32;
            self.active.push(sender as u32);
            self.dirty = true;
        } else if demand == 0 && state.position != IDLE {
            self.remove(sender);
        }
        if self.dirty || now >= self.round_end {
            self.deal(now);
        }
        let state = &self.senders[sender];
        if now < state.new_until {
            return RateHint::encode(Rate(self.capacity.0 / self.expected()));
        }
        if state.position == IDLE {
            // What it would get if it joined.
            return RateHint::encode(Rate(self.capacity.0 / (self.active.len() as u64 + 1)));
        }
        state.hint
    }

    /// Ages the counts of those who came.
    fn count_rounds(&mut self, now: Time) {
        let passed = now.since(self.joining_since);
        if passed > self.round {
            self.joined = (0, if passed.0 > 2 * self.round.0 { 0 } else { self.joined.0 });
            self.joining_since = now;
        }
    }

    // [F8.crowd]
    /// Senders that there may be soon: whoever comes with others is one of a crowd, of which more are on the way.
    fn expected(&self) -> u64 {
        let others = u64::from((self.joined.0 + self.joined.1).saturating_sub(1));
        let coming = self.active.len() as u64 + CROWD * others;
        coming.clamp(1, self.senders.len() as u64)
    }

    fn remove(&mut self, sender: usize) {
        let position = self.senders[sender].position as usize;
        self.active.swap_remove(position);
        if let Some(&moved) = self.active.get(position) {
            self.senders[moved as usize].position = position as u32;
        }
        self.senders[sender].position = IDLE;
        self.dirty = true;
    }

    fn deal(&mut self, now: Time) {
        self.dirty = false;
        self.round_end = now + self.round;
        // Who gets one packet a turn of all may be silent for some turns.
        let turn = self.capacity.time_for(Bytes(self.active.len() as u64 * u64::from(self.packet))).0;
        self.silence = Time(SILENT_ROUNDS * self.round.0 + SILENT_TURNS * turn);
        for position in (0..self.active.len()).rev() {
            let sender = self.active[position] as usize;
            if now.since(self.senders[sender].last_seen) > self.silence {
                self.remove(sender);
            }
        }
        self.dirty = false;
        if self.active.is_empty() {
            return;
        }
        // A backlog is worth the rate that drains it in one round.
        let fair = self.capacity.0 / self.active.len() as u64;
        let enough = u64::from(u32::try_from(Rate(fair).bytes_in(self.round).0).unwrap_or(u32::MAX));
        if self.active.iter().all(|&s| u64::from(self.senders[s as usize].demand) >= enough) {
            let hint = RateHint::encode(Rate(fair));
            for &sender in &self.active {
                self.senders[sender as usize].hint = hint;
            }
            return;
        }
        self.fill();
    }

    // [F8.max-min] [I22]
    /// Water-filling: grants caps in rising order until the rest can only share evenly.
    fn fill(&mut self) {
        self.caps.clear();
        for &sender in &self.active {
            let demand = Bytes(u64::from(self.senders[sender as usize].demand));
            let ps = u128::from(self.round.0.max(1));
            let cap = u128::from(demand.0) * 8 * u128::from(metaroce_wire::units::PS_PER_S) / ps;
            self.caps.push((u64::try_from(cap).unwrap_or(u64::MAX), sender));
        }
        self.caps.sort_unstable();
        let (mut left, mut waiting) = (self.capacity.0, self.caps.len() as u64);
        for (cap, _) in &mut self.caps {
            *cap = (*cap).min(left / waiting);
            left -= *cap;
            waiting -= 1;
        }
        let spare = left / self.caps.len() as u64;
        for &(granted, sender) in &self.caps {
            self.senders[sender as usize].hint = RateHint::encode(Rate(granted + spare));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAPACITY: Rate = Rate::from_gbps(800);
    const ROUND: Time = Time::from_us(5);

    fn shares(demands: &[u32]) -> Vec<u64> {
        let mut share = FairShare::new(CAPACITY, 4096, ROUND);
        demands.iter().for_each(|_| share.add_sender());
        for (sender, &demand) in demands.iter().enumerate() {
            share.on_data(Time(1), sender, demand);
        }
        let later = Time(2 + ROUND.0);
        (0..demands.len()).map(|s| share.on_data(later, s, demands[s]).decode().map_or(0, |r| r.0)).collect()
    }

    // [F8.hint-is-share] [F8.max-min]
    #[test]
    fn a_lone_sender_gets_all_whatever_its_backlog() {
        for demand in [1, 5_000, u32::MAX] {
            assert!(shares(&[demand])[0] > CAPACITY.0 / 100 * 99);
        }
    }

    // [F8.max-min]
    #[test]
    fn what_a_small_backlog_leaves_goes_to_the_others() {
        let got = shares(&[4096, u32::MAX, u32::MAX, u32::MAX]);
        assert!(got[1] > CAPACITY.0 / 4 && got[1] == got[2], "{got:?}");
        assert!(got[0] > 0);
    }

    // [F8.crowd] [F8.incast-in-two-rtts]
    #[test]
    fn the_first_of_a_crowd_get_their_part_among_all_and_a_latecomer_alone_gets_what_is_free() {
        let mut share = FairShare::new(CAPACITY, 4096, ROUND);
        (0..100).for_each(|_| share.add_sender());
        let mut part = |at: Time, sender| {
            let rate = share.on_data(at, sender, u32::MAX).decode().expect("a hint");
            (CAPACITY.0 + rate.0 / 2) / rate.0
        };
        assert_eq!(part(Time(1), 0), 1, "nobody else is known");
        assert_eq!(part(Time(2), 1), 2 + CROWD);
        assert_eq!(part(Time(2 + ROUND.0 / 2), 2), 3 + 2 * CROWD);
        assert_eq!(part(Time(2 + ROUND.0), 1), 3, "a round later only who came counts");
        assert_eq!(part(Time(3 + 3 * ROUND.0), 3), 4, "no crowd");
        let at = Time(3 + 6 * ROUND.0);
        let parts: Vec<u64> = (4..100).map(|sender| part(at, sender)).collect();
        assert_eq!((parts[0], parts[1], parts[95]), (5, 6 + CROWD, 100), "never more than there are connections");
    }

    proptest! {
        // [I22]
        #[test]
        fn shares_never_exceed_the_capacity_and_nobody_starves(demands in prop::collection::vec(1u32.., 1..80)) {
            let got = shares(&demands);
            prop_assert!(got.iter().sum::<u64>() <= CAPACITY.0);
            prop_assert!(got.iter().all(|&r| r > 0));
        }
    }
}
