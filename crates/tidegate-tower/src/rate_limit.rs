//! Rate limit layer: limits requests per time, for all callers together or per key.
//!
//! The limiter belongs to the layer and is shared by all services that it makes and by their clones, so connections
//! that each have a service of their own are counted together.

mod future;
mod limits;
mod rules;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use tidegate::observer::Observer;
use tidegate::{KeyedLimiter, Limiter, Quota};
use tower_layer::Layer;
use tower_service::Service;

pub use self::future::RateLimitFuture;
pub use self::limits::{All, Costing, EachKey, EachKeyRead, KeyOf, Limits, NotCharged, ReadsKey};
use self::rules::RateLimitRules;
use crate::answers::{Answers, Problems};
use crate::ready::{for_later, give_back};

/// Limits how often a service is called. Clones share the limit.
///
/// # Examples
/// ```
/// use axum::{Router, routing::get};
/// use http::Request;
/// use tidegate::{KeyedLimiter, Quota};
/// use tidegate_tower::RateLimitLayer;
///
/// // 100 requests a second per API key, with bursts of 200; room for 100,000 keys. Requests without a key share one.
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
    rules: Arc<RateLimitRules<A>>,
}

impl RateLimitLayer<All> {
    /// Limits all requests together; `name` is told to callers. With several quotas, headers show the binding one. The
    /// windows in the headers are those that the limiter has now; they do not follow later changes of the limiter.
    #[must_use]
    pub fn all(name: &str, limiter: Limiter) -> Self {
        let quotas = limiter.quotas();
        let rules = RateLimitRules::new(name, quotas.iter().map(|quota| Quota::clone(quota)));
        Self { limits: All::new(limiter), rules: Arc::new(rules) }
    }
}

impl<F> RateLimitLayer<EachKey<F>> {
    /// Limits the requests of each key, which `key` reads from a request. It has to return a key for every request:
    /// return a common one for requests that lack one, since letting them pass would be a way around the limit. To refuse
    /// them, use [`each_key_read`](Self::each_key_read).
    ///
    /// The key of a function may borrow from the request. That of a closure may not, because the compiler does not see
    /// that what it returns lives as long as its argument.
    ///
    /// # Examples
    /// ```
    /// use axum::extract::Request;
    /// use tidegate::{KeyedLimiter, Quota};
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// fn api_key(request: &Request) -> &[u8] {
    ///     request.headers().get("x-api-key").map_or(b"", |key| key.as_bytes())
    /// }
    ///
    /// let limiter = KeyedLimiter::new(Quota::per_second(100), 100_000)?;
    /// let layer = RateLimitLayer::each("per-key", limiter, api_key);
    /// # let app: axum::Router = axum::Router::new().route("/", axum::routing::get(async || "")).layer(layer);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn each(name: &str, limiter: KeyedLimiter, key: F) -> Self {
        let rules = RateLimitRules::new(name, [Quota::clone(&limiter.quota())]);
        Self { limits: EachKey::new(limiter, key), rules: Arc::new(rules) }
    }
}

impl<F> RateLimitLayer<EachKeyRead<F>> {
    /// Limits the requests of each key like [`each`](RateLimitLayer::each), and refuses requests from which `key` reads
    /// none: with status 400 ([`RefusalCause::NoKey`](crate::RefusalCause::NoKey)), unless other [answers](Self::answering) are chosen.
    ///
    /// # Examples
    /// ```
    /// use axum::{Router, routing::get};
    /// use http::Request;
    /// use tidegate::{KeyedLimiter, Quota};
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// let limiter = KeyedLimiter::new(Quota::per_second(100), 100_000)?;
    /// let key = |request: &Request<_>| request.headers().get("x-api-key").map(|key| key.as_bytes().to_vec());
    /// let layer = RateLimitLayer::each_key_read("per-key", limiter, key);
    /// # let app: Router = Router::new().route("/", get(async || "")).layer(layer);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn each_key_read(name: &str, limiter: KeyedLimiter, key: F) -> Self {
        let rules = RateLimitRules::new(name, [Quota::clone(&limiter.quota())]);
        Self { limits: EachKeyRead::new(limiter, key), rules: Arc::new(rules) }
    }
}

impl<L, A: Clone> RateLimitLayer<L, A> {
    /// Chooses how callers are told of refusals; the default is [`Problems`].
    #[must_use]
    pub fn answering<B>(self, answers: B) -> RateLimitLayer<L, B> {
        RateLimitLayer {
            limits: self.limits,
            rules: Arc::new(Arc::unwrap_or_clone(self.rules).answering(answers)),
        }
    }

    /// Holds requests back for up to `max_wait` if they can pass then, instead of refusing them; zero, the default,
    /// refuses at once. A request that cannot pass before the deadline that its task
    /// [carries](tidegate::deadline::carried) is refused at once too. Up to `max_wait` times the rate are held per key: if strangers choose keys, put a
    /// [`ConcurrencyLayer`](crate::ConcurrencyLayer) outside to bound the total.
    #[must_use]
    pub fn waiting(self, max_wait: Duration) -> Self {
        self.with(|rules| RateLimitRules { max_wait, ..rules })
    }

    /// Adds a [`Spent`](crate::Spent) to the extensions of each request that passes, by which the handler reports the
    /// real cost; around a client the program puts one of [its own](crate::Spent::new) there. Costs two allocations per
    /// request.
    #[must_use]
    pub fn settling(self) -> Self {
        self.with(|rules| RateLimitRules { settling: true, ..rules })
    }

    /// Keeps the charge of a request that a layer inside refuses. By default it is given back exactly if the request was
    /// refused [before any work for it had begun](crate::Refused::is_before_work), such as by a
    /// [`ConcurrencyLayer`](crate::ConcurrencyLayer) whose queue is full. So a caller that a busy server refuses is not
    /// refused by this limit too when it tries again. The inner refusal is found in the response's extensions, or in
    /// the error.
    ///
    /// Keep the charges in these cases:
    /// * Strangers can send many requests while the server is busy. Each refusal takes the server some work, and this limit
    ///   would not bound how many there are.
    /// * The service works, then calls another service through a client of single layers of this crate, and returns the
    ///   client's refusal unchanged. Without a [`ClientLayer`](crate::ClientLayer) around that client this counts as refused
    ///   before any work, so callers have the work done for nothing. A [`ClientStack`](crate::ClientStack) has that layer.
    /// * The record of each charge costs too much: a reference count, and for a limit per key an allocation with a copy of
    ///   the key.
    ///
    /// # Examples
    /// ```
    /// use axum::{Router, routing::get};
    /// use tidegate::{Limiter, Quota};
    /// use tidegate_tower::{RateLimitLayer, ServerStack};
    ///
    /// let all = RateLimitLayer::all("all", Limiter::new(Quota::per_second(1000))?).keeping_charges();
    /// let stack = ServerStack::self_tuning("pages").rate_limit(all);
    /// let app: Router = Router::new().route("/", get(async || "the page")).layer(stack);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn keeping_charges(self) -> Self {
        self.with(|rules| RateLimitRules { giving_back: false, ..rules })
    }

    /// Tells `observer` of refusals ([`Observer::on_layer`]). The limiter itself tells of each decision
    /// ([`Limiter::with_observer`]); it may be given the same observer.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.with(|rules| RateLimitRules { name: rules.name.observed(observer), ..rules })
    }

    /// Sets a request's cost, or its estimated cost; the default is 1.
    #[must_use]
    pub fn costing<C>(self, cost: C) -> RateLimitLayer<Costing<L, C>, A> {
        RateLimitLayer { limits: Costing::new(self.limits, cost), rules: self.rules }
    }

    fn with(self, change: impl FnOnce(RateLimitRules<A>) -> RateLimitRules<A>) -> Self {
        Self { limits: self.limits, rules: Arc::new(change(Arc::unwrap_or_clone(self.rules))) }
    }
}

impl<S, L: Clone, A> Layer<S> for RateLimitLayer<L, A> {
    type Service = RateLimitService<S, L, A>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, limits: self.limits.clone(), rules: Arc::clone(&self.rules) }
    }
}

/// A service behind a rate limit: see [`RateLimitLayer`].
#[derive(Debug)]
pub struct RateLimitService<S, L, A = Problems> {
    inner: S,
    limits: L,
    rules: Arc<RateLimitRules<A>>,
}

impl<S: Clone, L: Clone, A> Clone for RateLimitService<S, L, A> {
    fn clone(&self) -> Self {
        let Self { inner, limits, rules } = self;
        Self { inner: inner.clone(), limits: limits.clone(), rules: Arc::clone(rules) }
    }
}

impl<S, L, A, B> Service<Request<B>> for RateLimitService<S, L, A>
where
    S: Service<Request<B>> + Clone,
    L: Limits<Request<B>>,
    A: Answers<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = RateLimitFuture<S, Request<B>, S::Future, S::Response, S::Error, A>;

    /// Asks whether the inner service is ready; charges nothing.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let rules = &self.rules;
        let cost = self.limits.cost(&request);
        let mut charge = None;
        // `None`: its key cannot be read.
        let answer = if rules.keeps_charge() {
            match self.limits.reserve(&request, cost, rules.max_wait) {
                Ok(reservation) if !reservation.wait().is_zero() => {
                    let service = for_later(&mut self.inner);
                    return RateLimitFuture::held(reservation, service, request, Arc::clone(rules));
                }
                Ok(reservation) => {
                    let answer = reservation.answer();
                    charge = rules.hand_over(reservation, &mut request);
                    Some(answer)
                }
                Err(NotCharged::Denied(denied)) => Some(denied.answer),
                Err(NotCharged::NoKey) => None,
            }
        } else {
            self.limits.allow(&request, cost)
        };
        match answer {
            Some(answer) if answer.is_allowed() => {
                RateLimitFuture::called(self.inner.call(request), answer, charge, Arc::clone(rules))
            }
            refused => {
                give_back(&mut self.inner);
                RateLimitFuture::refused(rules.refuse(refused.as_ref()))
            }
        }
    }
}
