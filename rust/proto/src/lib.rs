//! The transports as machines without clock or socket.
//!
//! [`Endpoint`] is the only face. Its driver keeps this contract:
//! 1. every call carries `now`, which never goes back;
//! 2. after each call that may change state (`post`, `handle_packet`, `handle_timeout`) it drains
//!    `poll_atomic` and `poll_completion`, offers each *free* port named by `ports_ready` to `poll_transmit`, and
//!    calls `handle_timeout` not later than `poll_timeout` says;
//! 3. a port that has finished sending a packet is offered to `poll_transmit` again, until that
//!    answers `None`. Packets are pulled by free ports and never pushed. (Behind a control packet a
//!    port may be offered at once: it is as good as free.)
//!
//! Behaviour follows the public facts F1–F10 of Meta's article on MetaRoCE where cited; this is an
//! independent, MetaRoCE-*style* model, and what the article does not give is marked *ours*.

mod bitmap;
pub mod config;
pub mod counters;
pub mod endpoint;
pub mod inbox;
pub mod outbox;
mod reciprocal;
pub mod settings;
pub mod telemetry;
pub mod transport;
pub mod verbs;

pub use config::{
    ControllerKind, DcqcnPreset, Entropies, Environment, Hints, MetaRoceConfig, MrcConfig, QpPlanes, QpPorts, Recovery,
    RoceConfig, RoceTimer, Spray, Tail, TransportConfig,
};
pub use counters::Counters;
pub use endpoint::Endpoint;
pub use telemetry::{ConnectionSample, Health, PathCounts, PathSample, Sample};
pub use transport::{Half, Stage};
pub use verbs::{
    Access, Atomic, Completion, CompletionKind, CompletionStatus, Placement, PostError, ReceiveRequest, Regions,
    WorkRequest,
};
