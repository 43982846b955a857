//! Two endpoints on a link of fixed rate and delay for each plane, with a script that decides the
//! fate of each packet.

#![allow(dead_code, reason = "each test file uses a part of the fixture")]

pub mod operations;
pub mod roce;
pub mod schedule;
pub mod sprayed;
pub mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use metaroce_proto::{
    Access, Atomic, Completion, CompletionKind, CompletionStatus, Endpoint, Placement, ReceiveRequest, WorkRequest,
};
use metaroce_wire::{Bytes, ConnId, Ecn, HostId, Packet, PlaneId, Rate, Time};

/// Registered bytes of each end, at offset 0 with key 0.
pub const MEMORY: u64 = 64 << 20;

/// What the link does to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    Marked,
    Lost,
    /// Arrives this much later; others may overtake it.
    Delayed(Time),
    /// Arrives twice, the second time this much later.
    Doubled(Time),
    /// Arrives without its payload.
    Trimmed,
}

/// Decides on each packet when it leaves.
type Script = Box<dyn FnMut(Time, &Packet) -> Fate>;

/// Looks at both ends after each event.
type Watch = Box<dyn FnMut(Time, &[Endpoint; 2])>;

enum Event {
    Arrival(usize, Packet),
    Free(usize, usize),
}

pub struct Pair {
    pub ends: [Endpoint; 2],
    /// The only connection; both ends number it alike.
    pub connection: ConnId,
    pub now: Time,
    /// When something last happened: timers without effect do not count.
    pub active_at: Time,
    /// Every packet put on the wire, lost ones too, with the time at which it began.
    pub log: Vec<(Time, Packet)>,
    /// Every packet that arrived: when, at which end.
    pub arrivals: Vec<(Time, usize, Packet)>,
    pub completions: [Vec<Completion>; 2],
    /// When they were polled.
    pub completed_at: [Vec<Time>; 2],
    pub message_done_at: Vec<Time>,
    /// What atomics changed: when, at which end, and what was there before.
    pub atomics: Vec<(Time, usize, Atomic, u64)>,
    /// Memory of each end as far as atomics or their answers wrote it.
    pub cells: [BTreeMap<u64, u64>; 2],
    /// What was placed, in order: when, at which end, where.
    pub placements: Vec<(Time, usize, Placement)>,
    /// Placed ranges of each end: address → (length, source).
    placed: [BTreeMap<u64, Vec<(u32, u64)>>; 2],
    rate: Rate,
    delay: Time,
    busy: [Vec<bool>; 2],
    queue: BinaryHeap<Reverse<(Time, usize)>>,
    events: Vec<Option<Event>>,
    fate: Script,
    watch: Option<Watch>,
}

impl Pair {
    pub fn new(mut ends: [Endpoint; 2], planes: usize, rate: Rate, delay: Time) -> Pair {
        for (end, peer) in ends.iter_mut().zip([1, 0]) {
            end.register(0, MEMORY, Access::ALL);
            let connection = end.connect(HostId(peer));
            end.bind(connection, ConnId(0));
        }
        Pair {
            ends,
            connection: ConnId(0),
            now: Time::ZERO,
            active_at: Time::ZERO,
            log: Vec::new(),
            arrivals: Vec::new(),
            completions: [Vec::new(), Vec::new()],
            completed_at: [Vec::new(), Vec::new()],
            atomics: Vec::new(),
            cells: [BTreeMap::new(), BTreeMap::new()],
            message_done_at: Vec::new(),
            placements: Vec::new(),
            placed: [BTreeMap::new(), BTreeMap::new()],
            rate,
            delay,
            busy: [vec![false; planes], vec![false; planes]],
            queue: BinaryHeap::new(),
            events: Vec::new(),
            fate: Box::new(|_, _| Fate::Arrives),
            watch: None,
        }
    }

    /// Sets the script.
    pub fn fate(&mut self, mut fate: impl FnMut(&Packet) -> Fate + 'static) {
        self.fate = Box::new(move |_, packet| fate(packet));
    }

    /// Sets a script that knows when a packet leaves.
    pub fn fate_at(&mut self, fate: impl FnMut(Time, &Packet) -> Fate + 'static) {
        self.fate = Box::new(fate);
    }

    /// Shows both ends to `watch` after each event.
    pub fn watch(&mut self, watch: impl FnMut(Time, &[Endpoint; 2]) + 'static) {
        self.watch = Some(Box::new(watch));
    }

    pub fn post(&mut self, end: usize, request: WorkRequest) {
        self.ends[end].post(self.now, self.connection, request).expect("a valid request");
    }

    pub fn post_receive(&mut self, end: usize, request: ReceiveRequest) {
        self.ends[end].post_receive(self.connection, request).expect("a valid receive");
    }

    /// Runs until nothing is waited for.
    pub fn run(&mut self) {
        self.run_until(Time::NEVER);
    }

    /// Runs everything that happens up to `end`.
    pub fn run_until(&mut self, end: Time) {
        self.serve();
        loop {
            let event = self.queue.peek().map_or(Time::NEVER, |&Reverse((at, _))| at);
            let timer = self.ends[0].poll_timeout().min(self.ends[1].poll_timeout());
            let at = event.min(timer);
            if at == Time::NEVER || at > end {
                return;
            }
            assert!(self.events.len() < 4_000_000, "no end in sight at {at}");
            self.now = at;
            let before = (self.log.len(), self.completions.each_ref().map(Vec::len));
            if event <= timer {
                let Reverse((_, index)) = self.queue.pop().expect("peeked");
                self.handle(index);
                self.active_at = at;
            } else {
                self.ends.iter_mut().filter(|e| e.poll_timeout() <= at).for_each(|e| e.handle_timeout(at));
            }
            self.serve();
            if let Some(watch) = &mut self.watch {
                watch(at, &self.ends);
            }
            if before != (self.log.len(), self.completions.each_ref().map(Vec::len)) {
                self.active_at = at;
            }
        }
    }

    /// Requests that ended well, in order.
    pub fn succeeded(&self, end: usize, kind: CompletionKind) -> Vec<u32> {
        let ok = self.completions[end].iter().filter(|c| c.kind == kind && c.status == CompletionStatus::Success);
        ok.map(|c| c.wr_id).collect()
    }

    /// Whether each byte of `[at, at + len)` was placed once, from the same address at the peer.
    pub fn placed_once(&self, end: usize, at: u64, len: u64) -> bool {
        self.placed_from(end, at, len, at)
    }

    /// The same from `from` on at the peer.
    pub fn placed_from(&self, end: usize, at: u64, len: u64, from: u64) -> bool {
        let mut next = at;
        for (&address, copies) in self.placed[end].range(at..at + len) {
            let &[(bytes, source)] = copies.as_slice() else {
                return false;
            };
            if address != next || source.wrapping_sub(from) != address - at {
                return false;
            }
            next += u64::from(bytes);
        }
        next == at + len
    }

    /// Whether nothing was placed twice at the same address.
    pub fn nothing_twice(&self) -> bool {
        self.placed.iter().all(|end| end.values().all(|copies| copies.len() == 1))
    }

    /// Whether no byte of `[at, at + len)` was ever placed.
    pub fn untouched(&self, end: usize, at: u64, len: u64) -> bool {
        let reaches = |(&address, copies): (&u64, &Vec<(u32, u64)>)| {
            copies.iter().any(|&(bytes, _)| address + u64::from(bytes) > at)
        };
        !self.placed[end].range(..at + len).any(reaches)
    }

    /// Time of `bytes` on the wire.
    pub fn wire(&self, bytes: u32) -> Time {
        self.rate.time_for(Bytes(u64::from(bytes)))
    }

    /// Every placement below `limit` at end 1 happened once.
    pub fn check_memory(&self, limit: u64) {
        for (address, copies) in self.placed[1].range(..limit) {
            assert_eq!(copies.len(), 1, "placed at {address}");
        }
    }

    fn handle(&mut self, index: usize) {
        match self.events[index].take() {
            Some(Event::Arrival(end, packet)) => {
                self.arrivals.push((self.now, end, packet));
                if let Some(placement) = self.ends[end].handle_packet(self.now, &packet.envelope, &packet.body) {
                    self.place(end, &placement);
                }
            }
            Some(Event::Free(end, plane)) => {
                self.busy[end][plane] = false;
                self.transmit(end, plane);
            }
            None => {}
        }
    }

    fn place(&mut self, end: usize, placement: &Placement) {
        self.placements.push((self.now, end, *placement));
        if placement.len > 0 {
            self.placed[end].entry(placement.address).or_default().push((placement.len, placement.source));
        }
        if let Some(value) = placement.value {
            self.cells[end].insert(placement.address, value);
        }
        if placement.message_done {
            self.message_done_at.push(self.now);
        }
    }

    fn serve(&mut self) {
        for end in 0..2 {
            while let Some(atomic) = self.ends[end].poll_atomic() {
                let cell = self.cells[end].entry(atomic.request.address).or_default();
                let before = *cell;
                *cell = atomic.apply(before);
                self.ends[end].answer_atomic(&atomic, before);
                self.atomics.push((self.now, end, atomic, before));
            }
            while let Some(completion) = self.ends[end].poll_completion() {
                self.completions[end].push(completion);
                self.completed_at[end].push(self.now);
            }
            for plane in 0..self.busy[end].len() {
                if !self.busy[end][plane] && self.ends[end].ports_ready() >> plane & 1 == 1 {
                    self.transmit(end, plane);
                }
            }
        }
    }

    fn transmit(&mut self, end: usize, plane: usize) {
        let Some(mut packet) = self.ends[end].poll_transmit(self.now, PlaneId(plane as u8)) else {
            return;
        };
        assert_eq!(packet.envelope.plane.index(), plane);
        self.log.push((self.now, packet));
        self.busy[end][plane] = true;
        let free_at = self.now + self.rate.time_for(Bytes(u64::from(packet.envelope.len)));
        let fate = (self.fate)(self.now, &packet);
        self.push(free_at, Event::Free(end, plane));
        let mut arrives_at = free_at + self.delay;
        match fate {
            Fate::Arrives => {}
            Fate::Lost => return,
            Fate::Marked => packet.envelope.ecn = Ecn::Ce,
            Fate::Trimmed => packet.envelope.trimmed = true,
            Fate::Delayed(more) => arrives_at += more,
            Fate::Doubled(later) => self.push(arrives_at + later, Event::Arrival(1 - end, packet)),
        }
        self.push(arrives_at, Event::Arrival(1 - end, packet));
    }

    fn push(&mut self, at: Time, event: Event) {
        self.queue.push(Reverse((at, self.events.len())));
        self.events.push(Some(event));
    }
}
