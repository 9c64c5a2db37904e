//! Rate limit layer: limits requests per time, for all callers together or per key.
//!
//! The limiter belongs to the layer and is shared by all services that it makes and by their clones, so connections
//! that each have a service of their own are counted together.

mod limits;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Request;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

pub use self::limits::{Costing, EachKeyRead, KeyOf, Limits, NotCharged, ReadsKey};
use crate::answers::{Answers, Problems};
use crate::call_notes::{NotCalled, turn_came};
use crate::guarded::EachKey;
use crate::layered::{Layered, for_later, give_back};
use crate::real_cost::{self, Spent};
use crate::refused::{Name, Refused};
use tidegate::http_answer::{HttpAnswer, NamedLimit};
use tidegate::limiter::{Answer, Reservation, Retry};
use tidegate::observer::{Observer, RefusalCause};
use tidegate::{KeyedLimiter, Limiter, Quota};

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
///
/// # Cancel safety
/// If a call is dropped while it is held back, its charge is given back. If it is dropped later, the charge stands: the
/// service may have done the work. So a request that goes away in the queue of an inner layer has spent its charge.
#[derive(Debug)]
pub struct RateLimitLayer<L, A = Problems> {
    limits: L,
    rules: Arc<RateLimitRules<A>>,
}

impl RateLimitLayer<Limiter> {
    /// Limits all requests together; `name` is told to callers. With several quotas, headers show the binding one. The
    /// windows in the headers are those that the limiter has now; they do not follow later changes of the limiter.
    #[must_use]
    pub fn all(name: &str, limiter: Limiter) -> Self {
        let quotas = limiter.quotas();
        let rules = RateLimitRules::new(name, quotas.iter().map(|quota| Quota::clone(quota)));
        Self { limits: limiter, rules: Arc::new(rules) }
    }
}

impl<F> RateLimitLayer<EachKey<KeyedLimiter, F>> {
    /// Limits the requests of each key, which `key` reads from a request. It has to return a key for every request:
    /// return a common one for requests that lack one, since letting them pass would be a way around the limit. To refuse
    /// them, use [`each_key_read`](Self::each_key_read).
    ///
    /// The key of a function may borrow from the request. That of a closure may not: the compiler does not see that it
    /// lives as long as the argument.
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
        Self { limits: EachKey { of: limiter, key }, rules: Arc::new(rules) }
    }
}

impl<F> RateLimitLayer<EachKeyRead<F>> {
    /// Limits the requests of each key like [`each`](RateLimitLayer::each), and refuses requests from which `key` reads
    /// none: with status 400 ([`RefusalCause::NoKey`](crate::RefusalCause::NoKey)), unless other
    /// [answers](Self::answering) are chosen.
    #[must_use]
    pub fn each_key_read(name: &str, limiter: KeyedLimiter, key: F) -> Self {
        let rules = RateLimitRules::new(name, [Quota::clone(&limiter.quota())]);
        Self { limits: EachKeyRead { limiter, key }, rules: Arc::new(rules) }
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
    /// [carries](tidegate::deadline::carried) is refused at once too. Up to `max_wait` times the rate are held per key: if
    /// strangers choose keys, put a [`ConcurrencyLayer`](crate::ConcurrencyLayer) outside to bound the total.
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

    /// Keeps the charge of a request that a layer inside refuses. By default it is given back exactly if the request
    /// was refused [before any work for it had begun](crate::Refused::is_before_work), such as by a
    /// [`ConcurrencyLayer`](crate::ConcurrencyLayer) whose queue is full: a caller that a busy server refuses is then
    /// not refused by this limit too when it tries again. The inner refusal is found in the response's extensions, or
    /// in the error.
    ///
    /// Keep the charges in these cases:
    /// * Strangers can send many requests while the server is busy. Each refusal takes the server some work, and this limit
    ///   would not bound how many there are.
    /// * The service works, calls a client without a [`ClientLayer`](crate::ClientLayer), and returns the client's refusal
    ///   unchanged: callers would have the work done for nothing.
    /// * The record of each charge costs too much: a reference count, and for a limit per key an allocation with a copy of
    ///   the key.
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
        RateLimitLayer { limits: Costing { limits: self.limits, cost }, rules: self.rules }
    }

    fn with(self, change: impl FnOnce(RateLimitRules<A>) -> RateLimitRules<A>) -> Self {
        Self { limits: self.limits, rules: Arc::new(change(Arc::unwrap_or_clone(self.rules))) }
    }
}

impl<L: Clone, A> Clone for RateLimitLayer<L, A> {
    fn clone(&self) -> Self {
        Self { limits: self.limits.clone(), rules: Arc::clone(&self.rules) }
    }
}

impl<S, L: Clone, A> Layer<S> for RateLimitLayer<L, A> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, L, A, B> Service<Request<B>> for Layered<S, RateLimitLayer<L, A>>
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
        let RateLimitLayer { limits, rules } = &self.layer;
        let cost = limits.cost(&request);
        let mut charge = None;
        // `None`: its key cannot be read.
        let answer = if rules.keeps_charge() {
            match limits.reserve(&request, cost, rules.max_wait) {
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
            limits.allow(&request, cost)
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

pin_project! {
    /// A call behind a rate limit. `F` is `S::Future`: as a parameter of its own it lets the compiler prove that a call
    /// with boxed errors is `Send`.
    pub struct RateLimitFuture<S, Req, F, Res, Err, A> {
        #[pin]
        stage: RateLimitStage<S, Req, F, Res, Err, A>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum RateLimitStage<S, Req, F, Res, Err, A> {
        Refused { result: Option<Result<Res, Err>> },
        Held { due: Due, call: Option<(S, Req)>, rules: Arc<RateLimitRules<A>>, not_called: NotCalled },
        // Its wait is over; it waits until the service is ready.
        AtTurn { charge: Uncalled, call: Option<(S, Req)>, rules: Arc<RateLimitRules<A>> },
        // `charge`: what is given back if a layer inside refuses the request.
        Called { #[pin] future: F, answer: Answer, charge: Option<Charge>, rules: Arc<RateLimitRules<A>> },
    }
}

/// A charge while the service is not yet called. Dropping it undoes the charge.
struct Uncalled(Option<Reservation>);

impl Drop for Uncalled {
    fn drop(&mut self) {
        if let Some(charge) = self.0.take() {
            charge.cancel();
        }
    }
}

/// Waits for the time at which a reservation may be used.
type Due = Pin<Box<dyn Future<Output = Reservation> + Send>>;

impl<S, Req, F, Res, Err, A> RateLimitFuture<S, Req, F, Res, Err, A> {
    const fn refused(result: Result<Res, Err>) -> Self {
        Self { stage: RateLimitStage::Refused { result: Some(result) } }
    }

    const fn called(
        future: F,
        answer: Answer,
        charge: Option<Charge>,
        rules: Arc<RateLimitRules<A>>,
    ) -> Self {
        Self { stage: RateLimitStage::Called { future, answer, charge, rules } }
    }

    fn held(reservation: Reservation, service: S, request: Req, rules: Arc<RateLimitRules<A>>) -> Self {
        let due = Box::pin(reservation.due());
        Self {
            stage: RateLimitStage::Held { due, call: Some((service, request)), rules, not_called: NotCalled },
        }
    }
}

impl<S, B, A> Future for RateLimitFuture<S, Request<B>, S::Future, S::Response, S::Error, A>
where
    S: Service<Request<B>>,
    A: Answers<S::Response, S::Error>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const ENDED: &str = "a future is not polled after it has ended";
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::Refused { result } => return Poll::Ready(result.take().expect(ENDED)),
                StageProjection::Held { due, call, rules, .. } => {
                    let charge = Uncalled(Some(ready!(due.as_mut().poll(cx))));
                    turn_came();
                    let (call, rules) = (call.take(), Arc::clone(rules));
                    stage.set(RateLimitStage::AtTurn { charge, call, rules });
                }
                StageProjection::AtTurn { charge, call, rules } => {
                    let (service, _) = call.as_mut().expect(ENDED);
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        drop(Uncalled(charge.0.take()));
                        return Poll::Ready(Err(error));
                    }
                    let (mut service, mut request) = call.take().expect(ENDED);
                    let charge = charge.0.take().expect(ENDED);
                    let (answer, rules) = (charge.answer(), Arc::clone(rules));
                    let charge = rules.hand_over(charge, &mut request);
                    let future = service.call(request);
                    stage.set(RateLimitStage::Called { future, answer, charge, rules });
                }
                StageProjection::Called { future, answer, charge, rules } => {
                    let mut result = ready!(future.poll(cx));
                    if charge.is_some()
                        && rules.is_refused_before_work(&result)
                        && let Some(charge) = charge.take()
                    {
                        charge.undo();
                    }
                    if let Ok(response) = &mut result {
                        rules.add_limit_state::<_, S::Error>(response, answer);
                    }
                    return Poll::Ready(result);
                }
            }
        }
    }
}

impl<S, Req, F, Res, Err, A> fmt::Debug for RateLimitFuture<S, Req, F, Res, Err, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitFuture").finish_non_exhaustive()
    }
}

/// A charge that may be given back.
#[expect(clippy::large_enum_variant, reason = "a box would cost each request an allocation")]
enum Charge {
    /// Of this layer alone.
    Own(Reservation),
    /// The handler may settle it.
    Shared(Spent),
}

impl Charge {
    fn undo(self) {
        match self {
            Self::Own(reservation) => reservation.cancel(),
            Self::Shared(spent) => drop(spent.settle(0)),
        }
    }
}

/// The settings of a rate limit layer.
#[derive(Clone, Debug)]
struct RateLimitRules<A> {
    name: Name,
    /// How callers are told of each quota; has at least one element.
    named_limits: Vec<NamedLimit>,
    max_wait: Duration,
    settling: bool,
    giving_back: bool,
    answers: A,
}

impl RateLimitRules<Problems> {
    fn new(name: &str, quotas: impl IntoIterator<Item = Quota>) -> Self {
        // `NamedLimit::new` fails only for quotas that are not limits, and quotas in force are limits: none is left
        // out.
        let mut named_limits: Vec<_> =
            quotas.into_iter().filter_map(|quota| NamedLimit::new(name, quota).ok()).collect();
        if named_limits.is_empty() {
            named_limits.push(NamedLimit::of_places(name));
        }
        Self {
            name: Name::new(name),
            named_limits,
            max_wait: Duration::ZERO,
            settling: false,
            giving_back: true,
            answers: Problems,
        }
    }
}

impl<A> RateLimitRules<A> {
    fn answering<B>(self, answers: B) -> RateLimitRules<B> {
        let Self { name, named_limits, max_wait, settling, giving_back, .. } = self;
        RateLimitRules { name, named_limits, max_wait, settling, giving_back, answers }
    }

    /// Returns whether a request keeps its charge, so that it can be settled or given back.
    const fn keeps_charge(&self) -> bool {
        self.settling || self.giving_back || !self.max_wait.is_zero()
    }

    /// Makes the result of a refused call, and tells the observer. `answer` is that of the limit; `None` if the key of the
    /// request could not be read, which a retry would not change.
    fn refuse<Res, Err>(&self, answer: Option<&Answer>) -> Result<Res, Err>
    where
        A: Answers<Res, Err>,
    {
        let Some(answer) = answer else {
            return self.answers.refuse(self.name.refuse(RefusalCause::NoKey, Retry::Never), None);
        };
        let refused = self.name.refuse(RefusalCause::RateLimit, answer.decision().retry());
        self.answers.refuse(refused, Some(&self.shown(answer)))
    }

    /// Adds the state of the limit to the response of a caller that passed.
    fn add_limit_state<Res, Err>(&self, response: &mut Res, answer: &Answer)
    where
        A: Answers<Res, Err>,
    {
        self.answers.add_limit_state(response, &self.shown(answer));
    }

    fn shown(&self, answer: &Answer) -> HttpAnswer<'_> {
        self.named_limits.get(answer.binding()).unwrap_or(&self.named_limits[0]).answer(answer)
    }

    /// Adds the charge to the extensions of a request that passes, if the layer is settling. Returns the charge for the
    /// case that a layer inside refuses the request; `None` if it then stands.
    #[inline]
    fn hand_over<B>(&self, charge: Reservation, request: &mut Request<B>) -> Option<Charge> {
        let charge = if self.settling {
            Charge::Shared(Spent::hand_over(real_cost::Charge::Reserved(charge), request))
        } else {
            Charge::Own(charge)
        };
        self.giving_back.then_some(charge)
    }

    /// Says whether a layer inside has refused the request before any work for it had begun.
    fn is_refused_before_work<Res, Err>(&self, result: &Result<Res, Err>) -> bool
    where
        A: Answers<Res, Err>,
    {
        self.answers.refusal_in(result).is_some_and(Refused::is_before_work_here)
    }
}
