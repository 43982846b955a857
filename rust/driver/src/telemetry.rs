//! Time series of connections and paths, as columns.
//!
//! A sample shows the state after all events up to its time. It is taken between two events and is
//! none itself, so the run, its counters and its digest are the same with and without it.

use metaroce_proto::{ConnectionSample, Endpoint, PathSample, Sample};
use metaroce_wire::{Rate, Time};

use crate::spec::{DriverError, Spec};

/// Most rows of both tables together. Ours: about 1.6 GB of paths.
const MOST_ROWS: u64 = 20_000_000;

/// Declares a table: its columns, and how they leave as bytes.
macro_rules! table {
    ($(#[$about:meta])* $table:ident { $($(#[$doc:meta])* $column:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default)]
        pub struct $table {
            $($(#[$doc])* pub $column: Vec<$type>,)*
        }

        impl $table {
            /// Calls `take` with name and little-endian bytes of each column, which is gone then.
            pub fn into_columns(self, mut take: impl FnMut(&'static str, Vec<u8>)) {
                $(
                    let mut bytes = Vec::with_capacity(self.$column.len() * size_of::<$type>());
                    self.$column.into_iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
                    take(stringify!($column), bytes);
                )*
            }
        }
    };
}

table! {
    /// Connections, one row for each at each time. Bytes are those of payload.
    ConnectionTable {
        /// When, picoseconds.
        time_ps: u64,
        /// Sending rank.
        src: u32,
        /// Receiving rank.
        dst: u32,
        /// Bytes that may be in flight; 0 = no limit (RoCEv2).
        window_bytes: u64,
        /// Bytes in flight.
        in_flight_bytes: u64,
        /// Rate that the receiver's last hint grants, bits per second; 0 = none.
        hint_bps: u64,
        /// Least round trip seen, picoseconds; 0 = not measured.
        least_rtt_ps: u64,
        /// Bytes sent at least once.
        sent_bytes: u64,
        /// Bytes acknowledged.
        acked_bytes: u64,
        /// Bytes posted and not sent yet.
        unsent_bytes: u64,
    }
}

table! {
    /// Paths (RoCEv2: QPs), one row for each at each time. Counts are totals since the start.
    PathTable {
        /// When, picoseconds.
        time_ps: u64,
        /// Sending rank.
        src: u32,
        /// Receiving rank.
        dst: u32,
        /// Number of the path in its connection.
        path: u16,
        /// Its plane.
        plane: u8,
        /// Position in [`metaroce_proto::Health::NAMES`].
        state: u8,
        /// Payload bytes that may be in flight; 0 = no limit (RoCEv2).
        window_bytes: u32,
        /// Payload bytes in flight.
        in_flight_bytes: u32,
        /// Smoothed round trip, picoseconds; 0 = not measured.
        srtt_ps: u64,
        /// Rate that it is paced to, bits per second; 0 = not paced.
        pace_bps: u64,
        /// Estimated share of marked packets, thousandths.
        ecn_permille: u16,
        /// Data packets sent.
        sent: u64,
        /// Losses that a gap revealed.
        lost_gap: u64,
        /// Losses that time revealed.
        lost_tail: u64,
        /// Marks reported to the sender.
        marked: u64,
    }
}

impl ConnectionTable {
    fn push(&mut self, time: Time, (src, dst): (u32, u32), sample: &ConnectionSample) {
        self.time_ps.push(time.0);
        self.src.push(src);
        self.dst.push(dst);
        self.window_bytes.push(sample.window);
        self.in_flight_bytes.push(sample.in_flight);
        self.hint_bps.push(sample.hint.map_or(0, |Rate(bps)| bps));
        self.least_rtt_ps.push(sample.least_rtt.0);
        self.sent_bytes.push(sample.sent_bytes);
        self.acked_bytes.push(sample.acked_bytes);
        self.unsent_bytes.push(sample.unsent_bytes);
    }
}

impl PathTable {
    fn push(&mut self, time: Time, (src, dst): (u32, u32), sample: &PathSample) {
        self.time_ps.push(time.0);
        self.src.push(src);
        self.dst.push(dst);
        self.path.push(sample.path);
        self.plane.push(sample.plane.0);
        self.state.push(sample.health as u8);
        self.window_bytes.push(sample.window);
        self.in_flight_bytes.push(sample.in_flight);
        self.srtt_ps.push(sample.srtt.0);
        self.pace_bps.push(sample.pace.map_or(0, |Rate(bps)| bps));
        self.ecn_permille.push(sample.ecn_permille);
        self.sent.push(sample.counts.sent);
        self.lost_gap.push(sample.counts.lost_gap);
        self.lost_tail.push(sample.counts.lost_tail);
        self.marked.push(sample.counts.marked);
    }
}

/// The tables of a run.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Of connections.
    pub connections: ConnectionTable,
    /// Of their paths.
    pub paths: PathTable,
}

impl Tables {
    fn rows(&self) -> u64 {
        (self.connections.time_ps.len() + self.paths.time_ps.len()) as u64
    }
}

/// Takes the samples of a run.
#[derive(Debug)]
pub(crate) struct Sampler {
    interval: Time,
    /// When the next sample is due.
    pub next: Time,
    /// Hosts whose connections are shown, in the order in which their ranks were asked for.
    hosts: Vec<u32>,
    pub tables: Tables,
}

impl Sampler {
    /// A sampler, if `spec` asks for one; switches on what `endpoints` are to count for it.
    pub(crate) fn new(spec: &Spec, endpoints: &mut [Endpoint]) -> Result<Option<Sampler>, DriverError> {
        let Some(interval) = spec.record_paths_ps else {
            return match &spec.record_paths_ranks {
                Some(ranks) => Err(DriverError::config(
                    "record_paths_ranks",
                    format!("{} ranks without record_paths_ps", ranks.len()),
                    "both, or record_paths_ps alone",
                )),
                None => Ok(None),
            };
        };
        if interval == 0 {
            return Err(DriverError::config("record_paths_ps", 0, "at least 1"));
        }
        let hosts = hosts(spec)?;
        hosts.iter().for_each(|&host| endpoints[host as usize].record());
        Ok(Some(Sampler { interval: Time(interval), next: Time::ZERO, hosts, tables: Tables::default() }))
    }

    /// Takes every sample that is due before `end`, an instant up to which nothing happens any more.
    #[cold]
    pub(crate) fn catch_up(
        &mut self,
        end: Time,
        endpoints: &[Endpoint],
        rank_of_host: &[u32],
    ) -> Result<(), DriverError> {
        while self.next < end {
            let before = self.tables.rows();
            self.take(self.next, endpoints, rank_of_host);
            let (rows, times) = (self.tables.rows() - before, (end.0 - 1 - self.next.0) / self.interval.0);
            self.refuse_excess(rows.saturating_mul(times), self.next)?;
            // Nothing to show yet, and nothing changes before `end`.
            let steps = if rows == 0 { times + 1 } else { 1 };
            self.next = Time(self.next.0.saturating_add(self.interval.0.saturating_mul(steps)));
        }
        Ok(())
    }

    /// Takes the last sample, at the end of the run.
    pub(crate) fn finish(
        &mut self,
        now: Time,
        endpoints: &[Endpoint],
        rank_of_host: &[u32],
    ) -> Result<(), DriverError> {
        self.catch_up(now, endpoints, rank_of_host)?;
        self.take(now, endpoints, rank_of_host);
        self.refuse_excess(0, now)
    }

    fn take(&mut self, now: Time, endpoints: &[Endpoint], rank_of_host: &[u32]) {
        let Tables { connections, paths } = &mut self.tables;
        for &host in &self.hosts {
            let src = rank_of_host[host as usize];
            endpoints[host as usize].observe(&mut |sample| match sample {
                Sample::Connection(row) => connections.push(now, (src, rank_of_host[row.peer.index()]), &row),
                Sample::Path(row) => paths.push(now, (src, rank_of_host[row.peer.index()]), &row),
            });
        }
    }

    /// Refuses an interval that asks for `more` rows than there may be.
    fn refuse_excess(&self, more: u64, now: Time) -> Result<(), DriverError> {
        let rows = self.tables.rows();
        if rows.saturating_add(more) <= MOST_ROWS {
            return Ok(());
        }
        let allowed = format!(
            "at most {MOST_ROWS} rows a run, {rows} are taken at {now}: a longer interval, or fewer record_paths_ranks"
        );
        Err(DriverError::config("record_paths_ps", self.interval.0, allowed))
    }
}

/// Hosts of the ranks whose connections are to be shown.
fn hosts(spec: &Spec) -> Result<Vec<u32>, DriverError> {
    let Some(ranks) = &spec.record_paths_ranks else {
        return Ok((0..spec.hosts_of_ranks.len()).flat_map(|rank| spec.hosts_of(rank)).collect());
    };
    let count = spec.hosts_of_ranks.len();
    let bad = (0..ranks.len()).find(|&i| ranks[i] as usize >= count || ranks[..i].contains(&ranks[i]));
    match bad {
        Some(i) => {
            let (field, allowed) = (format!("record_paths_ranks[{i}]"), format!("distinct ranks below {count}"));
            Err(DriverError::config(&field, ranks[i], allowed))
        }
        None => Ok(ranks.iter().flat_map(|&rank| spec.hosts_of(rank as usize)).collect()),
    }
}
