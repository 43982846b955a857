//! `metaroce._core`: conversions between Python and `metaroce_driver` or `metaroce_flow`, and nothing else.

mod flow;
mod rehearse;

use std::sync::atomic::{AtomicBool, Ordering};

use metaroce_driver::{Data, Denied, DriverError, EngineTable, Outcome, Region, Spec, Status};
use metaroce_engine::offload::Graph;
use metaroce_engine::pattern::{Expect, Fill};
use metaroce_engine::{Column, Columns};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

pyo3::create_exception!(
    metaroce._core,
    ConfigError,
    PyValueError,
    "A specification is refused: field, value, allowed."
);

/// The column `name` of `columns` as a vector; empty if it is absent and need not be there.
fn column<T: Element>(columns: &Bound<'_, PyAny>, name: &str, required: bool) -> PyResult<Vec<T>> {
    let refuse = |what: String| ConfigError::new_err(format!("columns.{name}: {what}"));
    if !columns.contains(name)? {
        let missing = || Err(refuse("missing; allowed: the columns of a program".to_owned()));
        return if required { missing() } else { Ok(Vec::new()) };
    }
    let buffer = PyBuffer::<T>::get(&columns.get_item(name)?)
        .map_err(|e| refuse(format!("{e}; allowed: a buffer of the documented type")))?;
    buffer.to_vec(columns.py()).map_err(|e| refuse(e.to_string()))
}

/// The same for a number of each entry of a program, whose first rank has `entries`.
fn numbers<T: Element + Into<u64>>(
    columns: &Bound<'_, PyAny>,
    (name, required): (&str, bool),
    entries: usize,
) -> PyResult<Column> {
    let values: Vec<T> = column(columns, name, required)?;
    Ok(Column::of_ranks(values.iter().map(|&value| value.into()), entries))
}

fn program(columns: &Bound<'_, PyAny>) -> PyResult<Columns> {
    let rank_start: Vec<u32> = column(columns, "rank_start", true)?;
    let entries = rank_start.get(1).map_or(0, |&entries| entries as usize);
    Ok(Columns {
        dep_start: column(columns, "dep_start", true)?,
        deps: column(columns, "deps", true)?,
        op: numbers::<u8>(columns, ("op", true), entries)?,
        peer: numbers::<u32>(columns, ("peer", true), entries)?,
        stream: numbers::<u32>(columns, ("stream", true), entries)?,
        local: numbers::<u64>(columns, ("local", true), entries)?,
        remote: numbers::<u64>(columns, ("remote", true), entries)?,
        bytes: numbers::<u64>(columns, ("bytes", true), entries)?,
        start: numbers::<u64>(columns, ("start_ps", false), entries)?,
        imm: numbers::<u32>(columns, ("imm", false), entries)?,
        operand0: numbers::<u64>(columns, ("operand0", false), entries)?,
        operand1: numbers::<u64>(columns, ("operand1", false), entries)?,
        flags: numbers::<u8>(columns, ("flags", false), entries)?,
        rkey: numbers::<u32>(columns, ("rkey", false), entries)?,
        graph: graph(columns, entries)?,
        rank_start,
    })
}

fn graph(columns: &Bound<'_, PyAny>, entries: usize) -> PyResult<Graph> {
    let start: Vec<u32> = column(columns, "subgraph_start", false)?;
    if start.is_empty() {
        return Ok(Graph::default());
    }
    let set_rank: Vec<u32> = column(columns, "set_rank", false)?;
    Ok(Graph {
        engine: numbers::<u32>(columns, ("subgraph_engine", true), 0)?,
        packet: numbers::<u32>(columns, ("subgraph_packet", true), 0)?,
        release: numbers::<u64>(columns, ("subgraph_release_ps", true), 0)?,
        priority: numbers::<u8>(columns, ("subgraph_priority", true), 0)?,
        flow: numbers::<u8>(columns, ("flow", false), entries)?,
        wqe_sync: numbers::<u32>(columns, ("wqe_sync", false), entries)?,
        set_word: column(columns, "set_word", !set_rank.is_empty())?,
        set_value: column(columns, "set_value", !set_rank.is_empty())?,
        set_ps: column(columns, "set_ps", !set_rank.is_empty())?,
        set_rank,
        start,
    })
}

fn same_length(columns: &[(&str, usize)]) -> PyResult<()> {
    match columns.windows(2).find(|pair| pair[0].1 != pair[1].1) {
        Some(pair) => Err(ConfigError::new_err(format!(
            "columns.{}: length {} is not allowed; allowed: length {}",
            pair[1].0, pair[1].1, pair[0].1
        ))),
        None => Ok(()),
    }
}

fn fills(columns: &Bound<'_, PyAny>) -> PyResult<Vec<Fill>> {
    let rank: Vec<u32> = column(columns, "fill_rank", false)?;
    let offset: Vec<u64> = column(columns, "fill_offset", !rank.is_empty())?;
    let count: Vec<u64> = column(columns, "fill_count", !rank.is_empty())?;
    let index: Vec<u64> = column(columns, "fill_index", !rank.is_empty())?;
    same_length(&[
        ("fill_rank", rank.len()),
        ("fill_offset", offset.len()),
        ("fill_count", count.len()),
        ("fill_index", index.len()),
    ])?;
    let fill = |i: usize| Fill { rank: rank[i], offset: offset[i], count: count[i], index: index[i] };
    Ok((0..rank.len()).map(fill).collect())
}

fn expects(columns: &Bound<'_, PyAny>) -> PyResult<Vec<Expect>> {
    let rank: Vec<u32> = column(columns, "expect_rank", false)?;
    let offset: Vec<u64> = column(columns, "expect_offset", !rank.is_empty())?;
    let count: Vec<u64> = column(columns, "expect_count", !rank.is_empty())?;
    let from: Vec<u32> = column(columns, "expect_from", !rank.is_empty())?;
    let index: Vec<u64> = column(columns, "expect_index", !rank.is_empty())?;
    let lengths = [offset.len(), count.len(), from.len(), index.len()];
    for (name, length) in ["expect_offset", "expect_count", "expect_from", "expect_index"].into_iter().zip(lengths) {
        same_length(&[("expect_rank", rank.len()), (name, length)])?;
    }
    let expect =
        |i: usize| Expect { rank: rank[i], offset: offset[i], count: count[i], from: from[i], index: index[i] };
    Ok((0..rank.len()).map(expect).collect())
}

fn regions(columns: &Bound<'_, PyAny>) -> PyResult<Vec<Region>> {
    let rank: Vec<u32> = column(columns, "region_rank", false)?;
    let offset: Vec<u64> = column(columns, "region_offset", !rank.is_empty())?;
    let len: Vec<u64> = column(columns, "region_len", !rank.is_empty())?;
    let access: Vec<u8> = column(columns, "region_access", !rank.is_empty())?;
    same_length(&[
        ("region_rank", rank.len()),
        ("region_offset", offset.len()),
        ("region_len", len.len()),
        ("region_access", access.len()),
    ])?;
    let region = |i: usize| Region { rank: rank[i], offset: offset[i], len: len[i], access: access[i] };
    Ok((0..rank.len()).map(region).collect())
}

fn denied(columns: &Bound<'_, PyAny>) -> PyResult<Vec<Denied>> {
    let rank: Vec<u32> = column(columns, "deny_rank", false)?;
    let peer: Vec<u32> = column(columns, "deny_peer", !rank.is_empty())?;
    let plane: Vec<u32> = column(columns, "deny_plane", !rank.is_empty())?;
    same_length(&[("deny_rank", rank.len()), ("deny_peer", peer.len()), ("deny_plane", plane.len())])?;
    Ok((0..rank.len()).map(|i| Denied { rank: rank[i], peer: peer[i], plane: plane[i] }).collect())
}

/// A way to end runs that other threads make.
#[pyclass(frozen)]
struct Stop(AtomicBool);

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Stop {
        Stop(AtomicBool::new(false))
    }

    /// Ends the runs that were given this, and those that will be.
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether to end a run: `stop` says so, or, without one, a signal.
fn interrupted(stop: Option<&Py<Stop>>, signal: &mut Option<PyErr>) -> bool {
    if let Some(stop) = stop {
        return stop.get().0.load(Ordering::Relaxed);
    }
    *signal = Python::attach(|py| py.check_signals()).err();
    signal.is_some()
}

/// Runs one simulation.
///
/// `spec` is a JSON object and `columns`, any mapping, has C-contiguous buffers by name, each asked for once and let
/// go before the run; both are described in `_core.pyi`. The interpreter lock is released during the run. Signals are
/// polled, or `stop` is, without the lock, which a thread that gets no signals had better not wait for. Raises
/// `ConfigError` if something is refused, `KeyboardInterrupt` on Ctrl-C and when stopped.
#[pyfunction]
#[pyo3(signature = (spec, columns, stop = None))]
fn simulate<'py>(
    py: Python<'py>,
    spec: &str,
    columns: &Bound<'py, PyAny>,
    stop: Option<Py<Stop>>,
) -> PyResult<Bound<'py, PyDict>> {
    let spec = Spec::parse(spec).map_err(|e| ConfigError::new_err(e.to_string()))?;
    let memory: Option<Vec<u8>> = columns.contains("memory")?.then(|| column(columns, "memory", true)).transpose()?;
    let data = Data {
        program: program(columns)?,
        fills: fills(columns)?,
        expects: expects(columns)?,
        memory: memory.as_deref(),
        regions: regions(columns)?,
        denied: denied(columns)?,
    };
    let mut signal = None;
    let outcome = py.detach(|| {
        let mut interrupted = || interrupted(stop.as_ref(), &mut signal);
        metaroce_driver::simulate(&spec, data, &mut interrupted)
    });
    match outcome {
        Ok(outcome) => to_dict(py, outcome),
        Err(DriverError::Config(message)) => Err(ConfigError::new_err(message)),
        Err(DriverError::Interrupted) => Err(signal.unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))),
    }
}

fn to_dict<'py>(py: Python<'py>, outcome: Outcome) -> PyResult<Bound<'py, PyDict>> {
    let result = PyDict::new(py);
    let status = match outcome.status {
        Status::Done => "done",
        Status::Bound => "bound",
        Status::Stalled => "stalled",
        Status::Deadlock => "deadlock",
    };
    result.set_item("status", status)?;
    result.set_item("time_ps", outcome.time.0)?;
    result.set_item("iteration_start_ps", outcome.iterations.iter().map(|span| span.0.0).collect::<Vec<_>>())?;
    result.set_item("iteration_end_ps", outcome.iterations.iter().map(|span| span.1.0).collect::<Vec<_>>())?;
    result.set_item("digest", format!("{:016x}", outcome.digest))?;
    result.set_item("version", env!("CARGO_PKG_VERSION"))?;
    result.set_item("wrong", outcome.check.map(|(wrong, _)| wrong))?;
    result.set_item("checked", outcome.check.map_or(0, |(_, checked)| checked))?;
    result.set_item("resolved", outcome.resolved.to_string())?;
    let counters = PyDict::new(py);
    for &(name, value) in &outcome.counters {
        counters.set_item(name, value)?;
    }
    result.set_item("counters", counters)?;
    result.set_item("plane_bytes", &outcome.plane_bytes)?;
    result.set_item("plane_bins", &outcome.plane_bins)?;
    let stalled = PyList::empty(py);
    for flow in &outcome.stalled {
        let entry = PyDict::new(py);
        entry.set_item("src", flow.src)?;
        entry.set_item("dst", flow.dst)?;
        entry.set_item("stream", flow.stream)?;
        entry.set_item("bytes_left", flow.bytes_left)?;
        entry.set_item("reason", &flow.reason)?;
        stalled.append(entry)?;
    }
    result.set_item("stalled_flows", stalled)?;
    let pauses: Vec<_> = outcome.pauses.iter().map(|p| (p.link, p.count, p.time.0)).collect();
    result.set_item("pauses", pauses)?;
    result.set_item("deadlock", &outcome.deadlock)?;
    result.set_item("wqe_done_ps", little_endian(py, &outcome.wqe_done))?;
    result.set_item("wqe_issued_ps", little_endian(py, &outcome.wqe_issued))?;
    let table = outcome.engines.as_ref();
    result.set_item("engines", table.map(|table| engines(py, table)).transpose()?)?;
    result.set_item("outstanding_most", little_endian(py, table.map_or(&[], |table| &table.outstanding_most)))?;
    result.set_item("wqe_placed_ps", little_endian(py, &outcome.wqe_placed))?;
    let ends = &outcome.wqe_results;
    let (bytes, imm): (Vec<u64>, Vec<u64>) = ends.iter().map(|end| (end.bytes, end.imm)).unzip();
    result.set_item("wqe_status", PyBytes::new(py, &ends.iter().map(|end| end.status).collect::<Vec<u8>>()))?;
    result.set_item("wqe_bytes", little_endian(py, &bytes))?;
    result.set_item("wqe_imm", little_endian(py, &imm))?;
    result.set_item("memory", outcome.memory.as_ref().map(|bytes| PyBytes::new(py, bytes)))?;
    result.set_item("payload_line_rate_bps", outcome.payload_line_rate)?;
    let (connections, paths) = outcome.telemetry.map(|tables| (tables.connections, tables.paths)).unzip();
    result.set_item("connections", connections.map(|t| series(py, |put| t.into_columns(put))).transpose()?)?;
    result.set_item("paths", paths.map(|t| series(py, |put| t.into_columns(put))).transpose()?)?;
    Ok(result)
}

/// The columns that `table` puts, by name.
fn series<'py>(
    py: Python<'py>,
    table: impl FnOnce(&mut dyn FnMut(&'static str, Vec<u8>)),
) -> PyResult<Bound<'py, PyDict>> {
    let (columns, mut put) = (PyDict::new(py), Ok(()));
    table(&mut |name, bytes| {
        if put.is_ok() {
            put = columns.set_item(name, PyBytes::new(py, &bytes));
        }
    });
    put.map(|()| columns)
}

/// Columns of what engines have done, a row for each.
fn engines<'py>(py: Python<'py>, table: &EngineTable) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for (name, column) in [("rank", &table.rank), ("engine", &table.engine)] {
        let bytes: Vec<u8> = column.iter().flat_map(|value| value.to_le_bytes()).collect();
        columns.set_item(name, PyBytes::new(py, &bytes))?;
    }
    for (name, column) in [
        ("issued", &table.issued),
        ("cpu_ps", &table.cpu_ps),
        ("unit_ps", &table.unit_ps),
        ("unit_wait_ps", &table.unit_wait_ps),
        ("stall_ps", &table.stall_ps),
    ] {
        columns.set_item(name, little_endian(py, column))?;
    }
    Ok(columns)
}

fn little_endian<'py>(py: Python<'py>, column: &[u64]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = column.iter().flat_map(|value| value.to_le_bytes()).collect();
    PyBytes::new(py, &bytes)
}

/// All defaults of the core, as JSON.
#[pyfunction]
fn defaults() -> String {
    metaroce_driver::defaults().to_string()
}

/// Every setting and constant of the core with its default, unit, source and what it may be, as JSON.
#[pyfunction]
fn profiles() -> String {
    metaroce_driver::profiles().to_string()
}

/// The compiled core of metaroce.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("ConfigError", module.py().get_type::<ConfigError>())?;
    module.add_class::<Stop>()?;
    module.add_function(wrap_pyfunction!(simulate, module)?)?;
    module.add_function(wrap_pyfunction!(flow::estimate, module)?)?;
    module.add_function(wrap_pyfunction!(rehearse::rehearse, module)?)?;
    module.add_function(wrap_pyfunction!(defaults, module)?)?;
    module.add_function(wrap_pyfunction!(profiles, module)?)
}
