//! All tests of this crate from outside, as one program: each module tests one subject.

mod planted;
mod real_logs;
mod samples;
