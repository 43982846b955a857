//! What entries and peers ask for: posts work requests, moves bytes inside a rank, answers atomics,
//! writes what arrives, and takes note of how entries end.

use metaroce_engine::{Op, Wqe};
use metaroce_proto::{Atomic, Half, Placement};
use metaroce_proto::{Completion, CompletionStatus, PostError, ReceiveRequest, WorkRequest};
use metaroce_wire::{ConnId, HostId, Opcode, StreamId, Time};

use crate::networks::Connection;
use crate::record::WqeResult;
use crate::sim::{Ending, Simulation};
use crate::spec::OnError;

/// The operation of a transport that an entry asks for.
pub(crate) const fn opcode(op: Op) -> Option<Opcode> {
    Some(match op {
        Op::Send => Opcode::Send,
        Op::Write => Opcode::Write,
        Op::WriteImm => Opcode::WriteImm,
        Op::Read => Opcode::Read,
        Op::CompareSwap => Opcode::CompareSwap,
        Op::FetchAdd => Opcode::FetchAdd,
        Op::Flush => Opcode::Flush,
        Op::Recv | Op::Copy | Op::Sum | Op::Noop | Op::Wait | Op::Set => return None,
    })
}

/// Where a rank's connection to `peer` is among those of the rank.
pub(crate) fn place_of(of_rank: &[Connection], peer: u32) -> usize {
    of_rank.partition_point(|connection| connection.peer < peer)
}

impl Simulation {
    /// Starts entry `id`.
    pub(crate) fn execute(&mut self, now: Time, id: u32) {
        let program = self.engine.program();
        let wqe = program.wqe(id as usize);
        let rank = program.rank_of(id) as usize;
        if wqe.op.has_peer() {
            self.post(now, id, rank, &wqe);
            return;
        }
        self.work(rank, &wqe);
        self.end(now, id, WqeResult::SUCCESS);
    }

    /// Changes memory as an entry says that concerns no other rank.
    pub(crate) fn work(&mut self, rank: usize, wqe: &Wqe) {
        if let Some(verify) = &mut self.verify {
            match wqe.op {
                Op::Copy => verify.memory.copy(rank, wqe.remote, wqe.local, wqe.bytes as usize),
                Op::Sum => verify.memory.sum(rank, wqe.remote, wqe.local, wqe.bytes as usize),
                _ => {}
            }
        }
    }

    pub(crate) fn post(&mut self, now: Time, id: u32, rank: usize, wqe: &Wqe) {
        let (stream, local, len) = (StreamId(wqe.stream), wqe.local, wqe.bytes);
        let (host, connection) = self.connection(rank, wqe.peer);
        let endpoint = &mut self.endpoints[host];
        let posted = match opcode(wqe.op) {
            Some(opcode) => {
                let details = self.engine.program().details(id);
                let request = WorkRequest {
                    wr_id: id,
                    opcode,
                    stream,
                    local,
                    len,
                    remote: wqe.remote,
                    rkey: metaroce_wire::Rkey(details.rkey),
                    imm: details.imm,
                    operands: details.operands,
                    fence: details.fence,
                    // The engine has to learn of every end.
                    unsignaled: false,
                };
                endpoint.post(now, connection, request)
            }
            None => endpoint.post_receive(connection, ReceiveRequest { wr_id: id, stream, local, len }),
        };
        match posted {
            Ok(()) => {}
            Err(PostError::Failed(_)) => self.end(now, id, WqeResult::failed(CompletionStatus::Flushed)),
            Err(_) => self.finish(now, Ending::Stalled),
        }
    }

    fn connection(&self, rank: usize, peer: u32) -> (usize, ConnId) {
        let Connection { host, id, .. } = self.connections[rank][place_of(&self.connections[rank], peer)];
        (host as usize, id)
    }

    /// Entry `wqe` is complete: with the last one that a rank sends to a peer, what both know of the paths between them
    /// in that direction is of no use any more.
    fn retire(&mut self, wqe: u32) {
        let program = self.engine.program();
        let (rank, entry) = (program.rank_of(wqe), program.wqe(wqe as usize));
        if opcode(entry.op).is_none() {
            return;
        }
        let at = place_of(&self.connections[rank as usize], entry.peer);
        let open = &mut self.unsent[rank as usize][at];
        *open -= 1;
        if *open > 0 {
            return;
        }
        let own = (self.connection(rank as usize, entry.peer), Half::Sending);
        let other = (self.connection(entry.peer as usize, rank), Half::Receiving);
        if [own, other].iter().all(|&((host, connection), half)| self.endpoints[host].has_settled(connection, half)) {
            [own, other].iter().for_each(|&((host, connection), half)| self.endpoints[host].retire(connection, half));
        }
    }

    /// A request or receive has ended.
    pub(crate) fn complete(&mut self, now: Time, completion: &Completion) {
        self.end(now, completion.wr_id, WqeResult::of(completion));
    }

    pub(crate) fn end(&mut self, now: Time, wqe: u32, result: WqeResult) {
        let stops = result.status != 0 && self.on_error == OnError::Stop;
        self.recorder.ended((!stops).then_some(now), wqe, result, &self.engine);
        if stops {
            self.finish(now, Ending::Stalled);
            return;
        }
        self.progress.last_end = self.progress.last_end.max(now);
        let left = self.complete_entry(now, wqe);
        if !self.unsent.is_empty() {
            self.retire(wqe);
        }
        if left == self.part.as_ref().map_or(0, |part| part.foreign) {
            self.end_iteration(self.progress.last_end);
        }
    }

    /// Tells whoever starts entries that one is complete. Answers how many are not.
    fn complete_entry(&mut self, now: Time, wqe: u32) -> usize {
        if self.devices.run_it() {
            let program = self.engine.program();
            let (rank, is_transfer) = (program.rank_of(wqe), program.op(wqe).has_peer());
            return self.devices.complete(now, (rank, wqe), is_transfer);
        }
        self.engine.complete(wqe);
        self.engine.unfinished()
    }

    // [F11.verbs] [I8]
    /// Executes an atomic of a peer on the memory of `host`, and answers it. Without payload it finds zero.
    #[cold]
    pub(crate) fn atomic(&mut self, host: usize, atomic: &Atomic) {
        let mut before = 0;
        if let Some(verify) = &mut self.verify {
            let (rank, address) = (self.rank_of_host[host] as usize, atomic.request.address);
            before = verify.memory.word(rank, address);
            verify.memory.set_word(rank, address, atomic.apply(before));
        }
        self.endpoints[host].answer_atomic(atomic, before);
    }

    /// Writes payload that has arrived.
    pub(crate) fn place(&mut self, host: HostId, placement: &Placement) {
        let Some(verify) = self.verify.as_mut().filter(|_| placement.len > 0) else {
            return;
        };
        let from = self.rank_of_host[placement.src.index()] as usize;
        let to = self.rank_of_host[host.index()] as usize;
        match placement.value {
            Some(value) => verify.memory.set_word(to, placement.address, value),
            None => {
                let (source, target) = ((from, placement.source), (to, placement.address));
                verify.memory.place(source, target, placement.len as usize);
            }
        }
        verify.placements += 1;
        if verify.placements == verify.flip_at {
            // The last byte: that of an element's sign, which no sum can round away.
            verify.memory.flip(to, placement.address + u64::from(placement.len) - 1);
        }
    }
}
