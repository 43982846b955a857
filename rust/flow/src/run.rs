//! The run: entries start, become messages in lanes, lanes share resources, messages end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use metaroce_engine::{Engine, Op, Program, Wqe};
use metaroce_proto::TransportConfig;

use crate::channels::Channels;
use crate::recovery::Recovery;
use crate::scene::Scene;
use crate::spec::{FlowData, FlowError, FlowSpec};
use crate::transport::{Framing, parts};

/// Events and changes of rates from one look for an interruption to the next: some tens of milliseconds.
const WORK_BETWEEN_SIGNALS: u64 = 1 << 15;

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The last byte of the entry's message is at its destination.
    Placed(u32),
    /// Its sender knows.
    Known(u32),
    /// An entry with a start time may start.
    Start(u32),
    /// The request of a Read has come to its peer.
    Asked(u32),
    /// A lane is through with a message, if nothing changed since this was foreseen.
    Lane(u32, u32),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowStatus {
    /// All iterations are complete.
    Done,
    /// The time limit came first.
    Bound,
    /// Nothing could happen any more.
    Stalled,
}

/// A message of an entry, while it is sent.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    /// Parts that are not placed.
    parts: u16,
    /// Recovery time, drawn once.
    added: i64,
    /// When the latest part is placed, so far known.
    placed: u64,
}

/// Totals.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowCounters {
    /// Messages sent, and their packets and payload bytes.
    pub messages: u64,
    /// See `messages`.
    pub packets: u64,
    /// See `messages`.
    pub bytes: u64,
    /// Events.
    pub events: u64,
    /// Times that rates were shared out, and the routes whose rate that changed.
    pub settlings: u64,
    /// See `settlings`.
    pub changes: u64,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct FlowOutcome {
    /// How it ended.
    pub status: FlowStatus,
    /// When, picoseconds.
    pub time: u64,
    /// Start and end of each timed iteration.
    pub iterations: Vec<(u64, u64)>,
    /// Of all ends of messages.
    pub digest: u64,
    /// Totals.
    pub counters: FlowCounters,
    /// When each entry completed, ps, if asked for; `u64::MAX` = never.
    pub wqe_done: Vec<u64>,
    /// When the last byte of each entry's message was placed.
    pub wqe_placed: Vec<u64>,
    /// Payload rate of the fastest host, bit/s.
    pub payload_line_rate: u64,
    /// Entries not complete, if the run stalled: (rank, peer, stream, bytes), at most 64.
    pub stalled: Vec<(u32, u32, u16, u64)>,
    /// The specification with every default filled in.
    pub resolved: serde_json::Value,
}

struct Run<'a> {
    spec: &'a FlowSpec,
    framing: Framing,
    scene: Scene,
    recovery: Option<Recovery>,
    /// Part of its fair rate that a lane makes good.
    goodput: f64,
    engine: Engine,
    channels: Channels,
    queue: BinaryHeap<Reverse<(u64, Event)>>,
    messages: Vec<Message>,
    /// QP that each pair's next message begins with; RoCEv2 only.
    next_qp: Vec<u32>,
    now: u64,
    begun: u64,
    iteration: u64,
    ended: Option<FlowStatus>,
    /// The iteration is over, and another one is due.
    again: bool,
    /// Lanes whose next event must be foreseen anew.
    touched: Vec<u32>,
    received: Vec<u32>,
    over: Vec<u32>,
    outcome: FlowOutcome,
}

/// Estimates `spec` on the fabric and program in `data`. `interrupted` is asked now and then; when it says yes, the
/// run ends with [`FlowError::Interrupted`].
///
/// # Errors
/// [`FlowError::Config`] names the field that is refused, its value and what is allowed.
pub fn estimate(
    spec: &FlowSpec,
    mut data: FlowData,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<FlowOutcome, FlowError> {
    spec.check(&data)?;
    let program = Program::new(std::mem::take(&mut data.program), spec.memory_bytes)
        .map_err(|e| FlowError::Config(e.to_string()))?;
    check_program(&program, &data)?;
    let framing = Framing::of(&spec.transport);
    let scene = Scene::new(spec, &data, &program, &framing)?;
    let full = framing.full() as f64;
    let recovery = match &spec.curve {
        Some(curve) => Some(Recovery::new(curve, scene.base_rtt, scene.host_rate as f64, full, spec.seed)?),
        None => None,
    };
    for (i, wqe) in program.wqes().enumerate().filter(|(_, wqe)| wqe.op.has_peer() && wqe.op != Op::Recv) {
        recovery.as_ref().map_or(Ok(()), |recovery| recovery.check(i, framing.on_wire(wqe.bytes)))?;
    }
    let recorded = if spec.record_wqes { program.len() } else { 0 };
    let rate = u128::from(scene.host_rate) * u128::from(framing.mtu) / u128::from(framing.full());
    let mut run = Run {
        spec,
        framing,
        goodput: spec.curve.as_ref().map_or(1.0, |curve| curve.rate_factor),
        recovery,
        channels: Channels::new(&program),
        queue: BinaryHeap::new(),
        messages: vec![Message::default(); program.len()],
        next_qp: vec![0; scene.pairs.len()],
        engine: Engine::new(Arc::new(program)),
        scene,
        now: 0,
        begun: 0,
        iteration: 0,
        ended: None,
        again: false,
        touched: Vec::new(),
        received: Vec::new(),
        over: Vec::new(),
        outcome: FlowOutcome {
            status: FlowStatus::Done,
            time: 0,
            iterations: Vec::new(),
            digest: 0,
            counters: FlowCounters::default(),
            wqe_done: vec![u64::MAX; recorded],
            wqe_placed: vec![u64::MAX; recorded],
            payload_line_rate: rate as u64,
            stalled: Vec::new(),
            resolved: serde_json::to_value(spec).unwrap_or_default(),
        },
    };
    run.run(interrupted)?;
    Ok(run.outcome)
}

fn check_program(program: &Program, data: &FlowData) -> Result<(), FlowError> {
    if program.ranks() != data.hosts_of_ranks.len() {
        let allowed = format!("one host for each of {} ranks", program.ranks());
        return Err(FlowError::of("hosts_of_ranks", format!("length {}", data.hosts_of_ranks.len()), allowed));
    }
    let unknown = |wqe: Wqe| matches!(wqe.op, Op::CompareSwap | Op::FetchAdd | Op::Flush);
    if let Some(i) = program.wqes().position(unknown) {
        let name = Op::ALL[program.wqe(i).op as usize].1;
        return Err(FlowError::of(
            &format!("op[{i}]"),
            name,
            "of flow fidelity: SEND, RECV, WRITE, WRITE_IMM, READ, COPY, SUM, NOOP",
        ));
    }
    if !program.graph().is_empty() {
        return Err(FlowError::of("subgraph_start", "there", "none with flow fidelity: engines run packets only"));
    }
    if let Some(i) = (0..program.len()).find(|&i| program.details(i as u32).fence) {
        return Err(FlowError::of(&format!("flags[{i}]"), "a fence", "none, with flow fidelity"));
    }
    Ok(())
}

impl Run<'_> {
    fn run(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), FlowError> {
        let limit = self.spec.time_limit_ps.unwrap_or(u64::MAX);
        let mut asked = 0;
        self.again = true;
        self.advance();
        while self.ended.is_none() {
            let Some(&Reverse((now, _))) = self.queue.peek() else {
                self.ended = Some(FlowStatus::Stalled);
                break;
            };
            if now > limit {
                self.now = limit;
                self.ended = Some(FlowStatus::Bound);
                break;
            }
            self.now = now;
            while let Some(&Reverse((at, event))) = self.queue.peek()
                && at == now
            {
                self.queue.pop();
                self.handle(event);
            }
            self.advance();
            let work = self.outcome.counters.events + self.outcome.counters.changes;
            if work > asked + WORK_BETWEEN_SIGNALS {
                asked = work;
                if interrupted() {
                    return Err(FlowError::Interrupted);
                }
            }
        }
        self.outcome.status = self.ended.unwrap_or(FlowStatus::Stalled);
        self.outcome.time = self.now;
        self.outcome.digest = fold(self.outcome.digest, self.now);
        if self.outcome.status == FlowStatus::Stalled {
            self.report_stalled();
        }
        Ok(())
    }

    /// Everything that happens now has happened: starts what that allows.
    fn advance(&mut self) {
        self.start_ready();
        while std::mem::take(&mut self.again) {
            self.begun = self.now;
            self.channels.clear();
            self.engine.begin();
            self.start_ready();
        }
        self.settle();
    }

    /// All entries are complete.
    fn end_iteration(&mut self) {
        if self.iteration >= u64::from(self.spec.warmup) {
            self.outcome.iterations.push((self.begun, self.now));
        }
        self.iteration += 1;
        if self.iteration == u64::from(self.spec.warmup) + u64::from(self.spec.iterations) {
            self.ended = Some(FlowStatus::Done);
        } else {
            self.again = true;
        }
    }

    fn handle(&mut self, event: Event) {
        self.outcome.counters.events += 1;
        match event {
            Event::Start(wqe) => self.execute(wqe),
            Event::Placed(wqe) => self.placed(wqe),
            Event::Known(wqe) => self.complete(wqe),
            Event::Asked(wqe) => self.answer(wqe),
            Event::Lane(lane, version) => {
                if self.scene.lanes[lane as usize].version == version {
                    self.serve(lane);
                    self.touched.push(lane);
                }
            }
        }
    }

    /// Executes all entries that may start.
    fn start_ready(&mut self) {
        while let Some(wqe) = self.engine.start_next() {
            let start = self.begun + self.engine.program().start(wqe);
            if start > self.now {
                self.queue.push(Reverse((start, Event::Start(wqe))));
            } else {
                self.execute(wqe);
            }
        }
    }

    fn execute(&mut self, id: u32) {
        let wqe = self.engine.program().wqe(id as usize);
        match wqe.op {
            Op::Send | Op::WriteImm => {
                self.channels.send(id);
                self.send(id, &wqe);
            }
            Op::Write => self.send(id, &wqe),
            Op::Recv => {
                self.channels.receive(id, &mut self.received);
                self.finish_received();
            }
            Op::Read => {
                let pair = self.scene.pair((wqe.peer, self.engine.program().rank_of(id)));
                let way = self.way_back(self.scene.first[pair], self.framing.request);
                self.queue.push(Reverse((self.now + way, Event::Asked(id))));
            }
            _ => self.complete(id),
        }
    }

    fn send(&mut self, id: u32, wqe: &Wqe) {
        let rank = self.engine.program().rank_of(id);
        self.line_up(id, wqe, self.scene.pair((rank, wqe.peer)));
    }

    fn answer(&mut self, id: u32) {
        let wqe = self.engine.program().wqe(id as usize);
        let rank = self.engine.program().rank_of(id);
        self.line_up(id, &wqe, self.scene.pair((wqe.peer, rank)));
    }

    /// The message of entry `id` goes to the lanes of `pair`.
    fn line_up(&mut self, id: u32, wqe: &Wqe, pair: usize) {
        let lanes = self.scene.first[pair]..self.scene.first[pair + 1];
        let (first, qps) = (lanes.start, lanes.end - lanes.start);
        let packets = self.framing.packets(wqe.bytes);
        let wire = self.framing.on_wire(wqe.bytes);
        let added = self.recovery.as_ref().map_or(0.0, |recovery| recovery.added(self.iteration, id, wire));
        let counters = &mut self.outcome.counters;
        counters.messages += 1;
        counters.packets += packets;
        counters.bytes += wqe.bytes;
        let parts = match &self.spec.transport {
            TransportConfig::RoceV2(config) => parts(config, qps, &self.framing, wqe.bytes),
            _ => 1,
        };
        self.messages[id as usize] = Message { parts: parts as u16, added: added as i64, placed: 0 };
        if qps == 1 {
            return self.push(first, wqe.stream, id, wire);
        }
        for part in 0..parts {
            let lane = first + (self.next_qp[pair] + part as u32) % qps;
            let (from, to) = (part * packets / parts, (part + 1) * packets / parts);
            let bytes = (to * self.framing.mtu).min(wqe.bytes) - from * self.framing.mtu;
            self.push(lane, 0, id, self.framing.on_wire(bytes));
        }
        self.next_qp[pair] = (self.next_qp[pair] + parts as u32) % qps;
    }

    fn push(&mut self, number: u32, stream: u16, id: u32, bytes: u64) {
        self.serve(number);
        self.touched.push(number);
        let lane = &mut self.scene.lanes[number as usize];
        if !lane.is_busy() {
            lane.routes.clone().for_each(|route| self.scene.sharing.start(route));
        }
        lane.push(stream, id, bytes);
    }

    /// Brings a lane up to now. What is over is on its way.
    fn serve(&mut self, number: u32) {
        let mut over = std::mem::take(&mut self.over);
        let lane = &mut self.scene.lanes[number as usize];
        let was_busy = lane.is_busy();
        lane.serve(self.now, &mut over);
        if was_busy && !lane.is_busy() {
            lane.routes.clone().for_each(|route| self.scene.sharing.stop(route));
            self.touched.push(number);
        }
        for id in over.drain(..) {
            let bytes = self.engine.program().wqe(id as usize).bytes;
            let way = self.scene.lanes[number as usize].way;
            let (rest, last) = self.framing.rest(bytes, way.ports);
            let way = way.delay + (last * way.byte_ps.1 + rest).max(0.0) as u64;
            let message = &mut self.messages[id as usize];
            message.parts -= 1;
            message.placed = message.placed.max(self.now + way);
            if message.parts == 0 {
                let at = message.placed.saturating_add_signed(message.added).max(self.now);
                message.placed = at;
                self.queue.push(Reverse((at, Event::Placed(id))));
            }
        }
        self.over = over;
    }

    fn placed(&mut self, id: u32) {
        let wqe = self.engine.program().wqe(id as usize);
        self.outcome.digest = fold(self.outcome.digest, self.now ^ u64::from(id) << 32);
        if let Some(at) = self.outcome.wqe_placed.get_mut(id as usize) {
            *at = self.now;
        }
        if wqe.op == Op::Read {
            return self.complete(id);
        }
        let pair = self.scene.pair((self.engine.program().rank_of(id), wqe.peer));
        let way = self.way_back(self.scene.first[pair], self.framing.ack);
        self.queue.push(Reverse((self.now + way, Event::Known(id))));
        if wqe.op != Op::Write {
            self.channels.arrived(id, &mut self.received);
            self.finish_received();
        }
    }

    /// What a control packet of `bytes` takes the way of `lane` back.
    fn way_back(&self, lane: u32, bytes: u64) -> u64 {
        let way = self.scene.lanes[lane as usize].way;
        way.delay + (bytes as f64 * way.byte_ps.0) as u64
    }

    fn finish_received(&mut self) {
        while let Some(wqe) = self.received.pop() {
            self.complete(wqe);
        }
    }

    fn complete(&mut self, wqe: u32) {
        if let Some(at) = self.outcome.wqe_done.get_mut(wqe as usize) {
            *at = self.now;
        }
        self.engine.complete(wqe);
        if self.engine.unfinished() == 0 {
            self.end_iteration();
        }
    }

    /// Shares out rates, and foresees the next event of each lane that they or messages have changed.
    fn settle(&mut self) {
        while !self.touched.is_empty() {
            self.outcome.counters.settlings += 1;
            let mut touched = std::mem::take(&mut self.touched);
            let changed = self.scene.sharing.settle();
            self.outcome.counters.changes += changed.len() as u64;
            touched.extend(changed.iter().map(|&route| self.scene.lane_of[route as usize]));
            touched.sort_unstable();
            touched.dedup();
            for &number in &touched {
                // It may be through now, by less than a picosecond: then there is more to share out.
                self.serve(number);
                let lane = &mut self.scene.lanes[number as usize];
                let rate: f64 = lane.routes.clone().map(|route| self.scene.sharing.rate(route)).sum();
                lane.set_rate(rate * self.goodput / 8e12);
                lane.version = lane.version.wrapping_add(1);
                if let Some(at) = lane.next() {
                    self.queue.push(Reverse((at, Event::Lane(number, lane.version))));
                }
            }
        }
    }

    fn report_stalled(&mut self) {
        let program = self.engine.program();
        let open = (0..self.outcome.wqe_done.len() as u32).filter(|&i| self.outcome.wqe_done[i as usize] == u64::MAX);
        for id in open.take(64) {
            let wqe = program.wqe(id as usize);
            self.outcome.stalled.push((program.rank_of(id), wqe.peer, wqe.stream, wqe.bytes));
        }
    }
}

/// One step of the digest.
const fn fold(digest: u64, value: u64) -> u64 {
    (digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}
