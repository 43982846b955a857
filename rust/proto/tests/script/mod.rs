//! Packet scripts: `tests/scripts/README.md` describes the language.

mod check;
mod packets;
mod parse;
mod run;

use metaroce_proto::{Access, CompletionKind, CompletionStatus, ReceiveRequest, TransportConfig, WorkRequest};
use metaroce_wire::{PlaneId, Rate, Time};

use self::packets::Pattern;

/// Runs the script `text`; every line of the answer is a failure that names the line of `file`.
pub fn run(file: &str, text: &str) -> Result<(), String> {
    let at = |(line, what): (usize, String)| format!("{file}:{line}: {what}");
    let script = parse::parse(text).map_err(at)?;
    let pair = run::run(&script).map_err(at)?;
    let failures: Vec<String> = check::check(&script, &pair).into_iter().map(at).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n") + "\n" + &packets::trace(&pair)) }
}

/// What a line asks for, or why it cannot.
type Parsed<T> = Result<T, String>;

/// A whole script; numbers of lines come first.
#[derive(Debug)]
struct Script {
    link: Link,
    config: TransportConfig,
    /// Further regions of each end, keys 1, 2, …
    regions: Vec<(usize, u64, u64, Access)>,
    steps: Vec<(usize, Time, Step)>,
    fates: Vec<Rule>,
    checks: Vec<(usize, Check)>,
}

#[derive(Debug)]
struct Link {
    planes: usize,
    rate: Rate,
    delay: Time,
    rtt: Time,
    routes: u32,
}

/// From, to, both included.
#[derive(Clone, Copy, Debug)]
struct Span(Time, Time);

impl Span {
    const ALWAYS: Span = Span(Time::ZERO, Time::NEVER);

    fn has(self, at: Time) -> bool {
        self.0 <= at && at <= self.1
    }
}

#[derive(Debug)]
enum Step {
    /// The last field: it is to be refused.
    Post(usize, WorkRequest, bool),
    Receive(usize, ReceiveRequest),
    Deny(usize, PlaneId, bool),
    /// What `observe` shows then.
    State(usize, Quantity, Comparison, Value),
    Stop,
}

/// What becomes of packets.
#[derive(Debug)]
struct Rule {
    span: Span,
    what: Action,
    pattern: Pattern,
    /// Packets that it passes first, and takes then.
    skip: u32,
    times: u32,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Lose,
    Mark,
    Trim,
    Delay(Time),
    Double(Time),
}

#[derive(Clone, Copy, Debug)]
enum Quantity {
    PathWindow(usize),
    PathInFlight(usize),
    PathHealth(usize),
    Window,
    InFlight,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Number(u64),
    /// The same of another path.
    Path(usize),
    /// As it was at the first look.
    Start,
}

#[derive(Clone, Copy, Debug)]
enum Comparison {
    Equal,
    Less,
    More,
    AtMost,
    AtLeast,
}

impl Comparison {
    fn holds(self, left: u64, right: u64) -> bool {
        match self {
            Comparison::Equal => left == right,
            Comparison::Less => left < right,
            Comparison::More => left > right,
            Comparison::AtMost => left <= right,
            Comparison::AtLeast => left >= right,
        }
    }
}

#[derive(Debug)]
enum Check {
    /// That many packets begin in the span; `None`: at least one.
    Packets(Span, Option<usize>, Pattern),
    /// One completion of this name, then.
    Completion {
        span: Span,
        end: usize,
        kind: CompletionKind,
        id: u32,
        status: CompletionStatus,
        imm: Option<u32>,
    },
    /// All completions of a kind, in order.
    Completions(usize, CompletionKind, Vec<(u32, CompletionStatus)>),
    Counter(Option<usize>, String, Comparison, u64),
    Placed {
        end: usize,
        at: u64,
        len: u64,
        from: u64,
    },
    Untouched {
        end: usize,
        at: u64,
        len: u64,
    },
    Cell {
        end: usize,
        at: u64,
        value: u64,
    },
    /// Nothing is unfinished at the end.
    Idle(usize),
    /// Nothing happens later.
    Quiet(Time),
}
