//! Senders that share one output queue towards a receiver, for long runs: it keeps counts, no log.
//!
//! Each host sends at the line rate; data passes the queue, control goes back on a path of its own.

#![allow(dead_code, reason = "each test file uses a part of the fixture")]

use std::collections::VecDeque;

use metaroce_proto::{Access, Endpoint, Environment, PathSample, RoceConfig, Sample, TransportConfig, WorkRequest};
use metaroce_wire::{Body, Bytes, Class, ConnId, Ecn, HostId, Packet, PlaneId, Rate, Time};

/// Marking of the queue: thresholds in bytes, probability at the upper one in 1/2³².
#[derive(Clone, Copy)]
pub struct Red {
    pub kmin: u64,
    pub kmax: u64,
    pub pmax: u64,
}

/// Decides on a data packet when it leaves.
pub type Loss = Box<dyn FnMut(&Packet) -> bool>;

pub struct Line {
    /// The last one receives.
    pub hosts: Vec<Endpoint>,
    pub now: Time,
    /// Packets placed, by sender.
    pub placed: Vec<u64>,
    /// When the last one was.
    pub placed_at: Time,
    /// Times of congestion notifications, by sender.
    pub cnps: Vec<Vec<Time>>,
    /// Largest backlog of the queue in bytes since this was last set to zero.
    pub backlog: u64,
    /// Backlogs that packets met since this was last cleared: their sum and number.
    pub met: (u64, u64),
    pub red: Option<Red>,
    pub loss: Loss,
    /// Marks a data packet whatever the queue.
    pub mark: Loss,
    rate: Rate,
    delay: Time,
    /// When each host's port is free.
    free_at: Vec<Time>,
    /// When the queue will be empty.
    drained_at: Time,
    /// On their way from the queue, and back to each sender.
    data: VecDeque<(Time, Packet)>,
    control: Vec<VecDeque<(Time, Packet)>>,
    draw: u64,
}

impl Line {
    /// `senders` of one connection each; a packet takes `delay` from end to end, and so does its answer.
    pub fn new(config: &RoceConfig, senders: usize, rate: Rate, delay: Time) -> Line {
        let base_rtt = delay + delay + rate.time_for(Bytes(u64::from(config.mtu)));
        let make = |host| {
            let environment = Environment { host: HostId(host as u32), ports: vec![rate], base_rtt, routes: 1 };
            let mut host = Endpoint::new(&TransportConfig::RoceV2(config.clone()), environment);
            host.register(0, 1 << 50, Access::ALL);
            host
        };
        let mut hosts: Vec<Endpoint> = (0..=senders).map(make).collect();
        for sender in 0..senders {
            let near = hosts[sender].connect(HostId(senders as u32));
            let far = hosts[senders].connect(HostId(sender as u32));
            hosts[sender].bind(near, far);
            hosts[senders].bind(far, near);
        }
        Line {
            hosts,
            now: Time::ZERO,
            placed: vec![0; senders],
            placed_at: Time::ZERO,
            cnps: vec![Vec::new(); senders],
            backlog: 0,
            met: (0, 0),
            red: None,
            loss: Box::new(|_| false),
            mark: Box::new(|_| false),
            rate,
            delay,
            free_at: vec![Time::ZERO; senders + 1],
            drained_at: Time::ZERO,
            data: VecDeque::new(),
            control: vec![VecDeque::new(); senders],
            draw: 1,
        }
    }

    /// Sets what the queue draws its marks from.
    pub fn seed(&mut self, seed: u64) {
        self.draw = seed;
    }

    /// A Write of `len` bytes.
    pub fn post(&mut self, sender: usize, wr_id: u32, len: u64) {
        let request = WorkRequest { wr_id, len, ..WorkRequest::default() };
        self.hosts[sender].post(self.now, ConnId(0), request).expect("a valid request");
    }

    /// Runs as long as `go` holds and something happens.
    pub fn run_while(&mut self, mut go: impl FnMut(&Line) -> bool) {
        while go(self) {
            let at = self.next();
            if at == Time::NEVER {
                return;
            }
            self.now = at;
            self.step();
        }
    }

    pub fn run_until(&mut self, end: Time) {
        self.run_while(|line| line.next() <= end);
        self.now = end;
    }

    /// QP 0 of a sender.
    pub fn path(&self, sender: usize) -> PathSample {
        let mut found = None;
        self.hosts[sender].observe(&mut |sample| {
            if let Sample::Path(path) = sample {
                found.get_or_insert(path);
            }
        });
        found.expect("a path")
    }

    fn next(&self) -> Time {
        let arrivals = self.control.iter().chain([&self.data]).filter_map(|way| way.front()).map(|&(at, _)| at);
        let timers = self.hosts.iter().map(Endpoint::poll_timeout);
        let ports = self.hosts.iter().zip(&self.free_at).filter(|(host, _)| host.ports_ready() > 0);
        let ports = ports.map(|(_, &free)| free.max(self.now));
        arrivals.chain(timers).chain(ports).min().unwrap_or(Time::NEVER)
    }

    fn step(&mut self) {
        let (now, receiver) = (self.now, self.placed.len());
        while self.data.front().is_some_and(|&(at, _)| at <= now) {
            let (_, packet) = self.data.pop_front().expect("seen");
            self.arrive(receiver, &packet);
        }
        for sender in 0..receiver {
            while self.control[sender].front().is_some_and(|&(at, _)| at <= now) {
                let (_, packet) = self.control[sender].pop_front().expect("seen");
                self.arrive(sender, &packet);
            }
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].poll_timeout() <= now {
                self.hosts[host].handle_timeout(now);
            }
            while self.hosts[host].poll_completion().is_some() {}
            if self.free_at[host] <= now
                && self.hosts[host].ports_ready() > 0
                && let Some(packet) = self.hosts[host].poll_transmit(now, PlaneId(0))
            {
                self.transmit(host, packet);
            }
        }
    }

    fn arrive(&mut self, host: usize, packet: &Packet) {
        if self.hosts[host].handle_packet(self.now, &packet.envelope, &packet.body).is_some() {
            self.placed[packet.envelope.src.index()] += 1;
            self.placed_at = self.now;
        }
    }

    fn transmit(&mut self, host: usize, mut packet: Packet) {
        let time = self.rate.time_for(Bytes(u64::from(packet.envelope.len)));
        let free = self.now + time;
        self.free_at[host] = free;
        if packet.envelope.class == Class::Control {
            let to = packet.envelope.dst.index();
            if matches!(packet.body, Body::RoceCnp(_)) {
                self.cnps[to].push(self.now);
            }
            self.control[to].push_back((free + self.delay, packet));
            return;
        }
        if (self.loss)(&packet) {
            return;
        }
        // What begins to arrive at an empty queue passes as it comes: one sender alone never waits.
        let backlog = self.rate.bytes_in(self.drained_at.since(self.now)).0;
        self.backlog = self.backlog.max(backlog);
        self.met = (self.met.0 + backlog, self.met.1 + 1);
        if self.marks(backlog) | (self.mark)(&packet) {
            packet.envelope.ecn = Ecn::Ce;
        }
        self.drained_at = self.drained_at.max(self.now) + time;
        self.data.push_back((self.drained_at + self.delay, packet));
    }

    fn marks(&mut self, backlog: u64) -> bool {
        let Some(Red { kmin, kmax, pmax }) = self.red else { return false };
        self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        backlog > kmax || backlog > kmin && self.draw >> 32 < (backlog - kmin) * pmax / (kmax - kmin)
    }
}

/// Loses each data packet with probability `p`, by a seed.
pub fn bernoulli(p: f64, seed: u64) -> impl FnMut() -> bool {
    let threshold = (p * 4_294_967_296.0) as u64;
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The high half of an LCG alone is too regular for runs of losses.
        let mixed = (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed >> 32 < threshold
    }
}
