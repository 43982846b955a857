//! Packets on their way: envelopes, which every hop touches, apart from bodies, which only the
//! ends do.

use metaroce_wire::{Body, Envelope, Packet};

/// A slab of packets.
#[derive(Debug, Default)]
pub struct Packets {
    envelopes: Vec<Envelope>,
    bodies: Vec<Body>,
    /// Caught on a link that went down: lost, though their event is still to come.
    doomed: Vec<bool>,
    free: Vec<u32>,
}

impl Packets {
    /// Stores a packet.
    #[inline]
    pub fn insert(&mut self, packet: Packet) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.envelopes[slot as usize] = packet.envelope;
            self.bodies[slot as usize] = packet.body;
            return slot;
        }
        self.envelopes.push(packet.envelope);
        self.bodies.push(packet.body);
        self.doomed.push(false);
        self.envelopes.len() as u32 - 1
    }

    #[inline]
    pub fn envelope(&mut self, slot: u32) -> &mut Envelope {
        &mut self.envelopes[slot as usize]
    }

    #[inline]
    pub fn body(&self, slot: u32) -> &Body {
        &self.bodies[slot as usize]
    }

    /// Takes a packet out.
    #[inline]
    pub fn remove(&mut self, slot: u32) -> Packet {
        self.free.push(slot);
        Packet { envelope: self.envelopes[slot as usize], body: self.bodies[slot as usize] }
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

    /// Dooms all packets on links for which `dead` holds.
    pub fn doom(&mut self, dead: impl Fn(u32) -> bool) {
        let mut live = vec![true; self.envelopes.len()];
        self.free.iter().for_each(|&slot| live[slot as usize] = false);
        for (slot, envelope) in self.envelopes.iter().enumerate() {
            self.doomed[slot] |= live[slot] && dead(envelope.link);
        }
    }

    /// Whether a packet is doomed; it is not afterwards.
    #[inline]
    pub fn take_doom(&mut self, slot: u32) -> bool {
        std::mem::take(&mut self.doomed[slot as usize])
    }

    /// Hints the processor that the envelope of `slot` is needed soon.
    #[inline]
    #[expect(unsafe_code, reason = "a prefetch reads nothing and cannot fault")]
    pub fn prefetch(&self, slot: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: prefetching any address is allowed; this one is inside the slab or just past it.
            unsafe { _mm_prefetch(self.envelopes.as_ptr().wrapping_add(slot as usize).cast(), _MM_HINT_T0) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = slot;
    }
}
