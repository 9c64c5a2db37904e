//! The store over real servers, which the tests start. One program, because linking takes most of the time.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod asking;
mod cells;
mod clusters;
mod conformance;
mod connecting;
mod differential;
mod draws;
mod faults;
mod guards;
mod losses;
mod sentinels;
mod servers;
