//! What must hold of windows and of what is in flight, at every event.

use std::cell::RefCell;
use std::rc::Rc;

use metaroce_proto::{ConnectionSample, Endpoint, PathSample, Sample};
use metaroce_wire::Time;

use super::Pair;
use super::sprayed::MTU;

/// What was wrong, in words.
pub type Wrong = Rc<RefCell<Vec<String>>>;

/// Largest window of a path: what one vector describes.
const CAP: u64 = 256 * MTU;
/// What a tail probe counts in flight, bytes.
const PROBE: u64 = 64;

/// The only connection of an endpoint, and its paths; none before it has posted.
pub fn look(endpoint: &Endpoint) -> Option<(ConnectionSample, Vec<PathSample>)> {
    let (mut connection, mut paths) = (None, Vec::new());
    endpoint.observe(&mut |sample| match sample {
        Sample::Connection(sample) => connection = Some(sample),
        Sample::Path(sample) => paths.push(sample),
    });
    connection.map(|connection| (connection, paths))
}

/// Watches a pair from now on.
pub fn watch(pair: &mut Pair) -> Wrong {
    let wrong = Wrong::default();
    let found = Rc::clone(&wrong);
    let mut last = [0u64; 2];
    pair.watch(move |now, ends| {
        for (end, endpoint) in ends.iter().enumerate() {
            let Some((connection, paths)) = look(endpoint) else { continue };
            if let Err(what) = check(&connection, &paths, last[end]) {
                found.borrow_mut().push(format!("{now}, end {end}: {what}"));
            }
            last[end] = connection.in_flight;
        }
    });
    wrong
}

fn check(connection: &ConnectionSample, paths: &[PathSample], before: u64) -> Result<(), String> {
    let sum: u64 = paths.iter().map(|path| u64::from(path.in_flight)).sum();
    if sum != connection.in_flight {
        return Err(format!("{sum} bytes in flight on paths, {} on the connection", connection.in_flight));
    }
    if let Some(path) = paths.iter().find(|path| !(MTU..=CAP).contains(&path.window.into())) {
        return Err(format!("path {} has a window of {} bytes", path.path, path.window));
    }
    let room = connection.window.max(MTU) + PROBE * paths.len() as u64;
    if connection.in_flight > before && connection.in_flight > room {
        return Err(format!("{} bytes in flight in a window of {}", connection.in_flight, connection.window));
    }
    Ok(())
}

/// Bytes in flight at both ends.
pub fn in_flight(pair: &Pair) -> [u64; 2] {
    pair.ends.each_ref().map(|end| look(end).map_or(0, |(connection, _)| connection.in_flight))
}

/// Windows of the paths of end 0 whenever they change: (time, path, before, after).
pub type Changes = Rc<RefCell<Vec<(Time, usize, u32, u32)>>>;

/// Records changes of windows.
pub fn window_changes(pair: &mut Pair) -> Changes {
    let changes = Changes::default();
    let found = Rc::clone(&changes);
    let mut last: Vec<u32> = Vec::new();
    pair.watch(move |now, ends| {
        let Some((_, paths)) = look(&ends[0]) else { return };
        let windows: Vec<u32> = paths.iter().map(|path| path.window).collect();
        for (path, (&before, &after)) in last.iter().zip(&windows).enumerate().filter(|(_, (b, a))| b != a) {
            found.borrow_mut().push((now, path, before, after));
        }
        last = windows;
    });
    changes
}
