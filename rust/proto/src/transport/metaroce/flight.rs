//! Packets in flight: one slab for the endpoint. Each path threads a FIFO of its packets in
//! sequence order through it (gap detection reads it from the front); each connection remembers
//! all of its sends in order (time-based detection reads that from the front). Both make an
//! acknowledgement cost O(1) a packet, and leave one timer a connection.

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
    /// Sending time.
    pub at: Time,
    /// Bytes in windows; 0 once it has landed while packets before it had not.
    pub len: u32,
    /// Next packet of the same path; next free slot in a free one.
    next_on_path: u32,
    pub serial: u32,
    pub path: u16,
    /// Times this piece has been sent before.
    pub attempts: u8,
}

const _: () = assert!(size_of::<Sent>() == 32);

impl Sent {
    /// An entry that is in no list yet.
    pub const fn new(now: Time, lost: Resend, serial: u32, len: u32) -> Sent {
        let Resend { piece, path, attempts } = lost;
        Sent { piece, at: now, len, next_on_path: NIL, serial, path, attempts }
    }

    /// Its piece, to be sent once more.
    pub const fn again(&self) -> Resend {
        Resend { piece: self.piece, path: self.path, attempts: self.attempts.saturating_add(1) }
    }

    /// Time since it was sent, as its packet tells the receiver.
    #[inline]
    pub const fn age(&self, now: Time) -> Time {
        Stamp::of(self.at).until(now)
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

/// The sends of a connection, oldest first, numbered by their serials.
#[derive(Debug, Default)]
pub struct Order {
    /// Serial of the oldest, and how many there are.
    base: u32,
    len: u32,
    /// Slot of the packet with serial s at s modulo the length, which is a power of two, or 0. None any more once it is
    /// not in flight; its place stays until it is the oldest.
    slots: Box<[u32]>,
}

impl Order {
    /// The serial of the next packet.
    #[inline]
    pub const fn next_serial(&self) -> u32 {
        self.base.wrapping_add(self.len)
    }

    /// Where the slot of a serial is.
    #[inline]
    const fn place(&self, serial: u32) -> usize {
        serial as usize & self.slots.len().wrapping_sub(1)
    }

    /// The slot of the packet with this serial, if it is in flight.
    #[inline]
    pub fn slot(&self, serial: u32) -> Option<u32> {
        if serial.wrapping_sub(self.base) >= self.len {
            return None;
        }
        self.slots.get(self.place(serial)).copied().filter(|&slot| slot != NIL)
    }

    #[inline]
    fn push(&mut self, slot: u32) {
        if self.len as usize == self.slots.len() {
            self.make_room();
        }
        let place = self.place(self.next_serial());
        self.slots[place] = slot;
        self.len += 1;
    }

    /// The packet with this serial is no longer in flight.
    #[inline]
    pub fn land(&mut self, serial: u32) {
        let place = self.place(serial);
        self.slots[place] = NIL;
    }

    /// Gives up what is not needed any more before it grows: what it takes of the cache is to depend on what is in
    /// flight.
    #[inline(never)]
    fn make_room(&mut self) {
        self.trim();
        if (self.len as usize) < self.slots.len() {
            return;
        }
        let mut slots = vec![NIL; (2 * self.slots.len()).max(4)].into_boxed_slice();
        for serial in (0..self.len).map(|k| self.base.wrapping_add(k)) {
            slots[serial as usize & (slots.len() - 1)] = self.slots[self.place(serial)];
        }
        self.slots = slots;
    }

    /// Takes out what is no longer in flight, up to the first packet that is.
    fn trim(&mut self) {
        while self.len > 0 && self.slots[self.place(self.base)] == NIL {
            self.base = self.base.wrapping_add(1);
            self.len -= 1;
        }
    }

    /// The first packet from position `from` on that is in flight: its position, and its slot.
    pub fn oldest(&mut self, from: u32) -> Option<(u32, u32)> {
        self.trim();
        (from..self.len).find_map(|position| Some((position, self.slot(self.base.wrapping_add(position))?)))
    }

    /// Hints the processor at a packet, if it is in flight.
    #[inline]
    pub fn prefetch_sent(&self, serial: u32, flight: &Flight) {
        self.slots.get(self.place(serial)).map(|&slot| flight.prefetch(slot)).unwrap_or_default();
    }

    /// Hints the processor at the entry of a packet.
    #[inline]
    pub fn prefetch(&self, serial: u32) {
        self.slots.get(self.place(serial)).map(prefetch).unwrap_or_default();
    }
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

    /// Hints the processor at the slot that the next packet takes.
    #[inline]
    pub fn prefetch_free(&self) {
        self.prefetch(self.free);
    }

    /// A new entry at the end of both lists.
    #[inline(always)]
    pub fn push(&mut self, sent: Sent, order: &mut Order, path: &mut Fifo) {
        let slot = if self.free == NIL {
            self.slots.push(sent);
            self.slots.len() as u32 - 1
        } else {
            let slot = self.free;
            let old = &mut self.slots[slot as usize];
            self.free = old.next_on_path;
            *old = sent;
            slot
        };
        match path.last {
            NIL => path.first = slot,
            last => self.slots[last as usize].next_on_path = slot,
        }
        path.last = slot;
        order.push(slot);
    }

    /// Packet in `slot`, not the first of its path, has landed: nothing but its place stays until all
    /// before it are out. Answers what it was.
    pub fn hollow(&mut self, slot: u32) -> Sent {
        let entry = &mut self.slots[slot as usize];
        let sent = *entry;
        entry.len = 0;
        sent
    }

    /// Takes the first entry of `path` out.
    #[inline]
    pub fn pop(&mut self, path: &mut Fifo) -> Sent {
        let slot = path.first;
        let entry = &mut self.slots[slot as usize];
        let sent = *entry;
        entry.next_on_path = self.free;
        self.free = slot;
        path.first = sent.next_on_path;
        if path.first == NIL {
            path.last = NIL;
        }
        sent
    }

    /// Time since the newest packet of a path was sent.
    pub fn newest_age(&self, path: &Fifo, now: Time) -> Time {
        if path.last == NIL { Time::NEVER } else { self.get(path.last).age(now) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn sent(packet: u32, path: u16, order: &Order) -> Sent {
        let what = Resend { piece: Piece { message: 0, packet }, path, attempts: 0 };
        Sent::new(Time(u64::from(packet)), what, order.next_serial(), 1)
    }

    #[test]
    fn slots_are_reused_and_what_has_landed_is_passed_over() {
        let (mut flight, mut order, mut paths) = (Flight::new(), Order::default(), [Fifo::EMPTY; 2]);
        let push = |flight: &mut Flight, order: &mut Order, fifo: &mut Fifo, packet, path| {
            flight.push(sent(packet, path, order), order, fifo);
        };
        let pop = |flight: &mut Flight, order: &mut Order, fifo: &mut Fifo| {
            let sent = flight.pop(fifo);
            order.land(sent.serial);
            sent.piece.packet
        };
        let oldest = |flight: &Flight, order: &mut Order| Some(flight.get(order.oldest(0)?.1).piece.packet);
        for (packet, path) in [(0, 0), (1, 1), (2, 0)] {
            push(&mut flight, &mut order, &mut paths[path as usize], packet, path);
        }
        assert_eq!(pop(&mut flight, &mut order, &mut paths[0]), 0);
        push(&mut flight, &mut order, &mut paths[0], 3, 0);
        assert_eq!((flight.slots.len(), oldest(&flight, &mut order)), (3, Some(1)));
        assert_eq!((order.slot(0), order.slot(4)), (None, None));
        pop(&mut flight, &mut order, &mut paths[1]);
        assert_eq!(oldest(&flight, &mut order), Some(2));
        assert_eq!([0, 0].map(|_| pop(&mut flight, &mut order, &mut paths[0])), [2, 3]);
        assert_eq!(oldest(&flight, &mut order), None);
        assert!(paths[0].first == NIL && order.len == 0);
    }

    proptest! {
        /// Whatever lands when, and wherever serials wrap.
        #[test]
        fn an_order_knows_what_is_in_flight(base: u32, steps in prop::collection::vec((0..3u32, any::<u32>()), 1..400)) {
            let mut order = Order { base, ..Order::default() };
            let mut open = BTreeMap::new();
            for (slot, (kind, pick)) in (0..).zip(steps) {
                let picked = open.keys().nth(pick as usize % open.len().max(1)).copied();
                match (kind, picked.and_then(|slot| open.remove(&slot))) {
                    (0, Some(serial)) => order.land(serial),
                    (_, taken) => {
                        open.extend(picked.zip(taken));
                        open.insert(slot, order.next_serial());
                        order.push(slot);
                    }
                }
                let near = (0..order.len + 9).map(|k| order.base.wrapping_add(k).wrapping_sub(4));
                let known: Vec<_> = near.filter_map(|serial| order.slot(serial).zip(Some(serial))).collect();
                prop_assert_eq!(&known, &open.clone().into_iter().collect::<Vec<_>>());
                if pick % 8 == 0 {
                    prop_assert_eq!(order.oldest(0).map(|(_, slot)| slot), open.keys().next().copied());
                }
            }
        }
    }
}
