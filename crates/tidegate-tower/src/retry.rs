//! Retries: a client retries failed calls that may succeed then, within a shared budget; a server counts the retries that
//! arrive, and tells callers not to retry while there are too many.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tidegate::Outcome;
use tidegate::observer::{LayerDid, Observer};
use tidegate::retries::header::{read_envoy_attempt, read_grpc_attempts};
use tidegate::retries::{ArrivingRetries, Retrier, Verdict, header};
use tower_layer::Layer;
use tower_service::Service;

use crate::call_notes::FurtherTry;
use crate::classify::{ByStatus, Classify, GRPC_STATUS, is_grpc};
use crate::layered::{Calling, Layered, call_when_ready, oneshot};
use crate::refused::Name;
use crate::replay::CanReplay;

/// Retries calls, for a client: by the rules and within the budget of a [`Retrier`].
///
/// A call is retried if it failed or was refused for overload, the service does not ask otherwise (`Retry-After`,
/// `grpc-retry-pushback-ms`), the deadline that the task carries leaves time, and the request may be made twice: by
/// default if its method is idempotent. Each try waits until the service is ready. A refusal by an inner layer is not
/// retried: see [`ByStatus`](crate::classify::ByStatus).
///
/// Each retry says in its headers how often the request was tried before: `grpc-previous-rpc-attempts` in gRPC calls, else
/// `x-envoy-attempt-count`. [`ArrivingRetriesLayer`](crate::ArrivingRetriesLayer) of the service counts by them.
///
/// The body has to be `Clone`; a [`ReplayLayer`](crate::body::ReplayLayer) outside makes any body so.
///
/// Clones each request before it is sent, and boxes a future for each call whose first try did not succeed.
///
/// # Cancel safety
/// Dropping a call drops the try in progress; the budget is not refunded for a retry that it has paid for.
///
/// # Source
/// RFC 9110, section 9.2.2: GET, HEAD, OPTIONS, TRACE, PUT and DELETE are idempotent. gRPC proposal A6; the HTTP headers of
/// Envoy's router.
///
/// # Examples
/// ```
/// use axum::http::{Request, Response, StatusCode};
/// use tidegate::retries::Retrier;
/// use tidegate_tower::RetryLayer;
/// use tower::{BoxError, Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let service = service_fn(|request: Request<String>| async move {
///     let tries = request.headers().get("x-envoy-attempt-count");
///     let status = if tries.is_none() { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
///     Ok::<_, BoxError>(Response::builder().status(status).body(String::new())?)
/// });
/// let answer = RetryLayer::new(Retrier::default()).layer(service).oneshot(Request::get("/").body(String::new())?).await?;
/// assert_eq!(answer.status(), StatusCode::OK, "the second try succeeds");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RetryLayer<C = ByStatus> {
    rules: RetryRules<C>,
}

impl RetryLayer {
    /// Makes a layer that retries by the rules of `retrier`; all clones share its budget.
    #[must_use]
    pub fn new(retrier: Retrier) -> Self {
        Self { rules: RetryRules { retrier, classify: ByStatus, all: false, name: Name::new("retry") } }
    }
}

impl<C> RetryLayer<C> {
    /// Retries requests of all methods, including gRPC's: for services where a repeated request does no harm.
    #[must_use]
    pub fn all_methods(self) -> Self {
        Self { rules: RetryRules { all: true, ..self.rules } }
    }

    /// Chooses which results are retried; the default is [`ByStatus`].
    #[must_use]
    pub fn judging<D>(self, classify: D) -> RetryLayer<D> {
        let RetryRules { retrier, all, name, .. } = self.rules;
        RetryLayer { rules: RetryRules { retrier, classify, all, name } }
    }

    /// Chooses the name that observers are told; the default is `retry`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { rules: RetryRules { name: self.rules.name.renamed(name), ..self.rules } }
    }

    /// Tells `observer` of each retry ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { rules: RetryRules { name: self.rules.name.observed(observer), ..self.rules } }
    }
}

impl<S: Clone, C: Clone> Layer<S> for RetryLayer<C> {
    type Service = RetryService<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let again = Again { service: Mutex::new(inner.clone()), rules: self.rules.clone() };
        RetryService { inner, again: Arc::new(again) }
    }
}

/// The settings of a retry layer: the retrier, the judge of results, and the observer.
#[derive(Clone, Debug)]
struct RetryRules<C> {
    retrier: Retrier,
    classify: C,
    /// Whether requests of all methods are tried again.
    all: bool,
    name: Name,
}

/// The data that retries need. All calls share it, so a call that succeeds at once copies nothing.
#[derive(Debug)]
struct Again<S, C> {
    /// Never polled for readiness, so it reserves nothing; cloned for each retry.
    service: Mutex<S>,
    rules: RetryRules<C>,
}

impl<S: Clone, C> Again<S, C> {
    fn service(&self) -> S {
        // Only a clone that panicked can poison it, and that has changed nothing.
        self.service.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A client that retries: see [`RetryLayer`].
#[derive(Debug)]
pub struct RetryService<S, C = ByStatus> {
    inner: S,
    again: Arc<Again<S, C>>,
}

oneshot!(RetryService, C);

impl<S: Clone, C> Clone for RetryService<S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), again: Arc::clone(&self.again) }
    }
}

impl<S, B, C> Service<Request<B>> for RetryService<S, C>
where
    S: Service<Request<B>, Future: Send> + Clone + Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    C: Classify<S::Response, S::Error> + Send + Sync + 'static,
    B: Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = RetryFuture<S, Request<B>, S::Future, S::Response, S::Error, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.again.rules;
        rules.retrier.budget().call();
        if !rules.all && !request.method().is_idempotent() {
            return RetryFuture::once(self.inner.call(request));
        }
        // The first try calls the instance that was polled; the others poll a clone.
        let copy = request.clone();
        RetryFuture::first(self.inner.call(request), copy, Arc::clone(&self.again))
    }
}

pin_project! {
    /// A call that may be retried. `F` is `S::Future`: as a parameter of its own it lets the compiler prove that a call
    /// with boxed errors is `Send`.
    pub struct RetryFuture<S, Req, F, Res, Err, C> {
        #[pin]
        stage: RetryStage<S, Req, F, Res, Err, C>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum RetryStage<S, Req, F, Res, Err, C> {
        // The request may not be made twice.
        Once { #[pin] future: F },
        First { #[pin] future: F, copy: Option<(Req, Arc<Again<S, C>>)> },
        // The tries after the first.
        Further { tries: Calling<Res, Err> },
    }
}

impl<S, Req, F, Res, Err, C> RetryFuture<S, Req, F, Res, Err, C> {
    const fn once(future: F) -> Self {
        Self { stage: RetryStage::Once { future } }
    }

    const fn first(future: F, copy: Req, again: Arc<Again<S, C>>) -> Self {
        Self { stage: RetryStage::First { future, copy: Some((copy, again)) } }
    }
}

impl<S, B, C> Future for RetryFuture<S, Request<B>, S::Future, S::Response, S::Error, C>
where
    S: Service<Request<B>, Future: Send> + Clone + Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    C: Classify<S::Response, S::Error> + Send + Sync + 'static,
    B: Clone + Send + 'static,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        let tries = match stage.as_mut().project() {
            StageProjection::Once { future } => return future.poll(cx),
            StageProjection::First { future, copy } => {
                let result = ready!(future.poll(cx));
                let Some((request, again)) = copy.take() else { return Poll::Ready(result) };
                let verdict = again.rules.classify.classify(&result);
                if verdict.outcome == Outcome::Success || !CanReplay::of(&request) {
                    return Poll::Ready(result);
                }
                Box::pin(further(again, request, result, verdict))
            }
            StageProjection::Further { tries } => return tries.as_mut().poll(cx),
        };
        stage.set(RetryStage::Further { tries });
        match stage.project() {
            StageProjection::Further { tries } => tries.as_mut().poll(cx),
            _ => unreachable!("it was set to further tries"),
        }
    }
}

/// Retries a call whose first try has ended.
async fn further<S, B, C>(
    again: Arc<Again<S, C>>,
    request: Request<B>,
    first: Result<S::Response, S::Error>,
    verdict: Verdict,
) -> Result<S::Response, S::Error>
where
    S: Service<Request<B>> + Clone,
    C: Classify<S::Response, S::Error>,
    B: Clone,
{
    let calling = Arc::clone(&again);
    let can_replay = CanReplay::find(&request);
    let mut tried = 0_u32;
    // Owns the request, which may not be `Sync`.
    let call = move || {
        calling.rules.name.notify(LayerDid::TriedAgain);
        let mut request = request.clone();
        tried = tried.saturating_add(1);
        number(&mut request, tried);
        FurtherTry::new(call_when_ready(calling.service(), request))
    };
    let rules = &again.rules;
    let judge = |result: &_| match &can_replay {
        Some(can_replay) if !can_replay.get() => Outcome::Ignored.into(),
        _ => rules.classify.classify(result),
    };
    rules.retrier.run_on(first, verdict, call, judge).await.0
}

/// Writes into the headers how often the request was tried before, so that the service can tell retries from first tries.
fn number<B>(request: &mut Request<B>, tried: u32) {
    let headers = request.headers_mut();
    let is_grpc = is_grpc(headers);
    let (name, number) = match is_grpc {
        true => (header::GRPC_ATTEMPTS, tried),
        // Counted from 1, which is the first try.
        false => (header::ENVOY_ATTEMPT, tried + 1),
    };
    headers.insert(HeaderName::from_static(name), HeaderValue::from(number));
}

impl<S, Req, F, Res, Err, C> fmt::Debug for RetryFuture<S, Req, F, Res, Err, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryFuture").finish_non_exhaustive()
    }
}

/// Counts requests as first tries or retries. While [too many](ArrivingRetries) of them are retries, it tells the
/// callers that get an overloaded answer not to try again. Clones share the counts.
///
/// The number of earlier tries is read from `grpc-previous-rpc-attempts`, else from `x-envoy-attempt-count`; a request
/// without a readable number in either is a first try. Let a proxy of your own set or remove both headers: a stranger who
/// claims retries makes the server tell all refused callers not to come back.
///
/// An answer is overloaded if its status is 503, or if it has a gRPC status in its headers that is `UNAVAILABLE` or
/// `RESOURCE_EXHAUSTED`, whether an inner layer or the service itself made it. Such an answer gets `x-envoy-overloaded:
/// true`, or for gRPC `grpc-retry-pushback-ms: -1`, which [`RetryLayer`](crate::RetryLayer) obeys. A `Retry-After` stays,
/// for callers that know neither header. Errors pass unchanged.
///
/// Put it outside the layers that refuse: [`ServerStack::retries`](crate::ServerStack::retries). Takes a short lock
/// once per request, and once more per overloaded answer.
///
/// # Examples
/// ```
/// use axum::{Router, routing::get};
/// use tidegate::Bulkhead;
/// use tidegate::retries::ArrivingRetries;
/// use tidegate_tower::{ArrivingRetriesLayer, ConcurrencyLayer, ServerStack};
///
/// let stack = ServerStack::new()
///     .retries(ArrivingRetriesLayer::new(ArrivingRetries::default()))
///     .concurrency(ConcurrencyLayer::new("pages", Bulkhead::new(64)?));
/// let app: Router = Router::new().route("/", get(async || "the page")).layer(stack);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
///
/// # Source
/// "Handling Overload" in Google's *Site Reliability Engineering*, 2016, chapter 21; gRPC proposal A6; the HTTP headers of Envoy's router.
#[derive(Clone, Debug)]
pub struct ArrivingRetriesLayer {
    rules: Arc<RetryPressure>,
}

#[derive(Clone, Debug)]
struct RetryPressure {
    arriving: ArrivingRetries,
    name: Name,
}

impl Default for ArrivingRetriesLayer {
    fn default() -> Self {
        Self::new(ArrivingRetries::default())
    }
}

impl ArrivingRetriesLayer {
    /// Makes a layer that counts in `arriving`, which other servers of the process may share.
    #[must_use]
    pub fn new(arriving: ArrivingRetries) -> Self {
        Self { rules: Arc::new(RetryPressure { arriving, name: Name::new("arriving-retries") }) }
    }

    /// Chooses the name that observers are told; the default is `arriving-retries`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.with(|rules| RetryPressure { name: rules.name.renamed(name), ..rules })
    }

    /// Tells `observer` of each caller that is told not to try again
    /// ([`LayerDid::ToldNotToRetry`](tidegate::observer::LayerDid::ToldNotToRetry)).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.with(|rules| RetryPressure { name: rules.name.observed(observer), ..rules })
    }

    fn with(self, change: impl FnOnce(RetryPressure) -> RetryPressure) -> Self {
        Self { rules: Arc::new(change(Arc::unwrap_or_clone(self.rules))) }
    }
}

impl<S> Layer<S> for ArrivingRetriesLayer {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, B, R> Service<Request<B>> for Layered<S, ArrivingRetriesLayer>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ArrivingRetriesFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.layer.rules;
        rules.arriving.count(tries_before(request.headers()));
        ArrivingRetriesFuture { future: self.inner.call(request), rules: Arc::clone(rules) }
    }
}

/// Returns how often the caller says it has tried the request before; 0 if it does not say so readably.
fn tries_before(headers: &HeaderMap) -> u32 {
    let read = |name: &str, read: fn(&[u8]) -> Option<u32>| read(headers.get(name)?.as_bytes());
    read(header::GRPC_ATTEMPTS, read_grpc_attempts)
        .or_else(|| read(header::ENVOY_ATTEMPT, read_envoy_attempt))
        .unwrap_or(0)
}

/// Returns the header that tells the caller of an overloaded answer not to try again; `None` for other answers.
fn not_again(status: StatusCode, headers: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
    match headers.get(GRPC_STATUS).map(HeaderValue::as_bytes) {
        // RESOURCE_EXHAUSTED, UNAVAILABLE.
        Some(b"8" | b"14") => Some((
            HeaderName::from_static(header::GRPC_PUSHBACK),
            HeaderValue::from_static(header::NOT_AGAIN),
        )),
        Some(_) => None,
        None => (status == StatusCode::SERVICE_UNAVAILABLE)
            .then(|| (HeaderName::from_static(header::ENVOY_OVERLOADED), HeaderValue::from_static("true"))),
    }
}

pin_project! {
    /// A call of a server that tells callers not to retry.
    #[derive(Debug)]
    pub struct ArrivingRetriesFuture<F> {
        #[pin]
        future: F,
        rules: Arc<RetryPressure>,
    }
}

impl<F, R, E> Future for ArrivingRetriesFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut result = ready!(this.future.poll(cx));
        if let Ok(response) = &mut result
            && let Some((name, value)) = not_again(response.status(), response.headers())
            && this.rules.arriving.pushback().is_some()
        {
            response.headers_mut().insert(name, value);
            this.rules.name.notify(LayerDid::ToldNotToRetry);
        }
        Poll::Ready(result)
    }
}
