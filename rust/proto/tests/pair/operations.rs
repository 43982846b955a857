//! Random schedules of every operation in both directions, and what must hold of any of them.

use std::collections::{BTreeMap, BTreeSet};

use metaroce_proto::{
    CompletionKind, CompletionStatus, ControllerKind, Entropies, Hints, MetaRoceConfig, ReceiveRequest, Spray, Tail,
    WorkRequest,
};
use metaroce_wire::{Body, Opcode, Packet, PathHeader, Rkey, StreamId, Time};
use proptest::prelude::*;

use super::schedule::draws;
use super::{Fate, Pair};

/// An operation; the k-th has the k-th slot of both memories.
#[derive(Clone, Debug)]
pub struct Operation {
    pub forward: bool,
    pub stream: u16,
    pub opcode: Opcode,
    pub len: u64,
    pub cell: u64,
    pub fence: bool,
    pub unsignaled: bool,
    /// The peer is to refuse it.
    pub bad: bool,
    /// Its receive is posted after it.
    pub late: bool,
    /// Microseconds until the next one.
    pub after: u64,
}

pub const STREAMS: u16 = 3;
const SLOT: u64 = 60_000;
/// Where the slots of targets begin, and the cells of atomics.
const FAR: u64 = 32 << 20;
const CELLS: u64 = 48 << 20;

impl Operation {
    pub fn from(&self) -> usize {
        usize::from(!self.forward)
    }

    fn answered(&self) -> bool {
        matches!(self.opcode, Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd)
    }
}

pub fn operation() -> impl Strategy<Value = Operation> {
    const KINDS: [Opcode; 7] = [
        Opcode::Write,
        Opcode::Send,
        Opcode::WriteImm,
        Opcode::Read,
        Opcode::FetchAdd,
        Opcode::CompareSwap,
        Opcode::Flush,
    ];
    let flags = (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    (flags, 0..STREAMS, 0..KINDS.len(), 1..SLOT, 0..2u64, 0..12u64).prop_map(
        |(flags, stream, kind, len, cell, after)| {
            let (forward, fence, unsignaled, late) = flags;
            let len = match KINDS[kind] {
                Opcode::Flush => 0,
                opcode if opcode.is_atomic() => 8,
                _ => len,
            };
            Operation { forward, stream, opcode: KINDS[kind], len, cell, fence, unsignaled, bad: false, late, after }
        },
    )
}

/// Operations of which one in twenty is refused.
pub fn operations(bad: bool) -> impl Strategy<Value = Vec<Operation>> {
    let refused = prop::bool::weighted(if bad { 0.05 } else { 0.0 });
    let one = (operation(), refused).prop_map(|(operation, refused)| Operation {
        bad: refused && operation.opcode != Opcode::Flush && operation.len > 1,
        ..operation
    });
    prop::collection::vec(one, 1..25)
}

/// The same without flushes.
pub fn operations_of_rocev2(bad: bool) -> impl Strategy<Value = Vec<Operation>> {
    operations(bad).prop_map(|all| all.into_iter().filter(|operation| operation.opcode != Opcode::Flush).collect())
}

/// Settings that change who sends what when.
pub fn config() -> impl Strategy<Value = MetaRoceConfig> {
    let spray =
        prop_oneof![Just(Spray::RoundRobin), Just(Spray::Weighted), Just(Spray::Recycled), Just(Spray::Oblivious)];
    let entropies = prop_oneof![Just(Entropies::Consecutive), Just(Entropies::Hashed)];
    let controller = prop_oneof![Just(ControllerKind::Aimd), Just(ControllerKind::Nscc), Just(ControllerKind::Swift)];
    let hints = prop_oneof![Just(Hints::Off), Just(Hints::Window), Just(Hints::Pace)];
    let tail = prop_oneof![Just(Tail::Resend), Just(Tail::Probe)];
    let switches = (any::<bool>(), any::<bool>());
    let numbers = (1..9u32, 1..9u32, 0..4u32);
    (spray, entropies, controller, hints, tail, switches, numbers).prop_map(
        |(spray, entropies, controller, hints, tail, (cut_on_loss, coupled_growth), numbers)| {
            let (paths_per_plane, ack_every, gap_threshold) = numbers;
            MetaRoceConfig {
                spray,
                entropies,
                controller,
                hints,
                tail,
                cut_on_loss,
                coupled_growth,
                paths_per_plane,
                ack_every,
                gap_threshold,
                ..MetaRoceConfig::default()
            }
        },
    )
}

/// What happens to packets, in thousandths.
#[derive(Clone, Debug)]
pub struct Weather {
    pub seed: u64,
    pub lost: u64,
    pub doubled: u64,
    pub delayed: u64,
    pub marked: u64,
    pub trimmed: u64,
}

pub fn weather() -> impl Strategy<Value = Weather> {
    (any::<u64>(), 0..200u64, 0..50u64, 0..100u64, 0..100u64, 0..50u64).prop_map(
        |(seed, lost, doubled, delayed, marked, trimmed)| Weather { seed, lost, doubled, delayed, marked, trimmed },
    )
}

impl Weather {
    pub fn fate(&self) -> impl FnMut(&Packet) -> Fate + 'static {
        let (mut draw, weather) = (draws(self.seed), self.clone());
        let mut next = move |permille: u64| draw() < permille;
        let mut delay = draws(!self.seed);
        move |packet| {
            let data =
                matches!(packet.body, Body::MrData(_) | Body::RoceData(_) | Body::RoceResponse(_) | Body::MrcData(_));
            if next(weather.lost) {
                Fate::Lost
            } else if next(weather.doubled) {
                Fate::Doubled(Time::from_ns(delay() * 20))
            } else if next(weather.delayed) {
                Fate::Delayed(Time::from_ns(delay() * 20))
            } else if next(weather.marked) {
                Fate::Marked
            } else if next(weather.trimmed) && data {
                Fate::Trimmed
            } else {
                Fate::Arrives
            }
        }
    }
}

/// Posts all of it.
pub fn post(pair: &mut Pair, operations: &[Operation]) {
    for (k, operation) in operations.iter().enumerate() {
        let (wr_id, slot, from) = (k as u32, k as u64 * SLOT, operation.from());
        let Operation { opcode, len, fence, unsignaled, bad, late, .. } = *operation;
        let stream = StreamId(operation.stream);
        let short = u64::from(bad && opcode == Opcode::Send);
        let receive = ReceiveRequest { wr_id, stream, local: FAR + slot, len: len - short };
        let takes = opcode.takes_receive();
        if takes && !late {
            pair.post_receive(1 - from, receive);
        }
        let remote = if opcode.is_atomic() { CELLS + 8 * operation.cell } else { FAR + slot };
        let rkey = Rkey(if bad && opcode != Opcode::Send { 9 } else { 0 });
        let (imm, operands) = (wr_id ^ 0x5555, [u64::from(wr_id) + 1, u64::from(wr_id) + 100]);
        pair.post(
            from,
            WorkRequest { wr_id, opcode, stream, local: slot, len, remote, rkey, imm, operands, fence, unsignaled },
        );
        pair.run_until(Time(pair.now.0 + operation.after * 1_000_000));
        if takes && late {
            pair.post_receive(1 - from, receive);
        }
    }
}

/// Operations of one end on one stream, in order: their numbers on the stream are their positions.
fn on_stream(operations: &[Operation], from: usize, stream: u16) -> Vec<usize> {
    let own = |&k: &usize| operations[k].from() == from && operations[k].stream == stream;
    (0..operations.len()).filter(own).collect()
}

/// Ends and streams.
fn streams() -> impl Iterator<Item = (usize, u16)> {
    (0..2).flat_map(|from| (0..STREAMS).map(move |stream| (from, stream)))
}

/// How each operation of a stream is to end.
fn expected(operations: &[Operation], own: &[usize]) -> Vec<CompletionStatus> {
    let first = own.iter().position(|&k| operations[k].bad).unwrap_or(own.len());
    let status = |position: usize| match position.cmp(&first) {
        std::cmp::Ordering::Less => CompletionStatus::Success,
        std::cmp::Ordering::Greater => CompletionStatus::Flushed,
        _ if operations[own[first]].opcode == Opcode::Send => CompletionStatus::LengthError,
        _ => CompletionStatus::AccessError,
    };
    (0..own.len()).map(status).collect()
}

/// One completion of each request that is to have one, as it is to be, in order of posting per stream.
pub fn check_completions(pair: &Pair, operations: &[Operation]) -> Result<(), TestCaseError> {
    for (from, stream) in streams() {
        let own = on_stream(operations, from, stream);
        let ends = expected(operations, &own);
        let of_stream = |end: usize, kind: CompletionKind| -> Vec<_> {
            let all = pair.completions[end].iter().filter(|c| c.kind == kind && c.stream == StreamId(stream));
            all.map(|c| (c.wr_id as usize, c.status)).collect()
        };
        let all = || own.iter().copied().zip(ends.iter().copied());
        let silent = |k: usize, status| operations[k].unsignaled && status == CompletionStatus::Success;
        let sent: Vec<_> = all().filter(|&(k, status)| !silent(k, status)).collect();
        prop_assert_eq!(of_stream(from, CompletionKind::Sent), sent, "requests of {} on stream {}", from, stream);
        let takes = all().filter(|&(k, _)| operations[k].opcode.takes_receive());
        let received: Vec<_> = takes
            .map(|(k, status)| match status {
                CompletionStatus::AccessError => (k, CompletionStatus::Flushed),
                status => (k, status),
            })
            .collect();
        prop_assert_eq!(of_stream(1 - from, CompletionKind::Received), received, "receives of {}", 1 - from);
    }
    let bits = pair.completions.iter().flatten().filter_map(|c| c.imm.map(|imm| (c.wr_id, imm)));
    bits.into_iter().try_for_each(|(id, imm)| {
        prop_assert_eq!(imm, id ^ 0x5555);
        Ok(())
    })
}

/// Every byte of what succeeds once and from its source; of what is refused none; of all others at most once.
pub fn check_memory(pair: &Pair, operations: &[Operation]) -> Result<(), TestCaseError> {
    prop_assert!(pair.nothing_twice());
    for (from, stream) in streams() {
        let own = on_stream(operations, from, stream);
        for (&k, status) in own.iter().zip(expected(operations, &own)) {
            let (slot, len, opcode) = (k as u64 * SLOT, operations[k].len, operations[k].opcode);
            let success = status == CompletionStatus::Success;
            match opcode {
                Opcode::Read if success => prop_assert!(pair.placed_from(from, slot, len, FAR + slot), "{}", k),
                Opcode::Write | Opcode::Send | Opcode::WriteImm if success => {
                    prop_assert!(pair.placed_from(1 - from, FAR + slot, len, slot), "{}", k);
                }
                _ if operations[k].bad => {
                    prop_assert!(pair.untouched(from, slot, SLOT) && pair.untouched(1 - from, FAR + slot, SLOT));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Each atomic takes effect once, and tells what was there.
pub fn check_atomics(pair: &Pair, operations: &[Operation]) -> Result<(), TestCaseError> {
    for (from, stream) in streams() {
        let own = on_stream(operations, from, stream);
        let ends = expected(operations, &own);
        for (position, &k) in own.iter().enumerate().filter(|(_, k)| operations[**k].opcode.is_atomic()) {
            let alike = pair.atomics.iter().filter(|(_, end, atomic, _)| {
                let request = &atomic.request;
                (*end, request.stream, request.message) == (1 - from, StreamId(stream), position as u32)
            });
            let found: Vec<u64> = alike.map(|(.., before)| *before).collect();
            let success = ends[position] == CompletionStatus::Success;
            prop_assert!(found.len() == usize::from(success) || found.len() <= 1 && !operations[k].bad, "{}", k);
            if success {
                prop_assert_eq!(pair.cells[from].get(&(k as u64 * SLOT)), found.first(), "the answer to {}", k);
            }
        }
    }
    Ok(())
}

/// When the last byte of each operation was placed, or its atomic executed, at the target; and when its answer was here.
fn landings(pair: &Pair, operations: &[Operation]) -> [BTreeMap<usize, Time>; 2] {
    let (mut placed, mut answered) = (BTreeMap::new(), BTreeMap::new());
    for (at, end, placement) in &pair.placements {
        let far = placement.address >= FAR;
        let k = ((placement.address - if far { FAR } else { 0 }) / SLOT) as usize;
        let own = operations.get(k).is_some_and(|o| (o.from() == *end) != far && placement.len > 0);
        if own && far {
            placed.insert(k, *at);
        } else if own && placement.message_done {
            answered.insert(k, *at);
        }
    }
    for (at, end, atomic, _) in &pair.atomics {
        let own = on_stream(operations, 1 - end, atomic.request.stream.0);
        placed.insert(own[atomic.request.message as usize], *at);
    }
    [placed, answered]
}

/// A completion at the target means that all before it on the stream is placed; one at the initiator, that it is.
pub fn check_what_completions_mean(pair: &Pair, operations: &[Operation]) -> Result<(), TestCaseError> {
    let [placed, answered] = landings(pair, operations);
    for end in 0..2 {
        for (&at, completion) in pair.completed_at[end].iter().zip(&pair.completions[end]) {
            let k = completion.wr_id as usize;
            if completion.status != CompletionStatus::Success {
                continue;
            }
            let by_then = |landed: &BTreeMap<usize, Time>, k: usize| landed.get(&k).is_some_and(|then| *then <= at);
            if completion.kind == CompletionKind::Sent {
                let asks = operations[k].answered();
                let landed = operations[k].len == 0 || by_then(if asks { &answered } else { &placed }, k);
                prop_assert!(landed, "{} completes at {} before it is there", k, at);
                continue;
            }
            let own = on_stream(operations, 1 - end, completion.stream.0);
            let earlier =
                own.iter().filter(|&&j| j <= k && !matches!(operations[j].opcode, Opcode::Read | Opcode::Flush));
            for &j in earlier {
                prop_assert!(by_then(&placed, j), "{} completes at {} before {} is placed", k, at, j);
            }
        }
    }
    Ok(())
}

/// Nothing from a fence on leaves before the Reads and atomics before it are answered.
pub fn check_fences(pair: &Pair, operations: &[Operation]) -> Result<(), TestCaseError> {
    let [_, answered] = landings(pair, operations);
    let mut first: BTreeMap<(usize, u16, u32), Time> = BTreeMap::new();
    for (at, packet) in &pair.log {
        let (stream, message) = match &packet.body {
            Body::MrData(data) if data.segment.opcode != Opcode::Response => {
                (data.segment.stream, data.segment.message)
            }
            Body::MrRequest(asked) if asked.request.opcode != Opcode::Probe => {
                (asked.request.stream, asked.request.message)
            }
            Body::RoceData(data) => (data.segment.stream, data.segment.message),
            Body::RoceRequest(asked) => (asked.request.stream, asked.request.message),
            _ => continue,
        };
        first.entry((packet.envelope.src.index(), stream.0, message)).or_insert(*at);
    }
    for (from, stream) in streams() {
        let own = on_stream(operations, from, stream);
        for (fence, _) in own.iter().enumerate().filter(|(_, k)| operations[**k].fence) {
            let until = own[..fence].iter().filter(|&&k| operations[k].answered()).map(|k| answered.get(k));
            let starts = (fence..own.len()).filter_map(|behind| first.get(&(from, stream, behind as u32)));
            if let Some(start) = starts.min() {
                for answer in until {
                    prop_assert!(answer.is_some_and(|answer| answer <= start), "starts at {} behind a fence", start);
                }
            }
        }
    }
    Ok(())
}

fn header(packet: &Packet) -> Option<&PathHeader> {
    match &packet.body {
        Body::MrData(data) => Some(&data.header),
        Body::MrRequest(asked) => Some(&asked.header),
        _ => None,
    }
}

/// Numbers of a path count up in an epoch, and what is reported of them never goes back and has arrived.
pub fn check_numbers(pair: &Pair) -> Result<(), TestCaseError> {
    let mut next: BTreeMap<(u32, u16, u8), u32> = BTreeMap::new();
    let mut told: BTreeMap<(u32, u16, u8), (u32, u32)> = BTreeMap::new();
    let mut epochs: BTreeMap<(u32, u16), u8> = BTreeMap::new();
    let mut came: BTreeMap<(usize, u16, u8), BTreeSet<u32>> = BTreeMap::new();
    let mut arrivals = pair.arrivals.iter().peekable();
    for (at, packet) in &pair.log {
        while let Some((_, end, arrived)) = arrivals.next_if(|(then, ..)| then <= at) {
            if let Some(header) = header(arrived) {
                came.entry((*end, header.path, header.epoch)).or_default().insert(header.pps);
            }
        }
        let src = packet.envelope.src;
        if let Some(header) = header(packet) {
            let expected = next.entry((src.0, header.path, header.epoch)).or_default();
            prop_assert_eq!(header.pps, *expected, "path {} epoch {}", header.path, header.epoch);
            *expected += 1;
            let epoch = epochs.entry((src.0, header.path)).or_default();
            prop_assert!(*epoch <= header.epoch);
            *epoch = header.epoch;
        }
        if let Body::MrAck(ack) = &packet.body {
            let last = told.entry((src.0, ack.path, ack.epoch)).or_default();
            prop_assert!(last.0 <= ack.max_pps && last.1 <= ack.ce_count, "{:?} after {:?}", ack, last);
            *last = (ack.max_pps, ack.ce_count);
            let came = came.get(&(src.index(), ack.path, ack.epoch));
            let bits = (0..256u32).filter(|k| ack.sack[(k >> 5) as usize] >> (k & 31) & 1 == 1);
            for pps in bits.map(|k| ack.max_pps - 1 - k).chain([ack.max_pps]) {
                prop_assert!(came.is_some_and(|came| came.contains(&pps)), "{} was reported and never came", pps);
            }
        }
    }
    Ok(())
}

/// Nothing is sent in a later epoch of a path before a probe of that epoch is answered, nor in an earlier one again.
pub fn check_epochs(pair: &Pair) -> Result<(), TestCaseError> {
    let mut answered: BTreeSet<(usize, u16, u8)> = BTreeSet::new();
    let mut arrivals = pair.arrivals.iter().peekable();
    let mut latest: BTreeMap<(usize, u16), u8> = BTreeMap::new();
    for (at, packet) in &pair.log {
        while let Some((_, end, arrived)) = arrivals.next_if(|(then, ..)| then <= at) {
            if let Body::MrProbeReply(probe) = &arrived.body {
                answered.insert((*end, probe.path, probe.epoch));
            }
        }
        let src = packet.envelope.src.index();
        let (path, epoch, data) = match (&packet.body, header(packet)) {
            (_, Some(header)) => (header.path, header.epoch, true),
            (Body::MrProbe(probe), _) => (probe.path, probe.epoch, false),
            _ => continue,
        };
        let ready = epoch == 0 || !data || answered.contains(&(src, path, epoch));
        prop_assert!(ready, "path {} epoch {} at {}", path, epoch, at);
        let last = latest.entry((src, path)).or_default();
        prop_assert!(*last <= epoch, "path {} epoch {} after {} at {}", path, epoch, last, at);
        *last = epoch;
    }
    Ok(())
}

/// The first `attempts` resends of a packet leave on its path, later ones in another plane if there is one; where
/// no path was given up and every receive was there.
pub fn check_same_path(pair: &Pair, attempts: usize, planes: usize) -> Result<(), TestCaseError> {
    let mut copies: BTreeMap<_, Vec<(u16, u8)>> = BTreeMap::new();
    for (_, packet) in &pair.log {
        let (name, path) = match &packet.body {
            Body::MrData(data) => {
                let segment = &data.segment;
                let answer = segment.opcode == Opcode::Response;
                let message = if answer { segment.key } else { segment.message };
                ((answer, segment.stream, message, segment.packet), data.header.path)
            }
            Body::MrRequest(asked) if asked.request.opcode != Opcode::Probe => {
                ((false, asked.request.stream, asked.request.message, 0), asked.header.path)
            }
            _ => continue,
        };
        copies.entry((packet.envelope.src, name)).or_default().push((path, packet.envelope.plane.0));
    }
    for (name, copies) in copies {
        for (resend, pair) in (1..).zip(copies.windows(2)) {
            let [before, after] = [pair[0], pair[1]];
            prop_assert!(resend > attempts || before == after, "{:?} leaves on {:?}", name, copies);
            prop_assert!(resend <= attempts || planes == 1 || before.1 != after.1, "{:?} leaves on {:?}", name, copies);
        }
    }
    Ok(())
}

/// No number is sent that is more than a vector ahead of the highest acknowledged one, but for
/// those that time gave up, and a probe, which a vector describes all the same.
pub fn check_reach(pair: &Pair) -> Result<(), TestCaseError> {
    let given_up =
        pair.ends.iter().map(|end| (end.counters().timer_detections + end.counters().probes) as i64).sum::<i64>();
    let mut acked: BTreeMap<(usize, u16, u8), i64> = BTreeMap::new();
    let mut arrivals = pair.arrivals.iter().peekable();
    for (at, packet) in &pair.log {
        while let Some((_, end, arrived)) = arrivals.next_if(|(then, ..)| then <= at) {
            if let Body::MrAck(ack) = &arrived.body {
                let max = acked.entry((*end, ack.path, ack.epoch)).or_insert(-1);
                *max = i64::from(ack.max_pps).max(*max);
            }
        }
        if let Some(header) = header(packet) {
            let max = acked.get(&(packet.envelope.src.index(), header.path, header.epoch)).unwrap_or(&-1);
            prop_assert!(i64::from(header.pps) <= max + 256 + given_up, "{} where {} is acknowledged", header.pps, max);
        }
    }
    Ok(())
}
