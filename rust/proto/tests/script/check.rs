//! What a script expects of a run.

use metaroce_proto::Counters;

use super::{Check, Parsed, Script};
use crate::pair::Pair;
use crate::pair::sprayed::totals;

/// Failures, with their lines.
pub fn check(script: &Script, pair: &Pair) -> Vec<(usize, String)> {
    let failure = |(line, check): &(usize, Check)| holds(check, pair).err().map(|why| (*line, why));
    script.checks.iter().filter_map(failure).collect()
}

fn holds(check: &Check, pair: &Pair) -> Parsed<()> {
    match check {
        Check::Packets(span, count, pattern) => {
            let alike: Vec<_> = pair.log.iter().filter(|(_, p)| pattern.matches(p)).map(|(at, _)| *at).collect();
            let found = alike.iter().filter(|at| span.has(**at)).count();
            let times = || alike.iter().take(8).map(ToString::to_string).collect::<Vec<_>>().join(", ");
            match count {
                None if found > 0 => Ok(()),
                None => Err(format!("no such packet then; such begin at: {}", times())),
                Some(count) if found == *count => Ok(()),
                Some(count) => Err(format!("{found} such packets then, not {count}; such begin at: {}", times())),
            }
        }
        Check::Completion { span, end, kind, id, status, imm } => {
            let all = pair.completed_at[*end].iter().zip(&pair.completions[*end]);
            let own: Vec<_> = all.filter(|(_, c)| c.kind == *kind && c.wr_id == *id).collect();
            match own[..] {
                [(at, c)] if c.status != *status => Err(format!("ends with {:?} at {at}", c.status)),
                [(at, _)] if !span.has(*at) => Err(format!("ends at {at}")),
                [(_, c)] if c.imm != *imm => Err(format!("has immediate data {:?}", c.imm)),
                [_] => Ok(()),
                _ => Err(format!("ends {} times", own.len())),
            }
        }
        Check::Completions(end, kind, expected) => {
            let own = pair.completions[*end].iter().filter(|c| c.kind == *kind);
            let found: Vec<_> = own.map(|c| (c.wr_id, c.status)).collect();
            if found == *expected { Ok(()) } else { Err(format!("they are {found:?}")) }
        }
        Check::Counter(end, name, comparison, number) => {
            let counters = end.map_or_else(|| totals(pair), |end| *pair.ends[end].counters());
            let found = counter(&counters, name)?;
            if comparison.holds(found, *number) { Ok(()) } else { Err(format!("{name} is {found}")) }
        }
        Check::Placed { end, at, len, from } if pair.placed_from(*end, *at, *len, *from) => Ok(()),
        Check::Untouched { end, at, len } if pair.untouched(*end, *at, *len) => Ok(()),
        Check::Placed { .. } | Check::Untouched { .. } => Err("is not".to_owned()),
        Check::Cell { end, at, value } => {
            let found = pair.cells[*end].get(at).copied().unwrap_or_default();
            if found == *value { Ok(()) } else { Err(format!("there is {found}")) }
        }
        Check::Idle(end) => match pair.ends[*end].stuck().first() {
            None => Ok(()),
            Some(stuck) => Err(format!("{stuck:?}")),
        },
        Check::Quiet(by) if pair.active_at <= *by => Ok(()),
        Check::Quiet(_) => Err(format!("something happens at {}", pair.active_at)),
    }
}

/// A counter by name.
pub fn counter(counters: &Counters, name: &str) -> Parsed<u64> {
    Ok(match name {
        "data_packets" => counters.data_packets,
        "resent" => counters.resent,
        "acks" => counters.acks,
        "duplicates" => counters.duplicates,
        "placed" => counters.placed,
        "placed_bytes" => counters.placed_bytes,
        "timeouts" => counters.timeouts,
        "gap_detections" => counters.gap_detections,
        "timer_detections" => counters.timer_detections,
        "paths_died" => counters.paths_died,
        "paths_revived" => counters.paths_revived,
        "probes" => counters.probes,
        "naks" => counters.naks,
        "cnps" => counters.cnps,
        "dropped_ahead" => counters.dropped_ahead,
        "rnr" => counters.rnr,
        "marked" => counters.marked,
        "refused" => counters.refused,
        _ => return Err(format!("{name} is no counter")),
    })
}
