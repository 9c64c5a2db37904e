//! Leases: what they let through, what they cost, and what happens to units when anything fails.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod behaviour;
mod loads;
mod refusals;
mod settled;
mod together;
mod world;
