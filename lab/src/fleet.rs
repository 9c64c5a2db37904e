//! Simulates many nodes that share one limit through an engine, on a virtual network and a virtual clock, and
//! judges the result.
//!
//! The nodes run the real stores; only the wire, the engine's process and time are simulated. A run is a
//! function of its seed: the same seed gives the same run, message for message. One judge
//! ([`tidegate_core::envelope::Envelope`]) sees everything that the nodes admit together, and knows nothing of
//! how it was decided.
//!
//! * [`Scenario`]: nodes, limit, demand and faults; [`scenarios`]: the scenarios of the manual, with the bounds
//!   that they must keep
//! * [`run`]: runs one scenario with one seed; [`Outcome`]: the result
//! * [`Stack`]: builds the stores of a node
//! * [`regional_scenarios`]: regions with an engine each, which divide a limit among themselves
//! * [`growth`]: fleets of up to 1,000 nodes, and what a decision costs the engine

mod demand;
mod engine;
mod global_coordinator;
mod growth;
mod link;
mod node;
mod outcome;
mod regions;
mod scenario;
mod table;
#[cfg(test)]
mod tests;
mod world;

pub use demand::Demand;
pub use global_coordinator::GlobalCoordinator;
pub use growth::{CALLS_PER_CORE, Grown, Size, growth, sizes};
pub use link::{Remote, WireCondition};
pub use node::{Parts, Stack};
pub use outcome::{Interval, Outcome};
pub use regions::{regional_page, regional_scenarios};
pub use scenario::{Act, NodeSelection, Scenario};
pub use table::{Bounds, Row, page, scenarios};
pub use world::run;
