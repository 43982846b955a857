//! Why a device does not go on.

use metaroce_wire::Time;

use super::device::Device;
use super::plan::{FENCE, RX_SYNC, SYNC, TX_SYNC};
use super::subgraph::{Phase, is_received, is_sent};
use crate::program::Op;

/// A subgraph that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Engine.
    pub engine: u32,
    /// The entry that it would issue next, or the first that it waits for at its end.
    pub entry: u32,
    /// Rank that is waited for.
    pub peer: Option<u32>,
    /// Both in words.
    pub reason: String,
}

impl Device {
    /// Subgraphs that cannot go on, in order, at most `most`; not those that are yet to be released.
    pub fn blocked(&self, most: usize) -> Vec<Blocked> {
        (0..self.states.len() as u32).filter_map(|own| self.why(own)).take(most).collect()
    }

    fn why(&self, own: u32) -> Option<Blocked> {
        let (state, program) = (&self.states[own as usize], &self.plan.program);
        let head = state.head;
        let (entry, peer, what) = match state.phase {
            Phase::Blocked => {
                let open = self.awaited(own, head)?;
                (head, self.peer(open), format!("waits for {}, which {}", self.name(open), self.lacks(open)))
            }
            Phase::Waiting => {
                let (wqe, sign) = (program.wqe(head as usize), [">=", "==", ">"]);
                let sign = sign[program.details(head).imm as usize];
                let stands = self.words.get(wqe.local);
                (head, None, format!("waits for word {} {sign} {}; it is {stands}", wqe.local, wqe.remote))
            }
            Phase::Ready if program.op(head).has_peer() => {
                let limit = self.plan.hardware.outstanding;
                (head, None, format!("waits for one of {limit} outstanding transfers to end"))
            }
            // Nothing is due any more: its time is later than times go.
            Phase::Idle if self.poll_timeout() == Time::NEVER => {
                (head, None, "waits for a release that never comes".to_owned())
            }
            Phase::Running if self.poll_timeout() == Time::NEVER => (head, None, "never ends to issue".to_owned()),
            Phase::Issued => {
                let open = (self.start_of(own)..head).find(|&entry| !self.is_complete(entry))?;
                (open, self.peer(open), self.lacks(open).to_owned())
            }
            _ => return None,
        };
        let engine = self.engine_of(own);
        let reason = format!("engine {engine}: {} {what}", self.name(entry));
        Some(Blocked { engine, entry, peer, reason })
    }

    /// The first entry before `head` that keeps it from issuing.
    fn awaited(&self, own: u32, head: u32) -> Option<u32> {
        let (graph, program) = (self.plan.graph(), &self.plan.program);
        let (flow, back) = (graph.flow.get(head as usize), graph.wqe_sync.get(head as usize) as u32);
        let open: Vec<u32> = (self.start_of(own)..head).filter(|&entry| !self.is_complete(entry)).collect();
        let keeps = |&entry: &u32| {
            let op = program.op(entry);
            flow & SYNC != 0
                || graph.flow.get(entry as usize) & FENCE != 0
                || flow & RX_SYNC != 0 && is_received(op)
                || flow & TX_SYNC != 0 && is_sent(op)
                || back > 0 && entry == head - back
        };
        open.into_iter().find(keeps)
    }

    fn peer(&self, entry: u32) -> Option<u32> {
        let wqe = self.plan.program.wqe(entry as usize);
        wqe.op.has_peer().then_some(wqe.peer)
    }

    fn name(&self, entry: u32) -> String {
        let wqe = self.plan.program.wqe(entry as usize);
        let op = Op::ALL[wqe.op as usize].1;
        let with = match wqe.op {
            Op::Recv => format!(" from rank {}", wqe.peer),
            op if op.has_peer() => format!(" to rank {}", wqe.peer),
            _ => String::new(),
        };
        format!("{op}{with} (entry {} of rank {})", entry - self.first, self.rank)
    }

    fn lacks(&self, entry: u32) -> &'static str {
        match self.plan.program.op(entry) {
            Op::Recv => "has not landed",
            op if op.has_peer() => "is not acknowledged",
            _ => "is not complete",
        }
    }
}
