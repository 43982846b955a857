//! Message engines: devices beside the NICs that run subgraphs of entries by themselves.
//!
//! A [`Device`] is the machine of one rank, free of clocks and transports like an endpoint:
//! [`Device::begin`] and [`Device::handle_timeout`] at [`Device::poll_timeout`] move it on,
//! [`Device::poll_effect`] says what it does, [`Device::complete`] tells it how transfers end.
//!
//! - *CPU-C* takes the work packets of the rank in order, each when its trigger is known to it and the
//!   packet before is dispatched. Then the packet's subgraphs are runnable on their engines.
//! - Each engine has a *CPU-M*, a serial server: of its subgraphs whose next entry may issue, the one
//!   of the lowest priority number that has waited longest, which is round robin among those that are
//!   always ready. An entry takes effect when its issue time is over. Issue is in order in a subgraph,
//!   completion is not; flow fields say what an entry waits for.
//! - COPY and SUM queue for the engine's *near-memory unit*. Units share the rank's rate equally, by
//!   integers in virtual time, so that ends are exact and the same everywhere.
//! - Words are device memory that WAIT compares and SET writes; some are set from outside.

mod blocked;
mod cpu;
mod device;
mod plan;
mod subgraph;
mod unit;
mod words;

pub use blocked::Blocked;
pub use cpu::Usage;
pub use device::{Device, Effect};
pub use plan::{EngineCosts, Graph, Hardware, Plan};
