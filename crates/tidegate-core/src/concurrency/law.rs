//! What moves a concurrency limit: one finished piece of work goes in, the next limit comes out.
//!
//! A law is arithmetic. It keeps no clock, no count of who is inside and no lock: whoever holds the places counts them, measures how long
//! the work took, and tells the law in the order in which work ended.

use core::fmt::Debug;
use core::time::Duration;

use crate::guard::Outcome;
use crate::time::Tick;

/// One finished piece of work, as a law sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it ended. Earlier than the sample before counts as that one's tick, by up to ten seconds
    /// ([`MAX_STEP_BACK`](crate::time::MAX_STEP_BACK)); a clock that was set back further is believed.
    pub at: Tick,
    /// How long it took, from entering to leaving; the wait in our own queue is not part of it.
    pub latency: Duration,
    /// How many were inside when it entered, itself included: 1 or more.
    pub in_flight: u64,
    /// How it ended. [`Outcome::Ignored`] teaches nothing, and whoever holds the places need not tell it.
    pub outcome: Outcome,
}

/// How much of the machine is in use, where a law asks for more than latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Processor time used, in thousandths of what this process may use (its control group's quota, else all processors): 0 to 1000.
    Cpu(u16),
    /// Memory used, in thousandths of what this process may use: 0 to 1000.
    Memory(u16),
}

/// Parameters that turn what is known and one sample into what is known next.
///
/// # Laws
/// * *Bounds hold*: [`limit`](Law::limit) is between the law's own least and most, at least 1, whatever was sampled.
/// * *Nothing an outsider does can overflow or panic*: latencies of zero and of centuries, clocks that step back, any outcome.
/// * *The same samples give the same limits*: chance, where a law needs it, comes from a seed among its parameters.
pub trait Law: Clone + Debug {
    /// What is remembered.
    type State: Clone + Debug;

    /// Returns the state before the first sample.
    fn start(&self, now: Tick) -> Self::State;

    /// Returns how many may be inside now.
    fn limit(&self, state: &Self::State) -> u64;

    /// Takes in one finished piece of work. Called for each, so it is a hot path: no allocation once the state has its size.
    fn learn(&self, state: &mut Self::State, sample: &Sample);

    /// Takes in a reading of the machine. Laws that go by latency alone do nothing with it.
    fn sense(&self, state: &mut Self::State, at: Tick, signal: Signal) {
        let _ = (state, at, signal);
    }
}
