//! Limiters of one process; the crate's examples, and its table of features.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod examples;
mod features;
mod numbers;
mod queue;
mod shared;
mod waits;
