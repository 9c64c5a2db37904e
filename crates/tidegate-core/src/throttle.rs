//! Throttles: control laws that refuse a share of the arrivals, the least important first, computed from how earlier
//! work ended. A concurrency law limits how many are in flight; a throttle sets the probability of admission. So
//! throttles suit callers, which do not know how many others there are, and can sit in front of a limit on a server.
//! Random draws are passed in, so the same arrivals with the same draws give the same answers.

mod pid;
mod ranking;
mod shedding;
mod sre;

use core::fmt::Debug;
use core::time::Duration;

use crate::guard::Outcome;
use crate::priority::Priority;
use crate::time::Tick;

pub use pid::{Pid, PidState};
pub use shedding::{Shedding, SheddingState};
pub(crate) use sre::excess;
pub use sre::{Sre, SreState};

/// One request that asks to be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it arrived.
    pub at: Tick,
    /// How important it is.
    pub priority: Priority,
    /// A number drawn evenly from all of `u32`. Among arrivals of one priority, those with the lowest draws are refused first.
    pub draw: u32,
}

/// The state of the places behind a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// How many more pieces of work could start at once.
    pub free: u64,
    /// How many admitted pieces of work wait for a place.
    pub waiting: u64,
}

/// The parameters of a throttle: they compute an answer from a state and an arrival, and the next state from a state
/// and the end of a piece of work.
///
/// # Laws
/// * *The share stays below one*: some arrivals of each priority are always admitted, so that recovery is noticed.
/// * *More important is refused no more often*: with equal draws, an arrival of higher priority passes wherever one
///   of lower priority does.
/// * *Deterministic*: the same calls give the same answers.
pub trait Throttle: Clone + Debug {
    /// The state that the throttle keeps between calls.
    type State: Clone + Debug;

    /// Returns the state before the first arrival.
    fn start(&self, now: Tick) -> Self::State;

    /// Decides one arrival and counts it, whether admitted or refused.
    fn admit(&self, state: &mut Self::State, arrival: &Arrival) -> bool;

    /// Updates the state by the outcome of admitted work and the time that it took, including its wait in a queue.
    /// Called once for each admitted arrival: with [`Outcome::Ignored`] for work whose outcome is unknown, and with
    /// [`Outcome::Overloaded`] for an arrival that got no place.
    fn learn(&self, state: &mut Self::State, at: Tick, latency: Duration, outcome: Outcome);

    /// Updates the state by the places behind the throttle, when admitted work ends, and when the throttle refuses
    /// although places are free. The default does nothing.
    fn sense(&self, state: &mut Self::State, at: Tick, room: Room) {
        let _ = (state, at, room);
    }

    /// Returns the share of all arrivals to refuse now, in millionths: below a million. The least important are
    /// refused first.
    fn refused_share(&self, state: &Self::State, now: Tick) -> u32;
}

#[cfg(test)]
mod tests;
