//! The sending half of a connection's messages: requests posted, cut into packets in order, done
//! when every packet is acknowledged and every answer is here, completed in posting order per stream.
//!
//! Both transports use it. It knows nothing of paths, windows or retransmission: a transport asks
//! for the next unsent piece, may ask for any piece again, and reports each acknowledged once.
//! A fenced request waits here until the stream's earlier Reads and atomics are answered; other
//! streams pass it.

mod lanes;

use std::collections::{BTreeMap, VecDeque};
use std::mem::offset_of;

use metaroce_wire::{HostId, Opcode, Request, Rkey, Segment, StreamId};

use self::lanes::{Lane, NONE, lane_of};
use crate::bitmap::Arrived;
use crate::inbox::Placed;
use crate::verbs::{CompletionStatus, Placement, WorkRequest};

/// A message being sent. One of a stream that has failed has no packets. What a packet reads is in one cache line, up to
/// [`WorkRequest::len`].
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct OutMessage {
    /// Bytes that its packets carry.
    carried: u64,
    /// Message of the same lane that is sent next.
    next: u32,
    /// Number on its stream.
    sequence: u32,
    /// Send: index of the receive it matches.
    receive: u32,
    packets: u32,
    /// Packets not acknowledged, and one more for an answer that is not here.
    unacked: u32,
    request: WorkRequest,
}

const _: () = assert!(offset_of!(OutMessage, request) + offset_of!(WorkRequest, len) == 64);

impl OutMessage {
    /// Bytes that it sends, if it is sent.
    const fn payload(&self) -> u64 {
        if self.packets == 0 { 0 } else { self.carried }
    }

    /// Whether it is a request without payload.
    #[inline]
    const fn asks(&self) -> bool {
        self.carried == 0 && self.request.opcode.is_request()
    }

    #[inline]
    const fn payload_len(&self, packet: u32, mtu: u32) -> u32 {
        let left = self.carried - packet as u64 * mtu as u64;
        if left < mtu as u64 { left as u32 } else { mtu }
    }
}

/// What has come back for a request.
#[derive(Debug)]
struct Answer {
    message: u32,
    missing: u32,
    arrived: Arrived,
}

/// What a packet reads is first, in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct OutStream {
    lane: Lane,
    next_sequence: u32,
    next_receive: u32,
    /// The first message that the peer refused for good, and why: earlier ones still complete.
    failed: Option<(u32, CompletionStatus)>,
    /// Messages not completed yet, oldest first, as connection-wide numbers.
    open: VecDeque<u32>,
    /// Requests on their way, by number on the stream.
    asked: BTreeMap<u32, Answer>,
    /// Posted, and waiting for answers, or for acknowledgements where the transport keeps no order.
    held: VecDeque<WorkRequest>,
}

/// Requests of a stream that may wait for an answer at one time: IBTA's usual initiator depth.
pub(crate) const READ_DEPTH: usize = 16;

/// Who sees to it that what must see earlier messages placed does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The receiver, by their numbers.
    Receiver,
    /// The transport: all packets of a stream take effect in the order in which they were sent.
    Transport,
    /// The sender: the request waits here until they are acknowledged. Requests themselves stay in order.
    Sender,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Name given when posting.
    pub wr_id: u32,
    /// Payload bytes.
    pub bytes: u64,
    /// A success of it is not reported.
    pub unsignaled: bool,
    /// Its stream.
    pub stream: StreamId,
}

impl Ended {
    const fn of(request: &WorkRequest) -> Ended {
        let WorkRequest { wr_id, len, unsignaled, stream, .. } = *request;
        Ended { wr_id, bytes: len, unsignaled, stream }
    }
}

/// Posted messages of one connection. What sending a packet reads is first.
#[derive(Debug)]
#[repr(C)]
pub struct Outbox {
    messages: VecDeque<OutMessage>,
    streams: Vec<OutStream>,
    /// The lane that has sent last, of the ring of lanes with unsent packets.
    turn: u32,
    /// Connection-wide number of `messages[0]`.
    base: u32,
    unsent: u64,
    mtu: u16,
    order: Order,
    answers: Lane,
    /// Bytes ever posted, and those of messages that are completely acknowledged and gone.
    posted: u64,
    acked: u64,
}

/// Names one packet of one message of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Connection-wide number of the message.
    pub message: u32,
    /// Packet of the message.
    pub packet: u32,
}

impl Piece {
    /// A packet that is no part of a message.
    pub const PROBE: Piece = Piece { message: u32::MAX, packet: 0 };
}

/// What a packet carries.
#[derive(Clone, Copy, Debug)]
pub enum Cargo {
    /// Payload, and the immediate data that goes with it.
    Data(Segment, u32),
    /// A request without payload.
    Request(Request),
}

impl Outbox {
    /// An empty outbox that cuts messages into payloads of at most `mtu` bytes; the receiver keeps the order.
    pub fn new(mtu: u32) -> Outbox {
        Outbox::ordered(mtu, Order::Receiver)
    }

    /// The same where `order` says who keeps the order.
    pub fn ordered(mtu: u32, order: Order) -> Outbox {
        let (messages, streams) = (VecDeque::new(), Vec::new());
        let (mtu, answers) = (mtu as u16, Lane::default());
        Outbox { mtu, order, base: 0, messages, answers, turn: NONE, unsent: 0, posted: 0, acked: 0, streams }
    }

    /// Payload of a full packet, bytes.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.mtu.into()
    }

    /// Takes a request and numbers it, connection-wide; `None` if it has to wait for answers first, or
    /// its stream has failed: [`Outbox::flush`] says more.
    pub fn post(&mut self, request: WorkRequest) -> Option<u32> {
        let stream = self.stream(request.stream);
        let behind = stream.failed.is_some() || !stream.held.is_empty();
        if behind || self.must_wait(&request) {
            self.stream(request.stream).held.push_back(request);
            return None;
        }
        Some(self.number(request))
    }

    fn must_wait(&self, request: &WorkRequest) -> bool {
        let WorkRequest { opcode, fence, .. } = *request;
        let Some(stream) = self.streams.get(request.stream.index()) else { return false };
        // [I9]
        if fence && !stream.asked.is_empty() {
            return true;
        }
        match self.order {
            Order::Receiver => opcode.is_request() && stream.asked.len() >= READ_DEPTH,
            Order::Transport => false,
            // [I8]
            Order::Sender => {
                let sees = opcode.is_atomic() || opcode == Opcode::Read && fence;
                let open = |&number: &u32| {
                    let message = &self.messages[(number - self.base) as usize];
                    !message.request.opcode.is_request() && message.unacked > 0
                };
                sees && stream.open.iter().any(open)
            }
        }
    }

    /// Takes the answer to a `request` of the peer: `len` bytes from its address, or the `value` that an
    /// atomic found. It belongs to no stream of ours and is not reported.
    pub fn respond(&mut self, request: &Request, len: u64, value: u64) {
        let Request { stream, address, message, .. } = *request;
        let answer = WorkRequest {
            opcode: Opcode::Response,
            stream,
            local: address,
            len,
            remote: value,
            rkey: Rkey(message),
            ..WorkRequest::default()
        };
        self.push(answer, 0, 0);
    }

    fn number(&mut self, request: WorkRequest) -> u32 {
        let next = self.end();
        let mtu = self.mtu();
        let stream = self.stream(request.stream);
        let (sequence, receive) = (stream.next_sequence, stream.next_receive);
        stream.next_sequence += 1;
        stream.next_receive += u32::from(request.opcode.takes_receive());
        stream.open.push_back(next);
        if request.opcode.is_request() {
            let missing = request.len.div_ceil(u64::from(mtu)).max(1) as u32;
            stream.asked.insert(sequence, Answer { message: next, missing, arrived: Arrived::new(missing) });
        }
        self.push(request, sequence, receive);
        next
    }

    fn push(&mut self, request: WorkRequest, sequence: u32, receive: u32) {
        let asks = request.opcode.is_request();
        let packets = if asks { 1 } else { request.len.div_ceil(u64::from(self.mtu())).max(1) as u32 };
        let payload = if asks { 0 } else { request.len };
        self.unsent += payload;
        self.posted += payload;
        let unacked = packets + u32::from(asks);
        let message = OutMessage { request, next: NONE, sequence, receive, packets, unacked, carried: payload };
        if self.messages.capacity() == 0 {
            // In an AllToAll there is one: room for no more.
            self.messages.reserve_exact(1);
        }
        self.messages.push_back(message);
        self.line_up(lane_of(&request), self.base + self.messages.len() as u32 - 1);
    }

    /// Bytes that the table of streams takes once stream `id` is in it.
    #[cfg(test)]
    pub(crate) fn bytes_with_stream(&mut self, id: StreamId) -> usize {
        self.stream(id);
        self.streams.capacity() * size_of::<OutStream>()
    }

    fn stream(&mut self, id: StreamId) -> &mut OutStream {
        if self.streams.len() <= id.index() {
            if self.streams.is_empty() {
                // Most connections have one: room for no more.
                self.streams.reserve_exact(id.index() + 1);
            }
            self.streams.resize_with(id.index() + 1, OutStream::default);
        }
        &mut self.streams[id.index()]
    }

    #[inline]
    fn get(&self, message: u32) -> Option<&OutMessage> {
        self.messages.get(message.wrapping_sub(self.base) as usize).filter(|m| m.packets > 0)
    }

    /// The number that the next message will have.
    #[inline]
    pub fn end(&self) -> u32 {
        self.base + self.messages.len() as u32
    }

    /// The request of an open message.
    pub fn request(&self, message: u32) -> Option<&WorkRequest> {
        self.get(message).map(|message| &message.request)
    }

    /// Payload bytes of a piece of an open message; `None` if that is a request without payload.
    #[inline]
    pub fn payload_of(&self, piece: Piece) -> Option<u32> {
        let message = self.get(piece.message)?;
        (!message.asks()).then(|| message.payload_len(piece.packet, self.mtu()))
    }

    /// Immediate data that goes with the pieces of an open message.
    #[inline]
    pub fn imm(&self, piece: Piece) -> u32 {
        self.messages[(piece.message - self.base) as usize].request.imm
    }

    /// Payload bytes not sent for the first time yet.
    #[inline]
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Payload bytes ever posted.
    pub fn posted_bytes(&self) -> u64 {
        self.posted
    }

    /// Payload bytes sent at least once.
    pub fn sent_bytes(&self) -> u64 {
        self.posted - self.unsent
    }

    /// Payload bytes acknowledged; of an open message, each packet that is not counts in full.
    pub fn acked_bytes(&self) -> u64 {
        self.acked + self.messages.iter().map(|m| m.payload() - self.open_len(m)).sum::<u64>()
    }

    /// `bytes` were sent for the first time by a transport that does not ask for `next_piece`.
    pub fn sent(&mut self, bytes: u32) {
        self.unsent -= u64::from(bytes);
    }

    /// What the packet for `piece` carries; `None` if its message has failed.
    pub fn cargo(&self, piece: Piece) -> Option<Cargo> {
        let message = self.get(piece.message)?;
        if !message.request.opcode.is_request() {
            return Some(Cargo::Data(self.segment(piece), message.request.imm));
        }
        let WorkRequest { opcode, stream, len, remote, rkey, fence, operands, .. } = message.request;
        let operands = if opcode == Opcode::Read { [len, 0] } else { operands };
        Some(Cargo::Request(Request {
            address: remote,
            operands,
            message: message.sequence,
            rkey,
            stream,
            opcode,
            fence,
            backlog: 0,
        }))
    }

    /// The segment of a piece of an open message with payload.
    #[inline]
    pub fn segment(&self, piece: Piece) -> Segment {
        let message = &self.messages[(piece.message - self.base) as usize];
        let request = &message.request;
        let offset = u64::from(piece.packet) * u64::from(self.mtu());
        Segment {
            address: request.remote,
            source: request.local + offset,
            message_len: message.carried,
            message: message.sequence,
            packet: piece.packet,
            len: message.payload_len(piece.packet, self.mtu()) as u16,
            backlog: 0,
            key: if request.opcode == Opcode::Send { message.receive } else { request.rkey.0 },
            tag: request.wr_id,
            stream: request.stream,
            opcode: request.opcode,
        }
    }

    /// Whether `piece` is the last of its message.
    pub fn is_last(&self, piece: Piece) -> bool {
        piece.packet + 1 == self.messages[(piece.message - self.base) as usize].packets
    }

    /// One packet of `message` is acknowledged, for the first time. Calls `complete` with every
    /// request that is thereby completed, in stream order.
    #[inline]
    pub fn acknowledge(&mut self, message: u32, complete: impl FnMut(Ended, CompletionStatus)) {
        let index = message.wrapping_sub(self.base) as usize;
        let Some(entry) = self.messages.get_mut(index).filter(|m| m.packets > 0) else { return };
        // [I10]
        entry.unacked -= 1;
        if entry.unacked == 0 {
            let (opcode, stream) = (entry.request.opcode, entry.request.stream);
            self.finish(opcode, stream, complete);
        }
    }

    /// All packets of a message are acknowledged.
    #[inline(never)]
    fn finish(&mut self, opcode: Opcode, stream: StreamId, mut complete: impl FnMut(Ended, CompletionStatus)) {
        if opcode != Opcode::Response {
            self.complete(stream, &mut complete);
        }
        self.shed();
        if self.order == Order::Sender && opcode != Opcode::Response {
            self.release(stream);
        }
    }

    fn complete(&mut self, id: StreamId, complete: &mut impl FnMut(Ended, CompletionStatus)) {
        let stream = &mut self.streams[id.index()];
        // [I6]
        while let Some(&first) = stream.open.front() {
            let candidate = &self.messages[(first - self.base) as usize];
            if candidate.unacked > 0 {
                return;
            }
            // [I5]
            let status = match stream.failed {
                Some((at, why)) if first == at => why,
                Some((at, _)) if first > at => CompletionStatus::Flushed,
                _ => CompletionStatus::Success,
            };
            complete(Ended::of(&candidate.request), status);
            stream.open.pop_front();
        }
        if stream.failed.is_some() {
            stream.held.drain(..).for_each(|request| complete(Ended::of(&request), CompletionStatus::Flushed));
        }
    }

    /// Forgets messages at the front that are over.
    fn shed(&mut self) {
        while let Some(message) = self.messages.front().filter(|m| m.unacked == 0) {
            self.acked += message.payload();
            self.messages.pop_front();
            self.base += 1;
        }
    }

    /// The message that a packet of an answer belongs to, if it is waited for.
    pub fn asked_by(&self, segment: &Segment) -> Option<u32> {
        let stream = self.streams.get(segment.stream.index())?;
        stream.asked.get(&segment.key).map(|answer| answer.message)
    }

    /// A packet of an answer has arrived from `src`. Calls `complete` as [`Outbox::acknowledge`] does.
    /// Requests that waited for the answer may have been released: there is new work.
    pub fn place_answer(
        &mut self,
        segment: &Segment,
        src: HostId,
        mut complete: impl FnMut(Ended, CompletionStatus),
    ) -> Placed {
        let mtu = u64::from(self.mtu());
        let Some(stream) = self.streams.get_mut(segment.stream.index()) else { return Placed::Duplicate };
        let Some(answer) = stream.asked.get_mut(&segment.key) else { return Placed::Duplicate };
        if !answer.arrived.insert(segment.packet) {
            return Placed::Duplicate;
        }
        answer.missing -= 1;
        let (message, message_done) = (answer.message, answer.missing == 0);
        if message_done {
            stream.asked.remove(&segment.key);
        }
        let request = self.messages[(message - self.base) as usize].request;
        let placement = Placement {
            src,
            source: segment.source,
            value: request.opcode.is_atomic().then_some(segment.address),
            address: request.local + u64::from(segment.packet) * mtu,
            len: segment.len.into(),
            tag: request.wr_id,
            message_done,
        };
        if message_done {
            self.acknowledge(message, &mut complete);
            self.release(segment.stream);
        }
        Placed::Fresh(placement)
    }

    /// Numbers what need not wait any more.
    fn release(&mut self, id: StreamId) {
        loop {
            let stream = &self.streams[id.index()];
            match stream.held.front() {
                Some(request) if stream.failed.is_none() && !self.must_wait(request) => {}
                _ => return,
            }
            if let Some(request) = self.streams[id.index()].held.pop_front() {
                self.number(request);
            }
        }
    }

    /// Whether every posted message is completely acknowledged.
    pub fn is_idle(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether the peer owes an answer.
    pub fn awaits_answer(&self) -> bool {
        self.streams.iter().any(|stream| !stream.asked.is_empty())
    }

    /// Whether `message` is still being sent: not over, and its stream has not failed.
    #[inline]
    pub fn is_open(&self, message: u32) -> bool {
        self.get(message).is_some()
    }

    /// The peer refused `message` for good: it and all later ones of its stream end, in order, after
    /// those before it.
    pub fn refuse(&mut self, message: u32, why: CompletionStatus, mut complete: impl FnMut(Ended, CompletionStatus)) {
        let Some(&OutMessage { request, sequence, .. }) = self.get(message) else { return };
        if request.opcode == Opcode::Response {
            // Nobody waits for it any more.
            self.drop_message(message);
        } else {
            let stream = &mut self.streams[request.stream.index()];
            if stream.failed.is_some_and(|(first, _)| first < message) {
                return;
            }
            stream.failed = Some((message, why));
            stream.asked.retain(|&number, _| number < sequence);
            let over: Vec<u32> = stream.open.iter().copied().filter(|&number| number >= message).collect();
            over.into_iter().for_each(|number| self.drop_message(number));
            self.flush(request.stream, &mut complete);
        }
        self.weed(lane_of(&request));
        self.shed();
    }

    /// Sends no more of a message.
    fn drop_message(&mut self, number: u32) {
        let unsent = self.unsent_of(number);
        self.unsent -= unsent;
        self.posted -= unsent;
        let entry = &mut self.messages[(number - self.base) as usize];
        (entry.packets, entry.unacked) = (0, 0);
    }

    /// Reports what can be said of a stream that has failed.
    pub fn flush(&mut self, stream: StreamId, complete: &mut impl FnMut(Ended, CompletionStatus)) {
        if self.stream(stream).failed.is_some() {
            self.complete(stream, complete);
        }
    }

    /// Gives up: the requests that have not completed, in posting order per stream.
    pub fn fail(&mut self) -> Vec<Ended> {
        self.fail_numbered().into_iter().map(|(_, ended)| ended).collect()
    }

    /// The same, each with the number of its message if it has got one.
    pub fn fail_numbered(&mut self) -> Vec<(Option<u32>, Ended)> {
        let mut left: Vec<u32> = self.streams.iter_mut().flat_map(|s| s.open.drain(..)).collect();
        left.sort_unstable();
        let open = left.iter().map(|&n| (Some(n), Ended::of(&self.messages[(n - self.base) as usize].request)));
        let mut ended: Vec<_> = open.collect();
        for stream in &mut self.streams {
            stream.asked.clear();
            ended.extend(stream.held.drain(..).map(|request| (None, Ended::of(&request))));
        }
        self.base += self.messages.len() as u32;
        self.acked = self.acked_bytes();
        self.messages.clear();
        (self.turn, self.answers) = (NONE, Lane::default());
        self.streams.iter_mut().for_each(|stream| stream.lane = Lane::default());
        ended
    }

    /// Bytes of posted messages that are not completely acknowledged, and the stream of the oldest.
    pub fn open_bytes(&self) -> Option<(StreamId, u64)> {
        let mut open = self.messages.iter().filter(|m| m.unacked > 0).peekable();
        let stream = open.peek()?.request.stream;
        Some((stream, open.map(|m| self.open_len(m)).sum()))
    }

    fn open_len(&self, message: &OutMessage) -> u64 {
        (u64::from(message.unacked) * u64::from(self.mtu())).min(message.payload())
    }
}
