//! A multiplane Ethernet fabric: switches with byte-bounded output queues, ECN marking and ECMP
//! (all that F9 asks of it), lossy links, and links, switches and planes that fail and return.
//!
//! The fabric reads envelopes only; it never sees a transport. It keeps no clock and no event
//! queue: [`Fabric::inject`] and [`Fabric::forward`] answer when a packet reaches the far end of the
//! next link, or why it never will, and the driver remembers. A port is a time until which it is
//! busy: with one FIFO class that is exactly an output queue, at one event a hop. Trimming, a class
//! for control packets and other choices among ports than ECMP ([`Switching`]) are options of its own.
//!
//! Where data is lossless, or on request, switch ports are explicit instead: packets wait in queues
//! ([`Fabric::enqueue`], [`Fabric::dequeue`]), so that they can be paused (PFC). The fabric names the times at which
//! it wants to be called ([`Fabric::calls`]); a host's port is busy-until always, because its host pulls.

mod balance;
mod build;
mod deadlock;
mod explicit;
mod fabric;
mod loss;
mod nodes;
mod pfc;
mod pin;
mod port;
mod routing;
mod spec;
mod walk;

pub use balance::MAX_FLOWLETS;
pub use build::{MAX_DEGREE, MAX_PLANES, MAX_RATE, MAX_TIERS};
pub use explicit::{Admission, Call, Departure};
pub use fabric::{Counters, Drop, End, Fabric, Step};
pub use loss::{DRAW_BITS, threshold as probability};
pub use pfc::{DEADLOCK_CHECK, PAUSE_FRAME, Pauses, QUANTUM, RESPONSE};
pub use pin::Demand;
pub use port::TRIM_RESERVE;
pub use spec::{
    Balance, Cable, Ecmp, FabricSpec, LossConfig, LossOn, LossPer, Lossless, PfcConfig, SpecError, Switch, Switching,
    Target,
};
