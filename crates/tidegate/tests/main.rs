//! All tests of this crate from outside, as one program: each module tests one subject.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod admission;
mod bulkhead;
mod byte_map;
mod config;
mod config_mistakes;
mod engine;
mod fallback;
mod fast;
mod gate;
mod import;
mod leased;
mod limiter;
mod matching_model;
mod sentinel_rules;
mod store;
mod tickets;
mod two_stores;
