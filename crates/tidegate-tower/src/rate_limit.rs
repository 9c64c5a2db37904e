//! So many requests in a time, for all together or for each key.
//!
//! The limiter lies in the layer and is shared by all services that it makes and by their clones, so connections that each have a service of
//! their own are counted together.

mod future;
mod limits;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use tidegate::http_answer::NamedLimit;
use tidegate::{Denied, KeyedLimiter, Limiter, Quota};
use tower_layer::Layer;
use tower_service::Service;

pub use self::future::RateLimitFuture;
pub use self::limits::{All, EachKey, Limits};
use crate::answers::{Answers, Problems};
use crate::ready::take_ready;
use crate::refused::{Cause, Refused};
use crate::spent::Spent;

/// Limits how often a service is called. Clones share the limit.
///
/// # Examples
/// ```
/// use axum::{Router, routing::get};
/// use http::Request;
/// use tidegate::{KeyedLimiter, Quota};
/// use tidegate_tower::RateLimitLayer;
///
/// // 100 requests a second of each API key, with bursts of 200; room for 100,000 keys. Who sends no key shares one.
/// let limiter = KeyedLimiter::new(Quota::per_second(100).burst(200), 100_000)?;
/// let key = |request: &Request<_>| request.headers().get("x-api-key").map_or(vec![], |key| key.as_bytes().to_vec());
/// let app: Router = Router::new()
///     .route("/", get(async || "the page"))
///     .layer(RateLimitLayer::each("per-key", limiter, key));
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer<L, A = Problems> {
    limits: L,
    answers: A,
    rules: Rules,
}

/// What does not differ from request to request.
#[derive(Clone, Debug)]
struct Rules {
    name: Arc<str>,
    told: Arc<NamedLimit>,
    max_wait: Duration,
    settling: bool,
}

impl RateLimitLayer<All> {
    /// Limits all requests together, under a name that callers are told. Their headers show the limiter's first quota, as it is now.
    #[must_use]
    pub fn all(name: &str, limiter: Limiter) -> Self {
        let quotas = limiter.quotas();
        let rules = Rules::new(name, quotas.first().map(|quota| Quota::clone(quota)));
        Self { limits: All::new(limiter), answers: Problems, rules }
    }
}

impl<F> RateLimitLayer<EachKey<F>> {
    /// Limits the requests of each key: `key` reads it from a request. Requests without one need one too, for all of them as a rule: to let them
    /// pass would be a way around the limit.
    #[must_use]
    pub fn each(name: &str, limiter: KeyedLimiter, key: F) -> Self {
        let rules = Rules::new(name, Some(Quota::clone(&limiter.quota())));
        Self { limits: EachKey::new(limiter, key), answers: Problems, rules }
    }
}

impl Rules {
    fn new(name: &str, quota: Option<Quota>) -> Self {
        let told = match quota.map(|quota| NamedLimit::new(name, quota)) {
            Some(Ok(told)) => told,
            // A limiter has at least one quota, and one that is in force is a limit.
            Some(Err(_)) | None => NamedLimit::of_places(name),
        };
        Self { name: name.into(), told: Arc::new(told), max_wait: Duration::ZERO, settling: false }
    }
}

impl<L, A> RateLimitLayer<L, A> {
    /// Chooses how refusals are told; [`Problems`] unless chosen.
    #[must_use]
    pub fn answering<B>(self, answers: B) -> RateLimitLayer<L, B> {
        RateLimitLayer { limits: self.limits, answers, rules: self.rules }
    }

    /// Holds requests back for up to `max_wait` where that makes them pass, instead of refusing them; zero, the default, refuses at once.
    #[must_use]
    pub fn waiting(mut self, max_wait: Duration) -> Self {
        self.rules.max_wait = max_wait;
        self
    }

    /// Hands each request that passes a [`Spent`] among its extensions, by which the handler says what it really cost. Costs two allocations.
    #[must_use]
    pub fn settling(mut self) -> Self {
        self.rules.settling = true;
        self
    }

    /// Sets what a request costs, or is estimated to; 1 unless set.
    #[must_use]
    pub fn costing<C>(self, cost: C) -> RateLimitLayer<limits::Costing<L, C>, A> {
        let Self { limits, answers, rules } = self;
        RateLimitLayer { limits: limits::Costing::new(limits, cost), answers, rules }
    }
}

impl<S, L: Clone, A: Clone> Layer<S> for RateLimitLayer<L, A> {
    type Service = RateLimit<S, L, A>;

    fn layer(&self, inner: S) -> Self::Service {
        let Self { limits, answers, rules } = self.clone();
        RateLimit { inner, limits, answers, rules }
    }
}

/// A service behind a rate limit: see [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S, L, A = Problems> {
    inner: S,
    limits: L,
    answers: A,
    rules: Rules,
}

impl<S, L, A, B> Service<Request<B>> for RateLimit<S, L, A>
where
    S: Service<Request<B>> + Clone,
    L: Limits<Request<B>>,
    A: Answers<S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = RateLimitFuture<S, Request<B>, A>;

    /// Says whether the service within is ready; takes nothing of the limit.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Rules { name, told, max_wait, settling } = &self.rules;
        let cost = self.limits.cost(&request);
        let refuse = |denied: Denied| {
            let refused =
                Refused { cause: Cause::RateLimit, by: Some(Arc::clone(name)), retry: denied.retry() };
            RateLimitFuture::refused(self.answers.refuse(refused, Some(&told.answer(&denied.answer))))
        };
        let told = || (Arc::clone(told), self.answers.clone());
        if *settling || !max_wait.is_zero() {
            let reservation = match self.limits.reserve(&request, cost, *max_wait) {
                Ok(reservation) => reservation,
                Err(denied) => return refuse(denied),
            };
            let answer = reservation.answer();
            if reservation.wait().is_zero() {
                if *settling {
                    request.extensions_mut().insert(Spent::of(reservation));
                }
                let called = self.inner.call(request);
                return RateLimitFuture::called(called, answer, told());
            }
            let service = take_ready(&mut self.inner);
            return RateLimitFuture::held(reservation, *settling, service, request, told());
        }
        let answer = self.limits.allow(&request, cost);
        match answer.into_result() {
            Ok(answer) => RateLimitFuture::called(self.inner.call(request), answer, told()),
            Err(denied) => refuse(denied),
        }
    }
}
