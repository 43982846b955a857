//! Text to [`Script`]. A word that means nothing is refused, with its line.

use std::ops::RangeInclusive;

use metaroce_proto::{Access, CompletionKind, CompletionStatus, MetaRoceConfig, ReceiveRequest};
use metaroce_proto::{TransportConfig, WorkRequest};
use metaroce_wire::{Opcode, PlaneId, Rate, Rkey, StreamId, Time};

use super::packets::{self, Pattern};
use super::{Action, Check, Comparison, Link, Parsed, Quantity, Rule, Script, Span, Step, Value};

pub fn parse(text: &str) -> Result<Script, (usize, String)> {
    let link =
        Link { planes: 1, rate: Rate::from_gbps(200), delay: Time::from_us(2), rtt: Time::from_us(5), routes: 8 };
    let mut script = Script {
        link,
        config: TransportConfig::MetaRoce(MetaRoceConfig::default()),
        regions: Vec::new(),
        steps: Vec::new(),
        fates: Vec::new(),
        checks: Vec::new(),
    };
    let mut settings = serde_json::Map::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split_once('#').map_or(line, |(code, _)| code);
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut line = Words { words, next: 0 };
        if let Some(first) = line.peek() {
            parse_line(&mut script, &mut settings, (number, first), &mut line).map_err(|why| (number, why))?;
        }
    }
    Ok(script)
}

fn parse_line(
    script: &mut Script,
    settings: &mut serde_json::Map<String, serde_json::Value>,
    (number, first): (usize, &str),
    line: &mut Words,
) -> Parsed<()> {
    match first {
        "link" => {
            line.next = 1;
            parse_link(&mut script.link, line)
        }
        "set" => {
            line.next = 1;
            while let Some(word) = line.take() {
                let (key, value) = word.split_once('=').ok_or_else(|| format!("{word}: wants key=value"))?;
                let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
                settings.insert(key.to_owned(), value);
            }
            settings.entry("kind").or_insert_with(|| "metaroce".into());
            let given = serde_json::Value::Object(settings.clone());
            script.config = serde_json::from_value(given).map_err(|why| why.to_string())?;
            script.config.check().map_err(|why| why.to_string())
        }
        "region" => {
            line.next = 1;
            let end = line.end()?;
            let mut options = line.options()?;
            let access = match options.text("access").unwrap_or("none") {
                "none" => Access::LOCAL,
                "read" => Access::READ,
                "write" => Access::WRITE,
                "atomic" => Access::ATOMIC,
                other => return Err(format!("access: {other} is unknown; allowed: none read write atomic")),
            };
            script.regions.push((end, options.number("at")?, options.number("len")?, access));
            options.done()
        }
        _ => parse_event(script, number, line),
    }
}

fn parse_link(link: &mut Link, line: &mut Words) -> Parsed<()> {
    let mut options = line.options()?;
    link.planes = options.number_or("planes", link.planes as u64)? as usize;
    link.routes = options.number_or("routes", link.routes.into())? as u32;
    if let Some(gbps) = options.text("rate") {
        let gbps = gbps.strip_suffix("Gbps").and_then(|n| n.parse().ok());
        link.rate = Rate::from_gbps(gbps.ok_or("rate: wants a number and Gbps")?);
    }
    if let Some(delay) = options.text("delay") {
        link.delay = time(delay)?;
    }
    if let Some(rtt) = options.text("rtt") {
        link.rtt = time(rtt)?;
    }
    options.done()
}

fn parse_event(script: &mut Script, number: usize, line: &mut Words) -> Parsed<()> {
    let span = line.span()?;
    let always = span.unwrap_or(Span::ALWAYS);
    match line.want("a, b, or what is to happen")? {
        what @ ("lose" | "mark" | "trim" | "delay" | "double") => {
            let what = match what {
                "lose" => Action::Lose,
                "mark" => Action::Mark,
                "trim" => Action::Trim,
                "delay" => Action::Delay(time(line.want("a time")?)?),
                _ => Action::Double(time(line.want("a time")?)?),
            };
            let (pattern, skip, times) = pattern(line, true)?;
            script.fates.push(Rule { span: always, what, pattern, skip, times });
        }
        "never" => {
            let pattern = sender_pattern(line)?;
            script.checks.push((number, Check::Packets(always, Some(0), pattern)));
        }
        "exactly" => {
            let count = value(line.want("a number")?)? as usize;
            let pattern = sender_pattern(line)?;
            script.checks.push((number, Check::Packets(always, Some(count), pattern)));
        }
        "counter" => script.checks.push((number, counter(line, None)?)),
        "quiet" => script.checks.push((number, Check::Quiet(always.1))),
        "stop" => push_step(script, number, span, Step::Stop)?,
        _ => {
            line.next -= 1;
            let end = line.end()?;
            let verb = line.want("a verb, or >")?;
            if let Some(check) = parse_check(line, (always, end), verb)? {
                script.checks.push((number, check));
            } else {
                let step = parse_step(line, end, verb)?;
                push_step(script, number, span, step)?;
            }
        }
    }
    line.nothing_more()
}

fn push_step(script: &mut Script, number: usize, span: Option<Span>, step: Step) -> Parsed<()> {
    let at = match span {
        Some(Span(from, to)) if from == to => from,
        _ => return Err("wants one time in front".to_owned()),
    };
    if script.steps.last().is_some_and(|(_, before, _)| *before > at) {
        return Err(format!("{at} is before the step above"));
    }
    script.steps.push((number, at, step));
    Ok(())
}

fn parse_check(line: &mut Words, (span, end): (Span, usize), verb: &str) -> Parsed<Option<Check>> {
    Ok(Some(match verb {
        ">" => {
            let mut pattern = pattern(line, false)?.0;
            pattern.ends = vec![end];
            Check::Packets(span, None, pattern)
        }
        "completes" | "receives" => {
            let kind = if verb == "completes" { CompletionKind::Sent } else { CompletionKind::Received };
            let mut options = line.options()?;
            let id = options.number("id")? as u32;
            let imm = options.optional("imm")?.map(|imm| imm as u32);
            let status = options.flag_of(STATUSES.map(|(name, _)| name).as_slice());
            options.done()?;
            Check::Completion { span, end, kind, id, status: status_of(status.unwrap_or("success"))?, imm }
        }
        "completed" | "received" => {
            let kind = if verb == "completed" { CompletionKind::Sent } else { CompletionKind::Received };
            let mut all = Vec::new();
            while let Some(word) = line.take() {
                let (id, status) = word.split_once(':').unwrap_or((word, "success"));
                all.push((value(id)? as u32, status_of(status)?));
            }
            Check::Completions(end, kind, all)
        }
        "counter" => counter(line, Some(end))?,
        "idle" => Check::Idle(end),
        "placed" | "untouched" => {
            let mut options = line.options()?;
            let (at, len) = (options.number("at")?, options.number("len")?);
            let from = if verb == "placed" { options.number_or("from", at)? } else { at };
            options.done()?;
            if verb == "placed" { Check::Placed { end, at, len, from } } else { Check::Untouched { end, at, len } }
        }
        "cell" => {
            let at = value(line.want("an address")?)?;
            match comparison(line)? {
                Comparison::Equal => Check::Cell { end, at, value: value(line.want("a value")?)? },
                other => return Err(format!("{other:?}: a cell is compared by ==")),
            }
        }
        _ => return Ok(None),
    }))
}

fn counter(line: &mut Words, end: Option<usize>) -> Parsed<Check> {
    let name = line.want("the name of a counter")?.to_owned();
    super::check::counter(&metaroce_proto::Counters::default(), &name)?;
    Ok(Check::Counter(end, name, comparison(line)?, value(line.want("a number")?)?))
}

fn parse_step(line: &mut Words, end: usize, verb: &str) -> Parsed<Step> {
    let opcode = match verb {
        "write" => Opcode::Write,
        "write-imm" => Opcode::WriteImm,
        "send" => Opcode::Send,
        "read" => Opcode::Read,
        "cas" => Opcode::CompareSwap,
        "faa" => Opcode::FetchAdd,
        "flush" => Opcode::Flush,
        "recv" => {
            let mut options = line.options()?;
            let (wr_id, stream) = (options.number("id")? as u32, StreamId(options.number_or("stream", 0)? as u16));
            let (local, len) = (options.number_or("at", 0)?, options.number("len")?);
            options.done()?;
            return Ok(Step::Receive(end, ReceiveRequest { wr_id, stream, local, len }));
        }
        "deny" | "allow" => {
            let mut options = line.options()?;
            let plane = PlaneId(options.number("plane")? as u8);
            options.done()?;
            return Ok(Step::Deny(end, plane, verb == "deny"));
        }
        "path" | "connection" => return state(line, end, verb),
        other => return Err(format!("{other} is unknown")),
    };
    let mut options = line.options()?;
    let at = options.number_or("at", 0)?;
    let len = match opcode {
        Opcode::Flush => 0,
        opcode if opcode.is_atomic() => options.number_or("len", 8)?,
        _ => options.number("len")?,
    };
    let operands = match opcode {
        Opcode::CompareSwap => [options.number("compare")?, options.number("swap")?],
        Opcode::FetchAdd => [options.number("add")?, 0],
        _ => [0; 2],
    };
    let request = WorkRequest {
        wr_id: options.number("id")? as u32,
        opcode,
        stream: StreamId(options.number_or("stream", 0)? as u16),
        local: at,
        len,
        remote: options.number_or("to", at)?,
        rkey: Rkey(options.number_or("key", 0)? as u32),
        imm: if opcode == Opcode::WriteImm { options.number("imm")? as u32 } else { 0 },
        operands,
        fence: options.flag("fence"),
        unsignaled: options.flag("unsignaled"),
    };
    let refused = options.flag("refused");
    options.done()?;
    Ok(Step::Post(end, request, refused))
}

fn state(line: &mut Words, end: usize, verb: &str) -> Parsed<Step> {
    let quantity = if verb == "path" {
        let path = value(line.want("the number of a path")?)? as usize;
        match line.want("window, in_flight or health")? {
            "window" => Quantity::PathWindow(path),
            "in_flight" => Quantity::PathInFlight(path),
            "health" => Quantity::PathHealth(path),
            other => return Err(format!("{other} is unknown; allowed: window in_flight health")),
        }
    } else {
        match line.want("window or in_flight")? {
            "window" => Quantity::Window,
            "in_flight" => Quantity::InFlight,
            other => return Err(format!("{other} is unknown; allowed: window in_flight")),
        }
    };
    let comparison = comparison(line)?;
    let to = match line.want("a value")? {
        "start" => Value::Start,
        "path" => Value::Path(value(line.want("the number of a path")?)? as usize),
        word => match metaroce_proto::Health::NAMES.iter().position(|name| *name == word) {
            Some(health) => Value::Number(health as u64),
            None => Value::Number(value(word)?),
        },
    };
    Ok(Step::State(end, quantity, comparison, to))
}

/// `a > data path=3`.
fn sender_pattern(line: &mut Words) -> Parsed<Pattern> {
    let end = line.end()?;
    match line.want(">")? {
        ">" => {}
        other => return Err(format!("{other}: wants >")),
    }
    let mut pattern = pattern(line, false)?.0;
    pattern.ends = vec![end];
    Ok(pattern)
}

/// `a data path=3`; with `rule`, `skip` and `times` too.
fn pattern(line: &mut Words, rule: bool) -> Parsed<(Pattern, u32, u32)> {
    let ends = match line.peek() {
        Some("ab") if rule => {
            line.next += 1;
            vec![0, 1]
        }
        _ if rule => vec![line.end()?],
        _ => Vec::new(),
    };
    let kind = line.want("a kind of packet")?;
    if !packets::kinds().contains(&kind) {
        return Err(format!("{kind} is no kind of packet; allowed: {}", packets::kinds().join(" ")));
    }
    let mut options = line.options()?;
    let (skip, times) = match rule {
        true => (options.number_or("skip", 0)? as u32, options.number_or("times", u32::MAX.into())? as u32),
        false => (0, 0),
    };
    let mut fields = Vec::new();
    for name in packets::fields(kind) {
        if let Some(text) = options.text(name) {
            let range = match packets::word(name, text) {
                Ok(Some(number)) => number..=number,
                Ok(None) => range(text)?,
                Err(why) => return Err(why),
            };
            fields.push(((*name).to_owned(), range));
        }
    }
    options.done()?;
    Ok((Pattern { ends, kind: kind.to_owned(), fields }, skip, times))
}

const STATUSES: [(&str, CompletionStatus); 7] = [
    ("success", CompletionStatus::Success),
    ("retry-exceeded", CompletionStatus::RetryExceeded),
    ("rnr-retry-exceeded", CompletionStatus::RnrRetryExceeded),
    ("flushed", CompletionStatus::Flushed),
    ("access-error", CompletionStatus::AccessError),
    ("length-error", CompletionStatus::LengthError),
    ("peer-failed", CompletionStatus::PeerFailed),
];

fn status_of(word: &str) -> Parsed<CompletionStatus> {
    let found = STATUSES.iter().find(|(name, _)| *name == word);
    found
        .map(|(_, status)| *status)
        .ok_or_else(|| format!("{word} is no status; allowed: {}", STATUSES.map(|(name, _)| name).join(" ")))
}

fn comparison(line: &mut Words) -> Parsed<Comparison> {
    Ok(match line.want("a comparison")? {
        "==" => Comparison::Equal,
        "<" => Comparison::Less,
        ">" => Comparison::More,
        "<=" => Comparison::AtMost,
        ">=" => Comparison::AtLeast,
        other => return Err(format!("{other} is no comparison; allowed: == < > <= >=")),
    })
}

fn value(word: &str) -> Parsed<u64> {
    let (digits, unit) = match (word.strip_suffix('K'), word.strip_suffix('M')) {
        (Some(digits), _) => (digits, 1 << 10),
        (_, Some(digits)) => (digits, 1 << 20),
        _ => (word, 1),
    };
    let number: Option<u64> = digits.parse().ok();
    number.and_then(|n| n.checked_mul(unit)).ok_or_else(|| format!("{word} is no number"))
}

fn range(word: &str) -> Parsed<RangeInclusive<u64>> {
    match word.split_once("..") {
        Some((from, "")) => Ok(value(from)?..=u64::MAX),
        Some((from, to)) => Ok(value(from)?..=value(to)?),
        None => value(word).map(|n| n..=n),
    }
}

fn time(word: &str) -> Parsed<Time> {
    let wrong = || format!("{word} is no time; allowed: a number and ps, ns, us, ms or s");
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let places = match &word[digits.len()..] {
        "ps" => 0,
        "ns" => 3,
        "us" => 6,
        "ms" => 9,
        "s" => 12,
        _ => return Err(wrong()),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    if part.len() > places || whole.is_empty() {
        return Err(wrong());
    }
    format!("{whole}{part:0<places$}").parse().map(Time).map_err(|_| wrong())
}

fn span(word: &str) -> Parsed<Span> {
    match word.split_once("..") {
        None => time(word).map(|at| Span(at, at)),
        Some((from, to)) => {
            let from = if from.is_empty() { Time::ZERO } else { time(from)? };
            Ok(Span(from, if to.is_empty() { Time::NEVER } else { time(to)? }))
        }
    }
}

/// The words of a line.
struct Words<'a> {
    words: Vec<&'a str>,
    next: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).copied()
    }

    fn take(&mut self) -> Option<&'a str> {
        self.next += 1;
        self.words.get(self.next - 1).copied()
    }

    /// A time or a span, if the line goes on with one.
    fn span(&mut self) -> Parsed<Option<Span>> {
        match self.peek() {
            Some(word) if word.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
                self.next += 1;
                span(word).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn want(&mut self, what: &str) -> Parsed<&'a str> {
        self.take().ok_or_else(|| format!("ends where {what} is wanted"))
    }

    fn end(&mut self) -> Parsed<usize> {
        match self.want("a or b")? {
            "a" => Ok(0),
            "b" => Ok(1),
            other => Err(format!("{other} is unknown; wants a or b")),
        }
    }

    /// All that is left.
    fn options(&mut self) -> Parsed<Options<'a>> {
        let left = self.words.split_off(self.next.min(self.words.len()));
        Ok(Options(left.into_iter().map(|word| word.split_once('=').unwrap_or((word, ""))).collect()))
    }

    fn nothing_more(&self) -> Parsed<()> {
        self.peek().map_or(Ok(()), |word| Err(format!("{word} is unknown")))
    }
}

/// `key=value` and flags, in any order.
struct Options<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Options<'a> {
    fn text(&mut self, key: &str) -> Option<&'a str> {
        let position = self.0.iter().position(|(name, value)| *name == key && !value.is_empty())?;
        Some(self.0.remove(position).1)
    }

    fn flag(&mut self, key: &str) -> bool {
        let position = self.0.iter().position(|word| *word == (key, ""));
        position.map(|position| self.0.remove(position)).is_some()
    }

    fn flag_of(&mut self, keys: &[&'a str]) -> Option<&'a str> {
        keys.iter().copied().find(|key| self.flag(key))
    }

    fn optional(&mut self, key: &str) -> Parsed<Option<u64>> {
        self.text(key).map(value).transpose()
    }

    fn number_or(&mut self, key: &str, default: u64) -> Parsed<u64> {
        Ok(self.optional(key)?.unwrap_or(default))
    }

    fn number(&mut self, key: &str) -> Parsed<u64> {
        self.optional(key)?.ok_or_else(|| format!("wants {key}="))
    }

    fn done(self) -> Parsed<()> {
        self.0.first().map_or(Ok(()), |(word, _)| Err(format!("{word} is unknown here")))
    }
}
