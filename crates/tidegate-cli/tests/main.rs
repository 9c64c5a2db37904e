//! All tests of this crate from outside, as one program: each module tests one subject.

mod attack;
mod deploy;
mod engine_faults;
mod regions;
mod report;
mod two_nodes;
mod verbs;
mod walks;
