//! The machine of one rank: CPU-C, the engines' CPUs and units, words.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use metaroce_wire::Time;

use super::cpu::{Cpu, Usage};
use super::plan::{FUSED, Plan};
use super::subgraph::{Phase, State, is_sent};
use super::unit::Units;
use super::words::Words;
use crate::program::Op;
use crate::random::Random;

/// What a device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The NIC gets a transfer.
    Post(u32),
    /// An entry that is no transfer is complete: a COPY or SUM changes memory now.
    Done(u32),
}

/// What a device waits for, in the order in which it happens if it is due at the same time; units come before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A word is set from outside.
    Set,
    /// A subgraph of a direct engine is released.
    Direct,
    /// A packet is dispatched.
    Dispatched,
    /// The CPU of an engine has done its work.
    Cpu(u32),
    /// The first transfer of an engine is at the NIC.
    Post(u32),
}

/// The engines of a rank.
#[derive(Debug)]
pub struct Device {
    pub(super) plan: Arc<Plan>,
    pub(super) rank: usize,
    pub(super) first: u32,
    first_subgraph: u32,
    begun: Time,
    timers: BinaryHeap<Reverse<(Time, Due)>>,
    next_packet: usize,
    next_direct: usize,
    next_set: usize,
    cpus: Vec<Cpu>,
    units: Units,
    pub(super) words: Words,
    pub(super) states: Vec<State>,
    /// A bit an entry.
    complete: Vec<u64>,
    left: usize,
    pub(super) outstanding: u32,
    most: u32,
    /// An engine may wait for room.
    starving: bool,
    tickets: u64,
    effects: VecDeque<Effect>,
    /// Engines that may have something to do.
    pending: VecDeque<u32>,
    woken: Vec<u32>,
    /// When each entry was issued, ps, if recorded.
    issued: Vec<u64>,
    /// Operations of units take longer than they need, by what these give: see [`Device::loiter`].
    extra: Option<Random>,
}

impl Device {
    /// The device of `rank`, which does nothing before [`Device::begin`].
    pub fn new(plan: Arc<Plan>, rank: usize) -> Device {
        let entries = plan.program.entries(rank);
        let own = plan.subgraphs[rank]..plan.subgraphs[rank + 1];
        let hardware = &plan.hardware;
        Device {
            rank,
            first: entries.start,
            first_subgraph: own.start,
            begun: Time::ZERO,
            timers: BinaryHeap::new(),
            next_packet: 0,
            next_direct: 0,
            next_set: 0,
            cpus: hardware.engines.iter().map(|_| Cpu::default()).collect(),
            units: Units::new(hardware.unit_bps, hardware.units_bps),
            words: Words::new(hardware.words as usize, own.len()),
            states: Vec::with_capacity(own.len()),
            complete: vec![0; entries.len().div_ceil(64)],
            left: 0,
            outstanding: 0,
            most: 0,
            starving: false,
            tickets: 0,
            effects: VecDeque::new(),
            pending: VecDeque::new(),
            woken: Vec::new(),
            issued: Vec::new(),
            extra: None,
            plan,
        }
    }

    /// From now on the times of issue are recorded.
    pub fn record(&mut self) {
        self.issued = vec![u64::MAX; self.plan.program.entries(self.rank).len()];
    }

    /// From now on each operation of a unit takes a random time longer, for rehearsals.
    pub(crate) fn loiter(&mut self, extra: Random) {
        self.extra = Some(extra);
    }

    /// When each entry was issued last, ps, `u64::MAX` = never; empty if not recorded.
    pub fn issued(&self) -> &[u64] {
        &self.issued
    }

    /// Starts an iteration: nothing is issued, all words are 0.
    pub fn begin(&mut self, now: Time) {
        let plan = self.plan.clone();
        let own = self.first_subgraph as usize..plan.subgraphs[self.rank + 1] as usize;
        self.states.clear();
        self.states.extend(plan.graph().start[own].iter().map(|&head| State::new(head)));
        self.complete.fill(0);
        self.left = plan.program.entries(self.rank).len();
        (self.outstanding, self.starving) = (0, false);
        (self.next_packet, self.next_direct, self.next_set) = (0, 0, 0);
        self.begun = now;
        self.timers.clear();
        self.effects.clear();
        self.pending.clear();
        self.words.reset();
        self.units.reset(now);
        self.cpus.iter_mut().for_each(|cpu| cpu.reset(now));
        self.await_packet(now);
        self.await_outside(Due::Direct, plan.directs(self.rank).first().map(|&(at, _)| at));
        self.await_outside(Due::Set, plan.sets(self.rank).first().map(|set| set.at));
        self.handle_timeout(now);
    }

    /// When [`Device::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Time {
        self.timers.peek().map_or(Time::NEVER, |Reverse((at, _))| *at).min(self.units.due())
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        loop {
            let timer = self.timers.peek().map_or(Time::NEVER, |Reverse((at, _))| *at);
            if self.units.due() <= now.min(timer) {
                if let Some(engine) = self.units.pop(now) {
                    self.leave_unit(now, engine);
                    self.enter_unit(now, engine);
                }
            } else if timer <= now
                && let Some(Reverse((_, due))) = self.timers.pop()
            {
                self.happen(now, due);
            } else {
                return;
            }
            self.proceed(now);
        }
    }

    /// What the device has done since it was asked last, in order.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// A transfer that was posted is complete.
    pub fn complete(&mut self, now: Time, entry: u32) {
        self.outstanding -= 1;
        self.end(now, entry);
        self.proceed(now);
    }

    /// Entries that are not complete.
    pub const fn unfinished(&self) -> usize {
        self.left
    }

    /// What each engine has done up to now.
    pub fn usage(&self, now: Time) -> impl Iterator<Item = Usage> {
        self.cpus.iter().map(move |cpu| cpu.usage_at(now))
    }

    /// Most transfers that were issued and not complete at once.
    pub const fn outstanding_most(&self) -> u32 {
        self.most
    }

    fn happen(&mut self, now: Time, due: Due) {
        match due {
            Due::Set => {
                let plan = self.plan.clone();
                let sets = plan.sets(self.rank);
                let set = sets[self.next_set];
                self.next_set += 1;
                self.await_outside(Due::Set, sets.get(self.next_set).map(|set| set.at));
                self.set(u64::from(set.word), set.value);
            }
            Due::Direct => {
                let plan = self.plan.clone();
                let directs = plan.directs(self.rank);
                let (_, subgraph) = directs[self.next_direct];
                self.next_direct += 1;
                self.await_outside(Due::Direct, directs.get(self.next_direct).map(|&(at, _)| at));
                self.release(now, subgraph);
            }
            Due::Dispatched => {
                let plan = self.plan.clone();
                let packet = plan.packets(self.rank)[self.next_packet];
                self.next_packet += 1;
                for &subgraph in &plan.members[packet.first as usize..packet.end as usize] {
                    self.release(now, subgraph);
                }
                self.await_packet(now);
            }
            Due::Cpu(engine) => self.rest(now, engine),
            Due::Post(engine) => {
                let posts = &mut self.cpus[engine as usize].posts;
                if let Some((_, entry)) = posts.pop_front() {
                    self.effects.push_back(Effect::Post(entry));
                }
                if let Some(&(at, _)) = posts.front() {
                    self.timers.push(Reverse((at, due)));
                }
            }
        }
    }

    /// CPU-C waits for the next packet, or for its trigger.
    fn await_packet(&mut self, now: Time) {
        if let Some(packet) = self.plan.packets(self.rank).get(self.next_packet) {
            let known = Time(self.begun.0.saturating_add(packet.release).saturating_add(self.plan.hardware.event.0));
            let at = known.max(now).0.saturating_add(self.plan.hardware.dispatch.0);
            self.timers.push(Reverse((Time(at), Due::Dispatched)));
        }
    }

    fn await_outside(&mut self, due: Due, at: Option<u64>) {
        if let Some(at) = at {
            self.timers.push(Reverse((Time(self.begun.0.saturating_add(at)), due)));
        }
    }

    /// A subgraph becomes runnable.
    fn release(&mut self, now: Time, subgraph: u32) {
        let own = subgraph - self.first_subgraph;
        let engine = self.engine_of(own);
        self.cpus[engine as usize].opened(now);
        self.queue_up(own, false);
    }

    pub(super) fn engine_of(&self, own: u32) -> u32 {
        self.plan.graph().engine.get((self.first_subgraph + own) as usize) as u32
    }

    fn end_of(&self, own: u32) -> u32 {
        self.plan.graph().start[(self.first_subgraph + own) as usize + 1]
    }

    pub(super) fn start_of(&self, own: u32) -> u32 {
        self.plan.graph().start[(self.first_subgraph + own) as usize]
    }

    /// A subgraph may go on.
    fn queue_up(&mut self, own: u32, is_transfer: bool) {
        let engine = self.engine_of(own);
        let priority = self.plan.graph().priority.get((self.first_subgraph + own) as usize) as u8;
        self.tickets += 1;
        self.states[own as usize].phase = Phase::Ready;
        self.cpus[engine as usize].push(is_transfer, (priority, self.tickets, own));
        self.pending.push_back(engine);
    }

    /// Engines that may have something to do go on.
    fn proceed(&mut self, now: Time) {
        while let Some(engine) = self.pending.pop_front().or_else(|| self.starved()) {
            while self.cpus[engine as usize].running.is_none()
                && let Some(own) = self.take(engine)
            {
                let cost = self.cost(engine, own);
                let state = &mut self.states[own as usize];
                state.phase = Phase::Running;
                if state.started && self.plan.program.op(state.head).has_peer() {
                    self.outstanding += 1;
                    self.most = self.most.max(self.outstanding);
                }
                self.cpus[engine as usize].run(now, own);
                if cost > Time::ZERO {
                    self.timers.push(Reverse((Time(now.0.saturating_add(cost.0)), Due::Cpu(engine))));
                } else {
                    self.rest(now, engine);
                }
            }
        }
    }

    /// The engine whose turn it is of those that have nothing but transfers, now that there is room for one more.
    fn starved(&mut self) -> Option<u32> {
        if !self.starving || self.outstanding >= self.plan.hardware.outstanding {
            return None;
        }
        let starved = self.cpus.iter().enumerate().filter_map(|(engine, cpu)| Some((cpu.starved()?, engine as u32)));
        let first = starved.min().map(|(_, engine)| engine);
        self.starving = first.is_some();
        first
    }

    /// The subgraph that the CPU of `engine` goes on with.
    fn take(&mut self, engine: u32) -> Option<u32> {
        let room = self.outstanding < self.plan.hardware.outstanding;
        self.starving |= !room;
        loop {
            let own = self.cpus[engine as usize].next(room)?;
            let State { head, started, .. } = self.states[own as usize];
            // The word may have changed since.
            if !started || self.holds(head) {
                return Some(own);
            }
            self.await_word(own);
        }
    }

    /// CPU time of what `own` does next.
    fn cost(&self, engine: u32, own: u32) -> Time {
        let costs = &self.plan.hardware.engines[engine as usize];
        if self.states[own as usize].started { costs.issue } else { costs.start }
    }

    /// The CPU of `engine` has done its work.
    fn rest(&mut self, now: Time, engine: u32) {
        let Some(own) = self.cpus[engine as usize].running else { return };
        let cost = self.cost(engine, own);
        self.cpus[engine as usize].rest(now, cost);
        if self.states[own as usize].started {
            self.issue(now, engine, own);
        } else {
            self.states[own as usize].started = true;
        }
        self.look(now, own);
        self.pending.push_back(engine);
    }

    /// The next entry of a subgraph takes effect.
    fn issue(&mut self, now: Time, engine: u32, own: u32) {
        let state = &mut self.states[own as usize];
        let entry = state.head;
        let op = self.plan.program.op(entry);
        state.issue(op, self.plan.graph().flow.get(entry as usize));
        let cpu = &mut self.cpus[engine as usize];
        cpu.usage.issued += 1;
        if let Some(at) = self.issued.get_mut((entry - self.first) as usize) {
            *at = now.0;
        }
        match op {
            op if is_sent(op) && self.plan.hardware.copies_sends => self.work(now, engine, entry),
            op if op.has_peer() => self.post(now, engine, entry),
            Op::Copy | Op::Sum => self.work(now, engine, entry),
            Op::Set => {
                let wqe = self.plan.program.wqe(entry as usize);
                self.end_here(now, entry);
                self.set(wqe.local, wqe.remote);
            }
            _ => self.end_here(now, entry),
        }
    }

    /// A transfer goes to the NIC.
    fn post(&mut self, now: Time, engine: u32, entry: u32) {
        let at = Time(now.0.saturating_add(self.plan.hardware.engines[engine as usize].post.0));
        let posts = &mut self.cpus[engine as usize].posts;
        if at == now && posts.is_empty() {
            self.effects.push_back(Effect::Post(entry));
            return;
        }
        posts.push_back((at, entry));
        if posts.len() == 1 {
            self.timers.push(Reverse((at, Due::Post(engine))));
        }
    }

    /// An operation queues for the unit of its engine.
    fn work(&mut self, now: Time, engine: u32, entry: u32) {
        let queue = &mut self.cpus[engine as usize].queue;
        queue.push_back((now, entry));
        if queue.len() == 1 {
            self.enter_unit(now, engine);
        }
    }

    /// The unit of `engine` begins what is next in its queue.
    fn enter_unit(&mut self, now: Time, engine: u32) {
        while let Some(&(since, entry)) = self.cpus[engine as usize].queue.front() {
            let cpu = &mut self.cpus[engine as usize];
            cpu.usage.unit_wait += now.0 - since.0;
            cpu.begun = now;
            let (graph, program) = (self.plan.graph(), &self.plan.program);
            let is_free = graph.flow.get(entry as usize) & FUSED != 0 && program.op(entry).has_peer();
            let bytes = if is_free { 0 } else { program.bytes(entry) };
            if bytes > 0 {
                let extra = self.extra.as_mut().map_or(0, Random::time);
                self.units.start(now, engine, bytes, Time(extra));
                return;
            }
            self.leave_unit(now, engine);
        }
    }

    /// The unit of `engine` has done what is first in its queue.
    fn leave_unit(&mut self, now: Time, engine: u32) {
        let cpu = &mut self.cpus[engine as usize];
        cpu.usage.unit += now.0 - cpu.begun.0;
        let Some((_, entry)) = cpu.queue.pop_front() else { return };
        if self.plan.program.op(entry).has_peer() {
            self.post(now, engine, entry);
        } else {
            self.end_here(now, entry);
        }
    }

    fn set(&mut self, word: u64, value: u64) {
        let mut woken = std::mem::take(&mut self.woken);
        self.words.set(word, value, &mut woken);
        for own in woken.drain(..) {
            if self.holds(self.states[own as usize].head) {
                self.queue_up(own, false);
            } else {
                self.words.enlist(word, own);
            }
        }
        self.woken = woken;
    }

    /// Whether the words let `entry` issue.
    fn holds(&self, entry: u32) -> bool {
        if self.plan.program.op(entry) != Op::Wait {
            return true;
        }
        let wqe = self.plan.program.wqe(entry as usize);
        self.words.holds(wqe.local, self.plan.program.details(entry).imm, wqe.remote)
    }

    fn await_word(&mut self, own: u32) {
        let state = &mut self.states[own as usize];
        state.phase = Phase::Waiting;
        let word = self.plan.program.wqe(state.head as usize).local;
        self.words.enlist(word, own);
    }

    /// An entry that the device carries out itself is complete.
    fn end_here(&mut self, now: Time, entry: u32) {
        self.effects.push_back(Effect::Done(entry));
        self.end(now, entry);
    }

    fn end(&mut self, now: Time, entry: u32) {
        let at = (entry - self.first) as usize;
        self.complete[at / 64] |= 1 << (at % 64);
        self.left -= 1;
        let plan = &self.plan;
        let own = self.first_subgraph as usize..plan.subgraphs[self.rank + 1] as usize;
        let own = plan.graph().start[own].partition_point(|&start| start <= entry) - 1;
        let state = &mut self.states[own];
        state.end(plan.program.op(entry), plan.graph().flow.get(entry as usize));
        if state.phase == Phase::Blocked {
            self.look(now, own as u32);
        }
    }

    pub(super) fn is_complete(&self, entry: u32) -> bool {
        let at = (entry - self.first) as usize;
        self.complete[at / 64] >> (at % 64) & 1 != 0
    }

    /// Where a subgraph that is neither in a queue nor at work goes.
    fn look(&mut self, now: Time, own: u32) {
        let state = self.states[own as usize];
        if state.head == self.end_of(own) {
            self.states[own as usize].phase = Phase::Issued;
            let engine = self.engine_of(own);
            self.cpus[engine as usize].closed(now);
        } else if !self.is_met(&state) {
            self.states[own as usize].phase = Phase::Blocked;
        } else if self.holds(state.head) {
            self.queue_up(own, self.plan.program.op(state.head).has_peer());
        } else {
            self.await_word(own);
        }
    }

    /// Whether the flow fields let the next entry of a subgraph issue.
    fn is_met(&self, state: &State) -> bool {
        let (graph, i) = (self.plan.graph(), state.head as usize);
        let (flow, back) = (graph.flow.get(i), graph.wqe_sync.get(i) as u32);
        !state.keeps(flow) && (back == 0 || self.is_complete(state.head - back))
    }
}
