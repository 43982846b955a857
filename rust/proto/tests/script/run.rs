//! Plays a [`Script`] on a [`Pair`].

use metaroce_proto::{Endpoint, Environment, Sample};
use metaroce_wire::HostId;

use super::{Action, Quantity, Script, Step, Value};
use crate::pair::{Fate, Pair};

pub fn run(script: &Script) -> Result<Pair, (usize, String)> {
    let mut pair = pair(script);
    let mut rules: Vec<_> = script.fates.iter().map(|r| (r.span, r.what, r.pattern.clone(), r.skip, r.times)).collect();
    pair.fate_at(move |now, packet| {
        for (span, what, pattern, skip, times) in &mut rules {
            if *times == 0 || !span.has(now) || !pattern.matches(packet) {
                continue;
            }
            if *skip > 0 {
                *skip -= 1;
                continue;
            }
            *times -= 1;
            return match *what {
                Action::Lose => Fate::Lost,
                Action::Mark => Fate::Marked,
                Action::Trim => Fate::Trimmed,
                Action::Delay(more) => Fate::Delayed(more),
                Action::Double(later) => Fate::Doubled(later),
            };
        }
        Fate::Arrives
    });
    let mut first = Vec::new();
    for (line, at, step) in &script.steps {
        pair.run_until(*at);
        pair.now = *at;
        match step {
            Step::Stop => return Ok(pair),
            step => play(&mut pair, step, &mut first).map_err(|why| (*line, why))?,
        }
    }
    pair.run();
    Ok(pair)
}

fn pair(script: &Script) -> Pair {
    let link = &script.link;
    let make = |host| {
        let ports = vec![link.rate; link.planes];
        let environment = Environment { host: HostId(host), ports, base_rtt: link.rtt, routes: link.routes };
        Endpoint::new(&script.config, environment)
    };
    let mut pair = Pair::new([make(0), make(1)], link.planes, link.rate, link.delay);
    for (end, at, len, access) in &script.regions {
        pair.ends[*end].register(*at, *len, *access);
    }
    pair
}

fn play(pair: &mut Pair, step: &Step, first: &mut Vec<(usize, Sample)>) -> Result<(), String> {
    let (now, connection) = (pair.now, pair.connection);
    match *step {
        Step::Post(end, request, refused) => match (pair.ends[end].post(now, connection, request), refused) {
            (Ok(()), false) | (Err(_), true) => {}
            (Ok(()), true) => return Err("is not refused".to_owned()),
            (Err(why), false) => return Err(why.to_string()),
        },
        Step::Receive(end, receive) => {
            pair.ends[end].post_receive(connection, receive).map_err(|why| why.to_string())?;
        }
        Step::Deny(end, plane, denied) => {
            pair.ends[end].deny(now, connection, plane, denied).map_err(|why| why.to_string())?;
        }
        Step::State(end, quantity, comparison, to) => {
            let mut samples = Vec::new();
            pair.ends[end].observe(&mut |sample| samples.push((end, sample)));
            if first.iter().all(|(of, _)| *of != end) {
                first.extend(samples.iter().copied());
            }
            let missing = || format!("{quantity:?}: there is none yet");
            let left = look(&samples, end, quantity).ok_or_else(missing)?;
            let right = match to {
                Value::Number(number) => number,
                Value::Start => look(first, end, quantity).ok_or_else(missing)?,
                Value::Path(path) => look(&samples, end, on_path(quantity, path)).ok_or_else(missing)?,
            };
            if !comparison.holds(left, right) {
                return Err(format!("{quantity:?} is {left}, which is not {comparison:?} to {right}"));
            }
        }
        Step::Stop => {}
    }
    Ok(())
}

fn on_path(quantity: Quantity, path: usize) -> Quantity {
    match quantity {
        Quantity::PathWindow(_) => Quantity::PathWindow(path),
        Quantity::PathInFlight(_) => Quantity::PathInFlight(path),
        Quantity::PathHealth(_) => Quantity::PathHealth(path),
        other => other,
    }
}

fn look(samples: &[(usize, Sample)], end: usize, quantity: Quantity) -> Option<u64> {
    let of_end = || samples.iter().filter(|(of, _)| *of == end).map(|(_, sample)| sample);
    let path = |number: usize| {
        of_end().find_map(|sample| match sample {
            Sample::Path(path) if path.path as usize == number => Some(*path),
            _ => None,
        })
    };
    let connection = || {
        of_end().find_map(|sample| match sample {
            Sample::Connection(connection) => Some(*connection),
            Sample::Path(_) => None,
        })
    };
    Some(match quantity {
        Quantity::PathWindow(number) => path(number)?.window.into(),
        Quantity::PathInFlight(number) => path(number)?.in_flight.into(),
        Quantity::PathHealth(number) => path(number)?.health as u64,
        Quantity::Window => connection()?.window,
        Quantity::InFlight => connection()?.in_flight,
    })
}
