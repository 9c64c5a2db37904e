//! The store over real servers, which the tests start themselves. One program, because linking it is what takes the time.

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
