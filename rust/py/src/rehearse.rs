//! The crossing to rehearsals of programs for message engines.

use metaroce_driver::{Data, DriverError, RehearsalSpec};
use metaroce_engine::rehearse::{Ending, Verdict};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::{ConfigError, Stop, expects, fills, interrupted, program};

/// Runs a program for message engines once with each of `seeds`, on a network of random delays; `spec` and `columns` as
/// in `_core.pyi`.
///
/// The interpreter lock is released during the runs, signals or `stop` are polled, and errors raised as in `simulate`.
#[pyfunction]
#[pyo3(signature = (spec, columns, seeds, stop = None))]
pub fn rehearse<'py>(
    py: Python<'py>,
    spec: &str,
    columns: &Bound<'py, PyAny>,
    seeds: Vec<u64>,
    stop: Option<Py<Stop>>,
) -> PyResult<Bound<'py, PyDict>> {
    let spec = RehearsalSpec::parse(spec).map_err(|e| ConfigError::new_err(e.to_string()))?;
    let data = Data {
        program: program(columns)?,
        fills: fills(columns)?,
        expects: expects(columns)?,
        memory: None,
        regions: Vec::new(),
        denied: Vec::new(),
    };
    let mut signal = None;
    let verdicts = py.detach(|| {
        let mut interrupted = || interrupted(stop.as_ref(), &mut signal);
        metaroce_driver::rehearse(&spec, data, &seeds, &mut interrupted)
    });
    match verdicts {
        Ok(verdicts) => to_dict(py, &verdicts),
        Err(DriverError::Config(message)) => Err(ConfigError::new_err(message)),
        Err(DriverError::Interrupted) => Err(signal.unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))),
    }
}

fn to_dict<'py>(py: Python<'py>, verdicts: &[Verdict]) -> PyResult<Bound<'py, PyDict>> {
    let result = PyDict::new(py);
    let status = |verdict: &Verdict| match verdict.ending {
        Ending::Done => "done",
        Ending::Stalled => "stalled",
        Ending::Failed => "failed",
    };
    let all = |of: fn(&Verdict) -> u64| verdicts.iter().map(of).collect::<Vec<_>>();
    result.set_item("status", verdicts.iter().map(status).collect::<Vec<_>>())?;
    result.set_item("wrong", all(|verdict| verdict.check.0))?;
    result.set_item("checked", all(|verdict| verdict.check.1))?;
    result.set_item("rnr", all(|verdict| verdict.rnr))?;
    result.set_item("early_bytes", all(|verdict| verdict.early_bytes))?;
    result.set_item("time_ps", all(|verdict| verdict.time.0))?;
    result.set_item("reason", verdicts.iter().map(|verdict| verdict.reason.as_str()).collect::<Vec<_>>())?;
    Ok(result)
}
