//! One file per algorithm, one shape.
//!
//! Every algorithm is an immutable set of parameters that implements [`Algorithm`]; what it remembers of one key is its
//! `State`. Allow, reserve and wait are one transition, [`Algorithm::decide`]; refund, cancel and a change of parameters are
//! transitions of their own. All are pure, allocate only where the state itself grows, and never panic, whatever the state,
//! even one decoded from hostile bytes.

mod calendar;
pub(crate) mod exact;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod leaky_queue;
mod ledger;
mod profile;
mod settle;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod token_bucket;
mod warm_up;

pub use calendar::{CalendarUnit, zone_names};
pub use fixed_window::{FixedWindow, FixedWindowState};
pub use gcra::{Gcra, GcraReport, GcraState, GcraWord};
pub use leaky_bucket::{LeakyBucket, LeakyBucketState};
pub use leaky_queue::{LeakyQueue, LeakyQueueState};
pub use profile::{GuavaBursty, GuavaState, GuavaWarming, UberPacer, UberPacerState, XTime, XTimeState};
pub use sliding_counter::{SlidingCounter, SlidingCounterState};
pub use sliding_log::{SlidingLog, SlidingLogState};
pub use sliding_window::{SlidingWindow, SlidingWindowState};
pub use token_bucket::{Bandwidth, Refill, TokenBucket, TokenBucketState};
pub use warm_up::{ColdFactor, WarmUp, WarmUpState};

use core::fmt::Debug;

use crate::bytes::Bytes;
use crate::decision::{Ask, Cost, Receipt, Replace, Standing, Verdict};
use crate::time::Tick;

/// A rate-limit law: parameters that turn `(state, now, cost, max_wait)` into a decision and the next state.
///
/// # Laws
/// Every implementation keeps these, and the tests hold it to them against a slow rational model:
/// * *Time never gives capacity twice.* A state carries the tick of its last change; a `now` before it counts as it.
/// * *Denial changes nothing*: [`Verdict::Denied`] has no state to store.
/// * *`retry_after` is least and sufficient*: the same ask that much later is allowed if nobody else asks, a nanosecond
///   earlier it is not.
/// * *First come, first served*: what was promised keeps its time, whatever is asked after it.
/// * *Refund and cancel never create capacity*: no limit ends up fuller than if the charge had never been made.
pub trait Algorithm: Clone + Debug + Eq + Bytes {
    /// What is remembered of one key.
    type State: Clone + Debug + Eq + Bytes;

    /// Returns the state of a key never seen before: a full limit, first met at `now`.
    fn fresh(&self, now: Tick) -> Self::State;

    /// Decides one ask. Called on every check, so it is the hot path: no allocation unless the state grows.
    fn decide(&self, state: &Self::State, ask: Ask) -> Verdict<Self::State>;

    /// Returns what the limit looks like at `now`; changes nothing.
    fn standing(&self, state: &Self::State, now: Tick) -> Standing;

    /// Gives back `cost` units of work that was charged and turned out cheaper; at most up to a full limit.
    fn refund(&self, state: &Self::State, now: Tick, cost: Cost) -> Self::State;

    /// Takes back an allowed charge whose work has not acted yet.
    ///
    /// Restores what nobody after it relied on: a later reservation keeps its time, so capacity it was promised on is not
    /// handed out again. A receipt whose `act` lies before `now` changes nothing.
    fn cancel(&self, state: &Self::State, now: Tick, receipt: &Receipt) -> Self::State;

    /// Carries a state made under `old` parameters over to these.
    fn carry(&self, old: &Self, state: &Self::State, now: Tick, how: Replace) -> Self::State;

    /// Returns the tick from which the state is as good as a fresh one, so that it may be forgotten without anybody
    /// gaining; `None` when it never is.
    fn full_at(&self, state: &Self::State) -> Option<Tick>;
}
