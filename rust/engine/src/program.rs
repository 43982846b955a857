//! A program: per rank, a list of work-queue entries with explicit dependencies, as columns in,
//! checked once, and as compact as it came after that.

use thiserror::Error;

use crate::column::Column;
use crate::offload::Graph;

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sends `bytes` from `local` to `peer` on `stream`.
    Send,
    /// Receives the next Send of `peer` on `stream` at `local`.
    Recv,
    /// Writes `bytes` from `local` to `remote` in `peer`'s memory.
    Write,
    /// Copies from `remote` to `local`, both in own memory.
    Copy,
    /// Adds `remote` to `local` element by element, both in own memory.
    Sum,
    /// Nothing; joins dependencies.
    Noop,
    /// A Write that also completes the next receive of `peer` on `stream`, with immediate data.
    WriteImm,
    /// Fetches `bytes` from `remote` in `peer`'s memory to `local`.
    Read,
    /// Replaces 8 bytes at `remote` in `peer`'s memory where they equal an operand; what was there goes to `local`.
    CompareSwap,
    /// Adds to 8 bytes at `remote` in `peer`'s memory; what was there goes to `local`.
    FetchAdd,
    /// Complete when all earlier entries of `peer` and `stream` are placed.
    Flush,
    /// Issues when word `local` of the rank compares to `remote` as `imm` says; subgraphs only.
    Wait,
    /// Sets word `local` of the rank to `remote`; subgraphs only.
    Set,
}

impl Op {
    /// All operations, at their numbers in the column `op`, and their names.
    pub const ALL: [(Op, &'static str); 13] = [
        (Op::Send, "SEND"),
        (Op::Recv, "RECV"),
        (Op::Write, "WRITE"),
        (Op::Copy, "COPY"),
        (Op::Sum, "SUM"),
        (Op::Noop, "NOOP"),
        (Op::WriteImm, "WRITE_IMM"),
        (Op::Read, "READ"),
        (Op::CompareSwap, "COMPARE_SWAP"),
        (Op::FetchAdd, "FETCH_ADD"),
        (Op::Flush, "FLUSH"),
        (Op::Wait, "WAIT"),
        (Op::Set, "SET"),
    ];
    /// Those before this one need no subgraphs.
    const PLAIN: usize = 11;

    /// Whether it concerns another rank.
    pub const fn has_peer(self) -> bool {
        !matches!(self, Op::Copy | Op::Sum | Op::Noop | Op::Wait | Op::Set)
    }

    /// Whether it names memory of the peer.
    const fn is_one_sided(self) -> bool {
        matches!(self, Op::Write | Op::WriteImm | Op::Read | Op::CompareSwap | Op::FetchAdd)
    }

    /// Bytes that an entry may have, at least and at most.
    const fn lengths(self) -> (u64, u64) {
        match self {
            Op::Send | Op::Recv | Op::WriteImm => (0, u64::MAX),
            Op::Write | Op::Read | Op::Copy | Op::Sum => (1, u64::MAX),
            Op::CompareSwap | Op::FetchAdd => (8, 8),
            Op::Flush => (0, 0),
            // What it says is not read.
            Op::Noop | Op::Wait | Op::Set => (0, u64::MAX),
        }
    }
}

/// An entry.
#[derive(Clone, Copy, Debug)]
pub struct Wqe {
    /// Offset in own memory.
    pub local: u64,
    /// Second offset; whose memory depends on `op`.
    pub remote: u64,
    /// Bytes.
    pub bytes: u64,
    /// Other rank.
    pub peer: u32,
    /// Ordered stream of the connection.
    pub stream: u16,
    /// Operation.
    pub op: Op,
}

/// What only some operations have; zero in a program that has no such columns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Details {
    /// WRITE_IMM: immediate data.
    pub imm: u32,
    /// COMPARE_SWAP: compare, swap. FETCH_ADD: addend.
    pub operands: [u64; 2],
    /// Key of the peer's region that `remote` counts in.
    pub rkey: u32,
    /// Starts only when earlier READs and atomics of the stream are answered.
    pub fence: bool,
    /// The user is not told of a success; the engine is.
    pub unsignaled: bool,
}

/// A program as it comes in: a column a field, all ranks concatenated.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// First entry of each rank; one more at the end.
    pub rank_start: Vec<u32>,
    /// As numbered by [`Op::ALL`].
    pub op: Column,
    /// Other rank.
    pub peer: Column,
    /// Stream.
    pub stream: Column,
    /// Offset in own memory.
    pub local: Column,
    /// Second offset.
    pub remote: Column,
    /// Bytes.
    pub bytes: Column,
    /// First dependency of each entry in `deps`; one more at the end.
    pub dep_start: Vec<u32>,
    /// Entries that must be complete first, of the same rank.
    pub deps: Vec<u32>,
    /// Earliest start, picoseconds; empty = 0.
    pub start: Column,
    /// Immediate data; empty = 0.
    pub imm: Column,
    /// First operands of atomics; empty = 0.
    pub operand0: Column,
    /// Second ones; empty = 0.
    pub operand1: Column,
    /// Bit 0: fence. Bit 1: unsignaled. Empty = 0.
    pub flags: Column,
    /// Regions of the peers; empty = 0. If it is there, `remote` is checked by the peer, not before the run.
    pub rkey: Column,
    /// Subgraphs, if message engines run the program: then there are no dependencies.
    pub graph: Graph,
}

/// Why a program is refused: which column, which value, what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{column}[{index}]: {value} is not allowed; allowed: {allowed}")]
pub struct ProgramError {
    /// Column.
    pub column: &'static str,
    /// Index in it.
    pub index: usize,
    /// What stands there.
    pub value: u64,
    /// What may.
    pub allowed: String,
}

/// A checked program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Without the dependencies, which are turned round.
    columns: Columns,
    /// Dependencies of each entry.
    pub(crate) waits: Column,
    /// Ranks have so many entries each, with the same dependencies; or all entries together.
    period: usize,
    /// Entries of the first period that wait for its entry i: `dependents[starts[i]..starts[i + 1]]`. Empty if none
    /// waits.
    starts: Vec<u32>,
    dependents: Vec<u32>,
}

pub(crate) fn refuse<T>(
    column: &'static str,
    index: usize,
    value: u64,
    allowed: impl Into<String>,
) -> Result<T, ProgramError> {
    Err(ProgramError { column, index, value, allowed: allowed.into() })
}

impl Program {
    /// Checks columns against each other and against `memory` bytes a rank.
    ///
    /// # Errors
    /// [`ProgramError`] for the first column that does not fit.
    pub fn new(columns: Columns, memory: u64) -> Result<Program, ProgramError> {
        check_lengths(&columns)?;
        let (waits, period) = (Column::default(), columns.op.len());
        let mut program = Program { columns, waits, period, starts: Vec::new(), dependents: Vec::new() };
        for rank in 0..program.ranks() {
            for i in program.entries(rank) {
                check(&program.columns, i as usize, rank, memory)?;
            }
        }
        let flags = &program.columns.flags;
        if let Some(i) = flags.iter().position(|bits| bits > 3) {
            return refuse("flags", i, flags.get(i), "0 to 3");
        }
        program.link()?;
        Ok(program)
    }

    /// Turns "waits for" into "is waited for by".
    fn link(&mut self) -> Result<(), ProgramError> {
        if !self.columns.graph.is_empty() {
            return self.check_unlinked();
        }
        let (dep_start, deps) = (std::mem::take(&mut self.columns.dep_start), std::mem::take(&mut self.columns.deps));
        for rank in 0..self.ranks() {
            let own = self.entries(rank);
            for at in dep_start[own.start as usize]..dep_start[own.end as usize] {
                let dep = deps[at as usize];
                if !own.contains(&dep) {
                    let allowed = format!("an entry of the same rank, {} to {}", own.start, own.end);
                    return refuse("deps", at as usize, u64::from(dep), allowed);
                }
            }
        }
        let first = self.entries(0).len();
        let counts = dep_start.windows(2).map(|pair| u64::from(pair[1] - pair[0]));
        self.waits = Column::of_ranks(counts.clone(), first);
        if deps.is_empty() {
            return Ok(());
        }
        let alike = self.columns.rank_start.windows(2).all(|pair| (pair[1] - pair[0]) as usize == first)
            && counts.clone().skip(first).zip(counts).all(|(count, before)| count == before)
            && deps[dep_start[first] as usize..].iter().zip(&deps).all(|(&dep, &before)| dep - before == first as u32);
        if alike {
            self.period = first;
        }
        // Where each list ends, and, filled from its end, begins.
        let mut starts = vec![0; self.period + 1];
        let of_period = &deps[..dep_start[self.period] as usize];
        of_period.iter().for_each(|&dep| starts[dep as usize] += 1);
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        self.dependents = vec![0; of_period.len()];
        for i in (0..self.period).rev() {
            for &dep in &deps[dep_start[i] as usize..dep_start[i + 1] as usize] {
                let start = &mut starts[dep as usize];
                *start -= 1;
                self.dependents[*start as usize] = i as u32;
            }
        }
        self.starts = starts;
        Ok(())
    }

    /// Order in subgraphs comes from themselves.
    fn check_unlinked(&self) -> Result<(), ProgramError> {
        let columns = &self.columns;
        if let Some(&dep) = columns.deps.first() {
            return refuse("deps", 0, dep.into(), "none in a program with subgraphs");
        }
        match columns.start.iter().position(|start| start > 0) {
            Some(i) => refuse("start_ps", i, columns.start.get(i), "0 in a program with subgraphs"),
            None => Ok(()),
        }
    }

    /// Entries that wait for entry `wqe`.
    #[inline]
    pub(crate) fn dependents(&self, wqe: u32) -> impl Iterator<Item = u32> + '_ {
        let at = if self.starts.is_empty() { 0 } else { wqe as usize % self.period };
        let bounds = self.starts.get(at..at + 2).map_or(0..0, |bounds| bounds[0] as usize..bounds[1] as usize);
        self.dependents[bounds].iter().map(move |dependent| dependent + wqe - at as u32)
    }

    /// Ranks.
    pub fn ranks(&self) -> usize {
        self.columns.rank_start.len() - 1
    }

    /// Entries of all ranks.
    pub const fn len(&self) -> usize {
        self.columns.op.len()
    }

    /// Whether it has no entries.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entry `i`, counted through all ranks.
    #[inline]
    pub fn wqe(&self, i: usize) -> Wqe {
        let Columns { op, peer, stream, local, remote, bytes, .. } = &self.columns;
        Wqe {
            local: local.get(i),
            remote: remote.get(i),
            bytes: bytes.get(i),
            peer: peer.get(i) as u32,
            stream: stream.get(i) as u16,
            op: Op::ALL[op.get(i) as usize].0,
        }
    }

    /// All entries, rank by rank.
    pub fn wqes(&self) -> impl Iterator<Item = Wqe> + '_ {
        (0..self.len()).map(|i| self.wqe(i))
    }

    /// Entries of one rank.
    pub fn of_rank(&self, rank: usize) -> impl Iterator<Item = Wqe> + '_ {
        self.entries(rank).map(|i| self.wqe(i as usize))
    }

    /// Operation of entry `i`.
    #[inline]
    pub fn op(&self, i: u32) -> Op {
        Op::ALL[self.columns.op.get(i as usize) as usize].0
    }

    /// Operations of all entries.
    pub fn ops(&self) -> impl Iterator<Item = Op> + '_ {
        (0..self.len() as u32).map(|i| self.op(i))
    }

    /// Operation and peer of those entries of one rank that concern another.
    pub fn talks(&self, rank: usize) -> impl Iterator<Item = (Op, u32)> + '_ {
        let with_peer = self.entries(rank).map(|i| (i, self.op(i))).filter(|(_, op)| op.has_peer());
        with_peer.map(|(i, op)| (op, self.columns.peer.get(i as usize) as u32))
    }

    /// Bytes of entry `i`.
    #[inline]
    pub fn bytes(&self, i: u32) -> u64 {
        self.columns.bytes.get(i as usize)
    }

    /// The subgraphs; empty if entries have dependencies of their own.
    pub const fn graph(&self) -> &Graph {
        &self.columns.graph
    }

    /// Entries of one rank, by number.
    pub fn entries(&self, rank: usize) -> std::ops::Range<u32> {
        self.columns.rank_start[rank]..self.columns.rank_start[rank + 1]
    }

    /// The rank that entry `wqe` belongs to.
    pub fn rank_of(&self, wqe: u32) -> u32 {
        self.columns.rank_start.partition_point(|&start| start <= wqe) as u32 - 1
    }

    /// Earliest start of entry `wqe`, picoseconds.
    pub fn start(&self, wqe: u32) -> u64 {
        self.columns.start.get(wqe as usize)
    }

    /// What only some operations have.
    pub fn details(&self, wqe: u32) -> Details {
        let (Columns { imm, operand0, operand1, flags, rkey, .. }, i) = (&self.columns, wqe as usize);
        let bits = flags.get(i);
        Details {
            imm: imm.get(i) as u32,
            operands: [operand0.get(i), operand1.get(i)],
            rkey: rkey.get(i) as u32,
            fence: bits & 1 != 0,
            unsignaled: bits & 2 != 0,
        }
    }
}

fn check_lengths(columns: &Columns) -> Result<(), ProgramError> {
    let count = columns.op.len();
    let optional = |length: usize| if length == 0 { 0 } else { count };
    let lengths = [
        ("peer", columns.peer.len(), count),
        ("stream", columns.stream.len(), count),
        ("local", columns.local.len(), count),
        ("remote", columns.remote.len(), count),
        ("bytes", columns.bytes.len(), count),
        ("dep_start", columns.dep_start.len(), count + 1),
        ("start_ps", columns.start.len(), optional(columns.start.len())),
        ("imm", columns.imm.len(), optional(columns.imm.len())),
        ("operand0", columns.operand0.len(), optional(columns.operand0.len())),
        ("operand1", columns.operand1.len(), optional(columns.operand1.len())),
        ("flags", columns.flags.len(), optional(columns.flags.len())),
        ("rkey", columns.rkey.len(), optional(columns.rkey.len())),
    ];
    let linked = columns.graph.is_empty() || !columns.dep_start.is_empty();
    for (column, length, expected) in lengths.into_iter().filter(|&(column, ..)| linked || column != "dep_start") {
        if length != expected {
            return refuse(column, length, length as u64, format!("length {expected}"));
        }
    }
    if count >= 1 << 28 {
        return refuse("op", count, count as u64, "fewer than 2^28 entries");
    }
    let starts = [("rank_start", &columns.rank_start, count), ("dep_start", &columns.dep_start, columns.deps.len())];
    for (column, starts, end) in starts.into_iter().filter(|&(column, ..)| linked || column != "dep_start") {
        let ends = (starts.first().copied(), starts.last().copied());
        if starts.len() < 2 && column == "rank_start" || ends != (Some(0), Some(end as u32)) {
            return refuse(column, 0, u64::from(ends.1.unwrap_or(0)), format!("0 first and {end} last"));
        }
        if let Some(at) = starts.windows(2).position(|w| w[0] > w[1]) {
            return refuse(column, at + 1, u64::from(starts[at + 1]), "no value below the one before");
        }
    }
    Ok(())
}

fn check(columns: &Columns, i: usize, rank: usize, memory: u64) -> Result<(), ProgramError> {
    let known = if columns.graph.is_empty() { Op::PLAIN } else { Op::ALL.len() };
    let Some(&(op, _)) = Op::ALL[..known].get(columns.op.get(i) as usize) else {
        let more = if known == Op::PLAIN { "; 11 and 12 with subgraphs only" } else { "" };
        return refuse("op", i, columns.op.get(i), format!("0 to {}{more}", known - 1));
    };
    let ranks = columns.rank_start.len() as u64 - 1;
    let (local, remote) = (columns.local.get(i), columns.remote.get(i));
    let (bytes, peer) = (columns.bytes.get(i), columns.peer.get(i));
    let (least, most) = op.lengths();
    if bytes < least || bytes > most {
        let allowed = if least == most { format!("{least}") } else { format!("at least {least}") };
        return refuse("bytes", i, bytes, allowed);
    }
    if op.has_peer() && (peer >= ranks || peer == rank as u64) {
        return refuse("peer", i, peer, format!("another rank below {ranks}"));
    }
    let stream = columns.stream.get(i);
    if stream > u16::MAX.into() {
        return refuse("stream", i, stream, "0 to 65535");
    }
    let fits = |offset: u64| offset <= memory && bytes <= memory - offset;
    if !matches!(op, Op::Noop | Op::Wait | Op::Set) && !fits(local) {
        return refuse("local", i, local, format!("a range inside the {memory} bytes of a rank"));
    }
    if op == Op::Sum && fits(local) && local.abs_diff(remote) < bytes {
        return refuse("remote", i, remote, format!("a range that has nothing of the {bytes} bytes at {local}"));
    }
    let in_own = matches!(op, Op::Copy | Op::Sum) || op.is_one_sided() && columns.rkey.is_empty();
    if in_own && !fits(remote) {
        return refuse("remote", i, remote, format!("a range inside the {memory} bytes of a rank"));
    }
    Ok(())
}
