//! All tests of this crate from outside, as one program: each module tests one subject.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

#[path = "common/child.rs"]
mod child;
mod common;
mod crashes;
mod damage;
mod gate;
mod laws;
mod outages;
mod restarts;
