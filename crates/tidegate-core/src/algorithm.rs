//! The trait of every rate limit: parameters that turn a state and a request into a decision and the next state.

use core::fmt::Debug;

use crate::bytes::Bytes;
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::time::Tick;

/// A rate-limit law: parameters that turn `(state, now, cost, max_wait)` into a decision and the next state.
///
/// A *charge* is a cost that was allowed. It *acts* when its wait is over; a *promise* is the act of a charge that still waits.
///
/// # Laws
/// Every implementation keeps these, and tests compare each one with a slow model in rational numbers:
/// * *Time never gives capacity twice.* A state carries the tick of its last change; an earlier `now` counts as that tick.
/// * *Denial changes nothing*: [`Transition::Denied`] has no state to store.
/// * *The retry time is exact*: the same request is allowed after that wait and denied a nanosecond earlier, if
///   nobody else asks and the state is kept meanwhile. The wait counts from `now`, or from the last change of the
///   state if that is later. Profiles of other libraries round as those libraries do, and say so.
/// * *First come, first served*: a promised time does not move, whatever is asked later.
/// * *Settling never creates capacity*: no limit ends up fuller than if the units really used had been charged in the
///   first place.
pub trait Algorithm: Clone + Debug + Eq + Bytes {
    /// The state of one key.
    type State: Clone + Debug + Eq + Bytes;

    /// Returns the state of a key never seen before: a full limit, first met at `now`.
    fn fresh(&self, now: Tick) -> Self::State;

    /// Decides one request. This is the hot path, called on every check: no allocation unless the state grows.
    fn decide(&self, state: &Self::State, ask: Ask) -> Transition<Self::State>;

    /// Returns the standing of the limit at `now`; changes nothing.
    fn standing(&self, state: &Self::State, now: Tick) -> Standing;

    /// Settles an allowed charge with the units really used: 0 undoes the charge, fewer than charged give the difference
    /// back, and more are booked as a debt, which is never refused. The caller must settle a receipt at most once.
    ///
    /// * *Never fuller*: at no later tick is the limit fuller than if only `used` had been charged at the time of the
    ///   charge. If nobody has charged since, it is exactly as full, whether or not the work has acted already. If
    ///   others have, it may give back less, never more; each algorithm says when.
    /// * *Promises stay*: every reservation keeps its time, and a promised time is not granted twice. So work,
    ///   including work still to come, never bunches beyond the limit.
    /// * *More than charged* is charged at `now`, after everything promised. The limit then stands below empty, by at
    ///   most [`Rate::MAX_COUNT`](crate::Rate::MAX_COUNT) units, and later requests wait until the debt is paid off.
    /// * A charge made before the last [`carry`](Algorithm::carry) gives nothing back; more than charged is booked
    ///   all the same.
    fn settle(&self, state: &Self::State, now: Tick, receipt: &Receipt, used: u64) -> Self::State;

    /// Converts a state made under the parameters `old` to these. Only a [`Quota`](crate::Quota) can change the
    /// algorithm as well: it charges the units spent and owed to a fresh limit of the new algorithm. Unless `how` is
    /// [`Replace::Reset`], at least as much is spent after that as before, up to the new limit.
    fn carry(&self, old: &Self, state: &Self::State, now: Tick, how: Replace) -> Self::State;

    /// Returns the tick from which the state is equivalent to a fresh one, so that forgetting it gives nobody any
    /// capacity; `None` if there is no such tick.
    fn full_at(&self, state: &Self::State) -> Option<Tick>;
}
