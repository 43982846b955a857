//! The crossing to the flow-level model.

use metaroce_flow::{FabricColumns, FlowData, FlowError, FlowOutcome, FlowSpec, FlowStatus};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::{ConfigError, Stop, column, interrupted, little_endian, program};

/// The fabric's columns, owned.
struct Fabric {
    switch_plane: Vec<u32>,
    switch_tier: Vec<u32>,
    a: Vec<u32>,
    b: Vec<u32>,
    rate_bps: Vec<u64>,
    delay_ps: Vec<u64>,
    hosts_of_ranks: Vec<u32>,
}

impl Fabric {
    fn read(columns: &Bound<'_, PyAny>) -> PyResult<Fabric> {
        Ok(Fabric {
            switch_plane: column(columns, "switch_plane", true)?,
            switch_tier: column(columns, "switch_tier", true)?,
            a: column(columns, "link_a", true)?,
            b: column(columns, "link_b", true)?,
            rate_bps: column(columns, "link_rate_bps", true)?,
            delay_ps: column(columns, "link_delay_ps", true)?,
            hosts_of_ranks: column(columns, "hosts_of_ranks", true)?,
        })
    }

    fn columns(&self, hosts: u32) -> FabricColumns<'_> {
        FabricColumns {
            hosts,
            switch_plane: &self.switch_plane,
            switch_tier: &self.switch_tier,
            a: &self.a,
            b: &self.b,
            rate_bps: &self.rate_bps,
            delay_ps: &self.delay_ps,
        }
    }
}

/// Estimates one run at flow level, on a fabric of `hosts` hosts; `spec` and `columns` as in `_core.pyi`.
///
/// The interpreter lock is released during the run, signals or `stop` are polled, and errors raised as in `simulate`.
#[pyfunction]
#[pyo3(signature = (spec, hosts, columns, stop = None))]
pub fn estimate<'py>(
    py: Python<'py>,
    spec: &str,
    hosts: u32,
    columns: &Bound<'py, PyAny>,
    stop: Option<Py<Stop>>,
) -> PyResult<Bound<'py, PyDict>> {
    let refuse = |error: FlowError| ConfigError::new_err(error.to_string());
    let spec = FlowSpec::parse(spec).map_err(refuse)?;
    let fabric = Fabric::read(columns)?;
    let data =
        FlowData { fabric: fabric.columns(hosts), hosts_of_ranks: &fabric.hosts_of_ranks, program: program(columns)? };
    let mut signal = None;
    let outcome = py.detach(|| {
        let mut interrupted = || interrupted(stop.as_ref(), &mut signal);
        metaroce_flow::estimate(&spec, data, &mut interrupted)
    });
    match outcome {
        Ok(outcome) => to_dict(py, outcome),
        Err(FlowError::Interrupted) => Err(signal.unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))),
        Err(error) => Err(refuse(error)),
    }
}

fn to_dict<'py>(py: Python<'py>, outcome: FlowOutcome) -> PyResult<Bound<'py, PyDict>> {
    let result = PyDict::new(py);
    let status = match outcome.status {
        FlowStatus::Done => "done",
        FlowStatus::Bound => "bound",
        FlowStatus::Stalled => "stalled",
    };
    result.set_item("status", status)?;
    result.set_item("time_ps", outcome.time)?;
    result.set_item("iteration_start_ps", outcome.iterations.iter().map(|span| span.0).collect::<Vec<_>>())?;
    result.set_item("iteration_end_ps", outcome.iterations.iter().map(|span| span.1).collect::<Vec<_>>())?;
    result.set_item("digest", format!("{:016x}", outcome.digest))?;
    result.set_item("version", env!("CARGO_PKG_VERSION"))?;
    result.set_item("resolved", outcome.resolved.to_string())?;
    let counters = PyDict::new(py);
    let totals = outcome.counters;
    counters.set_item("messages", totals.messages)?;
    counters.set_item("data_packets_sent", totals.packets)?;
    counters.set_item("placed_bytes", totals.bytes)?;
    counters.set_item("events", totals.events)?;
    counters.set_item("rate_settlings", totals.settlings)?;
    counters.set_item("rate_changes", totals.changes)?;
    result.set_item("counters", counters)?;
    let stalled = PyList::empty(py);
    for &(rank, peer, stream, bytes) in &outcome.stalled {
        let entry = PyDict::new(py);
        entry.set_item("src", rank)?;
        entry.set_item("dst", peer)?;
        entry.set_item("stream", stream)?;
        entry.set_item("bytes_left", bytes)?;
        entry.set_item("reason", "waits for what nobody does")?;
        stalled.append(entry)?;
    }
    result.set_item("stalled_flows", stalled)?;
    result.set_item("wqe_done_ps", little_endian(py, &outcome.wqe_done))?;
    result.set_item("wqe_placed_ps", little_endian(py, &outcome.wqe_placed))?;
    result.set_item("payload_line_rate_bps", outcome.payload_line_rate)?;
    Ok(result)
}
