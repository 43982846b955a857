//! `metaroce._core`: conversions between Python and `metaroce_driver` or `metaroce_flow`, and nothing else.

mod flow;

use metaroce_driver::{Data, Denied, DriverError, Outcome, Region, Spec, Status};
use metaroce_engine::Columns;
use metaroce_engine::pattern::{Expect, Fill};
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
fn column<T: Element>(columns: &Bound<'_, PyDict>, name: &str, required: bool) -> PyResult<Vec<T>> {
    let refuse = |what: String| ConfigError::new_err(format!("columns.{name}: {what}"));
    match columns.get_item(name)? {
        Some(value) => {
            let buffer = PyBuffer::<T>::get(&value)
                .map_err(|e| refuse(format!("{e}; allowed: a buffer of the documented type")))?;
            buffer.to_vec(columns.py()).map_err(|e| refuse(e.to_string()))
        }
        None if required => Err(refuse("missing; allowed: the columns of a program".to_owned())),
        None => Ok(Vec::new()),
    }
}

/// All columns of a run, owned.
struct Owned {
    rank_start: Vec<u32>,
    op: Vec<u8>,
    peer: Vec<u32>,
    stream: Vec<u32>,
    local: Vec<u64>,
    remote: Vec<u64>,
    bytes: Vec<u64>,
    dep_start: Vec<u32>,
    deps: Vec<u32>,
    start: Vec<u64>,
    imm: Vec<u32>,
    operand0: Vec<u64>,
    operand1: Vec<u64>,
    flags: Vec<u8>,
    rkey: Vec<u32>,
    regions: Vec<Region>,
    denied: Vec<Denied>,
    fills: Vec<Fill>,
    expects: Vec<Expect>,
    memory: Option<Vec<u8>>,
}

impl Owned {
    fn read(columns: &Bound<'_, PyDict>) -> PyResult<Owned> {
        Ok(Owned {
            rank_start: column(columns, "rank_start", true)?,
            op: column(columns, "op", true)?,
            peer: column(columns, "peer", true)?,
            stream: column(columns, "stream", true)?,
            local: column(columns, "local", true)?,
            remote: column(columns, "remote", true)?,
            bytes: column(columns, "bytes", true)?,
            dep_start: column(columns, "dep_start", true)?,
            deps: column(columns, "deps", true)?,
            start: column(columns, "start_ps", false)?,
            imm: column(columns, "imm", false)?,
            operand0: column(columns, "operand0", false)?,
            operand1: column(columns, "operand1", false)?,
            flags: column(columns, "flags", false)?,
            rkey: column(columns, "rkey", false)?,
            regions: regions(columns)?,
            denied: denied(columns)?,
            fills: fills(columns)?,
            expects: expects(columns)?,
            memory: if columns.contains("memory")? { Some(column(columns, "memory", true)?) } else { None },
        })
    }

    fn data(&self) -> Data<'_> {
        let program = Columns {
            rank_start: &self.rank_start,
            op: &self.op,
            peer: &self.peer,
            stream: &self.stream,
            local: &self.local,
            remote: &self.remote,
            bytes: &self.bytes,
            dep_start: &self.dep_start,
            deps: &self.deps,
            start: &self.start,
            imm: &self.imm,
            operand0: &self.operand0,
            operand1: &self.operand1,
            flags: &self.flags,
            rkey: &self.rkey,
        };
        Data {
            program,
            fills: self.fills.clone(),
            expects: self.expects.clone(),
            memory: self.memory.as_deref(),
            regions: self.regions.clone(),
            denied: self.denied.clone(),
        }
    }
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

fn fills(columns: &Bound<'_, PyDict>) -> PyResult<Vec<Fill>> {
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

fn expects(columns: &Bound<'_, PyDict>) -> PyResult<Vec<Expect>> {
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

fn regions(columns: &Bound<'_, PyDict>) -> PyResult<Vec<Region>> {
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

fn denied(columns: &Bound<'_, PyDict>) -> PyResult<Vec<Denied>> {
    let rank: Vec<u32> = column(columns, "deny_rank", false)?;
    let peer: Vec<u32> = column(columns, "deny_peer", !rank.is_empty())?;
    let plane: Vec<u32> = column(columns, "deny_plane", !rank.is_empty())?;
    same_length(&[("deny_rank", rank.len()), ("deny_peer", peer.len()), ("deny_plane", plane.len())])?;
    Ok((0..rank.len()).map(|i| Denied { rank: rank[i], peer: peer[i], plane: plane[i] }).collect())
}

/// Runs one simulation.
///
/// `spec` is a JSON object and `columns` maps column names to C-contiguous buffers; both are
/// described in `_core.pyi`. The interpreter lock is released during the run and signals are
/// polled. Raises `ConfigError` if something is refused, `KeyboardInterrupt` on Ctrl-C.
#[pyfunction]
fn simulate<'py>(py: Python<'py>, spec: &str, columns: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
    let spec = Spec::parse(spec).map_err(|e| ConfigError::new_err(e.to_string()))?;
    let owned = Owned::read(columns)?;
    let mut signal = None;
    let outcome = py.detach(|| {
        let mut interrupted = || match Python::attach(|py| py.check_signals()) {
            Ok(()) => false,
            Err(raised) => {
                signal = Some(raised);
                true
            }
        };
        metaroce_driver::simulate(&spec, &owned.data(), &mut interrupted)
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
    module.add_function(wrap_pyfunction!(simulate, module)?)?;
    module.add_function(wrap_pyfunction!(flow::estimate, module)?)?;
    module.add_function(wrap_pyfunction!(defaults, module)?)?;
    module.add_function(wrap_pyfunction!(profiles, module)?)
}
