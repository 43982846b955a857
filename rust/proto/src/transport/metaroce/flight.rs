//! Packets in flight: one slab for the endpoint. Each path threads a FIFO of its packets in
//! sequence order through it (gap detection reads it from the front); each connection remembers
//! all of its sends in order (time-based detection reads that from the front). Both make an
//! acknowledgement cost O(1) a packet, and leave one timer a connection.

use std::collections::VecDeque;

use metaroce_wire::{Stamp, Time, prefetch};

use super::connection::Resend;
use crate::outbox::Piece;

/// No slot.
pub const NIL: u32 = u32::MAX;

/// A packet in flight: half a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Sent {
    pub piece: Piece,
    pub pps: u32,
    /// Bytes in windows; 0 once it has landed while packets before it had not.
    pub len: u32,
    /// Next packet of the same path; next free slot in a free one.
    next_on_path: u32,
    /// Counts the uses of the slot.
    generation: u32,
    /// Sending time.
    pub at: Stamp,
    pub path: u16,
    /// Times this piece has been sent before.
    pub attempts: u8,
}

const _: () = assert!(size_of::<Sent>() == 32);

impl Sent {
    /// An entry that is in no list yet.
    pub const fn new(lost: Resend, pps: u32, len: u32) -> Sent {
        let Resend { piece, path, attempts } = lost;
        Sent { piece, pps, len, next_on_path: NIL, generation: 0, at: Stamp::of(Time::ZERO), path, attempts }
    }

    /// Its piece, to be sent once more.
    pub const fn again(&self) -> Resend {
        Resend { piece: self.piece, path: self.path, attempts: self.attempts.saturating_add(1) }
    }
}

/// The FIFO of a path.
#[derive(Clone, Copy, Debug)]
pub struct Fifo {
    pub first: u32,
    last: u32,
}

impl Fifo {
    pub const EMPTY: Fifo = Fifo { first: NIL, last: NIL };
}

/// The sends of a connection, oldest first, numbered by their serials. Entries of packets that are
/// no longer in flight stay until they reach the front: their slot has another generation by then.
#[derive(Debug, Default)]
pub struct Order {
    /// Serial of `sends[0]`.
    base: u32,
    sends: VecDeque<Send>,
}

#[derive(Clone, Copy, Debug)]
struct Send {
    at: Time,
    slot: u32,
    generation: u32,
}

impl Order {
    /// The serial of the next packet.
    #[inline]
    pub fn next_serial(&self) -> u32 {
        self.base.wrapping_add(self.sends.len() as u32)
    }

    /// Hints the processor at the entry of a packet.
    #[inline]
    pub fn prefetch(&self, serial: u32) {
        self.sends.get(serial.wrapping_sub(self.base) as usize).map(prefetch).unwrap_or_default();
    }
}

/// A packet that waits for its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Position in the order.
    pub position: usize,
    pub sent_at: Time,
    pub path: usize,
}

/// The slab.
#[derive(Debug)]
pub struct Flight {
    slots: Vec<Sent>,
    free: u32,
}

impl Flight {
    pub const fn new() -> Flight {
        Flight { slots: Vec::new(), free: NIL }
    }

    #[inline]
    pub fn get(&self, slot: u32) -> &Sent {
        &self.slots[slot as usize]
    }

    /// Hints the processor at a slot, if it is one.
    #[inline]
    pub fn prefetch(&self, slot: u32) {
        self.slots.get(slot as usize).map(prefetch).unwrap_or_default();
    }

    /// Hints the processor at the slot of the packet with this serial.
    #[inline]
    pub fn prefetch_serial(&self, order: &Order, serial: u32) {
        if let Some(send) = order.sends.get(serial.wrapping_sub(order.base) as usize) {
            self.prefetch(send.slot);
        }
    }

    /// Hints the processor at the slot that the next packet takes.
    #[inline]
    pub fn prefetch_free(&self) {
        self.prefetch(self.free);
    }

    /// A new entry at the end of both lists.
    #[inline(always)]
    pub fn push(&mut self, now: Time, mut sent: Sent, order: &mut Order, path: &mut Fifo) {
        sent.at = Stamp::of(now);
        let slot = if self.free == NIL {
            self.slots.push(sent);
            self.slots.len() as u32 - 1
        } else {
            let slot = self.free;
            let old = &mut self.slots[slot as usize];
            self.free = old.next_on_path;
            sent.generation = old.generation;
            *old = sent;
            slot
        };
        match path.last {
            NIL => path.first = slot,
            last => self.slots[last as usize].next_on_path = slot,
        }
        path.last = slot;
        if order.sends.len() == order.sends.capacity() {
            self.trim(order);
        }
        order.sends.push_back(Send { at: now, slot, generation: sent.generation });
    }

    /// Packet in `slot`, not the first of its path, has landed: nothing but its place stays until all
    /// before it are out. Answers what it was.
    pub fn hollow(&mut self, slot: u32) -> Sent {
        let entry = &mut self.slots[slot as usize];
        let sent = *entry;
        entry.len = 0;
        entry.generation = entry.generation.wrapping_add(1);
        sent
    }

    /// Takes the first entry of `path` out.
    #[inline]
    pub fn pop(&mut self, path: &mut Fifo) -> Sent {
        let slot = path.first;
        let entry = &mut self.slots[slot as usize];
        let sent = *entry;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_on_path = self.free;
        self.free = slot;
        path.first = sent.next_on_path;
        if path.first == NIL {
            path.last = NIL;
        }
        sent
    }

    /// The slot of the packet with this serial, if it is in flight.
    #[inline]
    pub fn by_serial(&self, order: &Order, serial: u32) -> Option<u32> {
        let send = order.sends.get(serial.wrapping_sub(order.base) as usize)?;
        self.is_current(send).then_some(send.slot)
    }

    /// The first packet of `order` from position `from` on that is still in flight.
    pub fn oldest(&self, order: &mut Order, from: usize) -> Option<Waiting> {
        self.trim(order);
        let (position, send) = order.sends.iter().enumerate().skip(from).find(|(_, send)| self.is_current(send))?;
        Some(Waiting { position, sent_at: send.at, path: self.get(send.slot).path as usize })
    }

    /// Takes out of `order` what is no longer in flight, up to the first packet that is. Before a list grows, too: what
    /// it takes of the cache is to depend on what is in flight.
    #[inline(never)]
    fn trim(&self, order: &mut Order) {
        while order.sends.front().is_some_and(|send| !self.is_current(send)) {
            order.sends.pop_front();
            order.base = order.base.wrapping_add(1);
        }
    }

    fn is_current(&self, send: &Send) -> bool {
        self.get(send.slot).generation == send.generation
    }

    /// Time since the newest packet of a path was sent.
    pub fn newest_age(&self, path: &Fifo, now: Time) -> Time {
        if path.last == NIL { Time::NEVER } else { self.get(path.last).at.until(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(pps: u32, path: u16) -> Sent {
        Sent::new(Resend { piece: Piece { message: 0, packet: pps }, path, attempts: 0 }, pps, 1)
    }

    fn oldest(flight: &Flight, order: &mut Order) -> Option<(Time, usize)> {
        flight.oldest(order, 0).map(|waiting| (waiting.sent_at, waiting.path))
    }

    #[test]
    fn slots_are_reused_and_stale_sends_are_passed_over() {
        let (mut flight, mut order) = (Flight::new(), Order::default());
        let mut paths = [Fifo::EMPTY; 2];
        flight.push(Time(1), sent(0, 0), &mut order, &mut paths[0]);
        flight.push(Time(2), sent(0, 1), &mut order, &mut paths[1]);
        flight.push(Time(3), sent(1, 0), &mut order, &mut paths[0]);
        assert_eq!(flight.pop(&mut paths[0]).pps, 0);
        flight.push(Time(3), sent(2, 0), &mut order, &mut paths[0]);
        assert_eq!(flight.slots.len(), 3);
        assert_eq!(oldest(&flight, &mut order), Some((Time(2), 1)));
        flight.pop(&mut paths[1]);
        assert_eq!(oldest(&flight, &mut order), Some((Time(3), 0)));
        assert_eq!((flight.pop(&mut paths[0]).pps, flight.pop(&mut paths[0]).pps), (1, 2));
        assert_eq!(oldest(&flight, &mut order), None);
        assert!(paths[0].first == NIL && order.sends.is_empty());
    }
}
