//! Throttles: laws that say which share of what arrives is refused, by how earlier work ended.
//!
//! A concurrency law says how many may be inside; a throttle says with what chance somebody is let in at all. It suits callers, who do not
//! know how many others there are, and sits in front of a limit on a server. Chance comes in as an argument, so that the same arrivals and
//! the same draws always end the same way.
//!
//! All refuse the least important first: see [`Throttle`].

mod law;
mod pid;
mod ranking;
mod shedding;
mod sre;

pub use law::{Arrival, Room, Throttle};
pub use pid::{Pid, PidState};
pub use shedding::{Shedding, SheddingState};
pub use sre::{Sre, SreState};

#[cfg(test)]
mod tests;
