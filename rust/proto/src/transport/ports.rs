//! What the ports of a host may pull: control packets first, then from connections in turn.

use std::collections::VecDeque;

use metaroce_wire::{Packet, PlaneId, prefetch};

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
    ready: Turns,
    control: VecDeque<Packet>,
}

const _: () = assert!(size_of::<Port>() == 64, "a port is one cache line");

/// A queue whose front is in place: of one that never has two, nothing is on the heap.
#[derive(Clone, Debug, Default)]
struct Turns {
    first: u32,
    len: u32,
    /// Where in `others` the second is.
    head: u32,
    /// A ring; its length is a power of two, or 0.
    others: Box<[u32]>,
}

impl Turns {
    #[inline]
    fn front(&self) -> Option<u32> {
        (self.len > 0).then_some(self.first)
    }

    #[inline]
    fn push_back(&mut self, id: u32) {
        if self.len == 0 {
            self.first = id;
        } else {
            if self.len as usize > self.others.len() {
                self.grow();
            }
            let mask = self.others.len() - 1;
            self.others[(self.head + self.len - 1) as usize & mask] = id;
        }
        self.len += 1;
    }

    #[inline]
    fn pop_front(&mut self) {
        if self.len > 1 {
            self.first = self.others[self.head as usize];
            self.head = (self.head + 1) & (self.others.len() as u32 - 1);
        }
        self.len = self.len.saturating_sub(1);
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut others = self.others.to_vec();
        others.rotate_left(self.head as usize);
        others.resize((2 * others.len()).max(4), 0);
        (self.others, self.head) = (others.into(), 0);
    }
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
        self.ports[plane.index()].ready.front().map(|id| id as usize)
    }

    /// The connection whose turn it is once so many others, one at least, have had theirs.
    #[inline]
    pub fn peek_behind(&self, plane: PlaneId, others: u32) -> Option<usize> {
        let ready = &self.ports[plane.index()].ready;
        let at = (ready.head + others - 1) as usize & ready.others.len().wrapping_sub(1);
        if ready.len > others { ready.others.get(at).map(|&id| id as usize) } else { None }
    }

    /// The connection whose turn it was has sent: to the end of the queue.
    #[inline]
    pub fn rotate(&mut self, plane: PlaneId) {
        let ready = &mut self.ports[plane.index()].ready;
        if ready.len > 1 {
            let first = ready.first;
            ready.pop_front();
            ready.push_back(first);
        }
    }

    /// The connection whose turn it was has nothing to send: out of the queue.
    #[inline]
    pub fn leave(&mut self, plane: PlaneId) {
        self.ports[plane.index()].ready.pop_front();
    }

    /// Hints the processor at the queues of a port.
    #[inline]
    pub fn prefetch(&self, plane: PlaneId) {
        self.ports.get(plane.index()).map(prefetch).unwrap_or_default();
    }

    /// See [`super::Transport::ports_ready`].
    pub const fn open(&self) -> u32 {
        self.open
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn turns_are_a_queue(steps in prop::collection::vec(any::<bool>(), 1..300)) {
            let (mut turns, mut queue) = (Turns::default(), VecDeque::new());
            for (id, push) in steps.into_iter().enumerate() {
                if push {
                    turns.push_back(id as u32);
                    queue.push_back(id as u32);
                } else {
                    turns.pop_front();
                    queue.pop_front();
                }
                prop_assert_eq!((turns.front(), turns.len as usize), (queue.front().copied(), queue.len()));
            }
        }
    }
}
