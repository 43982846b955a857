//! What the ports of a host may pull: control packets first, then from connections in turn.

use std::collections::VecDeque;

use metaroce_wire::{Packet, PlaneId};

/// Queues of the ports, one a plane, of a transport whose connections use every plane.
#[derive(Debug)]
pub struct Ports {
    /// Connections with something to send.
    ready: Vec<VecDeque<u32>>,
    control: Vec<VecDeque<Packet>>,
    /// Bit p: port p may have something to send.
    open: u32,
}

impl Ports {
    pub fn new(planes: usize) -> Ports {
        Ports { ready: vec![VecDeque::new(); planes], control: vec![VecDeque::new(); planes], open: 0 }
    }

    pub fn push_control(&mut self, plane: PlaneId, packet: Packet) {
        self.control[plane.index()].push_back(packet);
        self.open |= 1 << plane.0;
    }

    #[inline]
    pub fn next_control(&mut self, plane: PlaneId) -> Option<Packet> {
        self.control[plane.index()].pop_front()
    }

    /// Puts connection `id` at the end of the queues of `planes`, a bit each.
    #[inline]
    pub fn line_up(&mut self, id: usize, mut planes: u8) {
        self.open |= u32::from(planes);
        while planes != 0 {
            self.ready[planes.trailing_zeros() as usize].push_back(id as u32);
            planes &= planes - 1;
        }
    }

    /// The connection whose turn it is; it leaves the queue.
    #[inline]
    pub fn next_ready(&mut self, plane: PlaneId) -> Option<usize> {
        let next = self.ready[plane.index()].pop_front();
        if next.is_none() {
            self.open &= !(1 << plane.0);
        }
        next.map(|id| id as usize)
    }

    /// The same without leaving.
    #[inline]
    pub fn first_ready(&self, plane: PlaneId) -> Option<usize> {
        self.ready[plane.index()].front().map(|&id| id as usize)
    }

    /// See [`super::Transport::ports_ready`].
    pub const fn open(&self) -> u32 {
        self.open
    }
}
