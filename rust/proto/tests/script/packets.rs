//! Packets as scripts name them.

use std::ops::RangeInclusive;

use metaroce_wire::{Body, Ecn, MrAck, Opcode, Packet, RoceAckKind, Sending, Verdict};

use super::Parsed;
use crate::pair::Pair;

/// Packets that a line speaks of.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// Senders.
    pub ends: Vec<usize>,
    pub kind: String,
    pub fields: Vec<(String, RangeInclusive<u64>)>,
}

const OPCODES: [(&str, Opcode); 9] = [
    ("write", Opcode::Write),
    ("write-imm", Opcode::WriteImm),
    ("send", Opcode::Send),
    ("read", Opcode::Read),
    ("cas", Opcode::CompareSwap),
    ("faa", Opcode::FetchAdd),
    ("flush", Opcode::Flush),
    ("response", Opcode::Response),
    ("probe", Opcode::Probe),
];
const VERDICTS: [(&str, Verdict); 6] = [
    ("placed", Verdict::Placed),
    ("not-ready", Verdict::NotReady),
    ("access-error", Verdict::AccessError),
    ("length-error", Verdict::LengthError),
    ("peer-failed", Verdict::PeerFailed),
    ("trimmed", Verdict::Trimmed),
];
const SYNDROMES: [&str; 6] = ["ack", "sequence", "rnr", "invalid", "access", "operation"];
const SENDINGS: [(&str, Sending); 3] =
    [("first", Sending::First), ("asking", Sending::FirstAsking), ("again", Sending::Again)];

/// What each kind of packet has, by name.
const FIELDS: [(&str, &[&str]); 8] = [
    (
        "data",
        &[
            "path", "pps", "epoch", "plane", "serial", "sending", "stream", "msg", "packet", "len", "id", "op", "imm",
            "qp", "psn",
        ],
    ),
    ("request", &["path", "pps", "epoch", "plane", "serial", "sending", "stream", "msg", "op", "qp", "psn", "packet"]),
    ("response", &["plane", "stream", "msg", "packet", "len", "qp", "psn", "msn"]),
    ("ack", &["path", "epoch", "plane", "max", "marks", "verdict", "serial", "has", "hole", "qp", "psn", "msn", "nak"]),
    ("cnp", &["plane", "qp"]),
    ("probe", &["path", "epoch", "plane"]),
    ("reply", &["path", "epoch", "plane"]),
    ("any", &["path", "epoch", "plane", "marked", "qp", "psn"]),
];

/// Names of kinds.
pub fn kinds() -> Vec<&'static str> {
    FIELDS.iter().map(|(kind, _)| *kind).collect()
}

/// Names of what packets of `kind` have.
pub fn fields(kind: &str) -> &'static [&'static str] {
    FIELDS.iter().find(|(name, _)| *name == kind).map_or(&[], |(_, fields)| fields)
}

fn number_of<T: PartialEq>(table: &[(&str, T)], is: impl Fn(&(&str, T)) -> bool) -> Option<u64> {
    table.iter().position(is).map(|position| position as u64)
}

/// The number that stands for a word such as `send`, where a field has such.
pub fn word(field: &str, value: &str) -> Parsed<Option<u64>> {
    let (number, words): (_, Vec<&str>) = match field {
        "op" => (number_of(&OPCODES, |(name, _)| *name == value), OPCODES.iter().map(|o| o.0).collect()),
        "verdict" => (number_of(&VERDICTS, |(name, _)| *name == value), VERDICTS.iter().map(|v| v.0).collect()),
        "sending" => (number_of(&SENDINGS, |(name, _)| *name == value), SENDINGS.iter().map(|s| s.0).collect()),
        "nak" => (SYNDROMES.iter().position(|name| *name == value).map(|n| n as u64), SYNDROMES.to_vec()),
        _ => return Ok(None),
    };
    number.map(Some).ok_or_else(|| format!("{field}: {value} is unknown; allowed: {}", words.join(" ")))
}

#[allow(unreachable_patterns, reason = "a body that scripts do not name is no error")]
fn kind_of(packet: &Packet) -> &'static str {
    match packet.body {
        Body::MrData(_) | Body::RoceData(_) => "data",
        Body::MrRequest(_) | Body::RoceRequest(_) => "request",
        Body::RoceResponse(_) => "response",
        Body::MrAck(_) | Body::RoceAck(_) | Body::RoceSack(_) => "ack",
        Body::RoceCnp(_) => "cnp",
        Body::MrProbe(_) => "probe",
        Body::MrProbeReply(_) => "reply",
        _ => "other",
    }
}

fn field(packet: &Packet, name: &str) -> Option<u64> {
    match name {
        "plane" => return Some(packet.envelope.plane.0.into()),
        "marked" => return Some((packet.envelope.ecn == Ecn::Ce).into()),
        _ => {}
    }
    let header = match &packet.body {
        Body::MrData(data) => &data.header,
        Body::MrRequest(asked) => &asked.header,
        Body::MrAck(ack) => {
            return Some(match name {
                "path" => ack.path.into(),
                "epoch" => ack.epoch.into(),
                "max" => ack.max_pps.into(),
                "marks" => ack.ce_count.into(),
                "serial" => ack.serial.into(),
                "verdict" => number_of(&VERDICTS, |(_, verdict)| *verdict == ack.verdict)?,
                _ => return None,
            });
        }
        Body::MrProbe(probe) | Body::MrProbeReply(probe) => {
            return match name {
                "path" => Some(probe.path.into()),
                "epoch" => Some(probe.epoch.into()),
                _ => None,
            };
        }
        body => return roce_field(body, name),
    };
    Some(match (name, &packet.body) {
        ("path", _) => header.path.into(),
        ("pps", _) => header.pps.into(),
        ("epoch", _) => header.epoch.into(),
        ("serial", _) => header.serial.into(),
        ("sending", _) => number_of(&SENDINGS, |(_, sending)| *sending == header.sending)?,
        ("stream", Body::MrData(data)) => data.segment.stream.0.into(),
        ("msg", Body::MrData(data)) => data.segment.message.into(),
        ("op", Body::MrData(data)) => number_of(&OPCODES, |(_, opcode)| *opcode == data.segment.opcode)?,
        ("packet", Body::MrData(data)) => data.segment.packet.into(),
        ("len", Body::MrData(data)) => data.segment.len.into(),
        ("id", Body::MrData(data)) => data.segment.tag.into(),
        ("imm", Body::MrData(data)) => data.imm.into(),
        ("stream", Body::MrRequest(asked)) => asked.request.stream.0.into(),
        ("msg", Body::MrRequest(asked)) => asked.request.message.into(),
        ("op", Body::MrRequest(asked)) => number_of(&OPCODES, |(_, opcode)| *opcode == asked.request.opcode)?,
        _ => return None,
    })
}

fn roce_field(body: &Body, name: &str) -> Option<u64> {
    Some(match (name, body) {
        ("qp", Body::RoceData(data)) => data.qp.into(),
        ("psn", Body::RoceData(data)) => data.psn.into(),
        ("stream", Body::RoceData(data)) => data.segment.stream.0.into(),
        ("msg", Body::RoceData(data)) => data.segment.message.into(),
        ("op", Body::RoceData(data)) => number_of(&OPCODES, |(_, opcode)| *opcode == data.segment.opcode)?,
        ("packet", Body::RoceData(data)) => data.segment.packet.into(),
        ("len", Body::RoceData(data)) => data.segment.len.into(),
        ("id", Body::RoceData(data)) => data.segment.tag.into(),
        ("imm", Body::RoceData(data)) => data.imm.into(),
        ("qp", Body::RoceRequest(asked)) => asked.qp.into(),
        ("psn", Body::RoceRequest(asked)) => asked.psn.into(),
        ("stream", Body::RoceRequest(asked)) => asked.request.stream.0.into(),
        ("msg", Body::RoceRequest(asked)) => asked.request.message.into(),
        ("op", Body::RoceRequest(asked)) => number_of(&OPCODES, |(_, opcode)| *opcode == asked.request.opcode)?,
        ("packet", Body::RoceRequest(asked)) => asked.packet.into(),
        ("qp", Body::RoceResponse(response)) => response.qp.into(),
        ("psn", Body::RoceResponse(response)) => response.psn.into(),
        ("msn", Body::RoceResponse(response)) => response.msn.into(),
        ("stream", Body::RoceResponse(response)) => response.segment.stream.0.into(),
        ("msg", Body::RoceResponse(response)) => response.segment.key.into(),
        ("packet", Body::RoceResponse(response)) => response.segment.packet.into(),
        ("len", Body::RoceResponse(response)) => response.segment.len.into(),
        ("qp", Body::RoceAck(ack)) => ack.qp.into(),
        ("psn", Body::RoceAck(ack)) => ack.psn.into(),
        ("msn", Body::RoceAck(ack)) => ack.msn.into(),
        ("nak", Body::RoceAck(ack)) => match ack.kind {
            RoceAckKind::Ack => 0,
            RoceAckKind::SequenceNak => 1,
            RoceAckKind::RnrNak(_) => 2,
            RoceAckKind::InvalidNak => 3,
            RoceAckKind::AccessNak => 4,
            RoceAckKind::OperationNak => 5,
        },
        ("qp", Body::RoceCnp(cnp)) => cnp.qp.into(),
        _ => return None,
    })
}

/// Whether `ack` says that `pps` was placed.
fn has(ack: &MrAck, pps: u64) -> bool {
    match u64::from(ack.max_pps).checked_sub(pps) {
        None => false,
        Some(0) => ack.verdict == Verdict::Placed,
        Some(behind) => {
            let k = behind as usize - 1;
            k < 256 && ack.sack[k >> 5] >> (k & 31) & 1 == 1
        }
    }
}

impl Pattern {
    pub fn matches(&self, packet: &Packet) -> bool {
        let end = packet.envelope.src.0 as usize;
        if !self.ends.contains(&end) || self.kind != "any" && self.kind != kind_of(packet) {
            return false;
        }
        self.fields.iter().all(|(name, range)| match (name.as_str(), &packet.body) {
            ("has", Body::MrAck(ack)) => range.clone().all(|pps| has(ack, pps)),
            ("hole", Body::MrAck(ack)) => range.clone().all(|pps| pps <= u64::from(ack.max_pps) && !has(ack, pps)),
            _ => field(packet, name).is_some_and(|value| range.contains(&value)),
        })
    }
}

/// The packets of a run, one a line; the first hundred.
pub fn trace(pair: &Pair) -> String {
    let mut lines = vec!["packets:".to_owned()];
    for (at, packet) in pair.log.iter().take(100) {
        let (end, kind) = (if packet.envelope.src.0 == 0 { "a" } else { "b" }, kind_of(packet));
        let mut words = format!("  {}.{:03}us  {end} > {kind}", at.0 / 1_000_000, at.0 / 1_000 % 1_000);
        for name in fields(kind) {
            let Some(value) = field(packet, name) else { continue };
            let word = match *name {
                "op" => OPCODES[value as usize].0.to_owned(),
                "verdict" => VERDICTS[value as usize].0.to_owned(),
                "sending" => SENDINGS[value as usize].0.to_owned(),
                "nak" => SYNDROMES[value as usize].to_owned(),
                _ => value.to_string(),
            };
            words += &format!(" {name}={word}");
        }
        if let Body::MrAck(ack) = &packet.body {
            let holes = (0..ack.max_pps).filter(|&pps| !has(ack, pps.into())).map(|pps| pps.to_string());
            words += &format!(" holes={}", holes.collect::<Vec<_>>().join(","));
        }
        lines.push(words);
    }
    for end in 0..2 {
        for (at, completion) in pair.completed_at[end].iter().zip(&pair.completions[end]) {
            let (end, id) = (["a", "b"][end], completion.wr_id);
            lines.push(format!("  {at}  {end} {:?} id={id} {:?}", completion.kind, completion.status));
        }
    }
    lines.join("\n")
}
