//! The way that ECMP gives a packet, without sending it: for models that count what shares a link.

use metaroce_wire::Envelope;

use crate::fabric::Fabric;

impl Fabric {
    /// The directed links from host to host that `packet` takes by ECMP; empty where there is no route, or something
    /// else than ECMP chooses.
    pub fn walk(&self, packet: &Envelope) -> Vec<u32> {
        if !self.connects(packet.src, packet.dst, packet.plane) {
            return Vec::new();
        }
        let first = self.uplinks[packet.plane.index() * self.hosts as usize + packet.src.index()];
        let mut packet = Envelope { link: first, ..*packet };
        let mut links = vec![first];
        while self.far_end(packet.link) >= self.hosts {
            let Some(link) = self.route(&packet) else { return Vec::new() };
            packet.link = link;
            links.push(link);
        }
        links
    }
}
