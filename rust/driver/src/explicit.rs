//! Explicit ports: packets that wait in the fabric, and the calls that it asks for.

use metaroce_fabric::{Admission, Call, Step};
use metaroce_wire::{HostId, PlaneId, Time};

use crate::sim::{CALLS, Ending, INDEX, KIND_SHIFT, PAUSED, PLANE_BITS, PORT_FREE, Simulation};

/// What a call does, in the top bits of an event as its kind.
const DEQUEUE: u32 = CALLS;
const PAUSE: u32 = DEQUEUE + (1 << KIND_SHIFT);
const RESUME: u32 = PAUSE + (1 << KIND_SHIFT);
const UNPAUSE: u32 = RESUME + (1 << KIND_SHIFT);
const WATCH: u32 = UNPAUSE + (1 << KIND_SHIFT);
const CHECK: u32 = WATCH + (1 << KIND_SHIFT);

const fn event(call: Call) -> u32 {
    match call {
        Call::Dequeue(link) => DEQUEUE | link,
        Call::Pause(link, true) => PAUSE | link,
        Call::Pause(link, false) => RESUME | link,
        Call::Unpause(link) => UNPAUSE | link,
        Call::Watch(link) => WATCH | link,
        Call::Check => CHECK,
    }
}

impl Simulation {
    /// A packet has reached a switch.
    #[inline(never)]
    pub(crate) fn enqueue(&mut self, now: Time, slot: u32) {
        let ticket = self.queue.ticket();
        match self.fabric.enqueue(now, self.packets.envelope(slot), slot, ticket) {
            Admission::Arrives(at) => self.queue.push(at, slot),
            Admission::Waits => self.queue.take_ticket(),
            Admission::Dropped(_) => self.packets.discard(slot),
        }
        self.follow(now);
    }

    /// A call that the fabric has asked for is due.
    #[inline(never)]
    pub(crate) fn called(&mut self, now: Time, event: u32) {
        let link = event & INDEX;
        match event & !INDEX {
            DEQUEUE => {
                if let Some(departure) = self.fabric.dequeue(now, link) {
                    self.queue.push_with(departure.arrives, departure.ticket, departure.slot);
                }
            }
            PAUSE => self.pause(now, link, Some(true)),
            RESUME => self.pause(now, link, Some(false)),
            UNPAUSE => self.pause(now, link, None),
            WATCH => {
                for slot in self.fabric.watch(now, link) {
                    self.packets.discard(slot);
                }
            }
            _ => self.look_for_deadlock(now),
        }
        self.follow(now);
    }

    /// Enters the calls that the fabric asks for.
    #[inline]
    pub(crate) fn follow(&mut self, now: Time) {
        for (at, call) in self.fabric.calls() {
            self.queue.push(at.max(now), event(call));
        }
    }

    /// A pause frame acts, or (`None`) a dead link forgets its pause.
    fn pause(&mut self, now: Time, link: u32, on: Option<bool>) {
        let port = match on {
            Some(on) => self.fabric.pause(now, link, on),
            None => self.fabric.unpause(now, link),
        };
        let Some((host, plane)) = port else { return };
        let (host, bit) = (host.index(), 1 << (PAUSED + u32::from(plane.0)));
        if on == Some(true) {
            self.idle[host] |= bit;
        } else {
            self.idle[host] &= !bit;
            self.pull(now, host);
        }
    }

    /// The same as a pull for a host of which some ports are paused: those send control packets alone.
    #[cold]
    #[inline(never)]
    pub(crate) fn pull_paused(&mut self, now: Time, host: usize) {
        let paused = self.idle[host] >> PAUSED;
        let ready = paused & self.idle[host];
        for plane in (0..PAUSED as u8).map(PlaneId).filter(|plane| ready >> plane.0 & 1 != 0) {
            let mut sent = false;
            while let Some(mut packet) = self.endpoints[host].poll_control(plane) {
                sent = true;
                if let Step::Arrives(at) = self.fabric.inject(now, &mut packet.envelope) {
                    let slot = self.packets.insert(packet);
                    self.queue.push(at, slot);
                }
            }
            if sent {
                self.idle[host] &= !(1 << plane.0);
                let free = self.fabric.port_free(HostId(host as u32), plane);
                self.queue.push(free, PORT_FREE << KIND_SHIFT | (host as u32) << PLANE_BITS | u32::from(plane.0));
            }
        }
        let closed = self.idle[host] & paused | paused << PAUSED;
        self.idle[host] &= !closed;
        self.pull(now, host);
        self.idle[host] |= closed;
    }

    /// A deadlock that nothing will end ends the run.
    fn look_for_deadlock(&mut self, now: Time) {
        let ends = self.fabric.has_watchdog() || self.faults.iter().any(|&(at, ..)| at >= now);
        if self.fabric.checked(now) && !ends && !self.fabric.deadlock().is_empty() {
            self.progress.now = now;
            self.progress.ended = Some(Ending::Deadlock);
        }
    }
}
