//! Throttles: control laws that refuse a share of the arrivals, computed from how earlier work ended.
//!
//! A concurrency law limits how many are in flight; a throttle sets the probability of admission. It suits callers,
//! which do not know how many others there are, and it can sit in front of a limit on a server. Random draws are
//! passed in as an argument, so the same arrivals with the same draws always give the same answers.
//!
//! All throttles refuse the least important arrivals first: see [`Throttle`].

mod law;
mod pid;
mod ranking;
mod shedding;
mod sre;

pub use law::{Arrival, Room, Throttle};
pub use pid::{Pid, PidState};
pub use shedding::{Shedding, SheddingState};
pub(crate) use sre::excess;
pub use sre::{Sre, SreState};

#[cfg(test)]
mod tests;
