//! All tests of this crate from outside, as one program: each module tests one subject.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

// The name by which fuzz targets refer to the macro of `verbs::fuzz_targets`.
extern crate self as libfuzzer_sys;

mod attack;
mod deploy;
mod report;
mod verbs;
mod walks;
