//! Leaf–spine fabrics, hand-built programs, and runs of them.

#![allow(dead_code, reason = "each test file uses a part of the fixture")]

use metaroce_driver::{Data, Denied, Outcome, Region, Spec, simulate};
use metaroce_engine::offload::Graph;
use metaroce_engine::pattern::{ALL_RANKS, Expect, Fill};
use metaroce_engine::{Column, Columns};
use serde_json::{Value, json};

pub const GBPS: u64 = 1_000_000_000;
pub const MTU: u64 = 4096;
/// Delay of a cable in the packaged topologies.
pub const CABLE: u64 = 600_000;

/// Planes of leaves and spines, each leaf with a cable to every spine of its plane.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    pub planes: u32,
    pub leaves: u32,
    pub spines: u32,
    pub hosts_per_leaf: u32,
    pub rate: u64,
    pub delay: u64,
    pub queue: u64,
    /// RED thresholds.
    pub ecn: (u64, u64),
    /// Full queues trim; control packets go first; ports to hosts mark.
    pub switching: (bool, bool, bool),
}

/// The packaged `multiplane-4x64`.
pub const MULTIPLANE_4X64: Net = Net {
    planes: 4,
    leaves: 8,
    spines: 8,
    hosts_per_leaf: 8,
    rate: 200 * GBPS,
    delay: CABLE,
    queue: 1 << 20,
    ecn: (50 << 10, 200 << 10),
    switching: (false, false, true),
};

/// A small fabric: 2 leaves of 4 hosts, 4 spines.
pub const SMALL: Net = Net { planes: 2, leaves: 2, spines: 4, hosts_per_leaf: 4, ..MULTIPLANE_4X64 };

impl Net {
    pub const fn hosts(&self) -> u32 {
        self.leaves * self.hosts_per_leaf
    }

    /// Cable row of a host in a plane.
    pub const fn host_cable(&self, host: u32, plane: u32) -> u32 {
        plane * self.cables_of_plane() + host
    }

    /// Cable row between a leaf and a spine of a plane.
    pub const fn spine_cable(&self, leaf: u32, spine: u32, plane: u32) -> u32 {
        plane * self.cables_of_plane() + self.hosts() + leaf * self.spines + spine
    }

    /// Switch number of a spine.
    pub const fn spine(&self, spine: u32, plane: u32) -> u32 {
        plane * (self.leaves + self.spines) + self.leaves + spine
    }

    const fn cables_of_plane(&self) -> u32 {
        self.hosts() + self.leaves * self.spines
    }

    fn json(&self) -> Value {
        let (mut plane_of, mut tier, mut a, mut b) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for plane in 0..self.planes {
            let first = self.hosts() + plane * (self.leaves + self.spines);
            for switch in 0..self.leaves + self.spines {
                plane_of.push(plane);
                tier.push(if switch < self.leaves { 1 } else { 2 });
            }
            for host in 0..self.hosts() {
                a.push(host);
                b.push(first + host / self.hosts_per_leaf);
            }
            for leaf in 0..self.leaves {
                for spine in 0..self.spines {
                    a.push(first + leaf);
                    b.push(first + self.leaves + spine);
                }
            }
        }
        let rows = a.len();
        json!({
            "hosts": self.hosts(),
            "planes": self.planes,
            "trim": self.switching.0,
            "control_priority": self.switching.1,
            "last_hop_ecn": self.switching.2,
            "switches": {"plane": plane_of, "tier": tier},
            "links": {
                "a": a, "b": b,
                "rate_bps": vec![self.rate; rows],
                "delay_ps": vec![self.delay; rows],
                "queue_bytes": vec![self.queue; rows],
                "ecn_kmin_bytes": vec![self.ecn.0; rows],
                "ecn_kmax_bytes": vec![self.ecn.1; rows],
                "ecn_pmax": vec![0.2; rows],
            },
        })
    }

    /// The specification as JSON, for changes that have no method here.
    pub fn spec(&self, kind: &str, ranks: u32) -> Value {
        let transport = match kind {
            "rocev2-sr" => json!({"kind": "rocev2", "recovery": "selective-repeat"}),
            _ => json!({"kind": kind}),
        };
        json!({
            "seed": 1,
            "fabric": self.json(),
            "transport": transport,
            "hosts_of_ranks": (0..ranks).collect::<Vec<_>>(),
            "memory_bytes": 1u64 << 32,
            "record_wqes": true,
        })
    }
}

pub const SEND: u8 = 0;
pub const RECV: u8 = 1;
pub const WRITE: u8 = 2;
pub const COPY: u8 = 3;
pub const SUM: u8 = 4;
pub const NOOP: u8 = 5;
pub const WRITE_IMM: u8 = 6;
pub const READ: u8 = 7;
pub const COMPARE_SWAP: u8 = 8;
pub const FETCH_ADD: u8 = 9;
pub const FLUSH: u8 = 10;

/// An entry; `deps` are positions in the list of its rank.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub op: u8,
    pub peer: u32,
    pub stream: u32,
    pub local: u64,
    pub remote: u64,
    pub bytes: u64,
    pub deps: Vec<u32>,
    pub start: u64,
    pub imm: u32,
    pub operands: [u64; 2],
    pub flags: u8,
    pub rkey: u32,
}

pub fn entry(op: u8, peer: u32, local: u64, bytes: u64) -> Entry {
    Entry { op, peer, local, bytes, ..Entry::default() }
}

/// A program rank by rank, with what its memory is to hold before and after.
#[derive(Clone, Debug)]
pub struct Job {
    pub ranks: Vec<Vec<Entry>>,
    pub fills: Vec<Fill>,
    pub expects: Vec<Expect>,
    pub memory: u64,
    pub initial: Option<Vec<u8>>,
    pub regions: Vec<Region>,
    pub denied: Vec<Denied>,
}

impl Job {
    pub fn new(ranks: u32) -> Job {
        Job {
            ranks: vec![Vec::new(); ranks as usize],
            fills: Vec::new(),
            expects: Vec::new(),
            memory: 0,
            initial: None,
            regions: Vec::new(),
            denied: Vec::new(),
        }
    }

    /// One Write from rank 0 to rank `to`.
    pub fn write(ranks: u32, to: u32, bytes: u64) -> Job {
        let mut job = Job::new(ranks);
        job.ranks[0].push(entry(WRITE, to, 0, bytes));
        job
    }

    pub fn run(&self, spec: &Value) -> Outcome {
        self.try_run(spec).expect("a valid run")
    }

    /// What a refused specification is told, or the outcome.
    pub fn try_run(&self, spec: &Value) -> Result<Outcome, String> {
        self.lower(spec, |spec, data| simulate(spec, data, &mut || false))?.map_err(|e| e.to_string())
    }

    /// Hands the job to `run` as the driver takes it.
    pub fn lower<R>(&self, spec: &Value, run: impl FnOnce(&Spec, Data) -> R) -> Result<R, String> {
        let spec: Spec = serde_json::from_value(spec.clone()).map_err(|e| e.to_string())?;
        let all: Vec<&Entry> = self.ranks.iter().flatten().collect();
        let mut rank_start = vec![0];
        let (mut dep_start, mut deps) = (vec![0], Vec::new());
        for rank in &self.ranks {
            let first: u32 = *rank_start.last().expect("one at least");
            for entry in rank {
                deps.extend(entry.deps.iter().map(|d| d + first));
                dep_start.push(deps.len() as u32);
            }
            rank_start.push(first + rank.len() as u32);
        }
        let column = |f: &dyn Fn(&Entry) -> u64| Column::of(all.iter().map(|e| f(e)));
        let program = Columns {
            rank_start,
            op: column(&|e| e.op.into()),
            peer: column(&|e| e.peer.into()),
            stream: column(&|e| e.stream.into()),
            local: column(&|e| e.local),
            remote: column(&|e| e.remote),
            bytes: column(&|e| e.bytes),
            dep_start,
            deps,
            start: column(&|e| e.start),
            imm: column(&|e| e.imm.into()),
            operand0: column(&|e| e.operands[0]),
            operand1: column(&|e| e.operands[1]),
            flags: column(&|e| e.flags.into()),
            rkey: if self.regions.is_empty() { Column::default() } else { column(&|e| e.rkey.into()) },
            graph: Graph::default(),
        };
        let data = Data {
            program,
            fills: self.fills.clone(),
            expects: self.expects.clone(),
            memory: self.initial.as_deref(),
            regions: self.regions.clone(),
            denied: self.denied.clone(),
        };
        Ok(run(&spec, data))
    }

    /// Runs with payload of `dtype`.
    pub fn run_checked(&self, mut spec: Value, dtype: &str) -> Outcome {
        spec["payload"] = json!({"dtype": dtype});
        spec["memory_bytes"] = json!(self.memory);
        self.run(&spec)
    }
}

/// Ring AllReduce of `count` elements of `size` bytes, one chunk a shard.
pub fn all_reduce(ranks: u32, count: u64, size: u64) -> Job {
    let n = u64::from(ranks);
    let shard = |j: u64| (j % n) * count / n..(j % n + 1) * count / n;
    let scratch = count * size;
    let longest = count.div_ceil(n) * size;
    let mut job = Job::new(ranks);
    job.memory = scratch + n * longest;
    for rank in 0..ranks {
        let (r, list) = (u64::from(rank), &mut job.ranks[rank as usize]);
        let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let piece = |j: u64| (shard(j).start * size, (shard(j).end - shard(j).start) * size);
        let push = |list: &mut Vec<Entry>, e: Entry| -> Vec<u32> {
            if e.bytes == 0 {
                return Vec::new();
            }
            list.push(e);
            vec![list.len() as u32 - 1]
        };
        // All receives first: both ends number them in the order of the steps.
        let mut arrived = Vec::new();
        for step in 0..n - 1 {
            let (_, bytes) = piece(r + 2 * n - step - 1);
            arrived.push(push(list, entry(RECV, before, scratch + step * longest, bytes)));
        }
        for step in 0..n - 1 {
            let (at, bytes) = piece(r + n - step);
            arrived.push(push(list, entry(RECV, before, at, bytes)));
        }
        let mut ready = Vec::new();
        for step in 0..n - 1 {
            let (at, bytes) = piece(r + n - step);
            push(list, Entry { deps: ready, ..entry(SEND, next, at, bytes) });
            let (at, bytes) = piece(r + 2 * n - step - 1);
            let sum = Entry { remote: scratch + step * longest, ..entry(SUM, rank, at, bytes) };
            ready = push(list, Entry { deps: arrived[step as usize].clone(), ..sum });
        }
        for step in 0..n - 1 {
            let (at, bytes) = piece(r + n + 1 - step);
            push(list, Entry { deps: ready, ..entry(SEND, next, at, bytes) });
            ready = arrived[(n - 1 + step) as usize].clone();
        }
        job.fills.push(Fill { rank, offset: 0, count, index: 0 });
        job.expects.push(Expect { rank, offset: 0, count, from: ALL_RANKS, index: 0 });
    }
    job
}

/// Direct AllToAll of `count` elements of `size` bytes a pair.
pub fn all_to_all(ranks: u32, count: u64, size: u64) -> Job {
    let (n, block) = (u64::from(ranks), count * size);
    let mut job = Job::new(ranks);
    job.memory = 2 * n * block;
    for rank in 0..ranks {
        let r = u64::from(rank);
        let list = &mut job.ranks[rank as usize];
        for k in 1..n {
            let from = (r + n - k) % n;
            list.push(entry(RECV, from as u32, (n + from) * block, block));
        }
        for k in 1..n {
            let to = (r + k) % n;
            list.push(entry(SEND, to as u32, to * block, block));
        }
        list.push(Entry { remote: r * block, ..entry(COPY, rank, (n + r) * block, block) });
        job.fills.push(Fill { rank, offset: 0, count: n * count, index: 0 });
        for from in 0..ranks {
            let (offset, index) = ((n + u64::from(from)) * block, r * count);
            job.expects.push(Expect { rank, offset, count, from, index });
        }
    }
    job
}

pub fn counter(outcome: &Outcome, name: &str) -> u64 {
    outcome.counters.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// injected = delivered + dropped by cause + on the way.
pub fn unaccounted(outcome: &Outcome) -> i64 {
    let ends = [
        "packets_delivered",
        "dropped_loss",
        "dropped_queue",
        "dropped_link_down",
        "dropped_no_route",
        "packets_in_flight",
    ];
    counter(outcome, "packets_injected") as i64 - ends.iter().map(|name| counter(outcome, name) as i64).sum::<i64>()
}

pub fn gbps(rate: u64) -> u64 {
    rate / GBPS
}

/// Everything that a run tells.
pub fn told(outcome: &Outcome) -> String {
    let Outcome { status, time, iterations, digest, wqe_done, wqe_placed, wqe_results, counters, .. } = outcome;
    let Outcome { plane_bytes, plane_bins, stalled, .. } = outcome;
    let stalled: Vec<_> = stalled.iter().map(|flow| (flow.src, flow.dst, flow.bytes_left, &flow.reason)).collect();
    format!(
        "{status:?} {time:?} {iterations:?} {digest:x} {wqe_done:?} {wqe_placed:?} {wqe_results:?} {counters:?} \
         {plane_bytes:?} {plane_bins:?} {stalled:?}"
    )
}
