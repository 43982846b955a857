//! The sending half of a QP: packet sequence numbers, go-back-N, and what its timers wait for.
//!
//! It owns the mapping from sequence numbers to pieces of messages; the messages themselves are in
//! the connection's outbox.

use std::collections::VecDeque;
use std::mem::offset_of;

use metaroce_wire::{PlaneId, Rate, Time, units::PS_PER_S};

use super::dcqcn::{Limiter, Params};
use super::psn;
use super::selective::Scoreboard;
use crate::outbox::Piece;

/// A contiguous part of a message, as one RC message of this QP.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Connection-wide number of the message in the outbox.
    message: u32,
    /// Its first packet in the message.
    packet: u32,
    /// Sequence number of that packet, and of the one after the last.
    psn: u32,
    end: u32,
    /// It is one packet that asks for all these, which are the peer's.
    asks: bool,
}

/// What a QP puts into all its packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    pub connection: u32,
    /// Number of the QP.
    pub number: u16,
    /// UDP source port.
    pub entropy: u16,
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    /// What it carries.
    pub piece: Piece,
    /// Its sequence number.
    pub psn: u32,
    /// Packets of the answer that it asks for.
    pub answer: u32,
    /// It is the first of its RC message and carries the RETH.
    pub first: bool,
    /// It is the last of its RC message.
    pub last: bool,
    /// It asks for an acknowledgement.
    pub ack_request: bool,
    /// It has been sent before.
    pub resent: bool,
}

/// Requester state. All sequence numbers are unwrapped; `una` ≤ `next` ≤ `max` ≤ `posted`. The order of the fields is
/// that of use: what packets and acknowledgements touch is in the first two cache lines.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Requester {
    /// Oldest not acknowledged.
    una: u32,
    /// Next to be sent.
    next: u32,
    /// End of what has ever been sent.
    max: u32,
    /// End of what has been posted.
    posted: u32,
    /// The part of `una`; empty if nothing is posted that is not acknowledged.
    front: Part,
    /// End of what had been sent when the timer was started.
    timed: u32,
    /// The acknowledgement timer expires then; `NEVER` while nothing is in flight.
    pub deadline: Time,
    /// Time of the entry in the timer heap that stands for `deadline`.
    pub timer_entry: Time,
    /// Time of the entry in the timer heap that will make this QP ready.
    pub wake: Time,

    /// Of its packets.
    pub origin: Origin,
    pub plane: PlaneId,
    /// In the ring of its port.
    pub in_ring: bool,
    /// The next packet is the first after a rewind.
    rewound: bool,
    /// Selective repeat: then `next` never goes back.
    selective: bool,
    /// Expiries in a row without progress.
    pub timeouts: u32,
    /// When an acknowledgement was last asked for.
    asked: Time,
    /// Start and length of the last packet, from which the pace counts.
    last: Time,
    last_len: u32,
    /// RNR NAKs in a row without progress.
    pub not_ready: u16,
    /// Requests sent and not completely answered.
    asking: u16,
    /// Receiver not ready: silent until then.
    pub silent_until: Time,
    /// Rate limiter, once a CNP has come.
    limiter: Option<Box<Limiter>>,
    /// Selective repeat: what is known of packets in flight, once one was found lost.
    board: Option<Box<Scoreboard>>,

    /// Parts behind `front`.
    rest: VecDeque<Part>,
    /// Most requests that may wait for answers.
    depth: u32,
    /// Went back for the answer to this one: no other sign of its loss counts before it is here.
    implied: Option<u32>,
}

const _: () = assert!(offset_of!(Requester, origin) <= 64 && offset_of!(Requester, rest) == 128);

impl Requester {
    /// Nothing posted; the first packet will be `psn`. At most `depth` requests will wait for answers.
    pub fn new(psn: u32, depth: u32) -> Requester {
        Requester {
            una: psn,
            next: psn,
            max: psn,
            posted: psn,
            timed: psn,
            depth,
            deadline: Time::NEVER,
            timer_entry: Time::NEVER,
            wake: Time::NEVER,
            ..Requester::default()
        }
    }

    /// With selective repeat instead of go-back-N, if it is on.
    pub fn selective(self, on: bool) -> Requester {
        Requester { selective: on, ..self }
    }

    /// Appends `[packet, packet + packets)` of `message`: packets that carry it, or that one packet `asks` for.
    pub fn post(&mut self, message: u32, packet: u32, packets: u32, asks: bool) {
        let psn = self.posted;
        self.posted += packets;
        let part = Part { message, packet, psn, end: self.posted, asks };
        match self.front() {
            None => self.front = part,
            Some(_) => self.rest.push_back(part),
        }
    }

    /// The oldest sequence number that is not acknowledged.
    pub fn una(&self) -> u32 {
        self.una
    }

    /// The message that sequence number `psn` is part of; of what is posted and not acknowledged.
    pub fn message_at(&self, psn: u32) -> Option<u32> {
        let part = self.part_at(psn)?;
        (part.psn <= psn).then_some(part.message)
    }

    /// The oldest part that is not acknowledged.
    #[inline]
    fn front(&self) -> Option<&Part> {
        (self.front.psn < self.front.end).then_some(&self.front)
    }

    /// It is.
    #[inline]
    fn pop_front(&mut self) {
        // Else there is no other.
        let more = self.front.end < self.posted;
        self.front = if more { self.pop_rest() } else { Part::default() };
    }

    /// Apart, since the compiler would look at the rest before it is known to matter.
    #[inline(never)]
    fn pop_rest(&mut self) -> Part {
        self.rest.pop_front().unwrap_or_default()
    }

    /// The first part that ends behind `psn`.
    #[inline]
    fn part_at(&self, psn: u32) -> Option<&Part> {
        if psn < self.front.end {
            return Some(&self.front);
        }
        self.part_behind(psn)
    }

    #[inline(never)]
    fn part_behind(&self, psn: u32) -> Option<&Part> {
        self.rest.get(self.rest.partition_point(|part| part.end <= psn))
    }

    /// Packets sent or asked for and not acknowledged, since the last rewind.
    pub fn in_flight(&self) -> u32 {
        self.next - self.una
    }

    /// Packets posted and not acknowledged.
    pub fn unfinished(&self) -> u32 {
        self.posted - self.una
    }

    /// Whether there is something that a window of `window` packets (0: none) lets out.
    pub fn can_send(&self, window: u32) -> bool {
        let room = if window == 0 { psn::REACH } else { window.min(psn::REACH) };
        let fresh = self.next < self.posted && self.in_flight() < room && (!self.next_asks() || self.may_ask());
        fresh || self.has_lost()
    }

    fn next_asks(&self) -> bool {
        self.part_at(self.next).is_some_and(|part| part.asks)
    }

    fn may_ask(&self) -> bool {
        u32::from(self.asking) < self.depth
    }

    /// When pace and receiver let the next packet go; if that is later than `now`, the instant at
    /// which to look again.
    pub fn ready_at(&mut self, params: Option<&Params>, now: Time) -> Time {
        if self.silent_until > now {
            return self.silent_until;
        }
        self.pace_at(params, now)
    }

    /// The same of what does not wait for the receiver: an answer.
    pub fn pace_at(&mut self, params: Option<&Params>, now: Time) -> Time {
        let (Some(limiter), Some(params)) = (&mut self.limiter, params) else {
            return now;
        };
        limiter.catch_up(params, now);
        let Some(rate) = limiter.pace(params) else {
            return now;
        };
        let at = self.last.saturating_add(serialisation(rate, self.last_len));
        // The rate may rise while the QP waits: it then goes earlier.
        if at > now { at.min(limiter.due()) } else { now }
    }

    /// Takes the next packet; the caller has asked `can_send`. It asks for an acknowledgement at the
    /// end of a part or of the window, after a rewind, and if the last request is `patience` old: the
    /// timer of a slow QP must not expire because its packets are too few for a coalesced one.
    pub fn take(&mut self, window: u32, now: Time, patience: Time) -> Option<Next> {
        if let Some(psn) = self.board.as_mut().and_then(|board| board.take()) {
            return self.take_again(psn, now);
        }
        let part = *self.part_at(self.next)?;
        let psn = self.next;
        let answer = if part.asks { part.end - psn } else { 0 };
        self.next += answer.max(1);
        let resent = psn < self.max;
        self.max = self.max.max(self.next);
        let last = self.next == part.end;
        self.asking += u16::from(part.asks);
        let stop = last || window > 0 && self.in_flight() >= window;
        let ack_request = std::mem::take(&mut self.rewound) || stop || now.since(self.asked) >= patience;
        if ack_request {
            self.asked = now;
        }
        let piece = Piece { message: part.message, packet: part.packet + (psn - part.psn) };
        Some(Next { piece, psn, answer, first: psn == part.psn, last, ack_request, resent })
    }

    /// A lost packet, on its own. Each asks for an acknowledgement: nothing else may follow.
    fn take_again(&mut self, psn: u32, now: Time) -> Option<Next> {
        let part = *self.part_at(psn)?;
        self.asked = now;
        let piece = Piece { message: part.message, packet: part.packet + (psn - part.psn) };
        let last = psn + 1 == part.end;
        Some(Next { piece, psn, answer: 0, first: psn == part.psn, last, ack_request: true, resent: true })
    }

    /// A packet of `len` bytes has gone out.
    pub fn sent(&mut self, params: Option<&Params>, now: Time, len: u32) {
        (self.last, self.last_len) = (now, len);
        if let (Some(limiter), Some(params)) = (&mut self.limiter, params) {
            limiter.sent(params, len);
        }
    }

    /// Everything below `end` has arrived: calls `packet` with the message of each packet newly
    /// acknowledged. True if there was one. What waits for an answer, and all after it, is acknowledged by that alone.
    pub fn acknowledge(&mut self, end: u32, mut packet: impl FnMut(u32)) -> bool {
        let before = self.una;
        if end <= before || end > self.max {
            return false;
        }
        while self.una < end
            && let Some(&part) = self.front()
            && !part.asks
        {
            let stop = end.min(part.end);
            for _ in self.una..stop {
                packet(part.message);
            }
            self.una = stop;
            if stop == part.end {
                self.pop_front();
            }
        }
        let progress = self.una > before;
        if progress {
            self.progressed();
        }
        progress
    }

    fn progressed(&mut self) {
        if let Some(board) = &mut self.board {
            board.acknowledged(self.una);
        }
        if self.next < self.una {
            // A timer had gone back further than it needed to.
            self.go_to(self.una);
        }
        self.timeouts = 0;
        self.not_ready = 0;
    }

    /// Whether `end` was told to have arrived, and the answer to a request before it is missing.
    pub fn misses(&self, end: u32) -> bool {
        end > self.una && end <= self.max && self.front().is_some_and(|part| part.asks)
    }

    /// Packet `psn` of an answer has come. True if it is the next one.
    pub fn answered(&mut self, psn: u32) -> bool {
        let Some(&part) = self.front().filter(|part| part.asks && psn == self.una && psn < self.max) else {
            return false;
        };
        self.una += 1;
        if self.una == part.end {
            self.asking -= u16::from(self.next >= part.end);
            self.pop_front();
        }
        self.progressed();
        true
    }

    // [I38]
    /// Goes back to `psn`, if that has been sent and not acknowledged. True if it has an effect.
    pub fn rewind(&mut self, psn: u32) -> bool {
        let back = psn >= self.una && psn < self.next;
        if back && self.selective {
            let next = self.next;
            self.board().lose_below(next);
        } else if back {
            self.go_to(psn);
            self.rewound = true;
        }
        back
    }

    /// The timer has expired: goes back to the oldest packet that is not acknowledged. With selective
    /// repeat, `silence` after the last packet all others have been heard of.
    pub fn expired(&mut self, now: Time, silence: Time) {
        if self.selective {
            // What was out when it was started and is still missing is lost, again; with a sender silent for a while, so
            // is what it sent since.
            let end = if now.since(self.last) >= silence { self.next } else { self.timed };
            self.board().lose_below(end);
        } else {
            self.rewind_all();
        }
    }

    fn board(&mut self) -> &mut Scoreboard {
        self.board.get_or_insert_with(|| Box::new(Scoreboard::new(self.una)))
    }

    /// The timer is started now.
    pub fn timer_started(&mut self) {
        self.timed = self.next;
    }

    /// What a [`metaroce_wire::RoceSack`] says. Returns how many packets are thereby lost.
    pub fn sacked(&mut self, psn: u32, bits: u64) -> u32 {
        if self.selective && psn < self.next && psn >= self.una { self.board().sacked(psn, bits) } else { 0 }
    }

    /// Whether a lost packet waits to be sent again on its own.
    pub fn has_lost(&self) -> bool {
        self.board.as_ref().is_some_and(|board| board.first_lost().is_some())
    }

    /// Whether it is the oldest that is not acknowledged.
    pub fn has_lost_oldest(&self) -> bool {
        self.board.as_ref().is_some_and(|board| board.first_lost() == Some(self.una))
    }

    /// Goes back to the oldest packet that is not acknowledged.
    pub fn rewind_all(&mut self) {
        self.rewind(self.una);
        self.implied = Some(self.una);
    }

    /// Goes back to the oldest packet, whose answer is missing, unless it has been asked for again already: what
    /// shows the loss may have been on its way before that. True if it has an effect.
    pub fn rewind_missing(&mut self) -> bool {
        let fresh = self.implied != Some(self.una) && self.next > self.una;
        if fresh {
            self.rewind_all();
        }
        fresh
    }

    /// Rate and ECN estimate (thousandths) of the limiter as they stood at its last event, if there is one.
    pub fn limited(&self, params: Option<&Params>) -> Option<(Option<Rate>, u16)> {
        let (limiter, params) = (self.limiter.as_ref()?, params?);
        Some((limiter.pace(params), limiter.ecn_permille()))
    }

    /// A CNP has come.
    pub fn congested(&mut self, params: &Params, now: Time) {
        match &mut self.limiter {
            Some(limiter) => limiter.congested(params, now),
            None => self.limiter = Some(Box::new(Limiter::new(params, now))),
        }
    }

    /// Drops everything that is not acknowledged.
    pub fn clear(&mut self) {
        self.front = Part::default();
        self.rest.clear();
        self.asking = 0;
        self.una = self.posted;
        self.next = self.posted;
        self.max = self.posted;
        self.deadline = Time::NEVER;
        (self.selective, self.board) = (false, None);
    }

    fn go_to(&mut self, psn: u32) {
        self.next = psn;
        let sent = self.front().into_iter().chain(&self.rest).take_while(|part| part.end <= psn);
        self.asking = sent.filter(|part| part.asks).count() as u16;
    }
}

/// Time of one packet at `rate`, rounded up: a packet is short enough for 64 bits.
pub(super) fn serialisation(rate: Rate, len: u32) -> Time {
    Time((u64::from(len) * 8).saturating_mul(PS_PER_S).div_ceil(rate.0.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(requester: &mut Requester) -> Vec<(u32, u32, u32)> {
        std::iter::from_fn(|| {
            requester
                .can_send(0)
                .then(|| requester.take(0, Time::ZERO, Time::NEVER))
                .flatten()
                .map(|n| (n.psn, n.piece.message, n.piece.packet))
        })
        .collect()
    }

    #[test]
    fn sequence_numbers_map_to_the_pieces_of_each_part_after_any_rewind() {
        let mut requester = Requester::new(0, 2);
        requester.post(7, 10, 3, false);
        requester.post(9, 0, 2, false);
        let all = [(0, 7, 10), (1, 7, 11), (2, 7, 12), (3, 9, 0), (4, 9, 1)];
        assert_eq!(drain(&mut requester), all);
        for psn in (0..5).rev() {
            assert!(requester.rewind(psn));
            assert_eq!(drain(&mut requester), all[psn as usize..]);
        }
        let mut acked = Vec::new();
        assert!(requester.acknowledge(4, |message| acked.push(message)));
        assert_eq!(acked, [7, 7, 7, 9]);
        requester.rewind_all();
        requester.post(11, 0, 1, false);
        assert_eq!(drain(&mut requester), [(4, 9, 1), (5, 11, 0)]);
    }

    #[test]
    fn an_acknowledgement_overtakes_a_rewind() {
        let mut requester = Requester::new(0, 2);
        requester.post(1, 0, 6, false);
        requester.post(2, 0, 6, false);
        drain(&mut requester);
        requester.rewind_all();
        assert!(requester.acknowledge(8, |_| {}));
        assert_eq!(drain(&mut requester), [(8, 2, 2), (9, 2, 3), (10, 2, 4), (11, 2, 5)]);
        assert!(!requester.acknowledge(8, |_| {}), "old news");
        assert!(!requester.acknowledge(13, |_| {}), "never sent");
    }

    #[test]
    fn acknowledgements_are_asked_for_where_the_sender_would_wait() {
        let mut requester = Requester::new(0, 2);
        requester.post(1, 0, 5, false);
        let (window, patience) = (3, Time::from_us(500));
        let asks = |requester: &mut Requester, us| {
            requester.take(window, Time::from_us(us), patience).is_some_and(|next| next.ack_request)
        };
        assert_eq!([1, 2, 3].map(|us| asks(&mut requester, us)), [false, false, true], "window full");
        assert!(!requester.can_send(window));
        requester.acknowledge(3, |_| {});
        assert_eq!([4, 5].map(|us| asks(&mut requester, us)), [false, true], "end of part");
        requester.rewind(3);
        assert!(asks(&mut requester, 6), "first after a rewind");
        requester.post(2, 0, 5, false);
        requester.take(window, Time::from_us(7), patience);
        requester.acknowledge(5, |_| {});
        assert_eq!(
            [500, 507, 508].map(|us| asks(&mut requester, us)),
            [false, true, true],
            "too long ago, window full"
        );
    }

    #[test]
    fn a_paced_packet_waits_for_its_time_and_no_longer() {
        let line = Rate::from_gbps(200);
        let params = Params::new(crate::DcqcnPreset::Paper, line);
        let mut requester = Requester::new(0, 2);
        requester.post(1, 0, 2, false);
        requester.congested(params.as_ref().expect("rate control"), Time::ZERO);
        assert_eq!(requester.ready_at(params.as_ref(), Time::ZERO), Time::ZERO);
        requester.sent(params.as_ref(), Time::ZERO, 1000);
        assert_eq!(requester.ready_at(params.as_ref(), Time(1)), Time(80_000), "1000 B at 100 Gbit/s");
        assert_eq!(requester.ready_at(params.as_ref(), Time(80_000)), Time(80_000));
    }
}
