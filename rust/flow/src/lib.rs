//! A flow-level model of the same runs: messages are fluid, links are shared max-min fairly, and what a packet model
//! would find out about loss comes from its measured curves.
//!
//! [`estimate`] takes the program, fabric and transport of a packet-level run and answers how long it takes, thousands
//! of times sooner and roughly. Between two events every connection with something to send has a constant rate; an
//! event is the end of a message or the start of one. There is no queueing, no marking, no transient: what that costs
//! in accuracy is measured against the packet model, in `docs/flow.md`.
//!
//! This crate computes rates in floating point. That decides results, and does so the same way everywhere: only
//! additions, multiplications, divisions and roundings of IEEE 754 doubles are used, in one fixed order.
#![allow(
    clippy::float_arithmetic,
    reason = "fair rates are fractions; IEEE 754 basic operations in a fixed order give the same bits everywhere"
)]

mod channels;
mod lanes;
mod quotient;
mod recovery;
mod run;
mod scene;
mod share;
mod spec;
mod transport;

pub use run::{FlowCounters, FlowOutcome, FlowStatus, estimate};
pub use share::Sharing;
pub use spec::{Curve, FabricColumns, FlowData, FlowError, FlowSpec, Unit};
