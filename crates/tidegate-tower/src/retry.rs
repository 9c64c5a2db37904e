//! Tries calls again that may succeed then, within a budget that all share.

mod again;
mod future;

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use tidegate::observer::Observer;
use tidegate::retries::Retrier;
use tower_layer::Layer;
use tower_service::Service;

use self::again::{Again, Rules};
pub use self::future::RetryFuture;
use crate::classify::{ByStatus, Classify};
use crate::name::Name;

/// Tries calls again, for a client: by the rules and within the budget of a [`Retrier`].
///
/// Tried again is what failed or was refused for overload, where the service does not ask otherwise (`Retry-After`,
/// `grpc-retry-pushback-ms`), time is left by the deadline that the task carries, and the request may be made twice: by default where its
/// method is idempotent. Each try waits until the service is ready. A refusal by a layer within is not tried again: see
/// [`ByStatus`](crate::ByStatus).
///
/// Copies each request before it is sent, and boxes a future for each call that did not succeed at once.
///
/// # Source
/// RFC 9110, section 9.2.2: GET, HEAD, OPTIONS, TRACE, PUT and DELETE are idempotent.
#[derive(Clone, Debug)]
pub struct RetryLayer<C = ByStatus> {
    rules: Rules<C>,
}

impl RetryLayer {
    /// Tries again by the rules of a retrier, whose budget all clones share.
    #[must_use]
    pub fn new(retrier: Retrier) -> Self {
        Self { rules: Rules { retrier, classify: ByStatus, all: false, name: Name::new("retry") } }
    }
}

impl<C> RetryLayer<C> {
    /// Tries requests of all methods again, gRPC's among them: for services to which it makes no difference whether they get a request twice.
    #[must_use]
    pub fn all_methods(self) -> Self {
        Self { rules: Rules { all: true, ..self.rules } }
    }

    /// Chooses what is tried again; [`ByStatus`] unless chosen.
    #[must_use]
    pub fn judging<D>(self, classify: D) -> RetryLayer<D> {
        let Rules { retrier, all, name, .. } = self.rules;
        RetryLayer { rules: Rules { retrier, classify, all, name } }
    }

    /// Chooses the name that observers are told; `retry` unless chosen.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { rules: Rules { name: self.rules.name.renamed(name), ..self.rules } }
    }

    /// Tells `observer` of each further try ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { rules: Rules { name: self.rules.name.observed(observer), ..self.rules } }
    }
}

impl<S: Clone, C: Clone> Layer<S> for RetryLayer<C> {
    type Service = RetryService<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let again = Again::new(inner.clone(), self.rules.clone());
        RetryService { inner, again: Arc::new(again) }
    }
}

/// A client that tries again: see [`RetryLayer`].
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
    type Future = RetryFuture<S, Request<B>, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.again.rules;
        rules.retrier.budget().call();
        if !rules.all && !request.method().is_idempotent() {
            return RetryFuture::once(self.inner.call(request));
        }
        // The first try calls the service that was asked; the others take a clone and ask again.
        let copy = request.clone();
        RetryFuture::first(self.inner.call(request), copy, Arc::clone(&self.again))
    }
}
