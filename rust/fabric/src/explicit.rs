//! Explicit ports: packets wait in queues, one for each class, until an event takes them, so that what waits can be
//! paused, overtaken or dropped. Everything that is decided when a packet is queued (marks, losses, bounds) is decided
//! as at a busy-until port, in the same order.
//!
//! A packet that finds its port idle leaves at once, so only packets that wait cost an event more. Of a dequeue and an
//! arrival at the same instant and port, either may come first: the arrival finds the packet in front of it in both cases.

use metaroce_wire::{Class, Envelope, Time, lengths};

use crate::fabric::{Drop, Fabric};
use crate::port::Refusal;

pub(crate) const NIL: u32 = u32::MAX;
pub(crate) const DATA: usize = 0;
pub(crate) const CONTROL: usize = 1;

/// What becomes of a packet that an explicit port was asked to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It reaches the far end of `envelope.link` at this time.
    Arrives(Time),
    /// It waits: [`Fabric::dequeue`] will tell.
    Waits,
    /// It ends here.
    Dropped(Drop),
}

/// What the driver is to call at a time that the fabric names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Fabric::dequeue`] of a link.
    Dequeue(u32),
    /// [`Fabric::pause`] of a link: it is to send no data, or may again.
    Pause(u32, bool),
    /// [`Fabric::unpause`] of a link that was taken down.
    Unpause(u32),
    /// [`Fabric::watch`] of a link.
    Watch(u32),
    /// [`Fabric::deadlock`].
    Check,
}

/// A packet whose transmission begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// As given to [`Fabric::enqueue`].
    pub slot: u32,
    /// When its last bit reaches the far end.
    pub arrives: Time,
}

/// A packet that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    serialisation: u64,
    /// `NIL`: lost already, it only takes its time.
    pub slot: u32,
    /// Counts what has waited: of two, the lower came first.
    ticket: u32,
    pub len: u32,
    /// Link whose share of the buffer it holds, or `NIL`.
    pub from: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// An output port, in one cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Queue {
    /// When the transmitter has nothing to finish.
    free_at: u64,
    /// Serialisation of what waits.
    waiting: [u64; 2],
    lists: [List; 2],
    /// A dequeue has been called for.
    called: bool,
    /// Data is not to be sent.
    pub paused: bool,
    /// Data is dropped: the watchdog has bitten.
    pub dropping: bool,
}

impl Queue {
    fn new() -> Queue {
        let lists = [List { head: NIL, tail: NIL }; 2];
        Queue { free_at: 0, waiting: [0; 2], lists, called: false, paused: false, dropping: false }
    }

    fn in_service(&self, now: Time) -> u64 {
        self.free_at.saturating_sub(now.0)
    }

    fn is_idle(&self, now: Time) -> bool {
        self.free_at <= now.0 && self.lists.iter().all(|list| list.head == NIL)
    }

    /// Takes the transmitter, as soon as it is free, for so long; answers the end.
    pub(crate) fn seize(&mut self, now: Time, serialisation: u64) -> u64 {
        self.free_at = self.free_at.max(now.0) + serialisation;
        self.free_at
    }
}

/// All explicit ports, by link; empty where ports are busy-until. What waits at all of them shares one list of entries,
/// of which the part in use stays in the cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    pub ports: Vec<Queue>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    ticket: u32,
    pub calls: Vec<(Time, Call)>,
    /// Control packets have a queue of their own.
    separate: bool,
    /// It goes first; otherwise whoever came first.
    control_first: bool,
}

impl Queues {
    pub(crate) fn new(links: usize, separate: bool, control_first: bool) -> Queues {
        Queues { ports: vec![Queue::new(); links], separate, control_first, ..Queues::default() }
    }

    #[inline]
    fn class(&self, packet: &Envelope) -> usize {
        let first = packet.class == Class::Control || packet.trimmed;
        if self.separate && first { CONTROL } else { DATA }
    }

    /// Time to send all that is in front of a packet of `class`, which has a bound of its own if it is control.
    #[inline]
    pub(crate) fn ahead(&self, link: usize, now: Time, class: usize) -> u64 {
        let port = &self.ports[link];
        let data = if class == DATA { port.waiting[DATA] } else { 0 };
        port.in_service(now) + data + port.waiting[CONTROL]
    }

    #[inline]
    fn push(&mut self, link: usize, class: usize, mut entry: Entry) {
        entry.ticket = self.ticket;
        self.ticket = self.ticket.wrapping_add(1);
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        let port = &mut self.ports[link];
        port.waiting[class] += entry.serialisation;
        let list = &mut port.lists[class];
        match list.tail {
            NIL => list.head = index,
            tail => self.entries[tail as usize].next = index,
        }
        list.tail = index;
    }

    #[inline]
    fn pop(&mut self, link: usize, class: usize) -> Option<Entry> {
        let port = &mut self.ports[link];
        let list = &mut port.lists[class];
        let index = list.head;
        let entry = *self.entries.get(index as usize)?;
        list.head = entry.next;
        if entry.next == NIL {
            list.tail = NIL;
        }
        port.waiting[class] -= entry.serialisation;
        self.free.push(index);
        Some(entry)
    }

    /// The class that is to send next.
    #[inline]
    fn next(&self, link: usize) -> Option<usize> {
        let port = &self.ports[link];
        let [data, control] = [DATA, CONTROL].map(|class| self.entries.get(port.lists[class].head as usize));
        match (data.filter(|_| !port.paused), control) {
            (Some(data), Some(control)) => {
                let older = (control.ticket.wrapping_sub(data.ticket) as i32) < 0;
                Some(if self.control_first || older { CONTROL } else { DATA })
            }
            (Some(_), None) => Some(DATA),
            (None, Some(_)) => Some(CONTROL),
            (None, None) => None,
        }
    }

    /// Calls for a dequeue if something may be sent.
    #[inline]
    pub(crate) fn call(&mut self, now: Time, link: usize) {
        if !self.ports[link].called && self.next(link).is_some() {
            let port = &mut self.ports[link];
            port.called = true;
            self.calls.push((Time(port.free_at.max(now.0)), Call::Dequeue(link as u32)));
        }
    }

    /// Takes all data that waits.
    pub(crate) fn flush(&mut self, link: usize) -> Vec<Entry> {
        std::iter::from_fn(|| self.pop(link, DATA)).collect()
    }

    /// Data that waits at a port, first come first.
    pub(crate) fn data(&self, link: usize) -> impl Iterator<Item = &Entry> {
        let head = self.entries.get(self.ports[link].lists[DATA].head as usize);
        std::iter::successors(head, |entry| self.entries.get(entry.next as usize))
    }
}

/// A packet at the switch that sends it on: where it came from, how the driver calls it, what it takes.
#[derive(Clone, Copy)]
struct Arrival {
    from: u32,
    slot: u32,
    class: usize,
    serialisation: u64,
    len: u32,
}

impl Fabric {
    /// Whether switch ports are explicit: [`Fabric::enqueue`] then takes the place of [`Fabric::forward`].
    pub fn is_explicit(&self) -> bool {
        !self.queues.ports.is_empty()
    }

    /// What to call, and when, in no order; to be asked for until there is nothing after each call that may change a
    /// port. A time that has passed means now.
    #[inline]
    pub fn next_call(&mut self) -> Option<(Time, Call)> {
        self.queues.calls.pop()
    }

    /// The packet has reached the switch at the end of `packet.link`. `slot` comes back with its departure.
    #[inline]
    pub fn enqueue(&mut self, now: Time, packet: &mut Envelope, slot: u32) -> Admission {
        let from = packet.link;
        let Some(link) = self.route(packet).or_else(|| self.balance(now, packet)) else {
            return self.ends(Drop::NoRoute);
        };
        packet.link = link;
        self.foresee(packet);
        let class = self.queues.class(packet);
        let ahead = self.queues.ahead(link as usize, now, class);
        let (serialisation, admitted) = self.ports[link as usize].admit(&mut self.sides, ahead, packet);
        let arrival = Arrival { from, slot, class, serialisation, len: packet.len };
        // Buffer and headroom bound a lossless class.
        let bounded = admitted == Err(Refusal::Full) && class == DATA && self.flow.is_on();
        match if bounded { Ok(()) } else { admitted } {
            Ok(()) => self.place(now, packet, arrival),
            Err(Refusal::Full) if self.switching.trim && packet.class == Class::Data => {
                self.trim_explicit(now, packet, arrival)
            }
            Err(Refusal::Full) => self.ends(Drop::Queue),
            Err(Refusal::Down) => {
                self.wait(now, link as usize, Arrival { from: NIL, slot: NIL, ..arrival });
                self.ends(Drop::LinkDown)
            }
        }
    }

    /// Sends an admitted packet, or lets it wait.
    #[inline(always)]
    fn place(&mut self, now: Time, packet: &mut Envelope, arrival: Arrival) -> Admission {
        let link = packet.link as usize;
        let port = &self.queues.ports[link];
        let goes = port.is_idle(now) && !(arrival.class == DATA && port.paused);
        let mut from = NIL;
        if arrival.class == DATA && self.flow.is_on() {
            if port.dropping {
                return self.ends(Drop::Watchdog);
            }
            if !goes {
                if !self.hold(now, arrival.from, arrival.len) {
                    return self.ends(Drop::Headroom);
                }
                from = arrival.from;
            }
        }
        let lost = self.is_lost(packet, false);
        if goes {
            let sent = self.queues.ports[link].seize(now, arrival.serialisation);
            let arrives = Time(sent + self.ports[link].delay);
            return if lost { self.ends(Drop::Loss) } else { Admission::Arrives(arrives) };
        }
        let slot = if lost { NIL } else { arrival.slot };
        self.wait(now, link, Arrival { from, slot, ..arrival });
        if lost { self.ends(Drop::Loss) } else { Admission::Waits }
    }

    #[inline(always)]
    fn wait(&mut self, now: Time, link: usize, arrival: Arrival) {
        let port = &mut self.ports[link];
        port.max_backlog = port.max_backlog.max(self.queues.ahead(link, now, DATA));
        let Arrival { from, slot, class, serialisation, len } = arrival;
        self.queues.push(link, class, Entry { serialisation, slot, ticket: 0, len, from, next: NIL });
        self.queues.call(now, link);
    }

    #[cold]
    fn trim_explicit(&mut self, now: Time, packet: &mut Envelope, arrival: Arrival) -> Admission {
        let link = packet.link as usize;
        let whole = !packet.trimmed;
        packet.trimmed = true;
        packet.len = packet.len.min(lengths::TRIMMED);
        let class = self.queues.class(packet);
        let serialisation = self.ports[link].serialisation(&mut self.sides, packet);
        let needed = self.queues.ahead(link, now, class).saturating_add(serialisation);
        let port = &self.ports[link];
        let fits = if class == CONTROL { port.holds(needed) } else { port.reserve_holds(needed) };
        if !fits {
            return self.ends(Drop::Queue);
        }
        self.counters.trimmed += u64::from(whole);
        self.place(now, packet, Arrival { class, serialisation, len: packet.len, ..arrival })
    }

    #[cold]
    fn ends(&mut self, cause: Drop) -> Admission {
        self.drop(cause);
        Admission::Dropped(cause)
    }

    /// The transmitter of `link` is free: takes what is next, if anything may be sent.
    #[inline]
    pub fn dequeue(&mut self, now: Time, link: u32) -> Option<Departure> {
        let index = link as usize;
        let port = &mut self.queues.ports[index];
        port.called = false;
        // A pause frame may have come first.
        let mut departure = None;
        if port.free_at <= now.0
            && let Some(class) = self.queues.next(index)
            && let Some(entry) = self.queues.pop(index, class)
        {
            let arrives = Time(self.queues.ports[index].seize(now, entry.serialisation) + self.ports[index].delay);
            if entry.from != NIL {
                self.release(now, entry.from, entry.len);
            }
            departure = (entry.slot != NIL).then_some(Departure { slot: entry.slot, arrives });
        }
        self.queues.call(now, index);
        departure
    }
}
