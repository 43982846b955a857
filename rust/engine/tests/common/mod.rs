//! Programs for message engines made by hand, and a device driven without a network.

#![allow(dead_code, reason = "each test file uses a part of the fixture")]

use std::collections::BTreeMap;
use std::sync::Arc;

use metaroce_engine::offload::{Device, Effect, EngineCosts, Graph, Hardware, Plan};
use metaroce_engine::{Column, Columns, Program, ProgramError};
use metaroce_wire::Time;

pub const SEND: u8 = 0;
pub const RECV: u8 = 1;
pub const WRITE: u8 = 2;
pub const COPY: u8 = 3;
pub const SUM: u8 = 4;
pub const NOOP: u8 = 5;
pub const WRITE_IMM: u8 = 6;
pub const READ: u8 = 7;
pub const WAIT: u8 = 11;
pub const SET: u8 = 12;

pub const FENCE: u8 = 1;
pub const SYNC: u8 = 2;
pub const RX_SYNC: u8 = 4;
pub const TX_SYNC: u8 = 8;
pub const FUSED: u8 = 16;

/// An entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    pub op: u8,
    pub peer: u32,
    pub stream: u32,
    pub local: u64,
    pub remote: u64,
    pub bytes: u64,
    pub imm: u32,
    pub flow: u8,
    pub sync: u32,
}

impl Entry {
    pub fn flow(self, flow: u8) -> Entry {
        Entry { flow, ..self }
    }

    pub fn sync(self, sync: u32) -> Entry {
        Entry { sync, ..self }
    }

    pub fn stream(self, stream: u32) -> Entry {
        Entry { stream, ..self }
    }
}

pub fn noop() -> Entry {
    Entry { op: NOOP, ..Entry::default() }
}

/// COPY of the upper half of memory to the lower one.
pub fn copy(bytes: u64) -> Entry {
    Entry { op: COPY, remote: MEMORY / 2, bytes, ..Entry::default() }
}

pub fn sum(local: u64, remote: u64, bytes: u64) -> Entry {
    Entry { op: SUM, local, remote, bytes, ..Entry::default() }
}

pub fn send(peer: u32, local: u64, bytes: u64) -> Entry {
    Entry { op: SEND, peer, local, bytes, ..Entry::default() }
}

pub fn recv(peer: u32, local: u64, bytes: u64) -> Entry {
    Entry { op: RECV, peer, local, bytes, ..Entry::default() }
}

pub fn wait(word: u64, comparison: u32, value: u64) -> Entry {
    Entry { op: WAIT, local: word, remote: value, imm: comparison, ..Entry::default() }
}

pub fn set(word: u64, value: u64) -> Entry {
    Entry { op: SET, local: word, remote: value, ..Entry::default() }
}

pub const MEMORY: u64 = 1 << 24;

/// A subgraph.
#[derive(Clone, Debug, Default)]
pub struct Subgraph {
    pub engine: u32,
    pub packet: u32,
    pub release: u64,
    pub priority: u8,
    pub entries: Vec<Entry>,
}

pub fn subgraph(engine: u32, entries: &[Entry]) -> Subgraph {
    Subgraph { engine, entries: entries.to_vec(), ..Subgraph::default() }
}

/// Subgraphs of each rank, and words that are set from outside: (rank, word, value, ps).
#[derive(Clone, Debug, Default)]
pub struct Job {
    pub ranks: Vec<Vec<Subgraph>>,
    pub sets: Vec<(u32, u32, u64, u64)>,
}

impl Job {
    pub fn one(subgraphs: &[Subgraph]) -> Job {
        Job { ranks: vec![subgraphs.to_vec(), Vec::new()], sets: Vec::new() }
    }

    pub fn columns(&self) -> Columns {
        let all: Vec<&Subgraph> = self.ranks.iter().flatten().collect();
        let entries: Vec<Entry> = all.iter().flat_map(|s| s.entries.clone()).collect();
        let column = |of: &dyn Fn(&Entry) -> u64| Column::of(entries.iter().map(of));
        let graph = |of: &dyn Fn(&Subgraph) -> u64| Column::of(all.iter().map(|s| of(s)));
        let mut rank_start = vec![0u32];
        for rank in &self.ranks {
            let own: usize = rank.iter().map(|s| s.entries.len()).sum();
            rank_start.push(rank_start[rank_start.len() - 1] + own as u32);
        }
        let mut start = vec![0u32];
        all.iter().for_each(|s| start.push(start[start.len() - 1] + s.entries.len() as u32));
        Columns {
            rank_start,
            op: column(&|e| e.op.into()),
            peer: column(&|e| e.peer.into()),
            stream: column(&|e| e.stream.into()),
            local: column(&|e| e.local),
            remote: column(&|e| e.remote),
            bytes: column(&|e| e.bytes),
            imm: column(&|e| e.imm.into()),
            graph: Graph {
                start,
                engine: graph(&|s| s.engine.into()),
                packet: graph(&|s| s.packet.into()),
                release: graph(&|s| s.release),
                priority: graph(&|s| s.priority.into()),
                flow: column(&|e| e.flow.into()),
                wqe_sync: column(&|e| e.sync.into()),
                set_rank: self.sets.iter().map(|s| s.0).collect(),
                set_word: self.sets.iter().map(|s| s.1).collect(),
                set_value: self.sets.iter().map(|s| s.2).collect(),
                set_ps: self.sets.iter().map(|s| s.3).collect(),
            },
            ..Columns::default()
        }
    }

    pub fn plan(&self, hardware: &Hardware) -> Result<Arc<Plan>, ProgramError> {
        let program = Program::new(self.columns(), MEMORY)?;
        Plan::new(Arc::new(program), hardware.clone()).map(Arc::new)
    }
}

/// Engines like this one, with cheap odd costs that add up visibly.
pub fn hardware(engines: usize) -> Hardware {
    let engine = EngineCosts { issue: Time(10), start: Time(100), post: Time(3), direct: false };
    Hardware {
        engines: vec![engine; engines],
        event: Time(10_000),
        dispatch: Time(1_000),
        unit_bps: 8_000_000_000_000,
        units_bps: 32_000_000_000_000,
        outstanding: 1 << 20,
        words: 8,
        copies_sends: false,
    }
}

/// When the first packet of [`hardware`] is dispatched.
pub const DISPATCHED: u64 = 11_000;
/// And its only subgraph has started.
pub const STARTED: u64 = DISPATCHED + 100;

/// What a device did when.
#[derive(Debug, Default)]
pub struct Trace {
    pub issued: Vec<u64>,
    pub posted: BTreeMap<u32, u64>,
    pub ended: BTreeMap<u32, u64>,
    /// Entries that end, in order.
    pub order: Vec<u32>,
    pub finished: bool,
    pub device: Option<Device>,
    pub at: u64,
}

/// Runs rank 0 alone; its transfers take `takes` from their post to their end.
pub fn run(plan: &Arc<Plan>, takes: impl Fn(u32) -> u64) -> Trace {
    let mut device = Device::new(plan.clone(), 0);
    device.record();
    device.begin(Time::ZERO);
    let (mut trace, mut ends) = (Trace::default(), BTreeMap::new());
    let mut now = Time::ZERO;
    loop {
        while let Some(effect) = device.poll_effect() {
            match effect {
                Effect::Post(entry) => {
                    trace.posted.insert(entry, now.0);
                    ends.insert((now.0 + takes(entry), entry), ());
                }
                Effect::Done(entry) => {
                    trace.ended.insert(entry, now.0);
                    trace.order.push(entry);
                }
            }
        }
        let next = ends.keys().next().map_or(Time::NEVER, |&(at, _)| Time(at));
        let due = device.poll_timeout().min(next);
        if due == Time::NEVER {
            break;
        }
        assert!(due >= now, "time goes on");
        now = due;
        if next == now {
            let ((_, entry), ()) = ends.pop_first().expect("one");
            trace.ended.insert(entry, now.0);
            trace.order.push(entry);
            device.complete(now, entry);
        } else {
            device.handle_timeout(now);
        }
    }
    trace.issued = device.issued().to_vec();
    trace.finished = device.unfinished() == 0;
    trace.at = now.0;
    trace.device = Some(device);
    trace
}

/// Float elements.
pub const ELEMENT: u64 = 4;

/// Entries of one engine of one rank in a ring reduce-scatter with two staging slots, as in the worked example of the
/// design: chunk c ends on rank c; in step s rank r sends chunk r - 1 - s and receives chunk r - 2 - s.
pub fn ring_entries(
    (rank, ranks): (u64, u64),
    (engine, engines): (u64, u64),
    elements: u64,
    hoisted: bool,
) -> Vec<Entry> {
    let (bytes, steps) = (elements * ELEMENT, ranks - 1);
    let chunk = |back: u64| (((rank + 2 * ranks - back) % ranks) * engines + engine) * bytes;
    let slot = |step: u64| (ranks * engines + step % 2 * engines + engine) * bytes;
    let (next, before) = (((rank + 1) % ranks) as u32, ((rank + ranks - 1) % ranks) as u32);
    let mut entries: Vec<Entry> = Vec::new();
    let (mut receives, mut sums) = (vec![0; steps as usize], vec![0; steps as usize]);
    let receive = |entries: &mut Vec<Entry>, receives: &mut Vec<usize>, sums: &[usize], step: u64| {
        receives[step as usize] = entries.len();
        let back = if step < 2 { 0 } else { entries.len() - sums[step as usize - 2] };
        entries.push(recv(before, slot(step), bytes).stream(engine as u32).sync(back as u32));
    };
    let send_chunk = |entries: &mut Vec<Entry>, sums: &[usize], step: u64| {
        let back = if step == 0 { 0 } else { entries.len() - sums[step as usize - 1] };
        entries.push(send(next, chunk(1 + step), bytes).stream(engine as u32).sync(back as u32));
    };
    let add = |entries: &mut Vec<Entry>, receives: &[usize], sums: &mut Vec<usize>, step: u64| {
        sums[step as usize] = entries.len();
        let back = entries.len() - receives[step as usize];
        entries.push(sum(chunk(2 + step), slot(step), bytes).sync(back as u32));
    };
    if hoisted {
        receive(&mut entries, &mut receives, &sums, 0);
        send_chunk(&mut entries, &sums, 0);
    }
    for step in 0..steps {
        if !hoisted {
            send_chunk(&mut entries, &sums, step);
            receive(&mut entries, &mut receives, &sums, step);
        } else if step + 1 < steps {
            receive(&mut entries, &mut receives, &sums, step + 1);
        }
        add(&mut entries, &receives, &mut sums, step);
        if hoisted && step + 1 < steps {
            send_chunk(&mut entries, &sums, step + 1);
        }
    }
    entries.push(set(0, 1).sync(1));
    entries
}

/// That of all ranks and engines.
pub fn ring(ranks: u64, engines: u64, elements: u64, hoisted: bool) -> Job {
    let of_engine = |rank: u64, engine: u64| {
        subgraph(engine as u32, &ring_entries((rank, ranks), (engine, engines), elements, hoisted))
    };
    let of_rank = |rank: u64| (0..engines).map(|engine| of_engine(rank, engine)).collect();
    Job { ranks: (0..ranks).map(of_rank).collect(), sets: Vec::new() }
}
