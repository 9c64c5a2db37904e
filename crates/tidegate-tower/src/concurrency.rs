//! Concurrency limit layer: bounds the requests in flight, with a bounded queue in front.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::answers::{Answers, Problems};
use crate::body::{AtBodyEnd, AtHead, HoldsUntil};
use crate::call_notes::{Made, NotCalled, turn_came};
use crate::classify::{ByStatus, Classify};
use crate::guarded::{EachKey, GuardRules, Inside};
use crate::layered::{Layered, for_later};
use crate::refused::Name;
use tidegate::Bulkhead;
use tidegate::bulkhead::{Enter, NoPlace, Permit, Tenants};
use tidegate::concurrency::Partition;
use tidegate::http_answer::NamedLimit;
use tidegate::limiter::{Key, TakeError};
use tidegate::observer::{Observer, RefusalCause};

/// Limits how many calls to a service are in flight at once. Clones share the places.
///
/// A request that finds no free place waits in the bulkhead's queue. It waits until the deadline that the task carries,
/// or for a shorter time that [`entering`](ConcurrencyLayer::entering) sets, and is then refused. If the queue is full,
/// it is refused at once. The place is returned when the head of the answer is there, or, for streamed answers, [when the
/// body ends](ConcurrencyLayer::until_body_ends). The inner service is asked whether it is ready only when the request has
/// its place.
///
/// Over [`Bulkhead::adaptive`] the outcomes of calls move the limit. A call that is dropped does not count, with one
/// exception: it is a failure if a [`DeadlineLayer`](crate::DeadlineLayer) outside drops it because its time is up, and
/// the service had at least half of the default time of that layer. Otherwise a service that hangs would never lower the
/// limit.
///
/// # Examples
/// ```
/// use axum::{Router, routing::get};
/// use tidegate::Bulkhead;
/// use tidegate_tower::ConcurrencyLayer;
///
/// // 64 at once; 128 more wait.
/// let places = Bulkhead::new(64)?.with_room(128);
/// let app: Router = Router::new().route("/", get(async || "the page")).layer(ConcurrencyLayer::new("pages", places));
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
///
/// An adaptive limit, with a fair share for each tenant:
/// ```
/// use http::Request;
/// use tidegate::Bulkhead;
/// use tidegate::bulkhead::{Enter, Tenants};
/// use tidegate::concurrency::{Gradient, Partition};
/// use tidegate_tower::ConcurrencyLayer;
///
/// let tenants = Tenants::default().each(Partition::default(), 1000)?;
/// let places = Bulkhead::adaptive(Gradient::default()).with_tenants(tenants);
/// // The tenant comes from the authentication layer, not from a header that any caller may set.
/// #[derive(Clone)]
/// struct Account(String);
/// let entering = |entry: Enter, request: &Request<String>| match request.extensions().get::<Account>() {
///     Some(Account(name)) => entry.of(name.as_str()),
///     None => entry,
/// };
/// let layer = ConcurrencyLayer::new("pages", places).entering(entering);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
///
/// # Cancel safety
/// A call that is dropped while it waits leaves the queue. One that is dropped later returns its place.
#[derive(Debug)]
pub struct ConcurrencyLayer<E = Alike, C = ByStatus, A = Problems, U = AtHead> {
    bulkhead: Bulkhead,
    entering: E,
    rules: Arc<GuardRules<C, A>>,
    until: PhantomData<U>,
}

impl ConcurrencyLayer {
    /// Limits calls to the places of [`Bulkhead::self_tuning`], which needs no configuration. `name` is told to
    /// callers.
    #[must_use]
    pub fn self_tuning(name: &str) -> Self {
        Self::new(name, Bulkhead::self_tuning())
    }

    /// Limits calls to the places of a bulkhead. `name` is told to callers.
    #[must_use]
    pub fn new(name: &str, bulkhead: Bulkhead) -> Self {
        let named_limit = Some(NamedLimit::of_places(name));
        let rules = GuardRules { name: Name::new(name), named_limit, classify: ByStatus, answers: Problems };
        Self { bulkhead, entering: Alike, rules: Arc::new(rules), until: PhantomData }
    }
}

/// How many dependencies are told apart. Choosing the next waiter looks at all of them that have waiters.
const DEPENDENCIES: usize = 64;

impl<C, A, U> ConcurrencyLayer<Alike, C, A, U> {
    /// Divides the places among the dependencies that requests wait for: a database, a search index, a partner's API. `key`
    /// names the one of a request. Requests for one dependency hold at most as many places as are
    /// [free](Partition::dynamic_threshold), so that one that hangs leaves half of them to all others.
    ///
    /// Name dependencies by what the program calls, not by what a caller sends. Up to 64 are told apart; while none of them
    /// is idle, further ones share one part. With a fixed limit give twice the places: one dependency alone has half of
    /// them. A limit that tunes itself finds that by itself.
    ///
    /// Makes the bulkhead anew, without a throttle: it is empty, and shares nothing with its clones
    /// ([`Bulkhead::with_tenants`]).
    #[must_use]
    pub fn by_dependency<K>(self, key: K) -> ConcurrencyLayer<EachKey<Alike, K>, C, A, U> {
        let terms = Partition::default().dynamic_threshold();
        let each = Tenants::default().rest(terms).and_then(|rest| rest.each(terms, DEPENDENCIES));
        let each = each.expect("terms without a guarantee, for a few");
        let (bulkhead, entering) = (self.bulkhead.with_tenants(each), EachKey { of: Alike, key });
        ConcurrencyLayer { bulkhead, entering, rules: self.rules, until: PhantomData }
    }
}

impl<E, C: Clone, A: Clone, U> ConcurrencyLayer<E, C, A, U> {
    /// Reads from each request how it enters: its [priority](Enter::priority), its [tenant](Enter::of), its longest
    /// wait. By default all requests are alike, except for the priority that each task
    /// [carries](tidegate::priority::carried). Called once per request.
    #[must_use]
    pub fn entering<F>(self, entering: F) -> ConcurrencyLayer<F, C, A, U> {
        ConcurrencyLayer { bulkhead: self.bulkhead, entering, rules: self.rules, until: PhantomData }
    }

    /// Chooses how refusals are told; the default is [`Problems`].
    #[must_use]
    pub fn answering<B>(self, answers: B) -> ConcurrencyLayer<E, C, B, U> {
        self.with(|rules| rules.answering(answers))
    }

    /// Chooses how the outcome of a call is judged, for adaptive limits; the default is [`ByStatus`].
    #[must_use]
    pub fn judging<D>(self, classify: D) -> ConcurrencyLayer<E, D, A, U> {
        self.with(|rules| rules.judging(classify))
    }

    /// Tells `observer` of refusals and of how calls end ([`Observer::on_layer`]). An observer of the bulkhead itself
    /// ([`Bulkhead::with_observer`]) is told the same refusals and ends by [`Observer::on_place`], so count one of the two.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.with(|rules| rules.observed(observer))
    }

    /// Keeps the place until the body of the answer has ended, has failed or is dropped, for answers that are streamed. By
    /// default the place is free when the head of the answer is there. The service then answers with a
    /// [`HeldBody`](crate::body::HeldBody), whose page says which end has which outcome.
    ///
    /// Laws that lower the limit for a long latency are told the time to the head, since the length of a stream depends on
    /// its content and its reader; laws that count finished work are told for how long the place was held
    /// ([`Sample`](tidegate::concurrency::Sample)).
    ///
    /// Costs two reference counts, and for a bulkhead with a law, a throttle or a short queue a reading of the clock.
    #[must_use]
    pub fn until_body_ends(self) -> ConcurrencyLayer<E, C, A, AtBodyEnd> {
        let Self { bulkhead, entering, rules, .. } = self;
        ConcurrencyLayer { bulkhead, entering, rules, until: PhantomData }
    }

    fn with<D, B>(
        self,
        change: impl FnOnce(GuardRules<C, A>) -> GuardRules<D, B>,
    ) -> ConcurrencyLayer<E, D, B, U> {
        let Self { bulkhead, entering, rules, until } = self;
        ConcurrencyLayer { bulkhead, entering, rules: Arc::new(change(Arc::unwrap_or_clone(rules))), until }
    }
}

impl<E: Clone, C, A, U> Clone for ConcurrencyLayer<E, C, A, U> {
    fn clone(&self) -> Self {
        let (bulkhead, entering) = (self.bulkhead.clone(), self.entering.clone());
        Self { bulkhead, entering, rules: Arc::clone(&self.rules), until: PhantomData }
    }
}

impl<S, E: Clone, C, A, U> Layer<S> for ConcurrencyLayer<E, C, A, U> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

/// Reads from a request how it enters a bulkhead. Implemented for functions.
pub trait Entering<Req>: Clone {
    /// Returns the entry with the request's own settings added.
    fn enter(&self, entry: Enter, request: &Req) -> Enter;
}

impl<Req, F: Fn(Enter, &Req) -> Enter + Clone> Entering<Req> for F {
    fn enter(&self, entry: Enter, request: &Req) -> Enter {
        self(entry, request)
    }
}

/// Treats all requests alike.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alike;

impl<Req> Entering<Req> for Alike {
    fn enter(&self, entry: Enter, _: &Req) -> Enter {
        entry
    }
}

/// Names the tenant of a request by its key.
impl<Req, K: Key, F: Fn(&Req) -> K + Clone> Entering<Req> for EachKey<Alike, F> {
    fn enter(&self, entry: Enter, request: &Req) -> Enter {
        entry.of((self.key)(request))
    }
}

impl<S, Req, E, C, A, U> Service<Req> for Layered<S, ConcurrencyLayer<E, C, A, U>>
where
    S: Service<Req> + Clone,
    E: Entering<Req>,
    C: Classify<S::Response, S::Error>,
    A: Answers<S::Response, S::Error>,
    U: HoldsUntil<S::Response, Permit>,
{
    type Response = U::Response;
    type Error = S::Error;
    type Future = ConcurrencyFuture<S, Req, S::Future, C, A, U>;

    /// Asks whether the inner service is ready; takes no place.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let ConcurrencyLayer { bulkhead, entering, rules, .. } = &self.layer;
        let rules = Arc::clone(rules);
        let mut entry: Enter = entering.enter(bulkhead.enter(), &request);
        if let Some(permit) = entry.try_now() {
            // Made before the call, because the call may panic: the drop of `inside` then returns the place.
            let inside = Inside::new(permit, rules);
            return ConcurrencyFuture::called(inside, self.inner.call(request));
        }
        ConcurrencyFuture::in_line(entry, for_later(&mut self.inner), request, rules)
    }
}

pin_project! {
    /// A call that waits for a place or has one. `F` is `S::Future`: as a parameter of its own it lets the compiler prove
    /// that a call with boxed errors is `Send`.
    #[derive(Debug)]
    pub struct ConcurrencyFuture<S, Req, F, C, A, U = AtHead> {
        #[pin]
        stage: ConcurrencyStage<S, Req, F, C, A>,
        until: PhantomData<U>,
    }
}

pin_project! {
    #[project = StageProjection]
    #[derive(Debug)]
    enum ConcurrencyStage<S, Req, F, C, A> {
        InQueue { entry: Enter, call: Option<(S, Req)>, rules: Arc<GuardRules<C, A>>, not_called: NotCalled },
        // It has its place, and waits until the service is ready.
        AtTurn { inside: Option<Inside<Permit, C, A>>, call: Option<(S, Req)> },
        // `future` comes first, so the work is dropped before its place is returned.
        Called { #[pin] future: Made<F>, inside: Inside<Permit, C, A> },
    }
}

impl<S, Req, F, C, A, U> ConcurrencyFuture<S, Req, F, C, A, U> {
    const fn called(inside: Inside<Permit, C, A>, future: F) -> Self {
        Self { stage: ConcurrencyStage::Called { inside, future: Made::new(future) }, until: PhantomData }
    }

    const fn in_line(entry: Enter, service: S, request: Req, rules: Arc<GuardRules<C, A>>) -> Self {
        let call = Some((service, request));
        Self {
            stage: ConcurrencyStage::InQueue { entry, call, rules, not_called: NotCalled },
            until: PhantomData,
        }
    }
}

impl<S, Req, C, A, U> Future for ConcurrencyFuture<S, Req, S::Future, C, A, U>
where
    S: Service<Req>,
    C: Classify<S::Response, S::Error>,
    A: Answers<S::Response, S::Error>,
    U: HoldsUntil<S::Response, Permit>,
{
    type Output = Result<U::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const ENDED: &str = "a future is not polled after it has ended";
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::InQueue { entry, call, rules, .. } => {
                    match ready!(Pin::new(entry).poll(cx)) {
                        Ok(permit) => {
                            turn_came();
                            let inside = Some(Inside::new(permit, Arc::clone(rules)));
                            let call = call.take();
                            stage.set(ConcurrencyStage::AtTurn { inside, call });
                        }
                        Err(error) => {
                            let denied = match &error {
                                TakeError::Denied(denied) => Some(denied),
                                TakeError::NotACost(_) => None,
                            };
                            // The entry asks for one place, and a bulkhead says why it refuses one.
                            let why = denied.and_then(|denied| denied.no_place);
                            let cause = RefusalCause::Concurrency(why.unwrap_or(NoPlace::TooManyPlaces));
                            let refused = rules.refuse(cause, denied);
                            return Poll::Ready(refused.map(U::refused));
                        }
                    }
                }
                StageProjection::AtTurn { inside, call } => {
                    let (service, _) = call.as_mut().expect(ENDED);
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        let result = Err(error);
                        if let Some(mut inside) = inside.take() {
                            inside.ended(&result);
                        }
                        return Poll::Ready(result.map(U::refused));
                    }
                    let (mut service, request) = call.take().expect(ENDED);
                    let inside = inside.take().expect(ENDED);
                    let future = Made::new(service.call(request));
                    stage.set(ConcurrencyStage::Called { inside, future });
                }
                StageProjection::Called { inside, future } => {
                    let result = ready!(future.poll(cx));
                    let outcome = inside.outcome_of(&result);
                    return Poll::Ready(match result {
                        Ok(response) => Ok(U::answered(response, outcome, inside)),
                        Err(error) => {
                            inside.end(outcome);
                            Err(error)
                        }
                    });
                }
            }
        }
    }
}
