//! Circuit breaker layer: refuses calls to a failing service until it answers again.

mod breakers;
mod future;

use std::sync::Arc;
use std::task::{Context, Poll};

use tidegate::observer::{Observer, RefusalCause};
use tidegate::{Breaker, KeyedBreaker};
use tower_layer::Layer;
use tower_service::Service;

pub use self::breakers::{BreakerOfKey, Breakers, OneBreaker};
pub use self::future::BreakerFuture;
use crate::answers::{Answers, Problems};
use crate::classify::{ByStatus, Classify};
use crate::guarded::{Inside, Rules};
use crate::name::Name;
use crate::ready::give_back;

/// Refuses calls to a service while it fails, and lets them back in step by step. Clones share the breaker.
///
/// A refusal is 503, with `Retry-After` if it is known when the next probe is let through. A [`Classify`] judges how
/// calls went. A refusal by an inner layer (a full line, a rate limit) is not counted for or against the service.
/// Neither is a future that is dropped; the drop also frees a probe's place. There is one exception, a
/// [`DeadlineLayer`](crate::DeadlineLayer) outside whose time is up: see [`ConcurrencyLayer`](crate::ConcurrencyLayer).
///
/// # Examples
/// ```
/// use tidegate::Breaker;
/// use tidegate::breaker::CircuitBreaker;
/// use tidegate_tower::{BreakerLayer, ClientStack, Errors};
///
/// let breaker = Breaker::new(CircuitBreaker::builder())?;
/// let stack = ClientStack::new().breaker(BreakerLayer::new("payments", breaker).answering(Errors));
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BreakerLayer<B = OneBreaker, C = ByStatus, A = Problems> {
    breakers: B,
    rules: Arc<Rules<C, A>>,
}

impl BreakerLayer {
    /// Makes a layer with one breaker for all calls; `name` is told to observers.
    #[must_use]
    pub fn new(name: &str, breaker: Breaker) -> Self {
        Self::over(name, OneBreaker::new(breaker))
    }
}

impl<F> BreakerLayer<BreakerOfKey<F>> {
    /// Makes a layer with one breaker per key, such as the host that is called: `key` reads it from a request.
    ///
    /// # Examples
    /// ```
    /// use http::Request;
    /// use tidegate::KeyedBreaker;
    /// use tidegate::breaker::CircuitBreaker;
    /// use tidegate_tower::BreakerLayer;
    ///
    /// let hosts = KeyedBreaker::new(CircuitBreaker::builder(), 1000)?;
    /// let host = |request: &Request<String>| request.uri().host().unwrap_or_default().to_owned();
    /// let layer = BreakerLayer::each("hosts", hosts, host);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn each(name: &str, breaker: KeyedBreaker, key: F) -> Self {
        Self::over(name, BreakerOfKey::new(breaker, key))
    }
}

impl<B> BreakerLayer<B> {
    fn over(name: &str, breakers: B) -> Self {
        let rules = Rules { name: Name::new(name), named_limit: None, classify: ByStatus, answers: Problems };
        Self { breakers, rules: Arc::new(rules) }
    }
}

impl<B, C: Clone, A: Clone> BreakerLayer<B, C, A> {
    /// Chooses how refusals are told; the default is [`Problems`].
    #[must_use]
    pub fn answering<N>(self, answers: N) -> BreakerLayer<B, C, N> {
        self.with(|rules| rules.answering(answers))
    }

    /// Chooses how calls are judged; the default is [`ByStatus`].
    #[must_use]
    pub fn judging<D>(self, classify: D) -> BreakerLayer<B, D, A> {
        self.with(|rules| rules.judging(classify))
    }

    /// Tells `observer` of refusals and of how calls end ([`Observer::on_layer`]). The breaker itself tells of its
    /// changes of state ([`Breaker::with_observer`]); it may be given the same observer.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.with(|rules| rules.observed(observer))
    }

    fn with<D, N>(self, change: impl FnOnce(Rules<C, A>) -> Rules<D, N>) -> BreakerLayer<B, D, N> {
        BreakerLayer { breakers: self.breakers, rules: Arc::new(change(Arc::unwrap_or_clone(self.rules))) }
    }
}

impl<S, B: Clone, C, A> Layer<S> for BreakerLayer<B, C, A> {
    type Service = BreakerService<S, B, C, A>;

    fn layer(&self, inner: S) -> Self::Service {
        BreakerService { inner, breakers: self.breakers.clone(), rules: Arc::clone(&self.rules) }
    }
}

/// A service behind a circuit breaker: see [`BreakerLayer`].
#[derive(Debug)]
pub struct BreakerService<S, B = OneBreaker, C = ByStatus, A = Problems> {
    inner: S,
    breakers: B,
    rules: Arc<Rules<C, A>>,
}

impl<S: Clone, B: Clone, C, A> Clone for BreakerService<S, B, C, A> {
    fn clone(&self) -> Self {
        let Self { inner, breakers, rules } = self;
        Self { inner: inner.clone(), breakers: breakers.clone(), rules: Arc::clone(rules) }
    }
}

impl<S, Req, B, C, A> Service<Req> for BreakerService<S, B, C, A>
where
    S: Service<Req> + Clone,
    B: Breakers<Req>,
    C: Classify<S::Response, S::Error>,
    A: Answers<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BreakerFuture<S::Future, B::Call, S::Response, S::Error, C, A>;

    /// Asks whether the inner service is ready; `call` asks the breaker.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        match self.breakers.try_enter(&request) {
            Ok(call) => {
                // Made before the call, because the call may panic: the drop of `inside` then frees a probe's place.
                let inside = Inside::new(call, Arc::clone(&self.rules));
                BreakerFuture::called(inside, self.inner.call(request))
            }
            Err(denied) => {
                give_back(&mut self.inner);
                BreakerFuture::refused(self.rules.refuse(RefusalCause::Open, Some(&denied)))
            }
        }
    }
}
