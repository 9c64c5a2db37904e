//! Judges what Tidegate promises, in simulations on a virtual clock. Not part of the product.
//!
//! * [`overload`]: services under too much load, and the controls that protect them, compared
//! * [`judge`]: the same question, asked a second time of other services, by a judge that knows nothing of the first
//! * [`fleet`]: many nodes that share a limit through an engine, with faults between them
//! * [`FaultRun`]: the record of a run of fault scenarios, simulated or on real engines
//!
//! The examples write figures of the manual and of `lab/results`. `engine_faults` and `two_nodes` run real nodes on real
//! engines, and some tests run short forms of them:
//!
//! ```text
//! cargo build -p tidegate-cli --features engines
//! cargo test -p tidegate-lab --features engines
//! ```

mod event_queue;
mod fault_run;
pub mod fleet;
pub mod judge;
pub mod overload;

pub use fault_run::FaultRun;
