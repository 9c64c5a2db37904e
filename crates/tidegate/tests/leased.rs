//! Leases: what they admit, what they cost, and where units go when something fails.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod behaviour;
mod loads;
mod refusals;
mod settled;
mod together;
mod world;
