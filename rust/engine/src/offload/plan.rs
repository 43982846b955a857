//! A program's subgraphs and what the engines that run them cost, checked against each other.

use std::sync::Arc;

use metaroce_wire::Time;

use crate::column::Column;
use crate::program::{Op, Program, ProgramError, refuse};

/// Nothing later of the subgraph issues until this entry is complete.
pub(super) const FENCE: u64 = 1;
/// Issues after all earlier ones of the subgraph are complete.
pub(super) const SYNC: u64 = 2;
/// Issues after all earlier receives are.
pub(super) const RX_SYNC: u64 = 4;
/// Issues after all earlier sends and writes are.
pub(super) const TX_SYNC: u64 = 8;
/// Sends what was just computed, at no cost of the unit.
pub(super) const FUSED: u64 = 16;

/// Subgraphs of a program as columns, all ranks concatenated.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// First entry of each subgraph; one more at the end.
    pub start: Vec<u32>,
    /// Engine of the rank that runs it.
    pub engine: Column,
    /// Work packet that it belongs to, by its number in the rank.
    pub packet: Column,
    /// When its trigger comes, from the start of the iteration, ps; of a packet, the latest of its subgraphs.
    pub release: Column,
    /// Lower numbers go first.
    pub priority: Column,
    /// Of each entry: bits 1 FENCE, 2 SYNC, 4 RX_SYNC, 8 TX_SYNC, 16 FUSED; empty = 0.
    pub flow: Column,
    /// Of each entry: k waits for the k-th previous one of its subgraph; empty = 0, none.
    pub wqe_sync: Column,
    /// Rank of each word that is set from outside.
    pub set_rank: Vec<u32>,
    /// Which word.
    pub set_word: Vec<u32>,
    /// To what.
    pub set_value: Vec<u64>,
    /// When, from the start of the iteration, ps.
    pub set_ps: Vec<u64>,
}

impl Graph {
    /// Whether the program has none.
    pub const fn is_empty(&self) -> bool {
        self.start.is_empty()
    }
}

/// What an engine costs.
#[derive(Clone, Copy, Debug)]
pub struct EngineCosts {
    /// CPU time of an entry.
    pub issue: Time,
    /// CPU time of a subgraph, before its first entry.
    pub start: Time,
    /// From the issue of a transfer until the NIC has it; occupies nothing.
    pub post: Time,
    /// Its subgraphs start at their release, without dispatch.
    pub direct: bool,
}

/// What a rank has.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Engines.
    pub engines: Vec<EngineCosts>,
    /// From a packet's trigger until CPU-C knows.
    pub event: Time,
    /// CPU-C time of a packet.
    pub dispatch: Time,
    /// Bits per second of one unit.
    pub unit_bps: u64,
    /// Of all of the rank together.
    pub units_bps: u64,
    /// Transfers that are posted and not complete, at most.
    pub outstanding: u32,
    /// Words of device memory.
    pub words: u32,
    /// What is sent, and not FUSED, passes the unit of its engine first.
    pub copies_sends: bool,
}

/// A work packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub release: u64,
    /// Members, in [`Plan::members`].
    pub first: u32,
    pub end: u32,
}

/// A word that is set from outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutsideSet {
    pub at: u64,
    pub word: u32,
    pub value: u64,
}

/// What the engines of all ranks are to do; does not change.
#[derive(Debug)]
pub struct Plan {
    pub(super) program: Arc<Program>,
    pub(super) hardware: Hardware,
    /// First subgraph of each rank; one more at the end.
    pub(super) subgraphs: Vec<u32>,
    packets: Vec<Packet>,
    packets_of: Vec<u32>,
    /// Subgraphs by packet.
    pub(super) members: Vec<u32>,
    /// Subgraphs of direct engines by release.
    directs: Vec<(u64, u32)>,
    directs_of: Vec<u32>,
    sets: Vec<OutsideSet>,
    sets_of: Vec<u32>,
}

impl Plan {
    /// Checks the subgraphs of `program` against `hardware`.
    ///
    /// # Errors
    /// [`ProgramError`] for the first column that does not fit.
    pub fn new(program: Arc<Program>, hardware: Hardware) -> Result<Plan, ProgramError> {
        check_hardware(&hardware)?;
        check_lengths(&program)?;
        let subgraphs = subgraphs_of_ranks(&program)?;
        let mut plan = Plan {
            program,
            hardware,
            subgraphs,
            packets: Vec::new(),
            packets_of: vec![0],
            members: Vec::new(),
            directs: Vec::new(),
            directs_of: vec![0],
            sets: Vec::new(),
            sets_of: vec![0],
        };
        plan.check_subgraphs()?;
        plan.check_entries()?;
        plan.lay_out();
        plan.lay_out_sets()?;
        Ok(plan)
    }

    /// Ranks.
    pub fn ranks(&self) -> usize {
        self.subgraphs.len() - 1
    }

    /// The program.
    pub const fn program(&self) -> &Arc<Program> {
        &self.program
    }

    pub(super) fn graph(&self) -> &Graph {
        self.program.graph()
    }

    fn check_subgraphs(&self) -> Result<(), ProgramError> {
        let (graph, engines) = (self.graph(), self.hardware.engines.len() as u64);
        for i in 0..graph.engine.len() {
            let engine = graph.engine.get(i);
            if engine >= engines {
                return refuse("subgraph_engine", i, engine, format!("below {engines}, the engines of a rank"));
            }
        }
        Ok(())
    }

    fn check_entries(&self) -> Result<(), ProgramError> {
        let graph = self.graph();
        let words = u64::from(self.hardware.words);
        for pair in graph.start.windows(2) {
            for entry in pair[0]..pair[1] {
                let i = entry as usize;
                let (flow, back, before) = (graph.flow.get(i), graph.wqe_sync.get(i), u64::from(entry - pair[0]));
                if flow > 31 {
                    return refuse("flow", i, flow, "0 to 31");
                }
                if back > before {
                    return refuse("wqe_sync", i, back, format!("0 to {before}, the earlier ones of the subgraph"));
                }
                let wqe = self.program.wqe(i);
                match wqe.op {
                    Op::Read | Op::CompareSwap | Op::FetchAdd | Op::Flush => {
                        let allowed = "0 to 6, 11, 12 in a program with subgraphs";
                        return refuse("op", i, wqe.op as u64, allowed);
                    }
                    Op::Wait | Op::Set if wqe.local >= words => {
                        return refuse("local", i, wqe.local, format!("below {words}, the words of a rank"));
                    }
                    Op::Wait if self.program.details(entry).imm > 2 => {
                        let imm = u64::from(self.program.details(entry).imm);
                        return refuse("imm", i, imm, "of a WAIT 0 (>=), 1 (==) or 2 (>)");
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Packets and direct subgraphs, rank by rank.
    fn lay_out(&mut self) {
        let program = self.program.clone();
        let graph = program.graph();
        for rank in 0..self.ranks() {
            let own = self.subgraphs[rank]..self.subgraphs[rank + 1];
            let direct = |s: u32| self.hardware.engines[graph.engine.get(s as usize) as usize].direct;
            let (alone, mut dispatched): (Vec<u32>, Vec<u32>) = own.partition(|&s| direct(s));
            dispatched.sort_by_key(|&s| graph.packet.get(s as usize));
            let mut directs: Vec<_> = alone.into_iter().map(|s| (graph.release.get(s as usize), s)).collect();
            directs.sort_unstable();
            self.directs.append(&mut directs);
            self.directs_of.push(self.directs.len() as u32);
            for members in dispatched.chunk_by(|&a, &b| graph.packet.get(a as usize) == graph.packet.get(b as usize)) {
                let release = members.iter().map(|&s| graph.release.get(s as usize)).max().unwrap_or(0);
                let first = self.members.len() as u32;
                self.members.extend(members);
                self.packets.push(Packet { release, first, end: self.members.len() as u32 });
            }
            self.packets_of.push(self.packets.len() as u32);
        }
    }

    fn lay_out_sets(&mut self) -> Result<(), ProgramError> {
        let program = self.program.clone();
        let (graph, ranks) = (program.graph(), self.ranks());
        let mut rows: Vec<usize> = (0..graph.set_rank.len()).collect();
        for &i in &rows {
            if graph.set_rank[i] as usize >= ranks {
                return refuse("set_rank", i, graph.set_rank[i].into(), format!("below {ranks}"));
            }
            if graph.set_word[i] >= self.hardware.words {
                let allowed = format!("below {}, the words of a rank", self.hardware.words);
                return refuse("set_word", i, graph.set_word[i].into(), allowed);
            }
        }
        rows.sort_by_key(|&i| (graph.set_rank[i], graph.set_ps[i]));
        let set = |i: usize| OutsideSet { at: graph.set_ps[i], word: graph.set_word[i], value: graph.set_value[i] };
        self.sets = rows.iter().map(|&i| set(i)).collect();
        let end_of = |rank: usize| rows.partition_point(|&i| graph.set_rank[i] as usize <= rank) as u32;
        self.sets_of.extend((0..ranks).map(end_of));
        Ok(())
    }

    pub(super) fn packets(&self, rank: usize) -> &[Packet] {
        &self.packets[of_rank(&self.packets_of, rank)]
    }

    pub(super) fn directs(&self, rank: usize) -> &[(u64, u32)] {
        &self.directs[of_rank(&self.directs_of, rank)]
    }

    pub(super) fn sets(&self, rank: usize) -> &[OutsideSet] {
        &self.sets[of_rank(&self.sets_of, rank)]
    }
}

fn of_rank(starts: &[u32], rank: usize) -> std::ops::Range<usize> {
    starts[rank] as usize..starts[rank + 1] as usize
}

fn check_hardware(hardware: &Hardware) -> Result<(), ProgramError> {
    let engines = hardware.engines.len();
    if engines == 0 || engines > 1 << 16 {
        return refuse("offload.issue_ps", 0, engines as u64, "1 to 65536 engines");
    }
    for (name, value, least) in [
        ("offload.unit_bps", hardware.unit_bps, 1),
        ("offload.units_bps", hardware.units_bps, engines as u64),
        ("offload.outstanding", hardware.outstanding.into(), 1),
    ] {
        if value < least {
            return refuse(name, 0, value, format!("at least {least}"));
        }
    }
    Ok(())
}

fn check_lengths(program: &Program) -> Result<(), ProgramError> {
    let (graph, entries) = (program.graph(), program.len());
    let (subgraphs, sets) = (graph.start.len().saturating_sub(1), graph.set_rank.len());
    let optional = |length: usize| if length == 0 { 0 } else { entries };
    let lengths = [
        ("subgraph_engine", graph.engine.len(), subgraphs),
        ("subgraph_packet", graph.packet.len(), subgraphs),
        ("subgraph_release_ps", graph.release.len(), subgraphs),
        ("subgraph_priority", graph.priority.len(), subgraphs),
        ("flow", graph.flow.len(), optional(graph.flow.len())),
        ("wqe_sync", graph.wqe_sync.len(), optional(graph.wqe_sync.len())),
        ("set_word", graph.set_word.len(), sets),
        ("set_value", graph.set_value.len(), sets),
        ("set_ps", graph.set_ps.len(), sets),
    ];
    for (column, length, expected) in lengths {
        if length != expected {
            return refuse(column, length, length as u64, format!("length {expected}"));
        }
    }
    let ends = (graph.start.first().copied(), graph.start.last().copied());
    if ends != (Some(0), Some(entries as u32)) {
        return refuse("subgraph_start", 0, u64::from(ends.1.unwrap_or(0)), format!("0 first and {entries} last"));
    }
    match graph.start.windows(2).position(|pair| pair[0] >= pair[1]) {
        Some(at) => refuse("subgraph_start", at + 1, graph.start[at + 1].into(), "more than the one before"),
        None => Ok(()),
    }
}

/// First subgraph of each rank, one more at the end.
fn subgraphs_of_ranks(program: &Program) -> Result<Vec<u32>, ProgramError> {
    let starts = &program.graph().start;
    let mut firsts = Vec::with_capacity(program.ranks() + 1);
    for first in (0..program.ranks()).map(|rank| program.entries(rank).start).chain([program.len() as u32]) {
        match starts.binary_search(&first) {
            Ok(at) => firsts.push(at as u32),
            Err(at) => {
                let allowed = format!("a start at entry {first}, where a rank begins");
                return refuse("subgraph_start", at, starts[at].into(), allowed);
            }
        }
    }
    Ok(firsts)
}
