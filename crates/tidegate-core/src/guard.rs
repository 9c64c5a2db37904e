//! Guards: limits on work in progress, which work enters and leaves with an outcome. A rate limit counts what was
//! asked for; a guard counts work in progress, and work that leaves reports how it ended, not what it cost.

use core::fmt::Debug;

use crate::bytes::Bytes;
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::time::Tick;

/// How a piece of work ended, as far as guards and `charge: on-failure` need to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It succeeded.
    Success,
    /// The caller's own mistake: a wrong password, a missing page. It is not a failure of the service.
    CallersFault,
    /// The service failed.
    Failure,
    /// The service, or one that it calls, reported that it has too much to do.
    Overloaded,
    /// Unknown, or not related to the service: a caller who hung up. A guard learns nothing from it.
    #[default]
    Ignored,
}

impl Outcome {
    /// Reads an HTTP status: below 400 is a success, 429 and 503 are overload, other 4xx the caller's fault, other 5xx a failure.
    #[must_use]
    pub const fn from_status(status: u16) -> Self {
        match status {
            429 | 503 => Self::Overloaded,
            500.. => Self::Failure,
            400.. => Self::CallersFault,
            _ => Self::Success,
        }
    }
}

/// How admitted work is finished: the units that it really used, and how it ended.
///
/// Limits are settled with the units, guards left with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Units really spent; 0 undoes the charge.
    pub used: u64,
    /// How it ended.
    pub outcome: Outcome,
}

impl Finish {
    /// The work was not done: its charge is undone, its place returned, and nothing is learnt.
    pub const UNDONE: Self = Self { used: 0, outcome: Outcome::Ignored };
}

/// A limit that work enters and leaves: parameters that turn a state and a request into a decision and the next
/// state, and an outcome into the state after leaving.
///
/// # Laws
/// * *Refusal changes nothing*: [`Transition::Denied`] has no state to store.
/// * *Each entry leaves once*: the receipt finds its own place. If that place has lapsed meanwhile, leaving changes
///   nothing, and never frees a place of another holder.
/// * *Leaving without having worked* ([`Outcome::Ignored`]) leaves the guard as if it had not been entered.
/// * *Time is an argument*: nothing here reads a clock, and a `now` before the last change counts as the tick of that change.
pub trait Guard: Clone + Debug + Eq + Bytes {
    /// The state of one key.
    type State: Clone + Debug + Eq + Bytes;

    /// Returns the state of a key never seen before: nobody inside.
    fn fresh(&self, now: Tick) -> Self::State;

    /// Decides whether `ask.cost` may enter at once. A refusal is [`Retry::Unknown`](crate::Retry::Unknown) where it
    /// depends on when others leave.
    fn enter(&self, state: &Self::State, ask: Ask) -> Transition<Self::State>;

    /// Returns the state after the work with this receipt has left with an outcome; unchanged if its place has lapsed.
    fn leave(&self, state: &Self::State, now: Tick, receipt: &Receipt, outcome: Outcome) -> Self::State;

    /// Holds the places of a receipt for another time to live from `now` on. Returns the next state and the receipt
    /// that takes the place of this one, which finds no place any more. It keeps the time of the entry, so that the
    /// work is known to have taken that long when it leaves. A place never lapses earlier because of this. `None` if
    /// the places have lapsed, and for a guard whose places cannot be held longer, which is the default; nothing
    /// changes then.
    fn extend(&self, state: &Self::State, now: Tick, receipt: &Receipt) -> Option<(Self::State, Receipt)> {
        let _ = (state, now, receipt);
        None
    }

    /// Returns the standing of the guard at `now`; changes nothing.
    fn standing(&self, state: &Self::State, now: Tick) -> Standing;

    /// Converts a state made under the parameters `old` to these.
    fn carry(&self, old: &Self, state: &Self::State, now: Tick, how: Replace) -> Self::State;

    /// Returns the tick from which the state is equivalent to a fresh one; `None` if time alone never makes it so.
    fn full_at(&self, state: &Self::State) -> Option<Tick>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_the_callers_fault_from_the_services() {
        let outcomes = [200, 301, 401, 404, 429, 500, 502, 503].map(Outcome::from_status);
        use Outcome::{CallersFault, Failure, Overloaded, Success};
        let expected =
            [Success, Success, CallersFault, CallersFault, Overloaded, Failure, Failure, Overloaded];
        assert_eq!(outcomes, expected);
    }
}
