//! The sender's record of a QP: every sequence number from the oldest that is not acknowledged on, and how it stands.
//!
//! A number belongs to one piece of one message for good: what is lost is sent again under the same number.

use std::mem::offset_of;

use metaroce_wire::Time;

use crate::outbox::Piece;
use crate::transport::ring::Ring;

/// How a number stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// On its way.
    Flying,
    /// To be sent again.
    Lost,
    /// The receiver was not ready for it: to be sent again later.
    Waiting,
    /// Arrived.
    Acked,
}

/// A number that was sent: two to a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Sent {
    pub piece: Piece,
    /// When it last left.
    pub at: Time,
    /// Bytes that it counts in the window.
    pub len: u32,
    /// Which of all departures was its last, modulo 2³²; the board fills it in.
    pub departure: u32,
    /// By which plane and entropy value it last left.
    pub ev: u16,
    /// How often it was sent again.
    pub resends: u16,
    pub plane: u8,
    pub state: State,
}

const _: () = assert!(size_of::<Sent>() == 32);

/// A number leaves, for the first time or again: the low bits of it, above how that has ended.
#[derive(Clone, Copy, Debug)]
struct Departure(u32);

/// How a departure has ended, if it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Flying,
    Landed,
    /// It counts for nothing any more.
    Over,
}

impl Departure {
    const END_BITS: u32 = 2;

    const fn of(number: u64) -> Departure {
        Departure((number as u32) << Departure::END_BITS)
    }

    const fn ended(self, end: End) -> Departure {
        Departure(self.0 | end as u32)
    }

    const fn has_ended(self, end: End) -> bool {
        self.0 & ((1 << Departure::END_BITS) - 1) == end as u32
    }

    /// The number, which is not before `base`, and less than 2³⁰ beyond it.
    const fn number(self, base: u64) -> u64 {
        let ahead = self.0.wrapping_sub((base as u32) << Departure::END_BITS) >> Departure::END_BITS;
        base + ahead as u64
    }
}

/// The numbers of a QP, and what is in flight. What every packet reads is first, in one cache line.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Board {
    base: u64,
    in_flight: u64,
    sent: Ring<Sent>,
    /// Oldest first, from the oldest on that is on its way.
    departures: Ring<Departure>,
    /// Numbers to be sent again; one that is not lost any more counts for nothing.
    lost: Ring<u64>,
    /// How many departures there were before the first of those, modulo 2³².
    departed: u32,
    /// How many of them have landed: they have overtaken the first.
    landed: u32,
}

const _: () = assert!(offset_of!(Board, lost) == 64 && size_of::<Board>() == 96);

impl Board {
    /// Nothing sent; `first` is the first number.
    pub fn new(first: u64) -> Board {
        Board { base: first, ..Board::default() }
    }

    /// The oldest number that is not acknowledged, or the next.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The next new number.
    pub fn next(&self) -> u64 {
        self.base + self.sent.len() as u64
    }

    /// Numbers from the base on.
    pub fn span(&self) -> u64 {
        self.sent.len() as u64
    }

    /// Bytes on their way.
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// All that was sent has arrived.
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// How many have overtaken the oldest that is on its way.
    #[inline]
    pub const fn overtakers(&self) -> u64 {
        self.landed as u64
    }

    /// A number that was sent and is not known to have been acknowledged together with all before it.
    pub fn get(&self, number: u64) -> Option<&Sent> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.sent.get(index)
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Sent> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.sent.get_mut(index)
    }

    /// All of them, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Sent)> + Clone {
        (self.base..).zip(self.sent.iter())
    }

    /// A new number leaves.
    #[inline]
    pub fn depart(&mut self, sent: Sent) -> u64 {
        let number = self.next();
        self.in_flight += u64::from(sent.len);
        let departure = self.leave(number);
        self.sent.push_back(Sent { departure, ..sent });
        number
    }

    /// A lost number leaves again, by `route`: a plane and an entropy value.
    pub fn depart_again(&mut self, now: Time, number: u64, route: (u8, u16)) {
        if let Some(sent) = self.get_mut(number) {
            (sent.state, sent.at, sent.resends) = (State::Flying, now, sent.resends.saturating_add(1));
            (sent.plane, sent.ev) = route;
            let len = sent.len;
            self.in_flight += u64::from(len);
            let departure = self.leave(number);
            if let Some(sent) = self.get_mut(number) {
                sent.departure = departure;
            }
        }
    }

    fn leave(&mut self, number: u64) -> u32 {
        self.departures.push_back(Departure::of(number));
        self.departed.wrapping_add(self.departures.len() as u32 - 1)
    }

    /// The last departure of a number that was on its way has ended.
    #[inline]
    fn end(&mut self, sent: &Sent, end: End) {
        self.in_flight -= u64::from(sent.len);
        self.landed += u32::from(end == End::Landed);
        if let Some(departure) = self.departures.get_mut(sent.departure.wrapping_sub(self.departed) as usize) {
            *departure = departure.ended(end);
        }
        while let Some(departure) = self.departures.front().filter(|departure| !departure.has_ended(End::Flying)) {
            self.landed -= u32::from(departure.has_ended(End::Landed));
            self.departed = self.departed.wrapping_add(1);
            self.departures.pop_front();
        }
    }

    /// The number to be sent again next.
    #[inline]
    pub fn next_lost(&mut self) -> Option<u64> {
        while let Some(&number) = self.lost.front() {
            if self.get(number).is_some_and(|sent| sent.state == State::Lost) {
                return Some(number);
            }
            self.lost.pop_front();
        }
        None
    }

    /// `number` has arrived. Answers what it was, the first time.
    #[inline]
    pub fn acknowledge(&mut self, number: u64) -> Option<Sent> {
        let sent = self.get_mut(number)?;
        let before = *sent;
        if before.state == State::Acked {
            return None;
        }
        sent.state = State::Acked;
        if before.state == State::Flying {
            self.end(&before, End::Landed);
        }
        Some(before)
    }

    /// Forgets what has arrived together with all before it.
    #[inline]
    pub fn shed(&mut self) {
        while self.sent.front().is_some_and(|sent| sent.state == State::Acked) {
            self.sent.pop_front();
            self.base += 1;
        }
    }

    /// Hints the processor at what is touched when `number` is acknowledged. None has ended before its time, most
    /// likely.
    #[inline]
    pub fn prefetch(&self, number: u64) {
        let index = number.wrapping_sub(self.base) as usize;
        self.sent.prefetch(index);
        self.departures.prefetch(index);
    }

    /// Hints the processor at where the next new number will be.
    #[inline]
    pub fn prefetch_next(&self) {
        self.sent.prefetch(self.sent.len());
        self.departures.prefetch(self.departures.len());
    }

    /// The departure that was longest ago of those on their way.
    #[inline]
    pub fn oldest(&self) -> Option<(Time, u64)> {
        let number = self.departures.front()?.number(self.base);
        Some((self.get(number)?.at, number))
    }

    /// `number` is lost, if it was on its way: it is to be sent again. Answers what it was.
    pub fn lose(&mut self, number: u64) -> Option<Sent> {
        let sent = self.take(number, State::Lost)?;
        self.lost.push_back(number);
        Some(sent)
    }

    /// The receiver was not ready for `number`.
    pub fn wait(&mut self, number: u64) -> Option<Sent> {
        self.take(number, State::Waiting)
    }

    /// It may be ready now.
    pub fn resume(&mut self, number: u64) {
        if let Some(sent) = self.get_mut(number)
            && sent.state == State::Waiting
        {
            sent.state = State::Lost;
            self.lost.push_back(number);
        }
    }

    /// The number that left longest ago of those on their way, if `threshold` packets have landed that left after it.
    pub fn overtaken(&self, threshold: u64) -> Option<u64> {
        let oldest = self.departures.front()?;
        (u64::from(self.landed) >= threshold).then(|| oldest.number(self.base))
    }

    fn take(&mut self, number: u64, state: State) -> Option<Sent> {
        let sent = self.get_mut(number).filter(|sent| sent.state == State::Flying)?;
        sent.state = state;
        let taken = *sent;
        self.end(&taken, End::Over);
        Some(taken)
    }

    /// Gives everything up.
    pub fn clear(&mut self) {
        self.base = self.next();
        self.sent.clear();
        self.departed = self.departed.wrapping_add(self.departures.len() as u32);
        self.departures.clear();
        self.lost.clear();
        (self.in_flight, self.landed) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(at: Time) -> Sent {
        let piece = Piece { message: 0, packet: 0 };
        Sent { piece, at, len: 10, ev: 0, plane: 0, state: State::Flying, resends: 0, departure: 0 }
    }

    proptest! {
        #[test]
        fn what_is_in_flight_is_what_is_on_its_way(
            first in 0..100u64,
            events in prop::collection::vec((0..6u8, 0..40u64), 1..200),
        ) {
            let (mut board, mut ended) = (Board::new(first), Vec::new());
            for (position, (event, pick)) in events.into_iter().enumerate() {
                let (now, number) = (Time(position as u64), board.base() + pick);
                match event {
                    0 | 1 => { board.depart(sent(now)); }
                    2 => {
                        let landed = board.acknowledge(number).filter(|sent| sent.state == State::Flying);
                        ended.extend(landed.map(|sent| sent.departure));
                        board.shed();
                    }
                    3 => { board.lose(number); }
                    4 => { board.wait(number); board.resume(number); }
                    _ => if let Some(lost) = board.next_lost() { board.depart_again(now, lost, (1, 2)) },
                }
                let flying = board.iter().filter(|(_, sent)| sent.state == State::Flying);
                let oldest = flying.clone().map(|(number, sent)| (sent.at, number)).min();
                prop_assert_eq!(board.in_flight(), 10 * flying.count() as u64);
                prop_assert_eq!(board.oldest(), oldest);
                let first = board.iter().filter(|(_, sent)| sent.state == State::Flying).map(|(_, s)| s.departure).min();
                let overtakers = ended.iter().filter(|&&departure| first.is_some_and(|first| departure > first)).count();
                prop_assert_eq!(board.overtaken(overtakers as u64), oldest.map(|(_, number)| number));
                prop_assert_eq!(board.overtaken(overtakers as u64 + 1), None);
                let lost = board.iter().any(|(_, sent)| sent.state == State::Lost);
                prop_assert_eq!(board.next_lost().is_some(), lost);
                prop_assert!(board.get(board.base()).is_none_or(|sent| sent.state != State::Acked));
            }
            board.clear();
            prop_assert!(board.is_empty() && board.in_flight() == 0 && board.oldest().is_none());
        }
    }
}
