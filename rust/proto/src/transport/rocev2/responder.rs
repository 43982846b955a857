//! The receiving half of a QP: the expected sequence number, and which control packets are owed.

use metaroce_wire::{PlaneId, RoceAckKind, Time};

use super::answers::{Answer, Answers, Response};
use super::requester::Origin;
use super::selective::Early;

/// A control packet that a QP is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// ACK or NAK with its sequence number.
    Ack(RoceAckKind, u32),
    /// Congestion notification.
    Cnp,
    /// Selective acknowledgement: expected and arrived sequence number, bits.
    Sack(u32, u32, u64),
}

/// Where an arriving sequence number stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The expected one.
    Expected,
    /// Had arrived before.
    Duplicate,
    /// An earlier one is missing.
    Ahead,
    /// The same with selective repeat: to be placed.
    Early,
}

/// Responder state, in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Responder {
    expected: u32,
    /// In-order packets since the last ACK.
    unacked: u32,
    /// Of its packets: that of its QP once more.
    pub origin: Origin,
    pub plane: PlaneId,
    /// In the control queue of its port.
    pub in_control: bool,
    /// No CNP before this.
    next_cnp: Time,
    /// A NAK went out for `expected`: silent about packets ahead until that one arrives.
    nak_sent: bool,
    ack_owed: bool,
    nak_owed: Option<RoceAckKind>,
    cnp_owed: bool,
    /// Messages completed.
    msn: u32,
    /// Once there has been a Read or an atomic.
    answers: Option<Box<Answers>>,
    selective: bool,
    /// Selective repeat: what is there beyond `expected`, once there has been something.
    early: Option<Box<Early>>,
}

const _: () = assert!(size_of::<Responder>() == 64);

impl Responder {
    /// Expects `psn` first.
    pub fn new(psn: u32) -> Responder {
        Responder { expected: psn, ..Responder::default() }
    }

    /// With selective repeat instead of go-back-N, if it is on.
    pub fn selective(self, on: bool) -> Responder {
        Responder { selective: on, ..self }
    }

    /// Whether packet `psn` is beyond the expected one, and may be placed.
    pub fn is_early(&self, psn: u32) -> bool {
        self.selective && psn > self.expected
    }

    /// The sequence number that is expected.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Messages completed.
    pub fn msn(&self) -> u32 {
        self.msn
    }

    /// Classifies a packet. A duplicate is acknowledged every time: the acknowledgement that its
    /// sender waits for may be lost again. The first packet ahead of a gap earns the one NAK.
    pub fn arrived(&mut self, psn: u32) -> Order {
        match psn.cmp(&self.expected) {
            std::cmp::Ordering::Equal => Order::Expected,
            std::cmp::Ordering::Less => {
                self.ack_owed = true;
                Order::Duplicate
            }
            std::cmp::Ordering::Greater => {
                if self.selective {
                    let expected = self.expected;
                    let Some(early) = self.early.as_mut().filter(|early| early.has(expected, psn)) else {
                        return Order::Early;
                    };
                    early.owe(psn);
                    return Order::Duplicate;
                }
                if !self.nak_sent {
                    // [I35]
                    self.nak(RoceAckKind::SequenceNak);
                }
                Order::Ahead
            }
        }
    }

    /// The expected packet was placed. ACKs go out on request, or for every `every` packets.
    pub fn accept(&mut self, ack_request: bool, every: u32) {
        self.expected += 1;
        self.unacked += 1;
        self.nak_sent = false;
        // A NAK still in the queue would now name a packet that has arrived.
        let outdated = self.nak_owed.take().is_some();
        self.ack_owed |= ack_request || self.unacked >= every || outdated;
    }

    /// Packet `psn` was placed, expected or early. As long as one is missing, each is acknowledged at once.
    pub fn accept_any(&mut self, psn: u32, ack_request: bool, every: u32) {
        if self.is_early(psn) {
            let early = self.early.get_or_insert_default();
            early.insert(self.expected, psn);
            early.owe(psn);
        } else {
            let Some(early) = &mut self.early else { return self.accept(ack_request, every) };
            let gap = !early.is_empty();
            let more = early.advance();
            self.accept(ack_request || gap, every);
            self.expected += more;
        }
    }

    /// It was the last of its message, or not.
    pub fn completed(&mut self, last: bool) {
        self.msn += u32::from(last);
    }

    /// The expected packet was a request, and is to be answered. The answer acknowledges all before it.
    pub fn accept_request(&mut self, answer: Answer, depth: u32) {
        self.expected = answer.end;
        self.msn += 1;
        self.unacked = 0;
        self.nak_sent = false;
        self.nak_owed = None;
        self.ack_owed = false;
        self.answers.get_or_insert_default().push(Answer { msn: self.msn, ..answer }, depth);
    }

    /// A request has come again.
    pub fn repeat(&mut self, answer: Answer) {
        let answer = Answer { msn: self.msn, ..answer };
        if let Some(answers) = &mut self.answers {
            answers.repeat(answer);
        }
    }

    /// An atomic is executed.
    pub fn found(&mut self, value: u64) {
        if let Some(answers) = &mut self.answers {
            answers.found(value);
        }
    }

    /// Whether there is an answer to send.
    pub fn has_answer(&self) -> bool {
        self.answers.as_ref().is_some_and(|answers| answers.is_ready())
    }

    /// Whether that goes before a request of this QP's own.
    pub fn answer_first(&self) -> bool {
        self.answers.as_ref().is_some_and(|answers| answers.is_first())
    }

    /// A request of this QP's own has been sent.
    pub fn request_sent(&mut self) {
        if let Some(answers) = &mut self.answers {
            answers.request_sent();
        }
    }

    /// The next packet of an answer.
    pub fn take_answer(&mut self, mtu: u32) -> Option<Response> {
        self.answers.as_mut()?.take(mtu)
    }

    /// Whether it has ever answered.
    pub fn answers(&self) -> bool {
        self.answers.is_some()
    }

    /// What it says of a request stands behind all answers before it.
    fn may_acknowledge(&self) -> bool {
        self.answers.as_ref().is_none_or(|answers| !answers.is_pending())
    }

    /// The expected packet cannot be taken.
    pub fn nak(&mut self, kind: RoceAckKind) {
        self.nak_sent = true;
        self.nak_owed = Some(kind);
    }

    /// A marked packet has come: notification point, at most one CNP in `gap`.
    pub fn marked(&mut self, now: Time, gap: Time) {
        if now >= self.next_cnp {
            self.next_cnp = now + gap;
            self.cnp_owed = true;
        }
    }

    /// Whether a control packet is owed.
    pub fn owes(&self) -> bool {
        let acknowledges = self.ack_owed || self.nak_owed.is_some() || self.early.as_ref().is_some_and(|e| e.owes());
        self.cnp_owed || acknowledges && self.may_acknowledge()
    }

    /// The control packet to send now: its sequence number is that of this moment, so that
    /// acknowledgements coalesce while the port is busy.
    pub fn take(&mut self) -> Option<Control> {
        if std::mem::take(&mut self.cnp_owed) {
            return Some(Control::Cnp);
        }
        if !self.may_acknowledge() {
            return None;
        }
        if let Some((psn, bits)) = self.early.as_mut().and_then(|early| early.take(self.expected)) {
            return Some(Control::Sack(self.expected, psn, bits));
        }
        let acked = std::mem::take(&mut self.ack_owed);
        if let Some(kind) = self.nak_owed.take() {
            self.unacked = 0;
            return Some(Control::Ack(kind, self.expected));
        }
        acked.then(|| {
            self.unacked = 0;
            Control::Ack(RoceAckKind::Ack, self.expected.wrapping_sub(1))
        })
    }

    /// Owes nothing any more.
    pub fn clear(&mut self) {
        self.ack_owed = false;
        self.cnp_owed = false;
        self.nak_owed = None;
        self.early.iter_mut().for_each(|early| early.clear());
        self.answers = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nak_a_gap_then_silence_until_it_closes() {
        let mut responder = Responder::default();
        for gap in 0..3 {
            assert_eq!(responder.arrived(gap + 1), Order::Ahead);
            assert_eq!(responder.take(), Some(Control::Ack(RoceAckKind::SequenceNak, gap)));
            for psn in gap + 1..gap + 20 {
                assert_eq!(responder.arrived(psn), Order::Ahead);
                assert_eq!(responder.take(), None);
            }
            assert_eq!(responder.arrived(gap), Order::Expected);
            responder.accept(false, 8);
        }
    }

    #[test]
    fn every_duplicate_is_acknowledged() {
        let mut responder = Responder::default();
        responder.accept(true, 8);
        for _ in 0..5 {
            assert_eq!(responder.take(), Some(Control::Ack(RoceAckKind::Ack, 0)));
            assert_eq!(responder.arrived(0), Order::Duplicate);
        }
    }

    #[test]
    fn acks_coalesce_by_count_and_answer_requests() {
        let mut responder = Responder::default();
        let mut acks = Vec::new();
        for psn in 0..20 {
            responder.accept(psn == 10, 8);
            acks.extend(responder.take());
        }
        assert_eq!(acks, [7, 10, 18].map(|psn| Control::Ack(RoceAckKind::Ack, psn)));
    }

    #[test]
    fn cnps_keep_their_gap() {
        let mut responder = Responder::default();
        let sent = (0..100)
            .filter(|&us| {
                responder.marked(Time::from_us(us), Time::from_us(50));
                responder.take() == Some(Control::Cnp)
            })
            .collect::<Vec<_>>();
        assert_eq!(sent, [0, 50]);
    }
}
