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

/// A program as it comes in: one slice a column, all ranks concatenated.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// First entry of each rank; one more at the end.
    pub rank_start: &'a [u32],
    /// 0 SEND, 1 RECV, 2 WRITE, 3 COPY, 4 SUM, 5 NOOP.
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
}

fn check_lengths(columns: &Columns, count: usize) -> Result<(), ProgramError> {
    let lengths = [
        ("peer", columns.peer.len(), count),
        ("stream", columns.stream.len(), count),
        ("local", columns.local.len(), count),
        ("remote", columns.remote.len(), count),
        ("bytes", columns.bytes.len(), count),
        ("dep_start", columns.dep_start.len(), count + 1),
        ("start_ps", columns.start.len(), if columns.start.is_empty() { 0 } else { count }),
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

fn wqe(columns: &Columns, i: usize, rank: usize, memory: u64) -> Result<Wqe, ProgramError> {
    let op = match columns.op[i] {
        0 => Op::Send,
        1 => Op::Recv,
        2 => Op::Write,
        3 => Op::Copy,
        4 => Op::Sum,
        5 => Op::Noop,
        other => return refuse("op", i, u64::from(other), "0 to 5"),
    };
    let ranks = columns.rank_start.len() as u32 - 1;
    let Wqe { local, remote, bytes, peer, .. } = Wqe {
        local: columns.local[i],
        remote: columns.remote[i],
        bytes: columns.bytes[i],
        peer: columns.peer[i],
        stream: 0,
        op,
    };
    if op != Op::Noop && bytes == 0 {
        return refuse("bytes", i, 0, "at least 1");
    }
    if matches!(op, Op::Send | Op::Recv | Op::Write) && (peer >= ranks || peer as usize == rank) {
        return refuse("peer", i, u64::from(peer), format!("another rank below {ranks}"));
    }
    let Ok(stream) = u16::try_from(columns.stream[i]) else {
        return refuse("stream", i, u64::from(columns.stream[i]), "0 to 65535");
    };
    let fits = |offset: u64| offset <= memory && bytes <= memory - offset;
    if op != Op::Noop && !fits(local) {
        return refuse("local", i, local, format!("a range inside the {memory} bytes of a rank"));
    }
    if matches!(op, Op::Write | Op::Copy | Op::Sum) && !fits(remote) {
        return refuse("remote", i, remote, format!("a range inside the {memory} bytes of a rank"));
    }
    Ok(Wqe { local, remote, bytes, peer, stream, op })
}
