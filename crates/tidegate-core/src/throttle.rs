//! Throttles: laws that say which share of what arrives is refused, by how earlier work ended.
//!
//! A concurrency law says how many may be inside; a throttle says with what chance somebody is let in at all. It suits callers, who do not
//! know how many others there are, and sits in front of a limit on a server. Chance comes in as an argument, so that the same arrivals and
//! the same draws always end the same way.

use core::fmt::Debug;
use core::time::Duration;

use crate::guard::Outcome;
use crate::priority::Priority;
use crate::time::Tick;

/// Somebody who asks to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Tick,
    /// How much it matters.
    pub priority: Priority,
    /// A number drawn evenly from all of `u32`: an arrival is refused where it lies below the share to refuse.
    pub draw: u32,
}

/// Parameters that turn what is known and an arrival into an answer, and what is known and an end into what is known next.
///
/// # Laws
/// * *The share stays below one*: some are always let in, so that recovery is noticed.
/// * *More important is refused no more often*: with equal draws, whoever has the higher priority passes where the lower does.
/// * *The same calls give the same answers*.
pub trait Throttle: Clone + Debug {
    /// What is remembered.
    type State: Clone + Debug;

    /// Returns the state before the first arrival.
    fn start(&self, now: Tick) -> Self::State;

    /// Decides one arrival and counts it, refused or not.
    fn admit(&self, state: &mut Self::State, arrival: &Arrival) -> bool;

    /// Takes in how admitted work ended, and how long it took, its wait in our own queue included.
    fn learn(&self, state: &mut Self::State, at: Tick, latency: Duration, outcome: Outcome);

    /// Returns the share of arrivals of the lowest priority that is refused now, in millionths.
    fn refused_share(&self, state: &Self::State, now: Tick) -> u32;
}
