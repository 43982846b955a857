//! The receiving half of a connection's messages: the message ledger.
//!
//! Every packet is placed on arrival, wherever it falls (F1), after a check of that packet's own
//! range; a second copy is recognised by (stream, message, packet) and not placed again. A Send is
//! matched by the receive index it carries, so earlier messages need not have arrived (F2).
//! Receives complete in stream order, and what must see earlier messages placed (atomics, flushes,
//! fenced Reads, immediate data) takes effect in stream order. Path sequence numbers are no
//! business of this ledger.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use metaroce_wire::{ConnId, HostId, Opcode, Request, Segment, StreamId, Verdict, prefetch};

use crate::bitmap::Arrived;
use crate::verbs::{Access, Completion, CompletionKind, CompletionStatus, Placement, ReceiveRequest, Regions};

/// A message on its way: one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct InMessage {
    arrived: Arrived,
    len: u64,
    /// Packets still missing; `UNSEEN` until the first one tells the length.
    missing: u32,
    /// Immediate data, where there is some.
    imm: u32,
    opcode: Opcode,
}

const _: () = assert!(size_of::<InMessage>() == 64);

impl InMessage {
    const fn unseen() -> InMessage {
        InMessage { arrived: Arrived::NONE, len: 0, missing: UNSEEN, imm: 0, opcode: Opcode::Write }
    }

    fn new(packets: u32, opcode: Opcode, len: u64) -> InMessage {
        InMessage { arrived: Arrived::new(packets), len, missing: packets, imm: 0, opcode }
    }
}

const UNSEEN: u32 = u32::MAX;

/// What a packet reads is first, in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct InStream {
    /// Number of `messages[0]`: all before are complete.
    base: u32,
    /// Index of `receives[0]`.
    receive_base: u32,
    /// The first message that was refused for good, and why: earlier ones still complete.
    failed: Option<(u32, Verdict)>,
    /// The receive of that message has been reported.
    told: bool,
    messages: VecDeque<InMessage>,
    receives: VecDeque<ReceiveRequest>,
    /// Requests that wait for their turn, by number; their addresses are those of our memory.
    pending: BTreeMap<u32, Request>,
}

/// Messages of one connection on their way in.
#[derive(Debug)]
pub struct Inbox {
    mtu: u32,
    peer: HostId,
    streams: Vec<InStream>,
}

/// What became of an arriving packet.
#[derive(Clone, Copy, Debug)]
pub enum Placed {
    /// To be copied.
    Fresh(Placement),
    /// Taken; there is nothing to copy.
    Taken,
    /// Had arrived before.
    Duplicate,
    /// Nothing is written, and why.
    Refused(Verdict),
}

/// Why a segment is not to be copied.
#[derive(Clone, Copy, Debug)]
pub enum Unplaced {
    /// Had arrived before.
    Duplicate,
    /// Nothing is written, and why.
    Refused(Verdict),
}

impl From<Unplaced> for Placed {
    fn from(outcome: Unplaced) -> Placed {
        match outcome {
            Unplaced::Duplicate => Placed::Duplicate,
            Unplaced::Refused(why) => Placed::Refused(why),
        }
    }
}

/// Where a segment belongs in our memory, and whether it was the last missing one of its message.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Address.
    pub address: u64,
    /// See [`Placement::message_done`].
    pub message_done: bool,
}

impl Place {
    /// What to copy for a `segment` from `src`.
    #[inline]
    pub const fn placement(self, src: HostId, segment: &Segment) -> Placement {
        Placement {
            src,
            source: segment.source,
            value: None,
            address: self.address,
            len: segment.len as u32,
            tag: segment.tag,
            message_done: self.message_done,
        }
    }
}

/// What the arrival of a packet sets off.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// A receive is complete.
    Received {
        /// Name given when posting.
        wr_id: u32,
        /// Length of the message.
        bytes: u64,
        /// Immediate data.
        imm: Option<u32>,
        /// Stream of it.
        stream: StreamId,
    },
    /// A receive will get no message.
    Flushed(ReceiveRequest, CompletionStatus),
    /// A request is to be executed now; its address is that of our memory.
    Execute(Request),
}

impl Effect {
    /// What to report to our user.
    pub fn completion(&self, connection: ConnId) -> Option<Completion> {
        let (kind, success) = (CompletionKind::Received, CompletionStatus::Success);
        match *self {
            Effect::Received { wr_id, bytes, imm, stream } => {
                Some(Completion { wr_id, connection, stream, kind, status: success, bytes, imm })
            }
            Effect::Flushed(request, status) => Some(Completion::of_receive(connection, &request, status)),
            Effect::Execute(_) => None,
        }
    }
}

impl Inbox {
    /// An empty inbox for messages of `peer`, cut at `mtu` bytes.
    pub fn new(mtu: u32, peer: HostId) -> Inbox {
        Inbox { mtu, peer, streams: Vec::new() }
    }

    /// Posts a receive. Immediate data may have waited for it.
    pub fn post(&mut self, request: ReceiveRequest, mut effect: impl FnMut(Effect)) {
        let id = request.stream;
        let stream = self.stream(id);
        stream.receives.push_back(request);
        stream.advance(id, &mut effect);
    }

    /// Takes one segment, and the immediate data of its message.
    pub fn place(&mut self, segment: &Segment, imm: u32, regions: &Regions, effect: impl FnMut(Effect)) -> Placed {
        match self.find_place(segment, imm, regions, effect) {
            Ok(place) => Placed::Fresh(place.placement(self.peer, segment)),
            Err(outcome) => outcome.into(),
        }
    }

    /// The same in short.
    ///
    /// # Errors
    /// Why nothing is to be copied.
    #[inline(always)]
    pub fn find_place(
        &mut self,
        segment: &Segment,
        imm: u32,
        regions: &Regions,
        mut effect: impl FnMut(Effect),
    ) -> Result<Place, Unplaced> {
        let mtu = u64::from(self.mtu);
        // [F1.no-head-of-line-blocking]
        let stream = self.stream(segment.stream);
        // [I4]
        if segment.message < stream.base {
            return Err(Unplaced::Duplicate);
        }
        let address = match stream.target(segment, mtu, regions) {
            Ok(address) => address,
            Err(outcome) => {
                if let Unplaced::Refused(why @ (Verdict::AccessError | Verdict::LengthError)) = outcome {
                    stream.fail(segment, why, &mut effect);
                }
                return Err(outcome);
            }
        };
        let message = stream.message(segment.message, || {
            let packets = segment.message_len.div_ceil(mtu).max(1) as u32;
            InMessage::new(packets, segment.opcode, segment.message_len)
        });
        // [I3]
        if !message.arrived.insert(segment.packet) {
            return Err(Unplaced::Duplicate);
        }
        message.missing -= 1;
        message.imm = imm;
        let message_done = message.missing == 0;
        if message_done {
            stream.advance(segment.stream, &mut effect);
        }
        // [F1.placed-on-arrival] [I1]
        Ok(Place { address, message_done })
    }

    /// Takes one request.
    pub fn ask(&mut self, request: &Request, regions: &Regions, mut effect: impl FnMut(Effect)) -> Placed {
        let stream = self.stream(request.stream);
        if let Some(why) = stream.refusal(request.message) {
            return Placed::Refused(why);
        }
        if request.message < stream.base {
            return Placed::Duplicate;
        }
        let Some(address) = asked_address(request, regions) else {
            return Placed::Refused(stream.fail_request(request, effect));
        };
        let message = stream.message(request.message, || InMessage::new(1, request.opcode, 0));
        // [I8]
        if !message.arrived.insert(0) {
            return Placed::Duplicate;
        }
        message.missing -= 1;
        let request = Request { address, ..*request };
        if request.opcode == Opcode::Read && !request.fence {
            // May overtake what is before it.
            effect(Effect::Execute(request));
        } else {
            stream.pending.insert(request.message, request);
        }
        stream.advance(request.stream, &mut effect);
        Placed::Taken
    }

    /// Takes a request for `packets` of the `of` packets of its message, whose turn has come as soon as it is here
    /// and which comes once: the address in our memory that it is to be executed at, now.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn take(
        &mut self,
        request: &Request,
        (packets, of): (Range<u32>, u32),
        regions: &Regions,
        mut effect: impl FnMut(Effect),
    ) -> Result<u64, Verdict> {
        let stream = self.stream(request.stream);
        if let Some(why) = stream.refusal(request.message) {
            return Err(why);
        }
        let Some(address) = asked_address(request, regions) else {
            return Err(stream.fail_request(request, effect));
        };
        if request.message >= stream.base {
            let message = stream.message(request.message, || InMessage::new(of, request.opcode, 0));
            message.missing -= packets.filter(|&packet| message.arrived.insert(packet)).count() as u32;
            stream.advance(request.stream, &mut effect);
        }
        Ok(address)
    }

    /// Whether the receive that the message of `segment` uses up is not posted, as far as is known: earlier messages
    /// that have not shown themselves may need receives too.
    pub fn lacks_receive(&self, segment: &Segment) -> bool {
        let Some(stream) = self.streams.get(segment.stream.index()) else { return true };
        let Some(before) = segment.message.checked_sub(stream.base) else { return false };
        let takes = |message: &&InMessage| message.missing != UNSEEN && message.opcode.takes_receive();
        let earlier = stream.messages.iter().take(before as usize).filter(takes).count();
        earlier >= stream.receives.len()
    }

    /// Hints the processor at the stream of a segment.
    #[inline]
    pub fn prefetch_stream(&self, segment: &Segment) {
        let Some(stream) = self.streams.get(segment.stream.index()) else { return };
        prefetch(stream);
        // Its receives lie across the end of the line.
        prefetch(&stream.pending);
    }

    /// Hints the processor at the message of a segment, and at the receive that it takes.
    #[inline]
    pub fn prefetch_message(&self, segment: &Segment) {
        let Some(stream) = self.streams.get(segment.stream.index()) else { return };
        let index = segment.message.wrapping_sub(stream.base) as usize;
        stream.messages.get(index).map(prefetch).unwrap_or_default();
        if segment.opcode == Opcode::Send {
            let index = segment.key.wrapping_sub(stream.receive_base) as usize;
            stream.receives.get(index).map(prefetch).unwrap_or_default();
        }
    }

    /// Gives up: the receives that have not completed.
    pub fn fail(&mut self) -> Vec<ReceiveRequest> {
        self.streams.iter_mut().flat_map(|s| s.receives.drain(..)).collect()
    }

    /// Bytes that the table of streams takes once stream `id` is in it.
    #[cfg(test)]
    pub(crate) fn bytes_with_stream(&mut self, id: StreamId) -> usize {
        self.stream(id);
        self.streams.capacity() * size_of::<InStream>()
    }

    #[inline]
    fn stream(&mut self, id: StreamId) -> &mut InStream {
        if self.streams.len() <= id.index() {
            self.open_streams(id);
        }
        &mut self.streams[id.index()]
    }

    #[cold]
    #[inline(never)]
    fn open_streams(&mut self, last: StreamId) {
        if self.streams.is_empty() {
            // Most connections have one: room for no more.
            self.streams.reserve_exact(last.index() + 1);
        }
        self.streams.resize_with(last.index() + 1, InStream::default);
    }
}

/// What a request names in our memory, if it may.
pub fn asked_address(request: &Request, regions: &Regions) -> Option<u64> {
    match request.opcode {
        Opcode::Read => regions.resolve(request.rkey, request.address, request.operands[0], Access::READ),
        Opcode::CompareSwap | Opcode::FetchAdd if request.address.is_multiple_of(8) => {
            regions.resolve(request.rkey, request.address, 8, Access::ATOMIC)
        }
        Opcode::Flush => Some(0),
        _ => None,
    }
}

impl InStream {
    /// Where a segment goes in our memory.
    #[inline(always)]
    fn target(&self, segment: &Segment, mtu: u64, regions: &Regions) -> Result<u64, Unplaced> {
        if let Some(why) = self.refusal(segment.message) {
            return Err(Unplaced::Refused(why));
        }
        let offset = u64::from(segment.packet) * mtu;
        let end = offset + u64::from(segment.len);
        if end > segment.message_len || segment.len == 0 && segment.message_len > 0 {
            return Err(Unplaced::Refused(Verdict::LengthError));
        }
        if segment.opcode == Opcode::Write {
            return Self::address(segment, offset, regions);
        }
        if segment.opcode == Opcode::WriteImm && segment.message_len == 0 {
            // Names no memory: neither key nor address is looked at, as in RC.
            return Ok(0);
        }
        if segment.opcode != Opcode::Send {
            return Self::address(segment, offset, regions);
        }
        // [F2.index-on-stream] [I4]
        let Some(index) = segment.key.checked_sub(self.receive_base) else {
            return Err(Unplaced::Duplicate);
        };
        match self.receives.get(index as usize) {
            // [F2.send-waits-for-receive]
            None => Err(Unplaced::Refused(Verdict::NotReady)),
            Some(receive) if segment.message_len > receive.len => Err(Unplaced::Refused(Verdict::LengthError)),
            Some(receive) => Ok(receive.local + offset),
        }
    }

    // [I2]
    /// The address that a piece names, `offset` into its message.
    #[inline(always)]
    fn address(segment: &Segment, offset: u64, regions: &Regions) -> Result<u64, Unplaced> {
        let at = segment.address.checked_add(offset);
        let address = at.and_then(|at| regions.resolve(segment.rkey(), at, u64::from(segment.len), Access::WRITE));
        address.ok_or(Unplaced::Refused(Verdict::AccessError))
    }

    /// Why message `number` is refused, if its stream has failed before it.
    fn refusal(&self, number: u32) -> Option<Verdict> {
        let (first, why) = self.failed?;
        (number >= first).then_some(if number == first { why } else { Verdict::PeerFailed })
    }

    /// A request was refused for good: why.
    fn fail_request(&mut self, request: &Request, mut effect: impl FnMut(Effect)) -> Verdict {
        let Request { message, stream, opcode, .. } = *request;
        let refused = Segment { message, stream, opcode, ..Segment::default() };
        self.fail(&refused, Verdict::AccessError, &mut effect);
        Verdict::AccessError
    }

    /// A packet of message `refused` was refused for good: nothing from that message on completes.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, refused: &Segment, why: Verdict, effect: &mut impl FnMut(Effect)) {
        if self.failed.is_none_or(|(first, _)| refused.message < first) {
            // [I5]
            self.failed = Some((refused.message, why));
            self.advance(refused.stream, effect);
        }
    }

    #[inline]
    fn message(&mut self, number: u32, first: impl FnOnce() -> InMessage) -> &mut InMessage {
        let index = (number - self.base) as usize;
        if self.messages.get(index).is_none_or(|message| message.missing == UNSEEN) {
            self.open_messages(index, first());
        }
        &mut self.messages[index]
    }

    #[inline(never)]
    fn open_messages(&mut self, last: usize, message: InMessage) {
        while self.messages.len() <= last {
            if self.messages.capacity() == 0 {
                // In an AllToAll there is one: room for no more.
                self.messages.reserve_exact(1);
            }
            self.messages.push_back(InMessage::unseen());
        }
        self.messages[last] = message;
    }

    /// Completes messages at the front, as far as they have arrived.
    #[inline(never)]
    fn advance(&mut self, id: StreamId, effect: &mut impl FnMut(Effect)) {
        // [I6] [I7]
        while let Some(&InMessage { missing: 0, opcode, len, imm, .. }) = self.messages.front() {
            if self.refusal(self.base).is_some() {
                break;
            }
            if opcode.takes_receive() {
                // Immediate data waits for its receive.
                let Some(receive) = self.receives.pop_front() else { return };
                self.receive_base += 1;
                let imm = (opcode == Opcode::WriteImm).then_some(imm);
                effect(Effect::Received { wr_id: receive.wr_id, bytes: len, imm, stream: id });
            } else if opcode.is_request()
                && let Some(request) = self.pending.remove(&self.base)
            {
                effect(Effect::Execute(request));
            }
            self.messages.pop_front();
            self.base += 1;
        }
        if let Some((first, why)) = self.failed
            && first <= self.base
        {
            for (position, receive) in self.receives.drain(..).enumerate() {
                let own = position == 0 && why == Verdict::LengthError && !self.told;
                let status = if own { CompletionStatus::LengthError } else { CompletionStatus::Flushed };
                effect(Effect::Flushed(receive, status));
            }
            self.told = true;
        }
    }
}
