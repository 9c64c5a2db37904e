//! Counts the retries that arrive at a server, and tells callers not to come back while they are too many.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tidegate::retries::ArrivingRetries;
use tidegate::retries::header::{self, read_envoy_attempt, read_grpc_attempts};
use tower_layer::Layer;
use tower_service::Service;

use crate::classify::GRPC_STATUS;

/// Counts requests as first tries or retries, and while [too many](ArrivingRetries) are retries tells the callers of overloaded answers not to
/// try again. Clones share the counts.
///
/// How often a request was tried before is read from `grpc-previous-rpc-attempts`, else from `x-envoy-attempt-count`; one that has neither, or
/// whose number cannot be read, is a first try. Both are the caller's word: let a proxy of your own set or remove them, since a stranger who
/// claims retries has all refused callers told not to come back.
///
/// An answer is overloaded if its status is 503, or if a gRPC status that comes with its headers is `UNAVAILABLE` or `RESOURCE_EXHAUSTED`: whether
/// a layer within made it or the service itself. Such an answer gets `x-envoy-overloaded: true`, or of gRPC `grpc-retry-pushback-ms: -1`; a
/// `Retry-After` stays, for callers that know neither. [`RetryLayer`](crate::RetryLayer) heeds both. Errors pass as they are.
///
/// Put it outside the layers that refuse: [`ServerStack::retries`](crate::ServerStack::retries). One short lock for each request, and one more
/// for each overloaded answer.
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
#[derive(Clone, Debug, Default)]
pub struct ArrivingRetriesLayer {
    arriving: ArrivingRetries,
}

impl ArrivingRetriesLayer {
    /// Counts in `arriving`, which may be shared with other servers of the process.
    #[must_use]
    pub const fn new(arriving: ArrivingRetries) -> Self {
        Self { arriving }
    }
}

impl<S> Layer<S> for ArrivingRetriesLayer {
    type Service = ArrivingRetriesService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ArrivingRetriesService { inner, arriving: self.arriving.clone() }
    }
}

/// A server that tells callers not to try again while too many do: see [`ArrivingRetriesLayer`].
#[derive(Clone, Debug)]
pub struct ArrivingRetriesService<S> {
    inner: S,
    arriving: ArrivingRetries,
}

impl<S, B, R> Service<Request<B>> for ArrivingRetriesService<S>
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
        self.arriving.count(tries_before(request.headers()));
        ArrivingRetriesFuture { future: self.inner.call(request), arriving: self.arriving.clone() }
    }
}

/// Reads how often a request was tried before, as its caller says.
fn tries_before(headers: &HeaderMap) -> u32 {
    let read = |name: &str, read: fn(&[u8]) -> Option<u32>| read(headers.get(name)?.as_bytes());
    read(header::GRPC_ATTEMPTS, read_grpc_attempts)
        .or_else(|| read(header::ENVOY_ATTEMPT, read_envoy_attempt))
        .unwrap_or(0)
}

/// Returns what tells the caller of an overloaded answer not to try again; `None` for other answers.
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
    /// The future of [`ArrivingRetriesService`](crate::ArrivingRetriesService).
    pub struct ArrivingRetriesFuture<F> {
        #[pin]
        future: F,
        arriving: ArrivingRetries,
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
            && this.arriving.pushback().is_some()
        {
            response.headers_mut().insert(name, value);
        }
        Poll::Ready(result)
    }
}

impl<F> fmt::Debug for ArrivingRetriesFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrivingRetriesFuture").finish_non_exhaustive()
    }
}
