//! The fabric as whoever looks at one node after the other needs it: nothing is foreseen for packets, since all that a
//! switch knows is at hand when it is its turn.

use metaroce_wire::{Envelope, HostId, Time, prefetch};

use crate::fabric::{Fabric, Step, SwitchState};

impl Fabric {
    /// The node that sends into `link`.
    pub fn near_end(&self, link: u32) -> u32 {
        self.ends[link as usize ^ 1]
    }

    /// Whether packets know what comes after the link that they cross. Else who asks for the next step has to know
    /// where they are: [`Fabric::end`] does not tell, and nothing may change under packets on their way.
    pub fn look_ahead(&mut self, looks_ahead: bool) {
        self.looks_ahead = looks_ahead;
        self.outs = vec![Vec::new(); self.switches.len()];
        for link in (0..self.ends.len() as u32).filter(|_| !looks_ahead) {
            if let Some(switch) = self.near_end(link).checked_sub(self.hosts) {
                self.outs[switch as usize].push(link);
            }
        }
    }

    /// Hints the processor at the ports of a switch, where packets do not look ahead.
    pub fn prefetch_switch(&self, switch: usize) {
        self.outs[switch].iter().for_each(|&link| prefetch(&self.ports[link as usize]));
    }

    /// The same at the ports of a host.
    pub fn prefetch_host(&self, host: HostId) {
        let links = self.uplinks.iter().skip(host.index()).step_by(self.hosts as usize);
        links.filter_map(|&link| self.ports.get(link as usize)).for_each(prefetch);
    }

    /// What [`Fabric::forward_at`] has to know about a switch.
    pub fn switch(&self, switch: usize) -> SwitchState {
        self.switches[switch]
    }

    /// The packet has reached `switch`. When and at which node it arrives next, if it is not dropped.
    #[inline(always)]
    pub fn forward_at(&mut self, now: Time, switch: &SwitchState, packet: &mut Envelope) -> Option<(Time, u32)> {
        let step = match self.route_at(switch, packet) {
            Some(link) => {
                packet.link = link;
                self.cross(now, packet, false)
            }
            None => self.forward_otherwise(now, packet),
        };
        match step {
            Step::Arrives(at) => Some((at, self.far_end(packet.link))),
            Step::Dropped(_) => None,
        }
    }
}
