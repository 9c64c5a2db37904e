//! Retry layer: retries failed calls that may succeed then, within a shared budget.

mod future;

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::Request;
use tidegate::observer::Observer;
use tidegate::retries::Retrier;
use tower_layer::Layer;
use tower_service::Service;

pub use self::future::RetryFuture;
use crate::classify::{ByStatus, Classify};
use crate::name::Name;

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
        let again = Again::new(inner.clone(), self.rules.clone());
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
    const fn new(service: S, rules: RetryRules<C>) -> Self {
        Self { service: Mutex::new(service), rules }
    }

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
