//! The run where all events of a node in a window come before those of the next node: see [`crate::windows`].

use metaroce_proto::Stage;
use metaroce_wire::{HostId, PlaneId, Time};

use crate::event;
use crate::sim::{BETWEEN_SIGNALS, Simulation, fold};
use crate::spec::DriverError;
use crate::windows::{AHEAD, Schedule};

/// Events of a switch that are asked for again: of many, the first ones have pushed the last ones out of the nearest cache.
/// Ours.
const SOON: usize = 8;

impl Simulation {
    /// Runs to the end of the instant `pause`.
    pub(crate) fn proceed_by_node(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), DriverError> {
        let mut asked = self.progress.events;
        while let Schedule::ByNode(queue) = &mut self.queue
            && let Some(node) = queue.turn(self.pause, |slot| self.packets.get(slot).0.link)
        {
            self.look_at_next();
            match node.checked_sub(self.endpoints.len()) {
                None => self.at_host(node),
                Some(_) if self.explicit => self.at_explicit_switch(),
                Some(switch) if self.far_state => self.at_switch::<true>(switch),
                Some(switch) => self.at_switch::<false>(switch),
            }
            if self.progress.events - asked >= BETWEEN_SIGNALS {
                asked = self.progress.events;
                if interrupted() {
                    return Err(DriverError::Interrupted);
                }
            }
        }
        Ok(())
    }

    /// Asks for what the events of the next nodes will touch, and for what that leads to: a step for each node in
    /// between. No effect on results.
    fn look_at_next(&self) {
        let Schedule::ByNode(queue) = &self.queue else { return };
        if let Some((node, slots)) = queue.at(AHEAD) {
            if let Some(endpoint) = self.endpoints.get(node) {
                endpoint.prefetch_self();
                self.fabric.prefetch_host(HostId(node as u32));
                slots.for_each(|slot| {
                    self.packets.prefetch_envelope(slot);
                    self.packets.prefetch_body(slot);
                });
            } else {
                self.fabric.prefetch_switch(node - self.endpoints.len());
                slots.for_each(|slot| self.packets.prefetch_envelope(slot));
            }
        }
        if self.far_state {
            self.look_into_host(2, Stage::Connection);
            self.look_into_host(1, Stage::Path);
            self.look_into_host(0, Stage::Message);
        }
    }

    #[inline]
    fn look_into_host(&self, ahead: usize, stage: Stage) {
        if let Schedule::ByNode(queue) = &self.queue
            && let Some((node, slots)) = queue.at(ahead)
            && let Some(endpoint) = self.endpoints.get(node)
        {
            endpoint.prefetch_port(PlaneId(0), stage);
            slots.for_each(|slot| endpoint.prefetch(self.packets.get(slot).1, stage));
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<(Time, u64)> {
        match &mut self.queue {
            Schedule::ByNode(queue) => queue.pop(),
            Schedule::Strict(_) => None,
        }
    }

    #[inline(never)]
    fn at_host(&mut self, host: usize) {
        while let Some((now, name)) = self.pop() {
            match event::from_short(name) {
                Ok(slot) => {
                    self.note_arrival(now, slot);
                    self.fabric.deliver();
                    self.deliver(now, HostId(host as u32), slot);
                }
                Err(name) => self.happen(now, name),
            }
        }
    }

    #[inline(never)]
    fn at_explicit_switch(&mut self) {
        while let Some((now, name)) = self.pop() {
            match event::from_short(name) {
                Ok(slot) => {
                    self.note_arrival(now, slot);
                    self.enqueue(now, slot);
                }
                Err(name) => self.happen(now, name),
            }
        }
    }

    #[inline]
    fn note_arrival(&mut self, now: Time, slot: u32) {
        let link = self.packets.get(slot).0.link;
        self.progress.note(now, event::arrival(now, link, slot));
    }

    /// Every event is an arrival, and none sets off another one here. `FAR`: the state is too much for the cache, and so
    /// are the chains.
    #[inline(never)]
    fn at_switch<const FAR: bool>(&mut self, switch: usize) {
        let Simulation { queue: Schedule::ByNode(queue), packets, fabric, part, progress, .. } = self else { return };
        let all = queue.all();
        let state = fabric.switch(switch);
        let mut digest = 0u64;
        for (index, &event) in all.iter().enumerate() {
            if FAR && let Some(&soon) = all.get(index + SOON) {
                packets.prefetch_envelope(event::slot(soon));
            }
            let (now, slot) = (queue.time_of(event), event::slot(event));
            let envelope = packets.envelope(slot);
            digest = digest.wrapping_add(fold(now.0, event::order(now, envelope.link).into()));
            let Some((at, node)) = fabric.forward_at(now, &state, envelope) else {
                packets.discard(slot);
                continue;
            };
            let name = event::arrival(at, envelope.link, slot);
            if let Some(part) = part
                && part.takes(fabric, at, packets.get(slot))
            {
                packets.discard(slot);
            } else if FAR {
                queue.push_held(at, node, name);
            } else {
                queue.push_away(at, node, name);
            }
        }
        if let Some(&last) = all.last() {
            progress.note_all(queue.time_of(last), all.len() as u64, digest);
        }
        if FAR {
            queue.release();
        }
        queue.take_back(all);
    }
}
