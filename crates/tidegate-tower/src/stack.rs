//! All layers in the right order.

use tower_layer::{Identity, Layer};

/// The layers around a server, put in the right order whatever order they are named in:
///
/// 1. the fallback, which sees whatever the others refuse;
/// 2. the count of retries, which tells callers of overloaded answers not to try again while too many do;
/// 3. the deadline, so that time spent in a line counts;
/// 4. the rate limit, before the line: whoever asks too often takes no place in it;
/// 5. the limit of requests at once, last: who holds a place is at work.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tidegate::{Bulkhead, Limiter, Quota};
/// use tidegate_tower::{ConcurrencyLayer, DeadlineLayer, RateLimitLayer, ServerStack};
///
/// let stack = ServerStack::new()
///     .concurrency(ConcurrencyLayer::new("pages", Bulkhead::new(64)?.with_room(128)))
///     .rate_limit(RateLimitLayer::all("all", Limiter::new(Quota::per_second(1000))?))
///     .deadline(DeadlineLayer::within(Duration::from_secs(2), Duration::from_secs(30))?);
/// let app: Router = Router::new().route("/", get(async || "the page")).layer(stack);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerStack<F = Identity, D = Identity, R = Identity, C = Identity, T = Identity> {
    fallback: F,
    retries: T,
    deadline: D,
    rate_limit: R,
    concurrency: C,
}

impl ServerStack {
    /// Begins without any layer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<F, D, R, C, T> ServerStack<F, D, R, C, T> {
    /// Sets the fallback.
    #[must_use]
    pub fn fallback<L>(self, fallback: L) -> ServerStack<L, D, R, C, T> {
        let Self { retries, deadline, rate_limit, concurrency, .. } = self;
        ServerStack { fallback, retries, deadline, rate_limit, concurrency }
    }

    /// Sets the count of retries: an [`ArrivingRetriesLayer`](crate::ArrivingRetriesLayer).
    #[must_use]
    pub fn retries<L>(self, retries: L) -> ServerStack<F, D, R, C, L> {
        let Self { fallback, deadline, rate_limit, concurrency, .. } = self;
        ServerStack { fallback, retries, deadline, rate_limit, concurrency }
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline<L>(self, deadline: L) -> ServerStack<F, L, R, C, T> {
        let Self { fallback, retries, rate_limit, concurrency, .. } = self;
        ServerStack { fallback, retries, deadline, rate_limit, concurrency }
    }

    /// Sets the rate limit, or a [`GateLayer`](crate::GateLayer) in its place.
    #[must_use]
    pub fn rate_limit<L>(self, rate_limit: L) -> ServerStack<F, D, L, C, T> {
        let Self { fallback, retries, deadline, concurrency, .. } = self;
        ServerStack { fallback, retries, deadline, rate_limit, concurrency }
    }

    /// Sets the limit of requests at once.
    #[must_use]
    pub fn concurrency<L>(self, concurrency: L) -> ServerStack<F, D, R, L, T> {
        let Self { fallback, retries, deadline, rate_limit, .. } = self;
        ServerStack { fallback, retries, deadline, rate_limit, concurrency }
    }
}

impl<S, F, D, R, C, T> Layer<S> for ServerStack<F, D, R, C, T>
where
    C: Layer<S>,
    R: Layer<C::Service>,
    D: Layer<R::Service>,
    T: Layer<D::Service>,
    F: Layer<T::Service>,
{
    type Service = F::Service;

    fn layer(&self, inner: S) -> Self::Service {
        let limited = self.rate_limit.layer(self.concurrency.layer(inner));
        self.fallback.layer(self.retries.layer(self.deadline.layer(limited)))
    }
}

/// The layers around a client, put in the right order whatever order they are named in:
///
/// 1. the fallback, after the last try;
/// 2. retries, so that each try passes all that follows;
/// 3. the circuit breaker, which sees each try, and how it went;
/// 4. the limit of calls at once: a try that waits for its turn is not under way;
/// 5. the rate limit that the service has set us;
/// 6. the deadline, last: what is told to the service is what is left when the call goes out.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientStack<F = Identity, T = Identity, B = Identity, C = Identity, R = Identity, D = Identity> {
    fallback: F,
    retry: T,
    breaker: B,
    concurrency: C,
    rate_limit: R,
    deadline: D,
}

impl ClientStack {
    /// Begins without any layer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<F, T, B, C, R, D> ClientStack<F, T, B, C, R, D> {
    /// Sets the fallback.
    #[must_use]
    pub fn fallback<L>(self, fallback: L) -> ClientStack<L, T, B, C, R, D> {
        let Self { retry, breaker, concurrency, rate_limit, deadline, .. } = self;
        ClientStack { fallback, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the retries.
    #[must_use]
    pub fn retry<L>(self, retry: L) -> ClientStack<F, L, B, C, R, D> {
        let Self { fallback, breaker, concurrency, rate_limit, deadline, .. } = self;
        ClientStack { fallback, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the circuit breaker.
    #[must_use]
    pub fn breaker<L>(self, breaker: L) -> ClientStack<F, T, L, C, R, D> {
        let Self { fallback, retry, concurrency, rate_limit, deadline, .. } = self;
        ClientStack { fallback, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the limit of calls at once.
    #[must_use]
    pub fn concurrency<L>(self, concurrency: L) -> ClientStack<F, T, B, L, R, D> {
        let Self { fallback, retry, breaker, rate_limit, deadline, .. } = self;
        ClientStack { fallback, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the rate limit.
    #[must_use]
    pub fn rate_limit<L>(self, rate_limit: L) -> ClientStack<F, T, B, C, L, D> {
        let Self { fallback, retry, breaker, concurrency, deadline, .. } = self;
        ClientStack { fallback, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline<L>(self, deadline: L) -> ClientStack<F, T, B, C, R, L> {
        let Self { fallback, retry, breaker, concurrency, rate_limit, .. } = self;
        ClientStack { fallback, retry, breaker, concurrency, rate_limit, deadline }
    }
}

impl<S, F, T, B, C, R, D> Layer<S> for ClientStack<F, T, B, C, R, D>
where
    D: Layer<S>,
    R: Layer<D::Service>,
    C: Layer<R::Service>,
    B: Layer<C::Service>,
    T: Layer<B::Service>,
    F: Layer<T::Service>,
{
    type Service = F::Service;

    fn layer(&self, inner: S) -> Self::Service {
        let called = self.rate_limit.layer(self.deadline.layer(inner));
        let tried = self.breaker.layer(self.concurrency.layer(called));
        self.fallback.layer(self.retry.layer(tried))
    }
}
