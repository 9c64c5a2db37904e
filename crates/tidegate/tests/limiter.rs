//! Limiters of one process; the crate's examples, and its table of features.

mod examples;
mod features;
mod numbers;
mod queue;
mod shared;
mod waits;
