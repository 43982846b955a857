//! How a QP ends, its connection with it, and what is told of it.

use std::cmp::Reverse;

use metaroce_wire::{ConnId, RoceAckKind, Time, Verdict};

use super::connection::{Failure, readable};
use super::{Qp, RoceV2};
use crate::verbs::{Completion, CompletionStatus};

impl RoceV2 {
    /// QP `index` goes to the error state, and with it the connection: a collective cannot go on
    /// with a part of the QPs. The request that sequence number `number` is part of gets `status`.
    pub(super) fn fail(&mut self, index: u32, status: CompletionStatus, number: u32) {
        let qp = &self.qps[index as usize];
        let reason = self.failure_reason(qp, status);
        let message = qp.requester.message_at(number).or_else(|| qp.requester.message_at(qp.requester.una()));
        self.end(index, reason, message.map(|message| (message, status)));
    }

    /// Ends everything of the connection of QP `index`: the named message with its status, all others flushed.
    pub(super) fn end(&mut self, index: u32, reason: String, named: Option<(u32, CompletionStatus)>) {
        let qp = &self.qps[index as usize];
        let (id, reason) = (ConnId(qp.connection()), format!("QP {}: {reason}", qp.number()));
        let connection = &mut self.connections[id.index()];
        connection.failure = Some(Box::new(Failure { reason, left: connection.outbox.open_bytes() }));
        let sent = connection.outbox.fail_numbered().into_iter();
        self.completions.extend(sent.map(|(message, ended)| {
            let status = named.filter(|&(named, _)| message == Some(named));
            Completion::of_request(id, &ended, status.map_or(CompletionStatus::Flushed, |(_, status)| status))
        }));
        let receives = connection.inbox.fail().into_iter();
        self.completions.extend(receives.map(|r| Completion::of_receive(id, &r, CompletionStatus::Flushed)));
        let first = id.0 * self.qps_per_connection;
        for qp in &mut self.qps[first as usize..(first + self.qps_per_connection) as usize] {
            qp.requester.clear();
            qp.responder.clear();
        }
    }

    fn failure_reason(&self, qp: &Qp, status: CompletionStatus) -> String {
        let told = match status {
            CompletionStatus::AccessError => "the peer refused an address",
            CompletionStatus::LengthError => "the peer refused a length",
            CompletionStatus::PeerFailed => "the peer failed",
            CompletionStatus::RnrRetryExceeded => "no receive posted at the peer for too long",
            _ => return self.silence(qp),
        };
        told.to_owned()
    }

    fn silence(&self, qp: &Qp) -> String {
        let timeouts = qp.requester.timeouts;
        let (first, last) = (
            readable(self.timeout(&qp.requester, 0)),
            readable(self.timeout(&qp.requester, timeouts.saturating_sub(1))),
        );
        let span = if first == last { first } else { format!("{first} to {last}") };
        format!("no progress in {timeouts} timeouts of {span}")
    }

    /// What holds up connection `id`: its QP with the most timeouts, or most unfinished packets.
    pub(super) fn waiting_reason(&self, id: usize) -> String {
        let k = self.qps_per_connection as usize;
        let qps = &self.qps[id * k..(id + 1) * k];
        let worst =
            qps.iter().max_by_key(|qp| (qp.requester.timeouts, qp.requester.unfinished(), Reverse(qp.number())));
        match worst {
            Some(qp) if qp.requester.timeouts > 0 => format!("QP {}: {}", qp.number(), self.silence(qp)),
            Some(qp) if qp.requester.silent_until > Time::ZERO && qp.requester.deadline == Time::NEVER => {
                format!("QP {}: no receive posted at the peer", qp.number())
            }
            Some(qp) => format!("QP {}: {} packets not acknowledged", qp.number(), qp.requester.unfinished()),
            None => String::new(),
        }
    }
}

/// The NAK that tells of a refusal.
pub(super) const fn nak_of(verdict: Verdict) -> RoceAckKind {
    match verdict {
        Verdict::LengthError => RoceAckKind::InvalidNak,
        Verdict::PeerFailed => RoceAckKind::OperationNak,
        _ => RoceAckKind::AccessNak,
    }
}

/// How the request ends that a NAK refuses.
pub(super) const fn status_of(kind: RoceAckKind) -> CompletionStatus {
    match kind {
        RoceAckKind::InvalidNak => CompletionStatus::LengthError,
        RoceAckKind::OperationNak => CompletionStatus::PeerFailed,
        _ => CompletionStatus::AccessError,
    }
}
