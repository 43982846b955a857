//! What a responder owes to Reads and atomics: answers, in the order of their sequence numbers.

use std::collections::VecDeque;

use metaroce_wire::{Opcode, Request, Segment};

/// The answer to a request, as far as it is not sent.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Sequence number of its next packet, and the one after its last.
    pub next: u32,
    pub end: u32,
    /// Next packet in the whole message.
    pub packet: u32,
    /// Messages completed, its own included.
    pub msn: u32,
    /// What is asked. Read: the address in our memory of what is next, and the bytes left.
    pub request: Request,
    /// What an atomic found; `None` until it is executed.
    pub value: Option<u64>,
    /// The request had been executed before.
    pub again: bool,
    /// Nothing of it is sent.
    pub whole: bool,
}

impl Answer {
    /// Answers `request`, whose address is that of our memory, from sequence number `psn` on.
    pub fn new(psn: u32, packets: u32, packet: u32, request: Request) -> Answer {
        Answer { next: psn, end: psn + packets, packet, msn: 0, request, value: None, again: false, whole: true }
    }

    fn is_ready(&self) -> bool {
        !self.request.opcode.is_atomic() || self.value.is_some()
    }

    /// Cuts off the next packet.
    fn cut(&mut self, mtu: u32) -> Response {
        let Request { address, operands: [left, _], message, stream, opcode, .. } = self.request;
        let len = if opcode.is_atomic() { 8 } else { left.min(u64::from(mtu)) };
        let segment = Segment {
            address: self.value.unwrap_or_default(),
            source: address,
            message_len: left,
            packet: self.packet,
            key: message,
            len: len as u16,
            stream,
            opcode: Opcode::Response,
            ..Segment::default()
        };
        let (psn, first) = (self.next, self.whole);
        self.whole = false;
        self.next += 1;
        self.packet += 1;
        self.request.address += len;
        self.request.operands[0] = left.saturating_sub(len);
        Response {
            segment,
            psn,
            msn: self.msn,
            atomic: opcode.is_atomic(),
            ends: first || self.next == self.end,
            again: self.again,
        }
    }
}

/// A packet of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    /// What it carries.
    pub segment: Segment,
    /// Its sequence number.
    pub psn: u32,
    /// Messages completed.
    pub msn: u32,
    /// It acknowledges an atomic.
    pub atomic: bool,
    /// It is the first or the last of its answer.
    pub ends: bool,
    /// The request had been executed before.
    pub again: bool,
}

/// Answers that a QP owes, and what its latest atomics found.
#[derive(Debug, Default)]
pub struct Answers {
    /// By sequence number.
    queue: VecDeque<Answer>,
    /// Sequence number and result of the latest atomics, oldest first.
    executed: VecDeque<(u32, Option<u64>)>,
    /// The last packet of the QP was one of ours: if there is a request to send, that is next.
    yields: bool,
}

impl Answers {
    /// Whether something is not answered.
    pub fn is_pending(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether there is a packet to send.
    pub fn is_ready(&self) -> bool {
        self.queue.front().is_some_and(Answer::is_ready)
    }

    /// Whether that packet goes before a request of this QP's own.
    pub fn is_first(&self) -> bool {
        !self.yields
    }

    /// A request of this QP's own has been sent.
    pub fn request_sent(&mut self) {
        self.yields = false;
    }

    /// A new request is to be answered. Of atomics, the results of the last `depth` are kept.
    pub fn push(&mut self, answer: Answer, depth: u32) {
        if answer.request.opcode.is_atomic() {
            if self.executed.len() >= depth as usize {
                self.executed.pop_front();
            }
            self.executed.push_back((answer.next, None));
        }
        self.queue.push_back(answer);
    }

    /// The oldest atomic without a result has found `value`.
    pub fn found(&mut self, value: u64) {
        let Some((psn, result)) = self.executed.iter_mut().find(|(_, result)| result.is_none()) else { return };
        *result = Some(value);
        let psn = *psn;
        self.queue.iter_mut().filter(|answer| answer.next == psn).for_each(|answer| answer.value = Some(value));
    }

    /// A request that has been executed before has come again: an answer to it that is still owed is replaced.
    /// An atomic is not executed, its result is told again; one that is forgotten has no answer.
    pub fn repeat(&mut self, answer: Answer) {
        let value = if answer.request.opcode.is_atomic() {
            match self.executed.iter().find(|(psn, _)| *psn == answer.next) {
                // Not executed yet: its first answer is still owed.
                None | Some((_, None)) => return,
                Some((_, value)) => *value,
            }
        } else {
            None
        };
        self.queue.retain(|owed| owed.end <= answer.next || owed.next >= answer.end);
        let at = self.queue.partition_point(|owed| owed.next < answer.next);
        self.queue.insert(at, Answer { value, again: true, ..answer });
    }

    /// The next packet to send.
    pub fn take(&mut self, mtu: u32) -> Option<Response> {
        let answer = self.queue.front_mut().filter(|answer| answer.is_ready())?;
        let response = answer.cut(mtu);
        if answer.next == answer.end {
            self.queue.pop_front();
        }
        self.yields = true;
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(psn: u32, bytes: u64) -> Answer {
        let request = Request { opcode: Opcode::Read, address: 1000, operands: [bytes, 0], ..Request::default() };
        Answer::new(psn, bytes.div_ceil(100) as u32, 0, request)
    }

    fn atomic(psn: u32) -> Answer {
        let request = Request { opcode: Opcode::FetchAdd, ..Request::default() };
        Answer::new(psn, 1, 0, request)
    }

    fn drain(answers: &mut Answers) -> Vec<(u32, u64, u16)> {
        let packets = std::iter::from_fn(|| answers.take(100));
        packets.map(|r| (r.psn, if r.atomic { r.segment.address } else { r.segment.source }, r.segment.len)).collect()
    }

    #[test]
    fn answers_leave_in_order_and_wait_for_the_atomic_before_them() {
        let mut answers = Answers::default();
        answers.push(read(5, 250), 2);
        answers.push(atomic(8), 2);
        answers.push(read(9, 100), 2);
        assert_eq!(drain(&mut answers), [(5, 1000, 100), (6, 1100, 100), (7, 1200, 50)]);
        assert!(answers.is_pending() && !answers.is_ready());
        answers.found(42);
        assert_eq!(drain(&mut answers), [(8, 42, 8), (9, 1000, 100)]);
        assert!(!answers.is_pending());
    }

    #[test]
    fn what_comes_again_replaces_what_is_owed_and_atomics_are_remembered_to_a_depth() {
        let mut answers = Answers::default();
        answers.push(read(0, 300), 2);
        answers.take(100);
        answers.repeat(read(0, 300));
        assert_eq!(drain(&mut answers).len(), 3);
        for psn in 3..6 {
            answers.push(atomic(psn), 2);
            answers.repeat(atomic(psn));
            answers.found(u64::from(psn));
        }
        assert_eq!(drain(&mut answers), [(3, 3, 8), (4, 4, 8), (5, 5, 8)]);
        for psn in (3..6).rev() {
            answers.repeat(atomic(psn));
        }
        assert_eq!(drain(&mut answers), [(4, 4, 8), (5, 5, 8)], "two are remembered");
    }
}
