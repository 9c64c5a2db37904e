//! All tests of this crate from outside, as one program: each module tests one subject.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod breaker_model;
mod buckets_model;
mod bytes;
mod calendar;
mod concurrency_model;
mod envelope;
mod kept;
mod parts;
mod profiles;
mod random;
mod sentinel;
mod settling;
mod windows_model;
