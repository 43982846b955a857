//! Priority flow control of the lossless class: who holds how much of a switch's buffer, pause frames, the watchdog.
//!
//! Accounting is that of the HPCC simulator: bytes of a link into a switch fill its reserve, then the shared buffer up
//! to the link's dynamic threshold, then its headroom; they leave when their transmission begins. The sender is paused
//! from the threshold on and may go on below it. A pause frame goes before all else on the way back: it waits for the
//! packet in service, takes 64 bytes on the wire and the propagation, and acts after the longest response time that
//! IEEE 802.3 allows. It holds until it is revoked (the refreshing of a timed pause is taken for granted), no random
//! loss hits it, and a link that goes down forgets it. Control packets are another class, lossy and never paused.

use metaroce_wire::{Bytes, HostId, PlaneId, Rate, Time, lengths, units::PS_PER_S};

use crate::explicit::{Call, NIL};
use crate::fabric::{Drop, Fabric};
use crate::spec::{Cable, FabricSpec, Lossless, PfcConfig, SpecError};

/// A pause frame on the wire.
pub const PAUSE_FRAME: u32 = lengths::GAP + lengths::MIN_FRAME;
/// Bits of a pause quantum (IEEE 802.3 annex 31B).
pub const QUANTUM: u64 = 512;
/// Longest response to a pause frame, quanta, up to 100, 200 and 400 Gbit/s; above, in proportion (ours).
pub const RESPONSE: [(u64, u64); 3] = [(100, 394), (200, 453), (400, 905)];
/// Time between two looks for a deadlock while some port is paused. Ours: long beside any pause that ends.
pub const DEADLOCK_CHECK: Time = Time::from_us(1000);

/// Pause frames of one link on their way at a time, at most: each waits for one packet and turns the state over.
const FRAMES: u64 = 4;

/// A link as its receiving end accounts for it, and as its sending end obeys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ingress {
    /// In reserve and shared buffer.
    pub bytes: u64,
    pub headroom_used: u64,
    headroom: u64,
    response: u64,
    pub switch: u32,
    /// The sender was told to pause.
    pub told: bool,
    paused: bool,
    /// Pause frames on their way, and how many of the next ones are void.
    on_the_way: u16,
    void: u16,
    /// When the pause began or ended.
    since: Time,
    pauses: u64,
    total: u64,
}

/// The shared buffer of a switch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    room: u64,
    used: u64,
    /// Links whose senders were told to pause.
    told: Vec<u32>,
}

/// State of flow control; empty where no class is lossless.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowControl {
    config: PfcConfig,
    /// By link; of links into hosts unused.
    pub links: Vec<Ingress>,
    pools: Vec<Pool>,
    check_called: bool,
}

/// What a link has been paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// Directed link: 2r from a to b of cable row r, 2r + 1 back.
    pub link: u32,
    /// How often.
    pub count: u64,
    /// For how long in all.
    pub time: Time,
}

/// Longest time until a sender of this rate heeds a pause frame.
fn response(rate: Rate) -> u64 {
    let last = RESPONSE[RESPONSE.len() - 1];
    let within = RESPONSE.iter().find(|&&(gbps, _)| rate.0 <= Rate::from_gbps(gbps).0);
    let quanta = within.map_or(last.1 * rate.0.div_ceil(Rate::from_gbps(last.0).0), |&(_, quanta)| quanta);
    (u128::from(quanta * QUANTUM) * u128::from(PS_PER_S)).div_ceil(u128::from(rate.0)) as u64
}

// [I36]
/// Bytes that can still come over a cable after the decision to pause: for two propagations and the response, for the
/// packet that the pause frame waits for, and of two whole packets, the one that brought the decision and the one that
/// the sender has begun.
fn needed_headroom(cable: &Cable, frame: u32) -> u64 {
    let span = Time(cable.delay.0.saturating_mul(2).saturating_add(response(cable.rate)));
    let packets = 1 + 3 * u64::from(frame) + FRAMES * u64::from(PAUSE_FRAME);
    cable.rate.bytes_in(span).0.saturating_add(packets)
}

impl FlowControl {
    pub(crate) fn new(spec: &FabricSpec) -> Result<FlowControl, SpecError> {
        let Some(Lossless { pfc: config, frame }) = spec.switching.lossless else {
            return Ok(FlowControl::default());
        };
        check(&config)?;
        if spec.switching.trim {
            let allowed = "false where data is lossless: no queue of it is ever full";
            return Err(SpecError::range("fabric.trim", true, allowed));
        }
        let mut flow = FlowControl {
            config,
            links: vec![Ingress { switch: u32::MAX, ..Ingress::default() }; 2 * spec.cables.len()],
            pools: vec![Pool::default(); spec.switches.len()],
            check_called: false,
        };
        let mut taken = vec![0u64; spec.switches.len()];
        for (row, cable) in spec.cables.iter().enumerate() {
            let needed = needed_headroom(cable, frame);
            let given = if config.headroom_bytes == 0 { needed } else { config.headroom_bytes };
            if given < needed && config.headroom_percent >= 100 {
                let allowed = format!(
                    "0 (what each cable needs) or at least {needed}, which cable {row} of {} Gbit/s and {} ns needs; \
                     fabric.pfc.headroom_percent below 100 makes the class lossy on purpose",
                    cable.rate.0 / Rate::from_gbps(1).0,
                    cable.delay.0 / Time::from_ns(1).0
                );
                return Err(SpecError::range("fabric.pfc.headroom_bytes", given, allowed));
            }
            let headroom = (u128::from(given) * u128::from(config.headroom_percent) / 100) as u64;
            for (link, end) in [(2 * row, cable.b), (2 * row + 1, cable.a)] {
                let ingress = &mut flow.links[link];
                ingress.response = response(cable.rate);
                ingress.headroom = headroom;
                if end >= spec.hosts {
                    ingress.switch = end - spec.hosts;
                    let taken = &mut taken[ingress.switch as usize];
                    *taken = taken.saturating_add(headroom).saturating_add(config.reserve_bytes);
                }
            }
        }
        let least_shared = u64::from(frame) << config.xoff_shift;
        for (switch, &taken) in taken.iter().enumerate() {
            let needed = taken.saturating_add(least_shared);
            if config.buffer_bytes < needed {
                let allowed = format!(
                    "at least {needed}: headroom and reserve of all links into switch {switch}, {taken}, and \
                     {least_shared} to share"
                );
                return Err(SpecError::range("fabric.pfc.buffer_bytes", config.buffer_bytes, allowed));
            }
            flow.pools[switch].room = config.buffer_bytes - taken;
        }
        Ok(flow)
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.links.is_empty()
    }

    /// What a link into `switch` may hold of the shared buffer.
    fn threshold(&self, switch: u32, used: u64) -> u64 {
        (self.pools[switch as usize].room - used) >> self.config.xoff_shift
    }

    pub(crate) fn shared(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.config.reserve_bytes)
    }

    /// Takes `len` bytes that came by `link` into the buffer; false without room.
    fn take(&mut self, link: u32, len: u64) -> bool {
        let ingress = &self.links[link as usize];
        let (bytes, switch) = (ingress.bytes + len, ingress.switch);
        let shared = self.shared(bytes);
        let threshold = self.threshold(switch, self.pools[switch as usize].used);
        let ingress = &mut self.links[link as usize];
        if shared > threshold {
            let room = ingress.headroom_used + len <= ingress.headroom;
            ingress.headroom_used += if room { len } else { 0 };
            return room;
        }
        ingress.bytes = bytes;
        self.pools[switch as usize].used += shared.min(len);
        true
    }

    fn give_back(&mut self, link: u32, len: u64) {
        let held = self.links[link as usize].bytes;
        let ingress = &mut self.links[link as usize];
        let of_headroom = ingress.headroom_used.min(len);
        ingress.headroom_used -= of_headroom;
        ingress.bytes -= len - of_headroom;
        let (left, switch) = (ingress.bytes, ingress.switch);
        self.pools[switch as usize].used -= self.shared(held) - self.shared(left);
    }

    fn is_to_pause(&self, link: u32) -> bool {
        let ingress = &self.links[link as usize];
        let threshold = self.threshold(ingress.switch, self.pools[ingress.switch as usize].used);
        !ingress.told && (ingress.headroom_used > 0 || self.shared(ingress.bytes) >= threshold)
    }

    /// Whether a sender may go on, were `used` of the shared buffer in use and its link held so much.
    pub(crate) fn may_go_on(&self, switch: u32, used: u64, (bytes, headroom_used): (u64, u64)) -> bool {
        let shared = self.shared(bytes);
        let below = shared.saturating_add(self.config.xon_offset_bytes) <= self.threshold(switch, used);
        headroom_used == 0 && (shared == 0 || below)
    }

    /// Takes those off the list of paused links of a switch that may go on.
    fn resumed(&mut self, switch: u32) -> Vec<u32> {
        let mut told = std::mem::take(&mut self.pools[switch as usize].told);
        let used = self.pools[switch as usize].used;
        let goes_on = |link: &mut u32| {
            let ingress = &self.links[*link as usize];
            self.may_go_on(switch, used, (ingress.bytes, ingress.headroom_used))
        };
        let resumed: Vec<u32> = told.extract_if(.., goes_on).collect();
        self.pools[switch as usize].told = told;
        resumed
    }
}

fn check(config: &PfcConfig) -> Result<(), SpecError> {
    let limits = [
        ("xoff_shift", u64::from(config.xoff_shift), 0, 16),
        ("headroom_percent", config.headroom_percent.into(), 1, 1000),
        ("watchdog_detect_ps", config.watchdog_detect_ps, 1, u64::MAX / 4),
        ("watchdog_restore_ps", config.watchdog_restore_ps, 1, u64::MAX / 4),
    ];
    match limits.into_iter().find(|&(_, value, least, most)| value < least || value > most) {
        Some((name, value, least, most)) => {
            Err(SpecError::range(format!("fabric.pfc.{name}"), value, format!("{least} to {most}")))
        }
        None => Ok(()),
    }
}

impl Fabric {
    /// Whether data is lossless.
    pub fn is_lossless(&self) -> bool {
        self.flow.is_on()
    }

    /// Whether a deadlock lasts: no watchdog ends it.
    pub fn has_watchdog(&self) -> bool {
        self.flow.config.watchdog
    }

    /// Takes a data packet that has to wait into the buffer; false without room.
    #[inline(never)]
    pub(crate) fn hold(&mut self, now: Time, from: u32, len: u32) -> bool {
        let held = self.flow.take(from, u64::from(len));
        if self.flow.is_to_pause(from) {
            self.flow.links[from as usize].told = true;
            let switch = self.flow.links[from as usize].switch;
            self.flow.pools[switch as usize].told.push(from);
            self.counters.xoffs += 1;
            self.send_pause(now, from, true);
        }
        held
    }

    /// A data packet leaves the buffer.
    #[inline(never)]
    pub(crate) fn release(&mut self, now: Time, from: u32, len: u32) {
        self.flow.give_back(from, u64::from(len));
        let switch = self.flow.links[from as usize].switch;
        if self.flow.pools[switch as usize].told.is_empty() {
            return;
        }
        for link in self.flow.resumed(switch) {
            self.flow.links[link as usize].told = false;
            self.send_pause(now, link, false);
        }
    }

    /// Sends a pause frame, or one that revokes it, to the sender of `link`.
    fn send_pause(&mut self, now: Time, link: u32, on: bool) {
        let back = link as usize ^ 1;
        if !self.sides[back].up {
            return;
        }
        let frame = self.cables[back / 2].rate.time_for(Bytes(u64::from(PAUSE_FRAME)));
        let sent = self.queues.ports[back].seize(now, frame.0);
        let ingress = &mut self.flow.links[link as usize];
        ingress.on_the_way += 1;
        let at = Time(sent + self.ports[back].delay + ingress.response);
        self.queues.calls.push((at, Call::Pause(link, on)));
    }

    /// A pause frame acts on the sender of `link`. Answers its port if that is a host's.
    pub fn pause(&mut self, now: Time, link: u32, on: bool) -> Option<(HostId, PlaneId)> {
        let ingress = &mut self.flow.links[link as usize];
        ingress.on_the_way -= 1;
        if ingress.void > 0 {
            ingress.void -= 1;
            return None;
        }
        self.set_paused(now, link, on)
    }

    /// A link that has been taken down forgets its pause. Answers its port if that is a host's.
    pub fn unpause(&mut self, now: Time, link: u32) -> Option<(HostId, PlaneId)> {
        self.set_paused(now, link, false)
    }

    fn set_paused(&mut self, now: Time, link: u32, on: bool) -> Option<(HostId, PlaneId)> {
        let ingress = &mut self.flow.links[link as usize];
        if ingress.paused == on {
            return None;
        }
        ingress.paused = on;
        if on {
            ingress.pauses += 1;
        } else {
            ingress.total += now.since(ingress.since).0;
        }
        ingress.since = now;
        let node = self.ends[link as usize ^ 1];
        if node < self.hosts {
            let plane = self.planes[ingress.switch as usize];
            return Some((HostId(node), PlaneId(plane as u8)));
        }
        let port = &mut self.queues.ports[link as usize];
        port.paused = on;
        let config = &self.flow.config;
        if on {
            if config.watchdog {
                self.queues.calls.push((Time(now.0 + config.watchdog_detect_ps), Call::Watch(link)));
            }
            if !self.flow.check_called {
                self.flow.check_called = true;
                self.queues.calls.push((now + DEADLOCK_CHECK, Call::Check));
            }
        } else {
            if port.dropping {
                self.queues.calls.push((Time(now.0 + config.watchdog_restore_ps), Call::Watch(link)));
            }
            self.queues.call(now, link as usize);
        }
        None
    }

    // What waits is dropped, and what comes; SONiC also drops what arrives in the class on that port's other half.
    /// The watchdog looks at a port: answers the slots of the packets that it drops.
    pub fn watch(&mut self, now: Time, link: u32) -> Vec<u32> {
        let ingress = &self.flow.links[link as usize];
        let (paused, lasted) = (ingress.paused, now.since(ingress.since).0);
        let port = &mut self.queues.ports[link as usize];
        if port.dropping {
            port.dropping = paused || lasted < self.flow.config.watchdog_restore_ps;
            return Vec::new();
        }
        if !paused || lasted < self.flow.config.watchdog_detect_ps {
            return Vec::new();
        }
        port.dropping = true;
        self.counters.storms += 1;
        let mut dropped = Vec::new();
        for entry in self.queues.flush(link as usize) {
            if entry.from != NIL {
                self.release(now, entry.from, entry.len);
            }
            if entry.slot != NIL {
                self.drop(Drop::Watchdog);
                dropped.push(entry.slot);
            }
        }
        dropped
    }

    /// [`Call::Check`] has been answered; answers whether any port is still paused, and calls for the next one then.
    pub fn checked(&mut self, now: Time) -> bool {
        let paused = self.flow.links.iter().any(|link| link.paused);
        self.flow.check_called = paused;
        if paused {
            self.queues.calls.push((now + DEADLOCK_CHECK, Call::Check));
        }
        paused
    }

    /// A link has gone down: its pause frames are void and both ends start anew.
    pub(crate) fn forget_pauses(&mut self, link: usize) {
        let Some(ingress) = self.flow.links.get_mut(link) else { return };
        ingress.void = ingress.on_the_way;
        if ingress.told {
            ingress.told = false;
            self.flow.pools[ingress.switch as usize].told.retain(|&told| told as usize != link);
        }
        if ingress.paused {
            self.queues.calls.push((Time::ZERO, Call::Unpause(link as u32)));
        }
    }

    /// The links that have been paused, and for how long until `now`.
    pub fn pauses(&self, now: Time) -> Vec<Pauses> {
        let of = |(link, ingress): (usize, &Ingress)| {
            let open = if ingress.paused { now.since(ingress.since).0 } else { 0 };
            Pauses { link: link as u32, count: ingress.pauses, time: Time(ingress.total + open) }
        };
        self.flow.links.iter().enumerate().map(of).filter(|pauses| pauses.count > 0).collect()
    }
}
