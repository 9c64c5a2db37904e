//! Chooses the limit that a request is charged to, and the cost.

use std::time::Duration;

use tidegate::limiter::{Answer, Denied, Key, Reservation, TakeError};
use tidegate::{Cost, KeyedLimiter, Limiter};

use crate::guarded::EachKey;

/// Why a limit did not charge a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotCharged {
    /// The limit denies it.
    Denied(Denied),
    /// Its key could not be read.
    NoKey,
}

/// A limit for requests of one type: a [`Limiter`] for all together, [`EachKey`], or [`EachKeyRead`].
pub trait Limits<Req>: Clone {
    /// Returns what a request costs.
    fn cost(&self, request: &Req) -> Cost {
        let _ = request;
        Cost::ONE
    }

    /// Charges the cost at once, or refuses: the answer says which. `None` if the key of the request cannot be read.
    fn allow(&self, request: &Req, cost: Cost) -> Option<Answer>;

    /// Reserves the cost, to be used after a wait of at most `max_wait` that ends before the deadline that the task
    /// [carries](tidegate::deadline::carried).
    ///
    /// # Errors
    /// [`NotCharged`].
    fn reserve(&self, request: &Req, cost: Cost, max_wait: Duration) -> Result<Reservation, NotCharged>;
}

impl<Req> Limits<Req> for Limiter {
    fn allow(&self, _: &Req, cost: Cost) -> Option<Answer> {
        Some(self.allow_n(cost).expect("a cost is one"))
    }

    fn reserve(&self, _: &Req, cost: Cost, max_wait: Duration) -> Result<Reservation, NotCharged> {
        if max_wait.is_zero() {
            // No deadline is earlier than at once.
            return Self::reserve(self, cost, max_wait).map_err(denied);
        }
        self.wait(cost).within(max_wait).reserve().map_err(denied)
    }
}

/// Reads the key of a request, which may borrow from it. Implemented for functions.
pub trait KeyOf<'r, Req: 'r> {
    /// The key.
    type Key: Key;

    /// Returns the key of a request.
    fn key_of(&self, request: &'r Req) -> Self::Key;
}

impl<'r, Req: 'r, K: Key, F: Fn(&'r Req) -> K> KeyOf<'r, Req> for F {
    type Key = K;

    fn key_of(&self, request: &'r Req) -> K {
        self(request)
    }
}

impl<Req, F: for<'r> KeyOf<'r, Req> + Clone> Limits<Req> for EachKey<KeyedLimiter, F> {
    fn allow(&self, request: &Req, cost: Cost) -> Option<Answer> {
        Some(allow(&self.of, self.key.key_of(request), cost))
    }

    fn reserve(&self, request: &Req, cost: Cost, max_wait: Duration) -> Result<Reservation, NotCharged> {
        reserve(&self.of, self.key.key_of(request), cost, max_wait)
    }
}

/// A limit for each key, which refuses requests whose key cannot be read: see
/// [`RateLimitLayer::each_key_read`](crate::RateLimitLayer::each_key_read).
#[derive(Clone, Debug)]
pub struct EachKeyRead<F> {
    pub(super) limiter: KeyedLimiter,
    pub(super) key: F,
}

/// Reads the key of a request, which may borrow from it, if it has one. Implemented for functions.
pub trait ReadsKey<'r, Req: 'r> {
    /// The key.
    type Key: Key;

    /// Returns the key of a request; `None` if it cannot be read.
    fn read_key(&self, request: &'r Req) -> Option<Self::Key>;
}

impl<'r, Req: 'r, K: Key, F: Fn(&'r Req) -> Option<K>> ReadsKey<'r, Req> for F {
    type Key = K;

    fn read_key(&self, request: &'r Req) -> Option<K> {
        self(request)
    }
}

impl<Req, F: for<'r> ReadsKey<'r, Req> + Clone> Limits<Req> for EachKeyRead<F> {
    fn allow(&self, request: &Req, cost: Cost) -> Option<Answer> {
        self.key.read_key(request).map(|key| allow(&self.limiter, key, cost))
    }

    fn reserve(&self, request: &Req, cost: Cost, max_wait: Duration) -> Result<Reservation, NotCharged> {
        let key = self.key.read_key(request).ok_or(NotCharged::NoKey)?;
        reserve(&self.limiter, key, cost, max_wait)
    }
}

fn allow(limiter: &KeyedLimiter, key: impl Key, cost: Cost) -> Answer {
    limiter.allow_n(key, cost).expect("a cost is one")
}

fn reserve(
    limiter: &KeyedLimiter,
    key: impl Key,
    cost: Cost,
    max_wait: Duration,
) -> Result<Reservation, NotCharged> {
    if max_wait.is_zero() {
        return limiter.reserve(key, cost, max_wait).map_err(denied);
    }
    limiter.wait(key, cost).within(max_wait).reserve().map_err(denied)
}

/// A limit with a cost per request: see [`RateLimitLayer::costing`](crate::RateLimitLayer::costing).
#[derive(Clone, Debug)]
pub struct Costing<L, C> {
    pub(super) limits: L,
    pub(super) cost: C,
}

impl<Req, L: Limits<Req>, C: Fn(&Req) -> Cost + Clone> Limits<Req> for Costing<L, C> {
    fn cost(&self, request: &Req) -> Cost {
        (self.cost)(request)
    }

    fn allow(&self, request: &Req, cost: Cost) -> Option<Answer> {
        self.limits.allow(request, cost)
    }

    fn reserve(&self, request: &Req, cost: Cost, max_wait: Duration) -> Result<Reservation, NotCharged> {
        self.limits.reserve(request, cost, max_wait)
    }
}

fn denied(error: TakeError) -> NotCharged {
    match error {
        TakeError::Denied(denied) => NotCharged::Denied(denied),
        TakeError::NotACost(_) => unreachable!("a cost is one"),
    }
}
