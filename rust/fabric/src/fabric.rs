//! The fabric itself: a packet's way from port to port, faults, and where every packet ended.

use metaroce_wire::{Bytes, Class, Envelope, HostId, PlaneId, Rate, Time, lengths, prefetch};

use crate::balance::Balancer;
use crate::explicit::Queues;
use crate::loss::{Loss, draw};
use crate::pfc::FlowControl;
use crate::port::{Port, PortSide, Refusal};
use crate::routing::{Edge, PlaneShape, Routes};
use crate::spec::{Cable, Ecmp, Switching, Target};

/// Why a packet ended before its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// Random loss.
    Loss,
    /// The output queue had no room (tail drop).
    Queue,
    /// The link was down.
    LinkDown,
    /// No switch port leads to the destination any more.
    NoRoute,
    /// A lossless class had no headroom left.
    Headroom,
    /// The watchdog drops what a paused port holds.
    Watchdog,
}

/// What happens to a packet next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It reaches the far end of `envelope.link` at this time.
    Arrives(Time),
    /// It ends here.
    Dropped(Drop),
}

/// The far end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A host: the packet is delivered.
    Host(HostId),
    /// A switch: call [`Fabric::forward`].
    Switch,
    /// The link went down while the packet was on it: call [`Fabric::drop_on_dead_link`].
    Nowhere,
}

/// In [`Envelope::next`], which otherwise is the number of the next link, plus one: it is chosen on arrival; there is
/// none, since a host stands there; and the packet will not arrive.
const OPEN: u32 = 0;
const DELIVER: u32 = u32::MAX;
const NOWHERE: u32 = u32::MAX - 1;

/// Where packets ended. `injected = delivered + all drops + still on the way`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that hosts sent.
    pub injected: u64,
    /// Packets that reached their host.
    pub delivered: u64,
    /// Random losses.
    pub lost: u64,
    /// Tail drops.
    pub queue: u64,
    /// Sent into, or caught on, a link that was down.
    pub link_down: u64,
    /// Without a route.
    pub no_route: u64,
    /// Packets that a switch cut down to their headers and sent on.
    pub trimmed: u64,
    /// Packets serialised on a link, host links included, and the data packets of them.
    pub link_hops: u64,
    /// See `link_hops`.
    pub data_link_hops: u64,
    /// Dropped by a lossless class without headroom.
    pub headroom: u64,
    /// Dropped by the watchdog.
    pub watchdog: u64,
    /// How often it bit.
    pub storms: u64,
    /// Pauses that switches asked for.
    pub xoffs: u64,
}

impl Counters {
    fn add(&mut self, other: &Counters) {
        let Counters { injected, delivered, lost, queue, link_down, no_route, trimmed, link_hops, .. } = other;
        let Counters { data_link_hops, headroom, watchdog, storms, xoffs, .. } = other;
        self.injected += injected;
        self.delivered += delivered;
        self.lost += lost;
        self.queue += queue;
        self.link_down += link_down;
        self.no_route += no_route;
        self.trimmed += trimmed;
        self.link_hops += link_hops;
        self.data_link_hops += data_link_hops;
        self.headroom += headroom;
        self.watchdog += watchdog;
        self.storms += storms;
        self.xoffs += xoffs;
    }
}

/// Where a host hangs in a plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attachment {
    pub leaf: u32,
    /// Column of the leaf in the routes of its plane.
    pub column: u32,
    /// Link from the leaf to the host.
    pub down: u32,
}

impl Attachment {
    /// Of a host without a port in the plane: no packet is sent to it there.
    pub(crate) const NONE: Attachment = Attachment { leaf: u32::MAX, column: 0, down: 0 };
}

/// What a switch needs to choose a port.
#[derive(Clone, Copy, Debug)]
pub struct SwitchState {
    /// First of its choices.
    pub offset: u32,
    /// Its own column, if hosts hang on it.
    pub own_column: u32,
    /// ECMP seed (one a switch, or flows would polarise).
    pub seed: u32,
    pub tier: u32,
    /// Bits of the source port that lower tiers use.
    pub stride_shift: u32,
}

/// What is down now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Down {
    cables: Vec<u32>,
    switches: Vec<u32>,
    planes: Vec<u32>,
}

/// A built fabric.
#[derive(Clone, Debug)]
pub struct Fabric {
    pub(crate) hosts: u32,
    pub(crate) ecmp: Ecmp,
    /// The same where nothing else chooses among ports. So ECMP pays nothing for the other choices.
    pub(crate) hash: Option<Ecmp>,
    pub(crate) switching: Switching,
    pub(crate) balancer: Balancer,
    pub(crate) loss: Loss,
    pub(crate) reroute_delay: Time,
    pub(crate) switches: Vec<SwitchState>,
    /// Directed links: 2r from a to b of cable row r, 2r + 1 back.
    pub(crate) ports: Vec<Port>,
    pub(crate) sides: Vec<PortSide>,
    /// Node at the far end of each link.
    pub(crate) ends: Vec<u32>,
    /// By plane, then host.
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) uplinks: Vec<u32>,
    pub(crate) shapes: Vec<PlaneShape>,
    pub(crate) offsets: Vec<u32>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) routes: Routes,
    pub(crate) counters: Counters,
    pub(crate) down: Down,
    pub(crate) cables: Vec<Cable>,
    /// Plane of each switch.
    pub(crate) planes: Vec<u32>,
    pub(crate) queues: Queues,
    pub(crate) flow: FlowControl,
    /// See [`Fabric::look_ahead`].
    pub(crate) looks_ahead: bool,
    /// Links out of each switch, where that does not hold.
    pub(crate) outs: Vec<Vec<u32>>,
}

impl Fabric {
    /// The node at the far end of `link`: hosts first, then switches.
    #[inline]
    pub fn far_end(&self, link: u32) -> u32 {
        self.ports[link as usize].end
    }

    /// The plane of each switch.
    pub fn planes_of_switches(&self) -> &[u32] {
        &self.planes
    }

    /// Adds what happened in another part of the same fabric.
    pub fn absorb(&mut self, other: &Fabric) {
        self.counters.add(&other.counters);
        for (own, other) in self.ports.iter_mut().zip(&other.ports) {
            own.max_backlog = own.max_backlog.max(other.max_backlog);
        }
    }

    /// The link by which a host sends into `plane`.
    #[inline]
    pub fn uplink(&self, host: HostId, plane: PlaneId) -> u32 {
        self.uplinks[plane.index() * self.hosts as usize + host.index()]
    }

    /// The host port of `packet.plane` sends `packet`. The port must be free.
    pub fn inject(&mut self, now: Time, packet: &mut Envelope) -> Step {
        self.inject_into(now, self.uplink(packet.src, packet.plane), packet)
    }

    /// The same where the link is known.
    #[inline(always)]
    pub fn inject_into(&mut self, now: Time, link: u32, packet: &mut Envelope) -> Step {
        self.counters.injected += 1;
        packet.link = link;
        self.cross_seeing(now, packet, true)
    }

    /// The packet has reached the switch at the end of `packet.link`.
    #[inline]
    pub fn forward(&mut self, now: Time, packet: &mut Envelope) -> Step {
        if packet.next == OPEN {
            return self.forward_otherwise(now, packet);
        }
        packet.link = packet.next - 1;
        self.cross_seeing(now, packet, false)
    }

    /// ECMP has no port for the packet, or none that it would choose alone.
    #[cold]
    pub(crate) fn forward_otherwise(&mut self, now: Time, packet: &mut Envelope) -> Step {
        let Some(link) = self.route(packet).or_else(|| self.balance(now, packet)) else {
            return self.drop(Drop::NoRoute);
        };
        packet.link = link;
        self.cross_seeing(now, packet, false)
    }

    /// The same as [`Fabric::cross`], and the packet looks ahead if packets do.
    #[inline(always)]
    fn cross_seeing(&mut self, now: Time, packet: &mut Envelope, first: bool) -> Step {
        let step = self.cross(now, packet, first);
        if matches!(step, Step::Arrives(_)) {
            self.foresee(packet);
        }
        step
    }

    /// Notes what comes after the link that `packet` has been queued for, if packets look ahead. Known before
    /// anything waits for it, so that the memory it is read from is not waited for either.
    #[inline]
    pub(crate) fn foresee(&self, packet: &mut Envelope) {
        if !self.looks_ahead {
            return;
        }
        let end = self.far_end(packet.link);
        packet.next = match end < self.hosts {
            true => DELIVER,
            false => self.route_from(end, packet).map_or(OPEN, |link| link + 1),
        };
    }

    /// The link by which the switch at the end of `packet.link` sends the packet on, if that is ECMP's to say;
    /// else [`Fabric::balance`] knows.
    pub(crate) fn route(&self, packet: &Envelope) -> Option<u32> {
        self.route_from(self.ends[packet.link as usize], packet)
    }

    #[inline]
    fn route_from(&self, node: u32, packet: &Envelope) -> Option<u32> {
        self.route_at(&self.switches[(node - self.hosts) as usize], packet)
    }

    #[inline(always)]
    pub(crate) fn route_at(&self, switch: &SwitchState, packet: &Envelope) -> Option<u32> {
        let target = self.attachments[packet.plane.index() * self.hosts as usize + packet.dst.index()];
        if target.column == switch.own_column {
            return Some(target.down);
        }
        let choice = self.routes.choices[(switch.offset + target.column) as usize];
        let pick = match choice.count() {
            0 => return None,
            1 => 0,
            count => ecmp(self.hash?, switch, packet, count),
        };
        Some(self.routes.hops[(choice.first() + pick) as usize])
    }

    pub(crate) fn hop(&self, packet: &Envelope) -> (&SwitchState, Attachment) {
        self.hop_from(self.ends[packet.link as usize], packet)
    }

    #[inline]
    fn hop_from(&self, node: u32, packet: &Envelope) -> (&SwitchState, Attachment) {
        let switch = &self.switches[(node - self.hosts) as usize];
        (switch, self.attachments[packet.plane.index() * self.hosts as usize + packet.dst.index()])
    }

    /// Hints the processor at the port that [`Fabric::forward`] will use.
    #[inline]
    pub fn prefetch_port(&self, packet: &Envelope) {
        if let Some(port) = self.ports.get(packet.next.wrapping_sub(1) as usize) {
            prefetch(port);
        }
    }

    /// What stands at the end of the link that `packet` is crossing.
    #[inline]
    pub fn end(&self, packet: &Envelope) -> End {
        match packet.next {
            DELIVER => End::Host(packet.dst),
            NOWHERE => End::Nowhere,
            _ => End::Switch,
        }
    }

    /// The packet has reached its host.
    #[inline]
    pub fn deliver(&mut self) {
        self.counters.delivered += 1;
    }

    /// When the port of `link` is free again.
    #[inline]
    pub fn port_free(&self, link: u32) -> Time {
        Time(self.ports[link as usize].busy_until)
    }

    /// The least delay of a link: so long nothing that happens at one node is felt at another.
    pub fn least_delay(&self) -> Time {
        self.cables.iter().map(|cable| cable.delay).min().unwrap_or_default()
    }

    /// Rate of the host's port into `plane`, if it has one.
    pub fn port_rate(&self, host: HostId, plane: PlaneId) -> Option<Rate> {
        let link = self.uplinks[plane.index() * self.hosts as usize + host.index()];
        self.cables.get(link as usize / 2).map(|cable| cable.rate)
    }

    /// The ports of a host, in order of planes.
    pub fn ports_of(&self, host: HostId) -> impl Iterator<Item = Rate> {
        (0..self.shapes.len()).map_while(move |plane| self.port_rate(host, PlaneId(plane as u8)))
    }

    pub(crate) fn attachment(&self, host: HostId, plane: PlaneId) -> Option<Attachment> {
        let attachment = self.attachments[plane.index() * self.hosts as usize + host.index()];
        (attachment.leaf != u32::MAX).then_some(attachment)
    }

    /// Whether a packet of `src` can reach `dst` in `plane` now.
    pub fn connects(&self, src: HostId, dst: HostId, plane: PlaneId) -> bool {
        let (Some(from), Some(to)) = (self.attachment(src, plane), self.attachment(dst, plane)) else { return false };
        let choice = self.routes.choices[(self.offsets[from.leaf as usize] + to.column) as usize];
        from.leaf == to.leaf || choice.count() > 0
    }

    /// The host of each leaf of `plane` whose cable takes longest for `len` bytes; of a leaf that no other one
    /// reaches, two such hosts.
    pub fn slowest_hosts(&self, plane: PlaneId, len: u32) -> Vec<HostId> {
        let time = |host: HostId| {
            let cable = &self.cables[self.uplinks[plane.index() * self.hosts as usize + host.index()] as usize / 2];
            cable.rate.time_for(Bytes(u64::from(len))) + cable.delay
        };
        let attached = (0..self.hosts).map(HostId).filter_map(|host| Some((host, self.attachment(host, plane)?)));
        let mut hosts: Vec<(HostId, Attachment)> = attached.collect();
        hosts.sort_by_key(|&(host, _)| std::cmp::Reverse(time(host)));
        let shape = &self.shapes[plane.index()];
        let reaches =
            |leaf: u32, column: usize| self.routes.choices[self.offsets[leaf as usize] as usize + column].count() > 0;
        let mut left = vec![0u8; self.switches.len()];
        for &leaf in &shape.leaves {
            left[leaf as usize] = if (0..shape.leaves.len()).any(|column| reaches(leaf, column)) { 1 } else { 2 };
        }
        hosts.retain(|(_, at)| {
            let left = &mut left[at.leaf as usize];
            let takes = *left > 0;
            *left = left.saturating_sub(1);
            takes
        });
        hosts.into_iter().map(|(host, _)| host).collect()
    }

    /// Time of one packet of `len` bytes on the wire from `src` to `dst` in `plane` with nothing in
    /// its way: serialisation and propagation of each link of the first route. Both have a port there.
    pub fn idle_time(&self, src: HostId, dst: HostId, plane: PlaneId, len: u32) -> Time {
        let slot = |host: HostId| plane.index() * self.hosts as usize + host.index();
        let target = self.attachments[slot(dst)];
        let mut link = self.uplinks[slot(src)];
        let mut time = Time::ZERO;
        loop {
            let cable = &self.cables[link as usize / 2];
            time += cable.rate.time_for(Bytes(u64::from(len))) + cable.delay;
            let node = self.ends[link as usize];
            if node < self.hosts {
                return time;
            }
            let switch = &self.switches[(node - self.hosts) as usize];
            if switch.own_column == target.column {
                link = target.down;
                continue;
            }
            let choice = self.routes.choices[(switch.offset + target.column) as usize];
            if choice.count() == 0 {
                return Time::NEVER;
            }
            link = self.routes.hops[choice.first() as usize];
        }
    }

    /// Totals.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The longest backlog that any switch queue has had, bytes.
    pub fn max_queue(&self) -> u64 {
        let bytes = |row: usize, port: &Port| self.cables[row / 2].rate.bytes_in(Time(port.max_backlog)).0;
        self.ports.iter().enumerate().map(|(row, port)| bytes(row, port)).max().unwrap_or(0)
    }

    /// Size of what forwarding reads, bytes.
    pub fn route_bytes(&self) -> usize {
        64 * self.ports.len() + 4 * self.routes.choices.len()
    }

    #[inline(always)]
    pub(crate) fn cross(&mut self, now: Time, packet: &mut Envelope, first: bool) -> Step {
        if self.switching.control_priority && (packet.class == Class::Control || packet.trimmed) {
            return self.cross_first(now, packet, first);
        }
        match self.ports[packet.link as usize].transmit(&mut self.sides, now, packet) {
            Ok(arrival) => self.sent(arrival, packet, first),
            Err(refusal) => self.refused(now, packet, refusal),
        }
    }

    #[inline(never)]
    fn cross_first(&mut self, now: Time, packet: &mut Envelope, first: bool) -> Step {
        match self.ports[packet.link as usize].transmit_first(&mut self.sides, now, packet) {
            Ok(arrival) => self.sent(arrival, packet, first),
            Err(Refusal::Full) => self.drop(Drop::Queue),
            Err(Refusal::Down) => self.drop(Drop::LinkDown),
        }
    }

    #[cold]
    fn refused(&mut self, now: Time, packet: &mut Envelope, refusal: Refusal) -> Step {
        match refusal {
            Refusal::Full if self.switching.trim && packet.class == Class::Data => self.trim(now, packet),
            Refusal::Full => self.drop(Drop::Queue),
            Refusal::Down => self.drop(Drop::LinkDown),
        }
    }

    #[inline(always)]
    fn sent(&mut self, arrival: Time, packet: &Envelope, first: bool) -> Step {
        if self.is_lost(packet, first) { self.drop(Drop::Loss) } else { Step::Arrives(arrival) }
    }

    /// Whether the packet will be lost on the link that it has been queued for; counts it.
    #[inline]
    pub(crate) fn is_lost(&mut self, packet: &Envelope, first: bool) -> bool {
        self.counters.link_hops += 1;
        let data = packet.class == Class::Data;
        self.counters.data_link_hops += u64::from(data);
        self.loss.threshold > 0
            && (first || !self.loss.on_hosts_only)
            && (data || !self.loss.data_only)
            && draw(&mut self.sides[packet.link as usize].loss, self.loss.threshold)
    }

    /// A data packet finds a switch's queue full: its headers go on if there is room for them.
    fn trim(&mut self, now: Time, packet: &mut Envelope) -> Step {
        let port = &mut self.ports[packet.link as usize];
        let whole = !packet.trimmed;
        packet.trimmed = true;
        packet.len = packet.len.min(lengths::TRIMMED);
        let sent = match self.switching.control_priority {
            true => port.transmit_first(&mut self.sides, now, packet),
            false => port.transmit_reserved(&mut self.sides, now, packet),
        };
        match sent {
            Ok(arrival) => {
                self.counters.trimmed += u64::from(whole);
                self.sent(arrival, packet, false)
            }
            Err(_) => self.drop(Drop::Queue),
        }
    }

    #[cold]
    pub(crate) fn drop(&mut self, cause: Drop) -> Step {
        match cause {
            Drop::Loss => self.counters.lost += 1,
            Drop::Queue => self.counters.queue += 1,
            Drop::LinkDown => self.counters.link_down += 1,
            Drop::NoRoute => self.counters.no_route += 1,
            Drop::Headroom => self.counters.headroom += 1,
            Drop::Watchdog => self.counters.watchdog += 1,
        }
        Step::Dropped(cause)
    }

    /// What `packet`, which is on its way, will do at the end of its link, now that links or routes have changed; if
    /// its link is down, it reaches nothing.
    pub fn reconsider(&self, packet: &mut Envelope) {
        if !self.is_up(packet.link) {
            packet.next = NOWHERE;
        } else if packet.next != NOWHERE {
            self.foresee(packet);
        }
    }

    /// A packet was on a link when that went down.
    pub fn drop_on_dead_link(&mut self) {
        self.drop(Drop::LinkDown);
    }

    /// Takes `target` down or up. Packets on links that are down now are lost: the driver passes all that are on
    /// their way to [`Fabric::reconsider`]. Routes follow after the answered delay, by [`Fabric::reroute`].
    pub fn set(&mut self, target: Target, up: bool) -> Time {
        let (list, number) = match target {
            Target::Link(row) => (&mut self.down.cables, row),
            Target::Switch(number) => (&mut self.down.switches, number),
            Target::Plane(plane) => (&mut self.down.planes, plane),
        };
        list.retain(|&n| n != number);
        if !up {
            list.push(number);
        }
        for link in 0..self.ports.len() {
            let up = self.should_be_up(link);
            if self.is_up(link as u32) && !up {
                self.forget_pauses(link);
            }
            self.ports[link].set_up(&mut self.sides[link], up);
        }
        self.rebuild();
        self.reroute_delay
    }

    /// All switches know the present state of all links. The driver passes all packets to [`Fabric::reconsider`].
    pub fn reroute(&mut self) {
        for index in 0..self.edges.len() {
            self.edges[index].known_up = self.is_up(self.edges[index].link);
        }
        self.rebuild();
    }

    /// Whether a link is up.
    pub fn is_up(&self, link: u32) -> bool {
        self.sides[link as usize].up
    }

    fn rebuild(&mut self) {
        for index in 0..self.edges.len() {
            self.edges[index].up = self.is_up(self.edges[index].link);
        }
        self.routes = Routes::build(&self.shapes, &self.offsets, &self.edges);
    }

    fn should_be_up(&self, link: usize) -> bool {
        let cable = &self.cables[link / 2];
        let alive = |node: u32| {
            node < self.hosts || {
                let switch = node - self.hosts;
                !self.down.switches.contains(&switch) && !self.down.planes.contains(&self.planes[switch as usize])
            }
        };
        !self.down.cables.contains(&(link as u32 / 2)) && alive(cable.a) && alive(cable.b)
    }
}

// [F9.ecn-and-ecmp]
/// The port of `count` that `switch` chooses for `packet`.
#[inline]
pub(crate) fn ecmp(kind: Ecmp, switch: &SwitchState, packet: &Envelope, count: u32) -> u32 {
    let value = match kind {
        Ecmp::Linear => addresses(switch, packet) + (u32::from(packet.entropy) >> switch.stride_shift),
        Ecmp::Mixed => mixed(switch, packet, 0),
        Ecmp::Qp => mixed(switch, packet, packet.qp),
    };
    if count.is_power_of_two() { value & (count - 1) } else { value % count }
}

/// The hash that is not linear in the port, 24 bits.
#[inline]
pub(crate) fn mixed(switch: &SwitchState, packet: &Envelope, qp: u16) -> u32 {
    let number = u32::from(packet.entropy) | u32::from(qp) << u16::BITS;
    let h = (addresses(switch, packet) ^ number.wrapping_mul(0x9e37_79b1)).wrapping_mul(0xc2b2_ae35);
    (h ^ (h >> 15)).wrapping_mul(0x27d4_eb2f) >> 8
}

#[inline]
fn addresses(switch: &SwitchState, packet: &Envelope) -> u32 {
    let h = (packet.hash ^ switch.seed).wrapping_mul(0x85eb_ca6b);
    (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d) >> 8
}
