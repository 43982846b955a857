//! Runs work-queue-entry programs: the form that every collective is compiled to and that message
//! engines execute. Entries start when the entries that they depend on are complete.
//!
//! [`Engine`] says which entry starts next and is told which has completed; it posts nothing itself
//! and knows no transport. [`Memory`] holds the bytes of a run with payload, [`pattern`] fills and
//! checks them. The only cost model so far is *ideal*: copies and sums take no time.

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
