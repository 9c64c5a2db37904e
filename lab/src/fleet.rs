//! Simulates many nodes that share one limit through an engine, on a virtual network and a virtual clock.
//!
//! The nodes run the real stores; only the wire, the engine's process and time are simulated. The same seed gives the
//! same run, message for message. One judge, [`tidegate_core::envelope::Envelope`], sees everything that the nodes
//! admit together, and knows nothing of how it was decided.

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
pub use growth::growth;
pub use regions::regional_page;
pub use scenario::NodeSelection;
pub use table::page;
