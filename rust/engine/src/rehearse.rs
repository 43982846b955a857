//! Rehearsals: the devices of all ranks on a network of random delays, to find what is missing in a program.
//!
//! Nothing is modelled of the network but that messages take their time, each its own, and so do operations of units.
//! Memory is as harsh as it can be: half of a message is read when it leaves and the other half when it lands, a
//! receive's bytes land when the message arrives, and operations of units read and write when they end. So an entry
//! that does not wait for what it needs meets wrong bytes under some delays.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::sync::Arc;

use metaroce_wire::Time;

use crate::dtype::Dtype;
use crate::memory::Memory;
use crate::offload::{Device, Effect, Plan};
use crate::pattern::{Expect, Fill, Pattern};
use crate::program::Op;
use crate::random::Random;

/// Events between two questions whether to go on.
const BETWEEN_SIGNALS: u64 = 1 << 14;

/// What is rehearsed.
#[derive(Debug)]
pub struct Rehearsal {
    plan: Arc<Plan>,
    /// Of each entry that is a transfer: which flow of messages it belongs to.
    flow_of: Vec<u32>,
    /// Source and destination of each flow.
    flows: Vec<(u32, u32)>,
    delays: Delays,
    memory: Memory,
    pattern: Pattern,
    fills: Vec<Fill>,
    expects: Vec<Expect>,
    /// Of all runs: short ones are to be interrupted as well.
    events: u64,
}

/// Random times of a rehearsal.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Least time of a message, or of its acknowledgement.
    pub least: Time,
    /// Most.
    pub most: Time,
    /// Most that an operation of a unit takes longer.
    pub unit: Time,
}

/// Payload of a rehearsal.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Element type.
    pub dtype: Dtype,
    /// Bytes a rank.
    pub memory: usize,
    /// What is written before.
    pub fills: Vec<Fill>,
    /// What must be found after.
    pub expects: Vec<Expect>,
}

/// How a rehearsal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All entries are complete.
    Done,
    /// Nothing was left that could happen.
    Stalled,
    /// A message did not fit its receive.
    Failed,
}

/// Results of a rehearsal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How it ended.
    pub ending: Ending,
    /// Elements that are not as expected, and elements compared.
    pub check: (u64, u64),
    /// Messages that came before their receive.
    pub rnr: u64,
    /// Bytes of these: announcements have none.
    pub early_bytes: u64,
    /// When it ended.
    pub time: Time,
    /// What did not go on, if it did not end.
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A message of a flow is there.
    Arrival(u32),
    /// An acknowledgement is.
    Ack(u32),
    /// The device of a rank has a timeout.
    Device(u32),
}

#[derive(Debug)]
struct Message {
    entry: u32,
    arrives: Time,
    /// The half that was read when it left: where it begins in the message, and its bytes.
    early: (usize, Vec<u8>),
    /// It waits for a receive.
    held: bool,
}

/// Messages of a (source, destination, stream), which stay in order.
#[derive(Debug, Default)]
struct Flow {
    messages: VecDeque<Message>,
    receives: VecDeque<u32>,
    acks: VecDeque<u32>,
    last_arrival: Time,
    last_ack: Time,
}

impl Rehearsal {
    /// A rehearsal of `plan`; `delays.least` is at most `delays.most`.
    ///
    /// # Errors
    /// What the operating system says if it has not that much memory.
    pub fn new(plan: Arc<Plan>, payload: Payload, delays: Delays) -> io::Result<Rehearsal> {
        let program = plan.program().clone();
        let (mut flows, mut numbers) = (Vec::new(), BTreeMap::new());
        let mut flow_of = Vec::with_capacity(program.len());
        for rank in 0..program.ranks() as u32 {
            for wqe in program.of_rank(rank as usize) {
                let ends = if wqe.op == Op::Recv { (wqe.peer, rank) } else { (rank, wqe.peer) };
                flow_of.push(match wqe.op.has_peer() {
                    true => *numbers.entry((ends, wqe.stream)).or_insert_with(|| {
                        flows.push(ends);
                        flows.len() as u32 - 1
                    }),
                    false => u32::MAX,
                });
            }
        }
        let memory = Memory::new(program.ranks(), payload.memory, payload.dtype)?;
        let pattern = Pattern::new(payload.dtype, program.ranks() as u32);
        let Payload { fills, expects, .. } = payload;
        Ok(Rehearsal { plan, flow_of, flows, delays, memory, pattern, fills, expects, events: 0 })
    }

    /// Runs once with the delays of `seed`; `None` if `interrupted` says so.
    pub fn run(&mut self, seed: u64, interrupted: &mut dyn FnMut() -> bool) -> Option<Verdict> {
        self.memory.clear();
        self.pattern.fill(&mut self.memory, &self.fills);
        let mut run = Run::new(self, seed);
        run.begin();
        while run.failed.is_none() && run.step() {
            run.of.events += 1;
            if run.of.events.is_multiple_of(BETWEEN_SIGNALS) && interrupted() {
                return None;
            }
        }
        let left: usize = run.devices.iter().map(Device::unfinished).sum();
        let (now, rnr, early_bytes) = (run.now, run.rnr, run.early_bytes);
        let (ending, reason) = match (run.failed.take(), left) {
            (Some(reason), _) => (Ending::Failed, reason),
            (None, 0) => (Ending::Done, String::new()),
            (None, _) => (Ending::Stalled, run.reason()),
        };
        let check = self.pattern.check(&self.memory, &self.expects);
        Some(Verdict { ending, check, rnr, early_bytes, time: now, reason })
    }
}

/// A rehearsal under way.
struct Run<'a> {
    of: &'a mut Rehearsal,
    devices: Vec<Device>,
    /// The one timeout of each device that counts.
    due: Vec<Time>,
    events: BinaryHeap<Reverse<(Time, Event)>>,
    flows: Vec<Flow>,
    random: Random,
    now: Time,
    rnr: u64,
    early_bytes: u64,
    failed: Option<String>,
    /// Devices that may have done something, and flows whose next message may land.
    busy: VecDeque<u32>,
    open: VecDeque<u32>,
    /// Room for halves of messages.
    spare: Vec<Vec<u8>>,
}

impl<'a> Run<'a> {
    fn new(of: &'a mut Rehearsal, seed: u64) -> Run<'a> {
        let ranks = of.plan.ranks();
        let Delays { least, most, unit } = of.delays;
        let device = |rank: usize| {
            let mut device = Device::new(of.plan.clone(), rank);
            device.loiter(Random::new(seed, rank as u64 + 1, (0, unit.0)));
            device
        };
        Run {
            devices: (0..ranks).map(device).collect(),
            due: vec![Time::NEVER; ranks],
            events: BinaryHeap::new(),
            flows: of.flows.iter().map(|_| Flow::default()).collect(),
            random: Random::new(seed, 0, (least.0, most.0)),
            now: Time::ZERO,
            rnr: 0,
            early_bytes: 0,
            failed: None,
            busy: VecDeque::new(),
            open: VecDeque::new(),
            spare: Vec::new(),
            of,
        }
    }

    fn begin(&mut self) {
        for rank in 0..self.devices.len() as u32 {
            self.devices[rank as usize].begin(self.now);
            self.busy.push_back(rank);
        }
        self.settle();
    }

    /// Does what is next. Answers whether there was anything.
    fn step(&mut self) -> bool {
        let Some(Reverse((now, event))) = self.events.pop() else { return false };
        match event {
            Event::Device(rank) if self.due[rank as usize] != now => return true,
            Event::Device(rank) => {
                self.due[rank as usize] = Time::NEVER;
                self.now = now;
                self.devices[rank as usize].handle_timeout(now);
                self.busy.push_back(rank);
            }
            Event::Arrival(flow) => self.open.push_back(flow),
            Event::Ack(flow) => {
                let (rank, _) = self.of.flows[flow as usize];
                if let Some(entry) = self.flows[flow as usize].acks.pop_front() {
                    self.devices[rank as usize].complete(now, entry);
                    self.busy.push_back(rank);
                }
            }
        }
        self.now = now;
        self.settle();
        true
    }

    /// Until nothing more happens now.
    fn settle(&mut self) {
        loop {
            if let Some(rank) = self.busy.pop_front() {
                while let Some(effect) = self.devices[rank as usize].poll_effect() {
                    self.effect(rank, effect);
                }
                let due = self.devices[rank as usize].poll_timeout();
                if due < self.due[rank as usize] {
                    self.due[rank as usize] = due;
                    self.events.push(Reverse((due, Event::Device(rank))));
                }
            } else if let Some(flow) = self.open.pop_front() {
                self.land(flow);
            } else {
                return;
            }
        }
    }

    fn effect(&mut self, rank: u32, effect: Effect) {
        let program = self.of.plan.program().clone();
        let (Effect::Post(entry) | Effect::Done(entry)) = effect;
        let wqe = program.wqe(entry as usize);
        let own = rank as usize;
        match wqe.op {
            Op::Copy => self.of.memory.copy(own, wqe.remote, wqe.local, wqe.bytes as usize),
            Op::Sum => self.of.memory.sum(own, wqe.remote, wqe.local, wqe.bytes as usize),
            Op::Recv => {
                let flow = self.of.flow_of[entry as usize];
                self.flows[flow as usize].receives.push_back(entry);
                self.open.push_back(flow);
            }
            op if op.has_peer() => self.send(own, entry),
            _ => {}
        }
    }

    fn send(&mut self, rank: usize, entry: u32) {
        let wqe = self.of.plan.program().wqe(entry as usize);
        let (len, size) = (wqe.bytes as usize, self.of.memory.dtype().size());
        let half = len / size / 2 * size;
        // Of one element, all or nothing.
        let early = if self.random.coin() { 0..half } else { half..len };
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        self.of.memory.read(rank, wqe.local + early.start as u64, early.len(), &mut bytes);
        let id = self.of.flow_of[entry as usize];
        let arrives = self.now.saturating_add(Time(self.random.time())).max(self.flows[id as usize].last_arrival);
        let flow = &mut self.flows[id as usize];
        flow.last_arrival = arrives;
        flow.messages.push_back(Message { entry, arrives, early: (early.start, bytes), held: false });
        self.events.push(Reverse((arrives, Event::Arrival(id))));
    }

    /// Messages of a flow that are there land, as far as there are receives.
    fn land(&mut self, id: u32) {
        let (program, (source, target)) = (self.of.plan.program().clone(), self.of.flows[id as usize]);
        loop {
            let flow = &mut self.flows[id as usize];
            let receive = flow.receives.front().copied();
            let Some(message) = flow.messages.front_mut().filter(|message| message.arrives <= self.now) else { return };
            let (wqe, is_new) = (program.wqe(message.entry as usize), !message.held);
            let needs = wqe.op != Op::Write;
            if needs && receive.is_none() {
                message.held = true;
                if is_new {
                    self.rnr += 1;
                    self.early_bytes += wqe.bytes;
                }
                // What is written is there all the same, if nobody is told yet.
                if is_new && wqe.op == Op::WriteImm {
                    self.place(id, source, (target, wqe.remote));
                }
                return;
            }
            let at = match receive.map(|entry| (entry, program.wqe(entry as usize))) {
                Some((entry, room)) if wqe.op == Op::Send => {
                    if room.bytes < wqe.bytes {
                        self.failed = Some(format!(
                            "SEND of {} bytes from rank {source} to rank {target}, stream {}, into RECV (entry {entry}) \
                             of {}",
                            wqe.bytes, wqe.stream, room.bytes
                        ));
                        return;
                    }
                    room.local
                }
                _ => wqe.remote,
            };
            if is_new || wqe.op == Op::Send {
                self.place(id, source, (target, at));
            }
            self.end(id, needs, target);
        }
    }

    /// The first message of a flow goes to memory.
    fn place(&mut self, id: u32, source: u32, (target, at): (u32, u64)) {
        let Some(message) = self.flows[id as usize].messages.front() else { return };
        let wqe = self.of.plan.program().wqe(message.entry as usize);
        let (from, (early, bytes)) = ((source as usize, wqe.local), &message.early);
        self.of.memory.place(from, (target as usize, at), wqe.bytes as usize);
        self.of.memory.write(target as usize, at + *early as u64, bytes);
    }

    /// The first message of a flow has landed: its receive ends, and its sender will know.
    fn end(&mut self, id: u32, receives: bool, target: u32) {
        let acked = self.now.saturating_add(Time(self.random.time()));
        let flow = &mut self.flows[id as usize];
        flow.last_ack = flow.last_ack.max(acked);
        self.events.push(Reverse((flow.last_ack, Event::Ack(id))));
        if let Some(message) = flow.messages.pop_front() {
            flow.acks.push_back(message.entry);
            self.spare.push(message.early.1);
        }
        if let Some(entry) = flow.receives.front().copied().filter(|_| receives) {
            flow.receives.pop_front();
            self.devices[target as usize].complete(self.now, entry);
            self.busy.push_back(target);
        }
    }

    /// What does not go on.
    fn reason(&self) -> String {
        let blocked = self.devices.iter().flat_map(|device| device.blocked(4));
        blocked.take(4).map(|blocked| blocked.reason).collect::<Vec<_>>().join("; ")
    }
}
