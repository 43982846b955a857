//! What the ports of a host may pull: control packets first, then from connections in turn.

use std::collections::VecDeque;

use metaroce_wire::{Packet, PlaneId};

/// Queues of the ports, one a plane, of a transport whose connections use every plane.
#[derive(Debug)]
pub struct Ports {
    ports: Box<[Port]>,
    /// Bit p: port p may have something to send. Set while a queue of it holds something.
    open: u32,
}

#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Port {
    /// Connections with something to send.
    ready: VecDeque<u32>,
    control: VecDeque<Packet>,
}

impl Ports {
    pub fn new(planes: usize) -> Ports {
        Ports { ports: vec![Port::default(); planes].into(), open: 0 }
    }

    pub fn push_control(&mut self, plane: PlaneId, packet: Packet) {
        self.ports[plane.index()].control.push_back(packet);
        self.open |= 1 << plane.0;
    }

    #[inline]
    pub fn next_control(&mut self, plane: PlaneId) -> Option<Packet> {
        self.ports[plane.index()].control.pop_front()
    }

    /// Puts connection `id` at the end of the queues of `planes`, a bit each.
    #[inline]
    pub fn line_up(&mut self, id: usize, mut planes: u8) {
        self.open |= u32::from(planes);
        while planes != 0 {
            self.ports[planes.trailing_zeros() as usize].ready.push_back(id as u32);
            planes &= planes - 1;
        }
    }

    /// The connection whose turn it is. Without one the port has nothing to send.
    #[inline]
    pub fn first_ready(&mut self, plane: PlaneId) -> Option<usize> {
        let first = self.peek_ready(plane);
        if first.is_none() {
            self.open &= !(1 << plane.0);
        }
        first
    }

    /// The same to look at.
    #[inline]
    pub fn peek_ready(&self, plane: PlaneId) -> Option<usize> {
        self.ports[plane.index()].ready.front().map(|&id| id as usize)
    }

    /// The connection whose turn it was has sent: to the end of the queue.
    #[inline]
    pub fn rotate(&mut self, plane: PlaneId) {
        let ready = &mut self.ports[plane.index()].ready;
        if ready.len() > 1
            && let Some(first) = ready.pop_front()
        {
            ready.push_back(first);
        }
    }

    /// The connection whose turn it was has nothing to send: out of the queue.
    #[inline]
    pub fn leave(&mut self, plane: PlaneId) {
        self.ports[plane.index()].ready.pop_front();
    }

    /// See [`super::Transport::ports_ready`].
    pub const fn open(&self) -> u32 {
        self.open
    }
}
