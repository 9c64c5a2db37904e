//! Simulates overload: services that suffer from it, callers who retry, and the protections between them.
//!
//! * [`backend`]: the simulated services
//! * [`controllers`]: the protections that are judged, from none to the default
//! * [`scenario`]: steady overload, spikes, priority levels and retry storms, on one service and on a chain
//! * [`figures`]: the tables and pictures of the manual
//!
//! Everything runs on a virtual clock with random numbers from a seed. Nothing sleeps, and the same seed gives the
//! same run, bit for bit.
//!
//! ```
//! use tidegate_lab::overload::{backend, controllers, scenario};
//!
//! // Sixteen places of 20 ms, and twice the load that they can take.
//! let knee = &backend::table()[0];
//! assert_eq!((knee.capacity(), knee.best_inside()), (800.0, 16));
//! let score = |controller| scenario::overload(knee, &controller, 2.0, 1..=1).goodput;
//! assert!(score(controllers::NONE) < 0.1 && score(controllers::DEFAULT) > 0.95);
//! ```

pub mod backend;
mod call;
pub mod controllers;
pub mod figures;
mod front;
mod ideal;
mod load;
mod meter;
pub mod scenario;
mod station;
mod world;

#[cfg(test)]
mod tests;

pub use front::Front;
pub use ideal::ideal;
pub use load::{Load, Retries};
pub use meter::{Measured, STEP};
pub use world::{Service, run};

/// The examples of the manual's page.
#[cfg(doctest)]
#[doc = include_str!("../../docs/protection/overload.md")]
mod page {}
