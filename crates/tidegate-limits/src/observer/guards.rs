//! Events of guards that are entered and left: the places of a bulkhead, and the calls of a breaker.

use std::time::Duration;

use tidegate_core::{Outcome, Retry};

use crate::no_place::NoPlace;
use crate::refusal_reason::RefusalReason;

/// What became of an entry into a [`Bulkhead`](crate::Bulkhead), and of the work that it admitted.
///
/// Each entry that was tried or polled has one of the first three ends, and each that entered leaves once. Entries that ask for
/// no valid number of places are not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceDid {
    /// It was refused. Told when its caller learns of it: a waiter that gave way to another, at its next poll.
    Refused {
        /// Why.
        cause: NoPlace,
        /// How long it waited in the queue; zero if it was refused at once.
        waited: Duration,
    },
    /// It was dropped before it had an answer: while it waited, or after a try that found no place
    /// ([`Enter::try_now`](crate::Enter::try_now)). A place that it was given meanwhile goes to the next waiter.
    Dropped {
        /// How long it waited in the queue; zero if it was only tried.
        waited: Duration,
    },
    /// It has its places.
    Entered {
        /// How long it waited in the queue; zero if it entered at once.
        waited: Duration,
    },
    /// The work has ended, and its places are returned.
    Left {
        /// How it ended; [`Outcome::Ignored`] if its permit was dropped.
        outcome: Outcome,
        /// How long it held its places, by the bulkhead's clock.
        held: Duration,
    },
}

/// What became of a call that was to go through a [`Breaker`](crate::Breaker) or a
/// [`KeyedBreaker`](crate::KeyedBreaker).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallDid {
    /// It was refused, and not made.
    Refused {
        /// Why.
        reason: RefusalReason,
        /// When a retry is worthwhile.
        retry: Retry,
    },
    /// It has ended. Told of every call that entered, also of those whose end does not count because they began before the last
    /// change of state.
    Ended {
        /// How it ended; [`Outcome::Ignored`] if it was dropped.
        outcome: Outcome,
        /// How long it took since it entered, by the breaker's clock.
        took: Duration,
    },
}
