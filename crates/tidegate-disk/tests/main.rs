//! All tests of this crate from outside, as one program: each module tests one subject.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod common;
mod crashes;
mod damage;
mod laws;
mod outages;
mod restarts;
