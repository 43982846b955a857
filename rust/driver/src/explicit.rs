//! Explicit ports: packets that wait in the fabric, and the calls that it asks for.

use metaroce_fabric::{Admission, Call, Departure};
use metaroce_wire::{PlaneId, Time};

use crate::event::{self, Kind};
use crate::sim::{ANY, Ending, PAUSED, Simulation};

/// The name of a call.
fn name(call: Call) -> u64 {
    match call {
        Call::Dequeue(link) => event::other(Kind::Dequeue, link),
        Call::Pause(link, true) => event::other(Kind::Pause, link),
        Call::Pause(link, false) => event::other(Kind::Resume, link),
        Call::Unpause(link) => event::other(Kind::Unpause, link),
        Call::Watch(link) => event::other(Kind::Watch, link),
        Call::Check => event::other(Kind::Check, 0),
    }
}

impl Simulation {
    /// A packet has reached a switch.
    #[inline(never)]
    pub(crate) fn enqueue(&mut self, now: Time, slot: u32) {
        let envelope = self.packets.envelope(slot);
        match self.fabric.enqueue(now, envelope, slot) {
            Admission::Arrives(at) => {
                let (link, node) = (envelope.link, self.fabric.far_end(envelope.link));
                self.queue.push(at, node, event::arrival(at, link, slot));
            }
            Admission::Waits => {}
            Admission::Dropped(_) => self.packets.discard(slot),
        }
        self.follow(now);
    }

    /// A call that the fabric has asked for is due.
    #[inline(never)]
    pub(crate) fn called(&mut self, now: Time, kind: Kind, link: u32) {
        match kind {
            Kind::Dequeue => {
                if let Some(Departure { slot, arrives }) = self.fabric.dequeue(now, link) {
                    self.queue.push(arrives, self.fabric.far_end(link), event::arrival(arrives, link, slot));
                }
            }
            Kind::Pause => self.pause(now, link, Some(true)),
            Kind::Resume => self.pause(now, link, Some(false)),
            Kind::Unpause => self.pause(now, link, None),
            Kind::Watch => {
                for slot in self.fabric.watch(now, link) {
                    self.packets.discard(slot);
                }
            }
            _ => self.look_for_deadlock(now),
        }
        self.follow(now);
    }

    /// Enters the calls that the fabric asks for.
    #[inline(always)]
    pub(crate) fn follow(&mut self, now: Time) {
        while let Some((at, call)) = self.fabric.next_call() {
            self.enter(at.max(now), call);
        }
    }

    #[inline(never)]
    fn enter(&mut self, at: Time, call: Call) {
        let node = if let Call::Dequeue(link) = call { self.fabric.near_end(link) } else { ANY };
        self.queue.push(at, node, name(call));
    }

    /// A pause frame acts, or (`None`) a dead link forgets its pause.
    fn pause(&mut self, now: Time, link: u32, on: Option<bool>) {
        let port = match on {
            Some(on) => self.fabric.pause(now, link, on),
            None => self.fabric.unpause(now, link),
        };
        let Some((host, plane)) = port else { return };
        let (host, bit) = (host.index(), PAUSED << plane.0);
        if on == Some(true) {
            self.ports[host] |= bit;
        } else {
            self.ports[host] &= !bit;
            self.pull(now, host);
        }
    }

    /// The same as a pull for a host of which some ports are paused: those send control packets alone.
    #[cold]
    #[inline(never)]
    pub(crate) fn pull_paused(&mut self, now: Time, host: usize) {
        let paused = self.ports[host] / PAUSED;
        for plane in (0..PAUSED.trailing_zeros() as u8).map(PlaneId) {
            let bit = 1 << plane.0;
            if paused & !self.ports[host] & bit != 0 && self.endpoints[host].ports_ready() & bit != 0 {
                self.use_port::<true>(now, host, plane);
            }
        }
        // The others as ever: none of these may send.
        let closed = paused & !self.ports[host];
        self.ports[host] = (self.ports[host] | closed) % PAUSED;
        self.pull(now, host);
        self.ports[host] = (self.ports[host] & !closed) | (paused * PAUSED);
    }

    /// A deadlock that nothing will end ends the run.
    fn look_for_deadlock(&mut self, now: Time) {
        let ends = self.fabric.has_watchdog() || self.faults.iter().any(|&(at, ..)| at >= now);
        if self.fabric.checked(now) && !ends && !self.fabric.deadlock().is_empty() {
            self.progress.now = now;
            self.finish(now, Ending::Deadlock);
        }
    }
}
