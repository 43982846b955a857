//! Runs work-queue-entry programs: the form that every collective is compiled to and that message
//! engines execute. Entries start when the entries that they depend on are complete.
//!
//! [`Engine`] says which entry starts next and is told which has completed; it posts nothing itself
//! and knows no transport. It is *ideal*: copies and sums take no time, and whatever may start does.
//! Of a program with subgraphs, [`offload::Device`] does the same for a rank, with message engines
//! that issue entries one by one and units that take their time; [`rehearse`] shows what is missing
//! in such a program. [`Memory`] holds the bytes of a run with payload, [`pattern`] fills and checks
//! them.

mod column;
mod dtype;
mod engine;
mod memory;
pub mod offload;
pub mod pattern;
mod program;
mod random;
pub mod rehearse;

pub use column::Column;
pub use dtype::Dtype;
pub use engine::Engine;
pub use memory::Memory;
pub use program::{Columns, Details, Op, Program, ProgramError, Wqe};
