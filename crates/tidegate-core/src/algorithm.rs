//! The one shape of every rate limit: parameters that turn a state and an ask into an answer and the next state.

use core::fmt::Debug;

use crate::bytes::Bytes;
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::time::Tick;

/// A rate-limit law: parameters that turn `(state, now, cost, max_wait)` into a decision and the next state.
///
/// # Laws
/// Every implementation keeps these, and the tests hold it to them against a slow rational model:
/// * *Time never gives capacity twice.* A state carries the tick of its last change; a `now` before it counts as it.
/// * *Denial changes nothing*: [`Transition::Denied`] has no state to store.
/// * *The retry is least and sufficient*: the same ask that much later is allowed if nobody else asks and the state is kept
///   meanwhile, a nanosecond earlier it is not. Later than the ask counted as: where `now` lay before the last change, than that. The
///   profiles of peers round as the peers do, and say so.
/// * *First come, first served*: what was promised keeps its time, whatever is asked after it.
/// * *Settling never creates capacity*: no limit ends up fuller than if only what was spent had been charged, then.
pub trait Algorithm: Clone + Debug + Eq + Bytes {
    /// What is remembered of one key.
    type State: Clone + Debug + Eq + Bytes;

    /// Returns the state of a key never seen before: a full limit, first met at `now`.
    fn fresh(&self, now: Tick) -> Self::State;

    /// Decides one ask. Called on every check, so it is the hot path: no allocation unless the state grows.
    fn decide(&self, state: &Self::State, ask: Ask) -> Transition<Self::State>;

    /// Returns what the limit looks like at `now`; changes nothing.
    fn standing(&self, state: &Self::State, now: Tick) -> Standing;

    /// Settles an allowed charge with what was really spent: nothing undoes it, less gives the rest back, more is booked as a
    /// debt, never refused. A receipt is settled once; whoever holds it sees to that.
    ///
    /// * *Never fuller*: at no later tick is the limit fuller than if only `used` had been charged, when the charge was made.
    ///   Where nobody has charged since, it is as full: undoing is exact, before and after the work acted. Where others have, what
    ///   comes back may be less, never more; each algorithm says when.
    /// * *Promises stay*: whoever reserved keeps its time, and what was promised is not handed out again: acts, those to come
    ///   included, never bunch beyond what the limit allows.
    /// * *More* is charged at `now`, behind all that was promised; the limit then stands below empty, by at most
    ///   [`Rate::MAX_COUNT`](crate::Rate::MAX_COUNT) units, and later asks wait it off.
    /// * Of a charge made before the last [`carry`](Algorithm::carry) nothing comes back; more is booked all the same.
    fn settle(&self, state: &Self::State, now: Tick, receipt: &Receipt, used: u64) -> Self::State;

    /// Carries a state made under `old` parameters over to these. Between two algorithms, as only a [`Quota`](crate::Quota) can
    /// change, units spent and owed go over and are charged to a fresh limit: at least as much is spent after it as before.
    fn carry(&self, old: &Self, state: &Self::State, now: Tick, how: Replace) -> Self::State;

    /// Returns the tick from which the state is as good as a fresh one, so that it may be forgotten without anybody
    /// gaining; `None` when it never is.
    fn full_at(&self, state: &Self::State) -> Option<Tick>;
}
