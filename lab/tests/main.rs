//! All tests of this crate from outside, as one program: each module tests one subject.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod engine_faults;
mod moved_counters;
mod two_nodes;
