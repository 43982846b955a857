//! From a specification to results: builds the world, runs it on one event queue, records.
//!
//! [`simulate`] is the only entry. It takes plain numbers and columns and gives plain numbers and
//! columns back; it reads no clock, and the same input gives the same output to the last bit.

#[doc(hidden)]
pub mod bench;
mod by_node;
mod chains;
mod event;
mod execute;
mod explicit;
mod networks;
mod offload;
mod packets;
mod parallel;
mod profiles;
mod queue;
mod record;
mod sim;
mod spec;
mod telemetry;
mod upcoming;
mod windows;
mod world;

pub use networks::ScaleOut;
pub use offload::{Offload, RehearsalSpec, rehearse};
pub use profiles::{defaults, profiles};
pub use queue::EventQueue;
pub use record::{EngineTable, Outcome, StalledFlow, Status, WqeResult};
pub use spec::{Data, Denied, DriverError, Region, Spec};
pub use telemetry::{ConnectionTable, PathTable, Tables};

/// Runs `spec` on the program and payload in `data`. `interrupted` is asked now and then; when it
/// says yes, the run ends with [`DriverError::Interrupted`].
///
/// # Errors
/// [`DriverError::Config`] names the field that is refused, its value and what is allowed.
pub fn simulate(spec: &Spec, data: Data, interrupted: &mut dyn FnMut() -> bool) -> Result<Outcome, DriverError> {
    let mut simulation = world::build(spec, data)?;
    match spec.threads {
        1 => simulation.run(interrupted)?,
        _ => simulation = parallel::run(simulation, spec, interrupted)?,
    }
    Ok(record::outcome(spec, simulation))
}
