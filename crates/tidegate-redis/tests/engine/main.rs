//! The store over real servers, which the tests start. One program, because linking takes most of the time.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod cells;
mod clock_steps;
mod clusters;
mod connecting;
mod differential;
mod draws;
mod faults;
mod laws;
mod leases;
mod losses;
mod reports;
mod sentinels;
mod servers;
