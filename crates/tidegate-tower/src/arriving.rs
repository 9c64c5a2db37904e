//! Counts the retries that arrive at a server, and tells callers not to retry while there are too many.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tidegate::observer::{LayerDid, Observer};
use tidegate::retries::ArrivingRetries;
use tidegate::retries::header::{self, read_envoy_attempt, read_grpc_attempts};
use tower_layer::Layer;
use tower_service::Service;

use crate::classify::GRPC_STATUS;
use crate::layered::Layered;
use crate::refused::Name;

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
        let mut result = std::task::ready!(this.future.poll(cx));
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
