//! Proposals for generated logs in which it is known which clients are to be cut.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harm;
mod held_out;
mod judge;
mod plants;
mod scenarios;
mod strangers;
mod traffic;
mod training;
