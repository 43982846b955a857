//! Packets in flight: one slab for the endpoint, threaded by two kinds of lists. Each path has a
//! FIFO of its packets in sequence order (gap detection reads it from the front); each connection
//! has all of its packets in sending order (time-based detection reads it from the front). Both
//! make an acknowledgement cost O(1) a packet, and leave one timer a connection.

use metaroce_wire::Time;

use crate::outbox::Piece;

/// No slot.
pub const NIL: u32 = u32::MAX;

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub sent_at: Time,
    pub piece: Piece,
    pub pps: u32,
    pub len: u32,
    /// Neighbours in the connection's sending order.
    older: u32,
    newer: u32,
    /// Next packet of the same path; next free slot in a free one.
    next_on_path: u32,
    pub path: u16,
    /// Times this piece has been sent before.
    pub attempts: u8,
}

/// Ends of a list of slots.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub first: u32,
    pub last: u32,
}

impl Ends {
    pub const EMPTY: Ends = Ends { first: NIL, last: NIL };
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

    /// A new entry at the end of both lists; links in `sent` are overwritten.
    #[inline]
    pub fn push(&mut self, mut sent: Sent, order: &mut Ends, path: &mut Ends) {
        sent.older = order.last;
        sent.newer = NIL;
        sent.next_on_path = NIL;
        let slot = if self.free == NIL {
            self.slots.push(sent);
            self.slots.len() as u32 - 1
        } else {
            let slot = self.free;
            self.free = self.slots[slot as usize].next_on_path;
            self.slots[slot as usize] = sent;
            slot
        };
        match order.last {
            NIL => order.first = slot,
            last => self.slots[last as usize].newer = slot,
        }
        order.last = slot;
        match path.last {
            NIL => path.first = slot,
            last => self.slots[last as usize].next_on_path = slot,
        }
        path.last = slot;
    }

    /// Takes the first entry of `path` out of both lists.
    #[inline]
    pub fn pop(&mut self, order: &mut Ends, path: &mut Ends) -> Sent {
        let slot = path.first;
        let sent = self.slots[slot as usize];
        path.first = sent.next_on_path;
        if path.first == NIL {
            path.last = NIL;
        }
        match sent.older {
            NIL => order.first = sent.newer,
            older => self.slots[older as usize].newer = sent.newer,
        }
        match sent.newer {
            NIL => order.last = sent.older,
            newer => self.slots[newer as usize].older = sent.older,
        }
        self.slots[slot as usize].next_on_path = self.free;
        self.free = slot;
        sent
    }
}

impl Sent {
    /// An entry that is in no list yet.
    pub const fn new(sent_at: Time, piece: Piece, path: u16) -> Sent {
        Sent { sent_at, piece, pps: 0, len: 0, older: NIL, newer: NIL, next_on_path: NIL, path, attempts: 0 }
    }
}
