//! Which message sends its next packet: lanes take turns.

use metaroce_wire::{Opcode, prefetch};

use super::{OutMessage, Outbox, Piece};
use crate::verbs::WorkRequest;

/// No message, or no lane.
pub(super) const NONE: u32 = u32::MAX;

/// What is to be sent in order: the messages of one stream, or all answers to the peer. Lanes take turns, a
/// packet each, so that nothing waits behind a long message of another stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    /// First and last message with unsent packets, linked by [`OutMessage::next`].
    first: u32,
    last: u32,
    /// Next packet of the first.
    packet: u32,
    /// Next lane in the ring of those that have something to send.
    ring: u32,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane { first: NONE, last: NONE, packet: 0, ring: NONE }
    }
}

/// The lane of answers; that of stream s is s + 1.
const ANSWERS: u32 = 0;

pub(super) fn lane_of(request: &WorkRequest) -> u32 {
    if request.opcode == Opcode::Response { ANSWERS } else { u32::from(request.stream.0) + 1 }
}

impl Outbox {
    fn lane(&mut self, lane: u32) -> &mut Lane {
        if lane == ANSWERS { &mut self.answers } else { &mut self.streams[lane as usize - 1].lane }
    }

    /// Puts a message at the end of its lane, and the lane into the ring.
    pub(super) fn line_up(&mut self, number: u32, message: u32) {
        let base = self.base;
        let lane = self.lane(number);
        let last = std::mem::replace(&mut lane.last, message);
        if lane.first != NONE && last.wrapping_sub(base) < message - base {
            self.messages[(last - base) as usize].next = message;
            return;
        }
        // Empty, or of a transport that does not ask for pieces: all that stood there is over.
        (lane.first, lane.packet) = (message, 0);
        if lane.ring == NONE {
            let turn = std::mem::replace(&mut self.turn, number);
            let head = if turn == NONE { number } else { std::mem::replace(&mut self.lane(turn).ring, number) };
            self.lane(number).ring = head;
        }
    }

    /// The next piece never sent before.
    #[inline]
    pub fn next_piece(&mut self) -> Option<Piece> {
        self.next_cut().map(|(piece, _)| piece)
    }

    /// The same, with what [`Outbox::payload_of`] says of it.
    #[inline(always)]
    pub fn next_cut(&mut self) -> Option<(Piece, Option<u32>)> {
        let number = self.next_lane()?;
        let Outbox { mtu, base, messages, answers, turn, unsent, streams, .. } = self;
        let lane = if number == ANSWERS { answers } else { &mut streams[number as usize - 1].lane };
        let Lane { first, packet, .. } = *lane;
        let message = messages.get(first.wrapping_sub(*base) as usize)?;
        let len = message.payload_len(packet, u32::from(*mtu));
        *unsent -= u64::from(len);
        let piece = Some((Piece { message: first, packet }, (!message.asks()).then_some(len)));
        if packet + 1 < message.packets {
            lane.packet += 1;
            // [F10.streams-take-turns]
            *turn = number;
            return piece;
        }
        (lane.first, lane.packet) = (message.next, 0);
        if lane.first == NONE {
            self.leave_ring(number);
        } else {
            self.turn = number;
        }
        piece
    }

    /// The lane whose turn it is.
    #[inline]
    fn next_lane(&self) -> Option<u32> {
        match self.turn {
            NONE => None,
            ANSWERS => Some(self.answers.ring),
            turn => Some(self.streams[turn as usize - 1].lane.ring),
        }
    }

    fn leave_ring(&mut self, number: u32) {
        let next = std::mem::replace(&mut self.lane(number).ring, NONE);
        if next == number {
            self.turn = NONE;
            return;
        }
        let mut before = if self.turn == number { next } else { self.turn };
        while self.lane(before).ring != number {
            before = self.lane(before).ring;
        }
        self.lane(before).ring = next;
        if self.turn == number {
            self.turn = before;
        }
    }

    /// Whether there is a piece never sent before.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.turn != NONE
    }

    /// Hints the processor at the stream, and at the message, that [`Outbox::next_piece`] will most likely cut: those
    /// of the last one, of which nothing outside the outbox is looked at.
    #[inline]
    pub fn prefetch_next(&self) {
        if let Some(stream) = self.streams.get((self.turn as usize).wrapping_sub(1)) {
            prefetch(stream);
            self.prefetch_oldest();
        }
    }

    /// Hints the processor at the message that will be complete first, most likely.
    #[inline]
    pub fn prefetch_oldest(&self) {
        self.messages.front().map(prefetch).unwrap_or_default();
    }

    /// Takes messages that have failed out of a lane that is in the ring.
    pub(super) fn weed(&mut self, number: u32) {
        let Lane { first, packet, ring, .. } = *self.lane(number);
        if ring == NONE {
            return;
        }
        let (mut at, mut kept) = (first, NONE);
        let mut fresh = Lane { ring, ..Lane::default() };
        while at != NONE {
            let Some(&OutMessage { next, packets, .. }) = self.messages.get(at.wrapping_sub(self.base) as usize) else {
                break;
            };
            if packets > 0 {
                match kept {
                    NONE => (fresh.first, fresh.packet) = (at, if at == first { packet } else { 0 }),
                    kept => self.messages[(kept - self.base) as usize].next = at,
                }
                (kept, fresh.last) = (at, at);
            }
            at = next;
        }
        if kept != NONE {
            self.messages[(kept - self.base) as usize].next = NONE;
        }
        *self.lane(number) = fresh;
        if fresh.first == NONE {
            self.leave_ring(number);
        }
    }

    pub(super) fn unsent_of(&self, number: u32) -> u64 {
        let message = &self.messages[(number - self.base) as usize];
        let lane = match lane_of(&message.request) {
            ANSWERS => &self.answers,
            stream => &self.streams[stream as usize - 1].lane,
        };
        // A lane is in rising order.
        let sent = if number == lane.first { u64::from(lane.packet) * u64::from(self.mtu()) } else { 0 };
        if lane.ring == NONE || number < lane.first { 0 } else { message.payload().saturating_sub(sent) }
    }
}
