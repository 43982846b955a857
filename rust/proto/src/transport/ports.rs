//! What the ports of a host may pull: control packets first, then from connections in turn.

use std::collections::VecDeque;

use metaroce_wire::{Packet, PlaneId, prefetch};

use super::ring::Ring;

/// Queues of the ports, one a plane, of a transport whose connections use every plane.
#[derive(Debug)]
pub struct Ports {
    ports: Box<[Port]>,
    /// Bit p: port p may have something to send. Set while a queue of it holds something.
    open: u32,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Port {
    /// Connections with something to send.
    ready: Turns,
    control: VecDeque<Packet>,
}

const _: () = assert!(size_of::<Port>() == 64, "a port is one cache line");

/// A queue whose front is in place: of one that never has two, nothing is on the heap.
#[derive(Debug, Default)]
struct Turns {
    first: Option<u32>,
    others: Ring<u32>,
}

impl Turns {
    #[inline]
    fn push_back(&mut self, id: u32) {
        match self.first {
            None => self.first = Some(id),
            Some(_) => self.others.push_back(id),
        }
    }

    #[inline]
    fn pop_front(&mut self) {
        self.first = self.others.pop_front();
    }
}

impl Ports {
    pub fn new(planes: usize) -> Ports {
        Ports { ports: (0..planes).map(|_| Port::default()).collect(), open: 0 }
    }

    pub fn push_control(&mut self, plane: PlaneId, packet: Packet) {
        self.ports[plane.index()].control.push_back(packet);
        self.open |= 1 << plane.0;
    }

    #[inline]
    pub fn next_control(&mut self, plane: PlaneId) -> Option<Packet> {
        let control = &mut self.ports[plane.index()].control;
        // The only one leaves at the back: then the next one has its place, which is in the cache.
        if control.len() == 1 { control.pop_back() } else { control.pop_front() }
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
        self.ports[plane.index()].ready.first.map(|id| id as usize)
    }

    /// The connection whose turn it is once so many others, one at least, have had theirs.
    #[inline]
    pub fn peek_behind(&self, plane: PlaneId, others: usize) -> Option<usize> {
        self.ports[plane.index()].ready.others.get(others - 1).map(|&id| id as usize)
    }

    /// The connection whose turn it was has sent: to the end of the queue.
    #[inline]
    pub fn rotate(&mut self, plane: PlaneId) {
        let ready = &mut self.ports[plane.index()].ready;
        if let Some(next) = ready.others.pop_front()
            && let Some(first) = ready.first.replace(next)
        {
            ready.others.push_back(first);
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

    use metaroce_wire::{Body, Cnp, ConnId, Envelope};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn control_packets_leave_in_the_order_that_they_came(steps in prop::collection::vec(any::<bool>(), 1..300)) {
            let (mut ports, mut queue) = (Ports::new(1), VecDeque::new());
            for (len, push) in (0..).zip(steps) {
                if push {
                    let envelope = Envelope { len, ..Envelope::default() };
                    let body = Body::RoceCnp(Cnp { connection: ConnId(0), qp: 0 });
                    ports.push_control(PlaneId(0), Packet { envelope, body });
                    queue.push_back(len);
                } else {
                    let left = ports.next_control(PlaneId(0)).map(|packet| packet.envelope.len);
                    prop_assert_eq!(left, queue.pop_front());
                }
            }
        }

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
                prop_assert_eq!(turns.first, queue.front().copied());
                prop_assert!(turns.others.iter().eq(queue.iter().skip(1)));
            }
        }
    }
}
