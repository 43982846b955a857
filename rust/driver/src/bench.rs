//! What benches reach into. No part of the interface, and no promise.

use metaroce_wire::{Body, Envelope, Packet};

use crate::packets::Packets;
use crate::record::{self, Outcome};
use crate::sim::Simulation;
use crate::spec::{Data, DriverError, Spec};
use crate::world;

/// [`crate::simulate`] in its three parts, so that each can be measured alone.
#[derive(Debug)]
pub struct Run<'a> {
    spec: &'a Spec,
    simulation: Simulation,
}

impl<'a> Run<'a> {
    /// Builds the world.
    ///
    /// # Errors
    /// As for [`crate::simulate`].
    pub fn new(spec: &'a Spec, data: Data) -> Result<Run<'a>, DriverError> {
        Ok(Run { spec, simulation: world::build(spec, data)? })
    }

    /// From the first event to the last.
    ///
    /// # Errors
    /// As for [`crate::simulate`].
    pub fn run(&mut self) -> Result<(), DriverError> {
        self.simulation.run(&mut || false)
    }

    /// The results.
    pub fn outcome(self) -> Outcome {
        record::outcome(self.spec, self.simulation)
    }
}

/// The slab of packets on their way.
#[derive(Debug, Default)]
pub struct Slab(Packets);

impl Slab {
    /// Stores a packet.
    #[inline]
    pub fn insert(&mut self, packet: Packet) -> u32 {
        self.0.insert(&packet.envelope, &packet.body)
    }

    /// What a hop reads and writes of it.
    #[inline]
    pub fn envelope(&mut self, slot: u32) -> &mut Envelope {
        self.0.envelope(slot)
    }

    /// What its destination reads of it, which is then free.
    #[inline]
    pub fn take(&mut self, slot: u32) -> (Envelope, Body) {
        let (&envelope, &body) = self.0.get(slot);
        self.0.discard(slot);
        (envelope, body)
    }
}
