//! Random schedules of messages, and what must hold of any of them under any loss.

use metaroce_proto::{CompletionKind, ReceiveRequest, WorkRequest};
use metaroce_wire::{Opcode, Packet, StreamId, Time};
use proptest::prelude::*;

use super::{Fate, Pair};

/// A message of a random schedule.
#[derive(Clone, Debug)]
pub struct Message {
    pub forward: bool,
    pub stream: u16,
    pub write: bool,
    pub len: u64,
    /// Microseconds until the next one.
    pub after: u64,
}

/// Message k has the k-th slot of both memories.
pub const SLOT: u64 = 150_000;

pub fn message() -> impl Strategy<Value = Message> {
    (any::<bool>(), 0..3u16, any::<bool>(), 1..SLOT, 0..30u64)
        .prop_map(|(forward, stream, write, len, after)| Message { forward, stream, write, len, after })
}

pub fn post_schedule(pair: &mut Pair, messages: &[Message]) {
    for (k, m) in messages.iter().enumerate() {
        let (wr_id, local, from, stream) = (k as u32, k as u64 * SLOT, usize::from(!m.forward), StreamId(m.stream));
        if !m.write {
            pair.post_receive(1 - from, ReceiveRequest { wr_id, stream, local, len: m.len });
        }
        let opcode = if m.write { Opcode::Write } else { Opcode::Send };
        pair.post(
            from,
            WorkRequest { wr_id, opcode, stream, local, len: m.len, remote: local, ..WorkRequest::default() },
        );
        pair.run_until(Time(pair.now.0 + m.after * 1_000_000));
    }
}

/// Every byte placed exactly once, and one completion of each request, in order of posting per stream.
pub fn check_all(pair: &Pair, messages: &[Message]) -> Result<(), TestCaseError> {
    check_completions(pair, messages)?;
    for (k, m) in messages.iter().enumerate() {
        let (to, at) = (usize::from(m.forward), k as u64 * SLOT);
        prop_assert!(pair.placed_once(to, at, m.len), "message {} of {} bytes", k, m.len);
    }
    let placed: u64 = pair.ends.iter().map(|end| end.counters().placed_bytes).sum();
    prop_assert_eq!(placed, messages.iter().map(|m| m.len).sum::<u64>());
    Ok(())
}

/// One completion of each request, in order of posting per stream.
pub fn check_completions(pair: &Pair, messages: &[Message]) -> Result<(), TestCaseError> {
    for end in 0..2 {
        for stream in 0..3u16 {
            let of = |from: usize, sends_only: bool| -> Vec<u32> {
                let all = messages.iter().enumerate();
                let picked = all.filter(|(_, m)| usize::from(!m.forward) == from && m.stream == stream);
                picked.filter(|(_, m)| !(sends_only && m.write)).map(|(k, _)| k as u32).collect()
            };
            let in_stream = |kind| -> Vec<u32> {
                let all = pair.succeeded(end, kind).into_iter();
                all.filter(|&id| messages[id as usize].stream == stream).collect()
            };
            prop_assert_eq!(in_stream(CompletionKind::Sent), of(end, false));
            prop_assert_eq!(in_stream(CompletionKind::Received), of(1 - end, true));
        }
    }
    let posted: usize = messages.iter().map(|m| if m.write { 1 } else { 2 }).sum();
    prop_assert_eq!(pair.completions[0].len() + pair.completions[1].len(), posted);
    Ok(())
}

/// Loses `loss_permille` of all packets, and marks some where `marked`.
pub fn random_fate(seed: u64, loss_permille: u64, marked: bool) -> impl FnMut(&Packet) -> Fate {
    let mut draw = draws(seed);
    move |_| match draw() {
        n if n < loss_permille => Fate::Lost,
        n if marked && n > 900 => Fate::Marked,
        _ => Fate::Arrives,
    }
}

/// Draws in 0..1000 from a seed.
pub fn draws(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 1000
    }
}
