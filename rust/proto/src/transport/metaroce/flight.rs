//! Packets in flight: one slab for the endpoint. Each path threads a FIFO of its packets in
//! sequence order through it (gap detection reads it from the front); each connection remembers
//! all of its sends in order (time-based detection reads that from the front). Both make an
//! acknowledgement cost O(1) a packet, and leave one timer a connection.

use std::collections::VecDeque;

use metaroce_wire::{Time, prefetch};

use crate::outbox::Piece;

/// No slot.
pub const NIL: u32 = u32::MAX;

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub piece: Piece,
    pub pps: u32,
    pub len: u32,
    /// Next packet of the same path; next free slot in a free one.
    next_on_path: u32,
    /// Counts the uses of the slot.
    generation: u32,
    pub path: u16,
    /// Times this piece has been sent before.
    pub attempts: u8,
}

impl Sent {
    /// An entry that is in no list yet.
    pub const fn new(piece: Piece, pps: u32, len: u32, path: u16, attempts: u8) -> Sent {
        Sent { piece, pps, len, next_on_path: NIL, generation: 0, path, attempts }
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

/// The sends of a connection, oldest first. Entries of packets that are no longer in flight stay
/// until they reach the front: their slot has another generation by then.
pub type Order = VecDeque<Send>;

/// One entry of an [`Order`].
#[derive(Clone, Copy, Debug)]
pub struct Send {
    pub at: Time,
    slot: u32,
    generation: u32,
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

    /// A new entry at the end of both lists.
    #[inline]
    pub fn push(&mut self, now: Time, mut sent: Sent, order: &mut Order, path: &mut Fifo) {
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
        order.push_back(Send { at: now, slot, generation: sent.generation });
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

    /// The oldest packet of `order` that is still in flight: when it was sent, and its path.
    pub fn oldest(&self, order: &mut Order) -> Option<(Time, u16)> {
        while let Some(send) = order.front() {
            let sent = self.get(send.slot);
            if sent.generation == send.generation {
                return Some((send.at, sent.path));
            }
            order.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(pps: u32, path: u16) -> Sent {
        Sent::new(Piece { message: 0, packet: pps }, pps, 1, path, 0)
    }

    #[test]
    fn slots_are_reused_and_stale_sends_are_passed_over() {
        let (mut flight, mut order) = (Flight::new(), Order::new());
        let mut paths = [Fifo::EMPTY; 2];
        flight.push(Time(1), sent(0, 0), &mut order, &mut paths[0]);
        flight.push(Time(2), sent(0, 1), &mut order, &mut paths[1]);
        flight.push(Time(3), sent(1, 0), &mut order, &mut paths[0]);
        assert_eq!(flight.pop(&mut paths[0]).pps, 0);
        flight.push(Time(3), sent(2, 0), &mut order, &mut paths[0]);
        assert_eq!(flight.slots.len(), 3);
        assert_eq!(flight.oldest(&mut order), Some((Time(2), 1)));
        flight.pop(&mut paths[1]);
        assert_eq!(flight.oldest(&mut order), Some((Time(3), 0)));
        assert_eq!((flight.pop(&mut paths[0]).pps, flight.pop(&mut paths[0]).pps), (1, 2));
        assert_eq!(flight.oldest(&mut order), None);
        assert!(paths[0].first == NIL && order.is_empty());
    }
}
