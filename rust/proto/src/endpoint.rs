//! The endpoint of one host: verbs above, packets below. It checks what users post, owns the
//! registered regions, and hands the rest to its transport.

use metaroce_wire::{Body, ConnId, Envelope, HostId, Opcode, Packet, PlaneId, Rkey, Time, prefetch};

use crate::config::{Environment, TransportConfig};
use crate::counters::Counters;
use crate::telemetry::{Observe, Sample};
use crate::transport::{
    AnyTransport, Half, Stage, Stuck, Transport, each, metaroce::MetaRoce, mrc::Mrc, rocev2::RoceV2,
};
use crate::verbs::{Access, Atomic, Completion, Placement, PostError, ReceiveRequest, Regions, WorkRequest};

/// One host's end of all its connections. The crate documentation gives the driving contract.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Endpoint {
    transport: AnyTransport,
    regions: Regions,
    connections: u32,
}

impl Endpoint {
    /// An endpoint without connections or memory.
    pub fn new(config: &TransportConfig, environment: Environment) -> Endpoint {
        let transport = match config {
            TransportConfig::MetaRoce(config) => AnyTransport::MetaRoce(MetaRoce::new(config, environment)),
            TransportConfig::RoceV2(config) => AnyTransport::RoceV2(RoceV2::new(config, environment)),
            TransportConfig::Mrc(config) => AnyTransport::Mrc(Mrc::new(config, environment)),
        };
        Endpoint { regions: Regions::default(), connections: 0, transport }
    }

    /// Endpoints like [`Endpoint::new`] for many hosts, which share what is the same for all of them.
    pub fn of_hosts(config: &TransportConfig, environments: impl Iterator<Item = Environment>) -> Vec<Endpoint> {
        let mut endpoints: Vec<Endpoint> = Vec::with_capacity(environments.size_hint().0);
        for environment in environments {
            let endpoint = match endpoints.last().map(|last| &last.transport) {
                Some(AnyTransport::MetaRoce(last)) => {
                    let transport = AnyTransport::MetaRoce(last.beside(environment));
                    Endpoint { regions: Regions::default(), connections: 0, transport }
                }
                _ => Endpoint::new(config, environment),
            };
            endpoints.push(endpoint);
        }
        endpoints
    }

    /// Registers `[offset, offset + len)` of this host's memory for local use, and for what `access`
    /// lets peers do.
    pub fn register(&mut self, offset: u64, len: u64, access: Access) -> Rkey {
        self.regions.register(offset, len, access)
    }

    /// Opens this side of a connection to `peer`.
    pub fn connect(&mut self, peer: HostId) -> ConnId {
        self.connections += 1;
        each!(&mut self.transport, t => t.connect(peer))
    }

    /// How many connections this host has.
    pub const fn connections(&self) -> u32 {
        self.connections
    }

    /// Tells this side how the peer numbers the connection. Connection set-up itself is not
    /// modelled: both sides know each other before the first packet.
    pub fn bind(&mut self, connection: ConnId, remote: ConnId) {
        each!(&mut self.transport, t => t.bind(connection, remote));
    }

    /// Tells this side how many connections the peer has, of which all may want its bandwidth at once.
    /// Part of connection set-up; 1 if nobody says.
    pub fn crowd(&mut self, connection: ConnId, size: u32) {
        each!(&mut self.transport, t => t.crowd(connection, size));
    }

    /// Whether nothing of one half of a connection is on its way: of the sending one, all was sent once and has
    /// landed; of the receiving one, all is acknowledged. If that is so of the sending half here and the receiving
    /// one at the peer, and nothing more is posted here, no packet to come needs the state of their paths.
    pub fn has_settled(&self, connection: ConnId, half: Half) -> bool {
        each!(&self.transport, t => t.has_settled(connection, half))
    }

    /// Gives back what a half of a connection, which has settled and is not used again, knows of its paths.
    pub fn retire(&mut self, connection: ConnId, half: Half) {
        each!(&mut self.transport, t => t.retire(connection, half));
    }

    /// Whether the transport has an operation.
    pub fn supports(&self, opcode: Opcode) -> bool {
        let own = !matches!(opcode, Opcode::Response | Opcode::Probe);
        own && each!(&self.transport, t => t.supports(opcode))
    }

    // [F11.verbs]
    /// Posts a work request. On a stream that has failed it is flushed.
    ///
    /// # Errors
    /// [`PostError`] for an unknown or failed connection, an operation that the transport does not
    /// have, an empty message, an atomic of another length than 8, or unregistered local memory.
    pub fn post(&mut self, now: Time, connection: ConnId, request: WorkRequest) -> Result<(), PostError> {
        let WorkRequest { opcode, len, .. } = request;
        if !self.supports(opcode) {
            return Err(PostError::Unsupported(opcode));
        }
        if len == 0 && matches!(opcode, Opcode::Write | Opcode::Read) {
            return Err(PostError::Empty);
        }
        if opcode.is_atomic() && len != 8 {
            return Err(PostError::AtomicLength(len));
        }
        self.check(connection, request.local, len)?;
        each!(&mut self.transport, t => t.post(now, connection, request))
    }

    /// Posts a receive for the next Send of its stream that has none.
    ///
    /// # Errors
    /// As for [`Endpoint::post`].
    pub fn post_receive(&mut self, connection: ConnId, request: ReceiveRequest) -> Result<(), PostError> {
        self.check(connection, request.local, request.len)?;
        each!(&mut self.transport, t => t.post_receive(connection, request));
        Ok(())
    }

    /// A packet for this host has arrived. The answer says what to copy into its memory.
    #[inline(always)]
    pub fn handle_packet(&mut self, now: Time, envelope: &Envelope, body: &Body) -> Option<Placement> {
        each!(&mut self.transport, t => t.handle_packet(now, (envelope, body), &self.regions))
    }

    /// The instant of [`Endpoint::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Time) {
        each!(&mut self.transport, t => t.handle_timeout(now));
    }

    /// Port `plane` is free: the packet it is to send now, if any.
    #[inline(always)]
    pub fn poll_transmit(&mut self, now: Time, plane: PlaneId) -> Option<Packet> {
        each!(&mut self.transport, t => t.poll_transmit(now, plane))
    }

    /// Port `plane` is free but may send no data: the control packet it is to send now, if any.
    pub fn poll_control(&mut self, plane: PlaneId) -> Option<Packet> {
        each!(&mut self.transport, t => t.poll_control(plane))
    }

    /// When [`Endpoint::handle_timeout`] is due; [`Time::NEVER`] if nothing is waited for.
    #[inline]
    pub fn poll_timeout(&self) -> Time {
        each!(&self.transport, t => t.poll_timeout())
    }

    /// The next completion.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        each!(&mut self.transport, t => t.poll_completion())
    }

    /// The next atomic of a peer: read 8 bytes at its address, write [`Atomic::apply`] of them, and
    /// answer with what was there.
    #[inline]
    pub fn poll_atomic(&mut self) -> Option<Atomic> {
        each!(&mut self.transport, t => t.poll_atomic())
    }

    /// Answers an atomic; `before` is what stood at its address.
    pub fn answer_atomic(&mut self, atomic: &Atomic, before: u64) {
        each!(&mut self.transport, t => t.answer_atomic(atomic, before));
    }

    // [F11.extensions]
    /// Takes `plane` out of use for a connection, or back into it (F11: an extension call). What is on
    /// its way there is sent on other planes.
    ///
    /// # Errors
    /// [`PostError`] for an unknown connection, or where no plane would be left.
    pub fn deny(&mut self, now: Time, connection: ConnId, plane: PlaneId, denied: bool) -> Result<(), PostError> {
        self.check(connection, 0, 0)?;
        each!(&mut self.transport, t => t.deny(now, connection, plane, denied))
    }

    /// Bit p is set if port p may have something to send.
    #[inline]
    pub fn ports_ready(&self) -> u32 {
        each!(&self.transport, t => t.ports_ready())
    }

    /// Totals since the start.
    pub fn counters(&self) -> &Counters {
        each!(&self.transport, t => t.counters())
    }

    /// Keeps count, from before the first packet, of what [`Endpoint::observe`] is to tell.
    pub fn record(&mut self) {
        each!(&mut self.transport, t => t.record());
    }

    /// Shows every connection that has posted something, each followed by its paths, in the order
    /// of their numbers. Changes nothing; complete only after [`Endpoint::record`].
    pub fn observe(&self, show: &mut dyn FnMut(Sample)) {
        each!(&self.transport, t => t.observe(show));
    }

    /// Connections with unfinished requests, and why.
    pub fn stuck(&self) -> Vec<Stuck> {
        each!(&self.transport, t => t.stuck())
    }

    /// Hints the processor at the lines of the endpoint itself, through which every [`Stage`] goes.
    #[inline]
    pub fn prefetch_self(&self) {
        prefetch(&self.transport);
        prefetch(&self.regions);
        each!(&self.transport, t => t.prefetch_self());
    }

    /// Hints the processor at the state that a packet with this body will touch.
    #[inline]
    pub fn prefetch(&self, body: &Body, stage: Stage) {
        each!(&self.transport, t => t.prefetch(body, stage));
    }

    /// Hints the processor at the state that a pull of port `plane` will touch.
    #[inline]
    pub fn prefetch_port(&self, plane: PlaneId, stage: Stage) {
        each!(&self.transport, t => t.prefetch_port(plane, stage));
    }

    fn check(&self, connection: ConnId, offset: u64, len: u64) -> Result<(), PostError> {
        if connection.0 >= self.connections {
            return Err(PostError::UnknownConnection(connection.0));
        }
        if len > 0 && !self.regions.covers(offset, len) {
            return Err(PostError::LocalRange { offset, len, registered: self.regions.registered() });
        }
        Ok(())
    }
}
