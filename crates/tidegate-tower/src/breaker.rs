//! Circuit breaker layer: refuses calls to a failing service until it answers again.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::answers::{Answers, Problems};
use crate::body::{AtBodyEnd, AtHead, HoldsUntil};
use crate::call_notes::{Made, watching_for_turn};
use crate::classify::{ByStatus, Classify};
use crate::guarded::{EachKey, Entered, GuardRules, Inside};
use crate::layered::{Layered, give_back};
use crate::refused::Name;
use tidegate::Breaker;
use tidegate::breaker::{Call, KeyedBreaker, Refusal, RefusalReason};
use tidegate::limiter::Key;
use tidegate::observer::{Observer, RefusalCause};

/// Refuses calls to a service while it fails, and lets them back in step by step. Clones share the breaker.
///
/// A refusal is 503. It says which state of the breaker refused ([`Refused::cause`](crate::Refused::cause)), and has a
/// `Retry-After` if it is known when the next probe is let through.
///
/// A [`Classify`] judges how calls went. A refusal by an inner layer (a full queue, a rate limit) does not count. A call that
/// is dropped does not count either, and a probe's place becomes free; but one that a
/// [`DeadlineLayer`](crate::DeadlineLayer) outside drops may count as a failure: see
/// [`ConcurrencyLayer`](crate::ConcurrencyLayer). Time that a call waits in an inner layer (a rate limit, a queue, a gate)
/// does not count towards its latency.
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
#[derive(Debug)]
pub struct BreakerLayer<B = Breaker, C = ByStatus, A = Problems, U = AtHead> {
    breakers: B,
    rules: Arc<GuardRules<C, A>>,
    until: PhantomData<U>,
}

impl BreakerLayer {
    /// Makes a layer with one breaker for all calls; `name` is told to observers.
    #[must_use]
    pub fn new(name: &str, breaker: Breaker) -> Self {
        Self::over(name, breaker)
    }
}

impl<F> BreakerLayer<EachKey<KeyedBreaker, F>> {
    /// Makes a layer with one breaker per key, such as the host that is called: `key` reads it from a request.
    ///
    /// # Examples
    /// ```
    /// use http::Request;
    /// use tidegate::breaker::{CircuitBreaker, KeyedBreaker};
    /// use tidegate_tower::BreakerLayer;
    ///
    /// let hosts = KeyedBreaker::new(CircuitBreaker::builder(), 1000)?;
    /// let host = |request: &Request<String>| request.uri().host().unwrap_or_default().to_owned();
    /// let layer = BreakerLayer::each("hosts", hosts, host);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn each(name: &str, breaker: KeyedBreaker, key: F) -> Self {
        Self::over(name, EachKey { of: breaker, key })
    }
}

impl<B> BreakerLayer<B> {
    fn over(name: &str, breakers: B) -> Self {
        let rules =
            GuardRules { name: Name::new(name), named_limit: None, classify: ByStatus, answers: Problems };
        Self { breakers, rules: Arc::new(rules), until: PhantomData }
    }
}

impl<B, C: Clone, A: Clone, U> BreakerLayer<B, C, A, U> {
    /// Chooses how refusals are told; the default is [`Problems`].
    #[must_use]
    pub fn answering<N>(self, answers: N) -> BreakerLayer<B, C, N, U> {
        self.with(|rules| rules.answering(answers))
    }

    /// Chooses how calls are judged; the default is [`ByStatus`].
    #[must_use]
    pub fn judging<D>(self, classify: D) -> BreakerLayer<B, D, A, U> {
        self.with(|rules| rules.judging(classify))
    }

    /// Tells `observer` of refusals and of how calls end ([`Observer::on_layer`]). An observer of the breaker itself
    /// ([`Breaker::with_observer`]) is told the same by [`Observer::on_call`], so count one of the two.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.with(|rules| rules.observed(observer))
    }

    /// Judges a call when the body of its answer has ended, has failed or is dropped, for answers that are streamed. By
    /// default a call is judged by the head of its answer, so that a stream that breaks off counts as a success. The
    /// service then answers with a [`HeldBody`](crate::body::HeldBody), whose page says which end has which outcome.
    ///
    /// Whether a call was slow depends on the time to the head. A call that lasts longer than the breaker's
    /// [`ttl`](tidegate::breaker::BreakerBuilder::ttl) does not count, and a probe frees its place then: choose a longer
    /// one for long streams. While the breaker is half open, its next step waits for the ends of the probes' bodies.
    #[must_use]
    pub fn until_body_ends(self) -> BreakerLayer<B, C, A, AtBodyEnd> {
        BreakerLayer { breakers: self.breakers, rules: self.rules, until: PhantomData }
    }

    fn with<D, N>(
        self,
        change: impl FnOnce(GuardRules<C, A>) -> GuardRules<D, N>,
    ) -> BreakerLayer<B, D, N, U> {
        let Self { breakers, rules, until } = self;
        BreakerLayer { breakers, rules: Arc::new(change(Arc::unwrap_or_clone(rules))), until }
    }
}

impl<B: Clone, C, A, U> Clone for BreakerLayer<B, C, A, U> {
    fn clone(&self) -> Self {
        Self { breakers: self.breakers.clone(), rules: Arc::clone(&self.rules), until: PhantomData }
    }
}

impl<S, B: Clone, C, A, U> Layer<S> for BreakerLayer<B, C, A, U> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

/// Breakers for requests of one kind: a [`Breaker`] for all, or [`EachKey`](crate::parameter::EachKey).
pub trait Breakers<Req>: Clone {
    /// A call that was let through.
    type Call: Entered;

    /// Enters the breaker of a request without waiting.
    ///
    /// # Errors
    /// [`Refusal`], with its reason, in the same cases as [`Breaker::enter_with_reason`].
    fn try_enter(&self, request: &Req) -> Result<Self::Call, Refusal>;
}

impl<Req> Breakers<Req> for Breaker {
    type Call = Call;

    fn try_enter(&self, _: &Req) -> Result<Call, Refusal> {
        self.enter_with_reason()
    }
}

impl<Req, K: Key, F: Fn(&Req) -> K + Clone> Breakers<Req> for EachKey<KeyedBreaker, F> {
    type Call = Call;

    fn try_enter(&self, request: &Req) -> Result<Call, Refusal> {
        self.of.enter_with_reason((self.key)(request))
    }
}

impl<S, Req, B, C, A, U> Service<Req> for Layered<S, BreakerLayer<B, C, A, U>>
where
    S: Service<Req> + Clone,
    B: Breakers<Req>,
    C: Classify<S::Response, S::Error>,
    A: Answers<S::Response, S::Error>,
    U: HoldsUntil<S::Response, B::Call>,
{
    type Response = U::Response;
    type Error = S::Error;
    type Future = BreakerFuture<S::Future, B::Call, S::Response, S::Error, C, A, U>;

    /// Asks whether the inner service is ready; `call` asks the breaker.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let BreakerLayer { breakers, rules, .. } = &self.layer;
        match breakers.try_enter(&request) {
            Ok(call) => {
                // Made before the call, because the call may panic: the drop of `inside` then frees a probe's place.
                let inside = Inside::new(call, Arc::clone(rules));
                BreakerFuture::called(inside, self.inner.call(request))
            }
            Err(refusal) => {
                give_back(&mut self.inner);
                let (cause, reason) = cause(&refusal.reason);
                let refused = rules.name.refuse(cause, refusal.denied.retry()).with_reason(reason);
                BreakerFuture::refused(rules.answers.refuse(refused, None))
            }
        }
    }
}

/// Returns the cause of a refusal, and the words of the person who forced the breaker open, if any.
fn cause(reason: &RefusalReason) -> (RefusalCause, Option<&str>) {
    match reason {
        RefusalReason::HalfOpen => (RefusalCause::HalfOpen, None),
        RefusalReason::Shedding => (RefusalCause::Shedding, None),
        RefusalReason::Forced(forced) => {
            (RefusalCause::ForcedOpen, Some(forced.reason()).filter(|reason| !reason.is_empty()))
        }
        _ => (RefusalCause::Open, None),
    }
}

pin_project! {
    /// A call behind a circuit breaker.
    #[derive(Debug)]
    pub struct BreakerFuture<F, P: Entered, Res, Err, C, A, U = AtHead> {
        #[pin]
        stage: BreakerStage<F, P, Res, Err, C, A>,
        until: PhantomData<U>,
    }
}

pin_project! {
    #[project = StageProjection]
    #[derive(Debug)]
    enum BreakerStage<F, P: Entered, Res, Err, C, A> {
        Refused { result: Option<Result<Res, Err>> },
        // `future` comes first, so the work is dropped before the breaker is told.
        Called { #[pin] future: Made<F>, inside: Inside<P, C, A> },
    }
}

impl<F, P: Entered, Res, Err, C, A, U> BreakerFuture<F, P, Res, Err, C, A, U> {
    const fn refused(result: Result<Res, Err>) -> Self {
        Self { stage: BreakerStage::Refused { result: Some(result) }, until: PhantomData }
    }

    const fn called(inside: Inside<P, C, A>, future: F) -> Self {
        Self { stage: BreakerStage::Called { inside, future: Made::new(future) }, until: PhantomData }
    }
}

impl<F, P, Res, Err, C, A, U> Future for BreakerFuture<F, P, Res, Err, C, A, U>
where
    F: Future<Output = Result<Res, Err>>,
    P: Entered,
    C: Classify<Res, Err>,
    U: HoldsUntil<Res, P>,
{
    type Output = Result<U::Response, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().stage.project() {
            StageProjection::Refused { result } => {
                let result = result.take().expect("a future is not polled after it has ended");
                Poll::Ready(result.map(U::refused))
            }
            StageProjection::Called { inside, future } => {
                let (polled, turn_came) = watching_for_turn(|| future.poll(cx));
                if turn_came {
                    inside.work_begins();
                }
                let result = ready!(polled);
                let outcome = inside.outcome_of(&result);
                Poll::Ready(match result {
                    Ok(response) => Ok(U::answered(response, outcome, inside)),
                    Err(error) => {
                        inside.end(outcome);
                        Err(error)
                    }
                })
            }
        }
    }
}
