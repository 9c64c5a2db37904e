//! Which breaker a request enters.

use tidegate::breaker::{Call, KeyedCall, Refusal, RefusalReason};
use tidegate::observer::RefusalCause;
use tidegate::{Breaker, Key, KeyedBreaker};

use crate::guarded::Entered;

/// Breakers for requests of one kind: [`OneBreaker`] for all, or a [`BreakerOfKey`].
pub trait Breakers<Req>: Clone {
    /// A call that was let through.
    type Call: Entered;

    /// Enters the breaker of a request without waiting.
    ///
    /// # Errors
    /// [`Refusal`], with its reason, in the same cases as [`Breaker::enter_with_reason`].
    fn try_enter(&self, request: &Req) -> Result<Self::Call, Refusal>;
}

/// One breaker for all requests: see [`BreakerLayer::new`](crate::BreakerLayer::new).
#[derive(Clone, Debug)]
pub struct OneBreaker {
    breaker: Breaker,
}

impl OneBreaker {
    pub(super) const fn new(breaker: Breaker) -> Self {
        Self { breaker }
    }
}

impl<Req> Breakers<Req> for OneBreaker {
    type Call = Call;

    fn try_enter(&self, _: &Req) -> Result<Call, Refusal> {
        self.breaker.enter_with_reason()
    }
}

/// A breaker for each key: see [`BreakerLayer::each`](crate::BreakerLayer::each).
#[derive(Clone, Debug)]
pub struct BreakerOfKey<F> {
    breaker: KeyedBreaker,
    key: F,
}

impl<F> BreakerOfKey<F> {
    pub(super) const fn new(breaker: KeyedBreaker, key: F) -> Self {
        Self { breaker, key }
    }
}

impl<Req, K: Key, F: Fn(&Req) -> K + Clone> Breakers<Req> for BreakerOfKey<F> {
    type Call = KeyedCall;

    fn try_enter(&self, request: &Req) -> Result<KeyedCall, Refusal> {
        self.breaker.enter_with_reason((self.key)(request))
    }
}

/// Returns the cause of a refusal, and the words of the person who forced the breaker open, if any.
pub(super) fn cause(reason: &RefusalReason) -> (RefusalCause, Option<&str>) {
    match reason {
        RefusalReason::HalfOpen => (RefusalCause::HalfOpen, None),
        RefusalReason::Shedding => (RefusalCause::Shedding, None),
        RefusalReason::Forced(forced) => {
            (RefusalCause::ForcedOpen, Some(forced.reason()).filter(|reason| !reason.is_empty()))
        }
        _ => (RefusalCause::Open, None),
    }
}
