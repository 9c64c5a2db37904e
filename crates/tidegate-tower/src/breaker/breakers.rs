//! Which breaker a request enters.

use tidegate::breaker::{Call, Condition, KeyedCall};
use tidegate::observer::RefusalCause;
use tidegate::{Breaker, Denied, Key, KeyedBreaker};

use crate::guarded::Entered;

/// Breakers for requests of one kind: [`OneBreaker`] for all, or a [`BreakerOfKey`].
pub trait Breakers<Req>: Clone {
    /// A call that was let through.
    type Call: Entered;

    /// Enters the breaker of a request without waiting.
    ///
    /// # Errors
    /// [`Denied`] in the same cases as [`Breaker::try_enter`], and the cause: the state of the breaker, read after the
    /// refusal.
    fn try_enter(&self, request: &Req) -> Result<Self::Call, (Denied, RefusalCause)>;
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

    fn try_enter(&self, _: &Req) -> Result<Call, (Denied, RefusalCause)> {
        self.breaker.try_enter().map_err(|denied| (denied, cause(self.breaker.state())))
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

    fn try_enter(&self, request: &Req) -> Result<KeyedCall, (Denied, RefusalCause)> {
        let Self { breaker, key } = self;
        breaker.try_enter(key(request)).map_err(|denied| (denied, cause(breaker.state(key(request)))))
    }
}

/// Returns why a breaker in this state refuses. If it lets calls through by now, it was open.
const fn cause(state: Condition) -> RefusalCause {
    match state {
        Condition::HalfOpen { .. } => RefusalCause::HalfOpen,
        Condition::Shedding { .. } => RefusalCause::Shedding,
        Condition::Forced { .. } => RefusalCause::ForcedOpen,
        _ => RefusalCause::Open,
    }
}
