//! What decides the share: arrivals and ends go in, an answer comes out.

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
    /// A number drawn evenly from all of `u32`. Among arrivals of one priority, those with the lowest draws are refused first.
    pub draw: u32,
}

/// How the places behind a throttle stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// How many more could be worked on at once.
    pub free: u64,
    /// How many were let in and wait for a place.
    pub waiting: u64,
}

/// Parameters that turn what is known and an arrival into an answer, and what is known and an end into what is known next.
///
/// # Laws
/// * *The share stays below one*: some are always let in, of each priority, so that recovery is noticed.
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

    /// Takes in how the places behind it stand. Throttles that go by ends alone do nothing with it.
    fn sense(&self, state: &mut Self::State, at: Tick, room: Room) {
        let _ = (state, at, room);
    }

    /// Returns the share of all arrivals that is to be refused now, in millionths: below a million, and the least important first.
    fn refused_share(&self, state: &Self::State, now: Tick) -> u32;
}
