//! A program: per rank, a list of work-queue entries with explicit dependencies, as columns in,
//! checked once, and compact after that.

use thiserror::Error;

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
}

impl Op {
    /// All operations, at their numbers in the column `op`, and their names.
    pub const ALL: [(Op, &'static str); 11] = [
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
    ];

    /// Whether it concerns another rank.
    pub const fn has_peer(self) -> bool {
        !matches!(self, Op::Copy | Op::Sum | Op::Noop)
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
            Op::Noop => (0, u64::MAX),
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

/// A program as it comes in: one slice a column, all ranks concatenated.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns<'a> {
    /// First entry of each rank; one more at the end.
    pub rank_start: &'a [u32],
    /// As numbered by [`Op::ALL`].
    pub op: &'a [u8],
    /// Other rank.
    pub peer: &'a [u32],
    /// Stream.
    pub stream: &'a [u32],
    /// Offset in own memory.
    pub local: &'a [u64],
    /// Second offset.
    pub remote: &'a [u64],
    /// Bytes.
    pub bytes: &'a [u64],
    /// First dependency of each entry in `deps`; one more at the end.
    pub dep_start: &'a [u32],
    /// Entries that must be complete first, of the same rank.
    pub deps: &'a [u32],
    /// Earliest start, picoseconds; empty = 0.
    pub start: &'a [u64],
    /// Immediate data; empty = 0.
    pub imm: &'a [u32],
    /// First operands of atomics; empty = 0.
    pub operand0: &'a [u64],
    /// Second ones; empty = 0.
    pub operand1: &'a [u64],
    /// Bit 0: fence. Bit 1: unsignaled. Empty = 0.
    pub flags: &'a [u8],
    /// Regions of the peers; empty = 0. If it is there, `remote` is checked by the peer, not before the run.
    pub rkey: &'a [u32],
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
    pub(crate) wqes: Vec<Wqe>,
    pub(crate) rank_start: Vec<u32>,
    /// Dependencies of each entry.
    pub(crate) waits: Vec<u32>,
    /// Entries that wait for entry i: `dependents[dependents_start[i]..dependents_start[i + 1]]`.
    pub(crate) dependents_start: Vec<u32>,
    pub(crate) dependents: Vec<u32>,
    pub(crate) start: Vec<u64>,
    /// Empty if all are zero.
    details: Vec<Details>,
}

fn refuse<T>(column: &'static str, index: usize, value: u64, allowed: impl Into<String>) -> Result<T, ProgramError> {
    Err(ProgramError { column, index, value, allowed: allowed.into() })
}

impl Program {
    /// Checks columns against each other and against `memory` bytes a rank.
    ///
    /// # Errors
    /// [`ProgramError`] for the first column that does not fit.
    pub fn new(columns: &Columns, memory: u64) -> Result<Program, ProgramError> {
        let count = columns.op.len();
        check_lengths(columns, count)?;
        let ranks = columns.rank_start.len() - 1;
        let mut wqes = Vec::with_capacity(count);
        for rank in 0..ranks {
            for i in columns.rank_start[rank] as usize..columns.rank_start[rank + 1] as usize {
                wqes.push(wqe(columns, i, rank, memory)?);
            }
        }
        let mut program = Program {
            wqes,
            rank_start: columns.rank_start.to_vec(),
            waits: columns.dep_start.windows(2).map(|w| w[1].saturating_sub(w[0])).collect(),
            dependents_start: vec![0; count + 1],
            dependents: vec![0; columns.deps.len()],
            start: columns.start.to_vec(),
            details: details(columns, count)?,
        };
        program.link(columns)?;
        Ok(program)
    }

    /// Turns "waits for" into "is waited for by".
    fn link(&mut self, columns: &Columns) -> Result<(), ProgramError> {
        for rank in 0..self.ranks() {
            let own = self.rank_start[rank]..self.rank_start[rank + 1];
            let first = columns.dep_start[own.start as usize] as usize;
            let last = columns.dep_start[own.end as usize] as usize;
            for (at, &dep) in columns.deps.iter().enumerate().take(last).skip(first) {
                if !own.contains(&dep) {
                    return refuse(
                        "deps",
                        at,
                        u64::from(dep),
                        format!("an entry of the same rank, {} to {}", own.start, own.end),
                    );
                }
                self.dependents_start[dep as usize + 1] += 1;
            }
        }
        for i in 1..self.dependents_start.len() {
            self.dependents_start[i] += self.dependents_start[i - 1];
        }
        let mut next = self.dependents_start.clone();
        for i in 0..self.wqes.len() {
            for at in columns.dep_start[i]..columns.dep_start[i + 1] {
                let slot = &mut next[columns.deps[at as usize] as usize];
                self.dependents[*slot as usize] = i as u32;
                *slot += 1;
            }
        }
        Ok(())
    }

    /// Ranks.
    pub fn ranks(&self) -> usize {
        self.rank_start.len() - 1
    }

    /// All entries, rank by rank.
    pub fn wqes(&self) -> &[Wqe] {
        &self.wqes
    }

    /// Entries of one rank.
    pub fn of_rank(&self, rank: usize) -> &[Wqe] {
        &self.wqes[self.rank_start[rank] as usize..self.rank_start[rank + 1] as usize]
    }

    /// The rank that entry `wqe` belongs to.
    pub fn rank_of(&self, wqe: u32) -> u32 {
        self.rank_start.partition_point(|&start| start <= wqe) as u32 - 1
    }

    /// Earliest start of entry `wqe`, picoseconds.
    pub fn start(&self, wqe: u32) -> u64 {
        self.start.get(wqe as usize).copied().unwrap_or(0)
    }

    /// What only some operations have.
    pub fn details(&self, wqe: u32) -> Details {
        self.details.get(wqe as usize).copied().unwrap_or_default()
    }
}

fn check_lengths(columns: &Columns, count: usize) -> Result<(), ProgramError> {
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
    for (column, length, expected) in lengths {
        if length != expected {
            return refuse(column, length, length as u64, format!("length {expected}"));
        }
    }
    if count >= 1 << 28 {
        return refuse("op", count, count as u64, "fewer than 2^28 entries");
    }
    for (column, starts, end) in
        [("rank_start", columns.rank_start, count), ("dep_start", columns.dep_start, columns.deps.len())]
    {
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

fn details(columns: &Columns, count: usize) -> Result<Vec<Details>, ProgramError> {
    let Columns { imm, operand0, operand1, flags, rkey, .. } = *columns;
    if imm.is_empty() && operand0.is_empty() && operand1.is_empty() && flags.is_empty() && rkey.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(i) = flags.iter().position(|&bits| bits > 3) {
        return refuse("flags", i, u64::from(flags[i]), "0 to 3");
    }
    let bits = |i: usize| flags.get(i).copied().unwrap_or(0);
    let details = |i: usize| Details {
        imm: imm.get(i).copied().unwrap_or(0),
        operands: [operand0, operand1].map(|column| column.get(i).copied().unwrap_or(0)),
        rkey: rkey.get(i).copied().unwrap_or(0),
        fence: bits(i) & 1 != 0,
        unsignaled: bits(i) & 2 != 0,
    };
    Ok((0..count).map(details).collect())
}

fn wqe(columns: &Columns, i: usize, rank: usize, memory: u64) -> Result<Wqe, ProgramError> {
    let Some(&(op, _)) = Op::ALL.get(columns.op[i] as usize) else {
        return refuse("op", i, u64::from(columns.op[i]), format!("0 to {}", Op::ALL.len() - 1));
    };
    let ranks = columns.rank_start.len() as u32 - 1;
    let (local, remote, bytes, peer) = (columns.local[i], columns.remote[i], columns.bytes[i], columns.peer[i]);
    let (least, most) = op.lengths();
    if bytes < least || bytes > most {
        let allowed = if least == most { format!("{least}") } else { format!("at least {least}") };
        return refuse("bytes", i, bytes, allowed);
    }
    if op.has_peer() && (peer >= ranks || peer as usize == rank) {
        return refuse("peer", i, u64::from(peer), format!("another rank below {ranks}"));
    }
    let Ok(stream) = u16::try_from(columns.stream[i]) else {
        return refuse("stream", i, u64::from(columns.stream[i]), "0 to 65535");
    };
    let fits = |offset: u64| offset <= memory && bytes <= memory - offset;
    if op != Op::Noop && !fits(local) {
        return refuse("local", i, local, format!("a range inside the {memory} bytes of a rank"));
    }
    let in_own = matches!(op, Op::Copy | Op::Sum) || op.is_one_sided() && columns.rkey.is_empty();
    if in_own && !fits(remote) {
        return refuse("remote", i, remote, format!("a range inside the {memory} bytes of a rank"));
    }
    Ok(Wqe { local, remote, bytes, peer, stream, op })
}
