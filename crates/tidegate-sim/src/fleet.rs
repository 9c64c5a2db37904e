//! Many nodes that share one limit through an engine, on a virtual network and a virtual clock, judged.
//!
//! The nodes run the real stores; only the wire, the engine's process and time are made up. A run is a function of its seed: the same
//! seed gives the same run, message for message. What the nodes admit together is told to one judge
//! ([`tidegate_core::envelope::Envelope`]), which knows nothing of how it was decided.
//!
//! * [`Scenario`]: nodes, limit, demand, and the faults that happen; [`scenarios`]: those of the manual, with the bounds that they must keep
//! * [`run`]: one scenario with one seed; [`Outcome`]: what came of it
//! * [`Stack`]: the stores that a node puts together
//! * [`regional_scenarios`]: regions with an engine each, which divide a limit among themselves
//! * [`growth`]: fleets of up to 1,000 nodes, and what a decision costs the engine

mod across;
mod demand;
mod engine;
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

pub use across::Across;
pub use demand::Demand;
pub use growth::{CALLS_PER_CORE, Grown, Size, growth, sizes};
pub use link::{Remote, Weather};
pub use node::{Parts, Stack};
pub use outcome::{Interval, Outcome};
pub use regions::{regional_page, regional_scenarios};
pub use scenario::{Act, Scenario, Which};
pub use table::{Bounds, Row, page, scenarios};
pub use world::run;
