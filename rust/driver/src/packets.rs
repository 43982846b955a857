//! Packets on their way: envelopes, which every hop touches, apart from bodies, which only the
//! ends do.

use metaroce_wire::{Body, Envelope, prefetch};

/// A slab of packets.
#[derive(Debug, Default)]
pub struct Packets {
    envelopes: Vec<Envelope>,
    bodies: Vec<Body>,
    free: Vec<u32>,
}

impl Packets {
    /// Stores a packet.
    #[inline]
    pub fn insert(&mut self, envelope: &Envelope, body: &Body) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.envelopes[slot as usize] = *envelope;
            self.bodies[slot as usize] = *body;
            return slot;
        }
        self.envelopes.push(*envelope);
        self.bodies.push(*body);
        self.envelopes.len() as u32 - 1
    }

    #[inline]
    pub fn envelope(&mut self, slot: u32) -> &mut Envelope {
        &mut self.envelopes[slot as usize]
    }

    /// A packet, to read.
    #[inline]
    pub fn get(&self, slot: u32) -> (&Envelope, &Body) {
        (&self.envelopes[slot as usize], &self.bodies[slot as usize])
    }

    /// Forgets a packet.
    #[inline]
    pub fn discard(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Packets on their way.
    pub fn len(&self) -> u64 {
        (self.envelopes.len() - self.free.len()) as u64
    }

    /// Takes over what is on its way in another part of the run.
    pub fn adopt(&mut self, mut other: Packets) {
        let mut slots = Vec::new();
        other.each_slot(|slot, _| slots.push(slot));
        for slot in slots {
            let (envelope, body) = other.get(slot as u32);
            self.insert(envelope, body);
        }
    }

    /// Shows all packets on their way.
    pub fn each(&mut self, mut show: impl FnMut(&mut Envelope)) {
        self.each_slot(|_, envelope| show(envelope));
    }

    fn each_slot(&mut self, mut show: impl FnMut(usize, &mut Envelope)) {
        let mut live = vec![true; self.envelopes.len()];
        self.free.iter().for_each(|&slot| live[slot as usize] = false);
        let all = self.envelopes.iter_mut().enumerate().zip(live);
        all.filter(|(_, live)| *live).for_each(|((slot, envelope), _)| show(slot, envelope));
    }

    /// Hints that the packet in `slot` is needed soon.
    #[inline]
    pub fn prefetch_envelope(&self, slot: u32) {
        if let Some(envelope) = self.envelopes.get(slot as usize) {
            prefetch(envelope);
        }
    }

    /// Hints that the body of `slot` is needed soon.
    #[inline]
    pub fn prefetch_body(&self, slot: u32) {
        if let Some(body) = self.bodies.get(slot as usize) {
            prefetch(body);
        }
        // A body is longer than a line: the start of the next one stands in for the rest of it.
        if let Some(next) = self.bodies.get(slot as usize + 1) {
            prefetch(next);
        }
    }
}
