//! Tries calls again that may succeed then, within a budget that all share.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use tidegate::observer::{LayerDid, Observer};
use tidegate::retries::Retrier;
use tower_layer::Layer;
use tower_service::Service;

use crate::classify::{ByStatus, Classify};
use crate::name::Name;
use crate::ready::call_when_ready;

/// Tries calls again, for a client: by the rules and within the budget of a [`Retrier`].
///
/// Tried again is what failed or was refused for overload, where the service does not ask otherwise (`Retry-After`,
/// `grpc-retry-pushback-ms`), time is left by the deadline that the task carries, and the request may be made twice: by default where its
/// method is idempotent. Each try waits until the service is ready. A refusal by a layer within is not tried again: see
/// [`ByStatus`](crate::ByStatus).
///
/// Boxes a future for each call, and copies each request before it is sent.
///
/// # Source
/// RFC 9110, section 9.2.2: GET, HEAD, OPTIONS, TRACE, PUT and DELETE are idempotent.
#[derive(Clone, Debug)]
pub struct RetryLayer<C = ByStatus> {
    retrier: Retrier,
    classify: C,
    all: bool,
    name: Name,
}

impl RetryLayer {
    /// Tries again by the rules of a retrier, whose budget all clones share.
    #[must_use]
    pub fn new(retrier: Retrier) -> Self {
        Self { retrier, classify: ByStatus, all: false, name: Name::new("retry") }
    }
}

impl<C> RetryLayer<C> {
    /// Tries requests of all methods again, gRPC's among them: for services to which it makes no difference whether they get a request twice.
    #[must_use]
    pub fn all_methods(self) -> Self {
        Self { all: true, ..self }
    }

    /// Chooses what is tried again; [`ByStatus`] unless chosen.
    #[must_use]
    pub fn judging<D>(self, classify: D) -> RetryLayer<D> {
        RetryLayer { retrier: self.retrier, classify, all: self.all, name: self.name }
    }

    /// Chooses the name that observers are told; `retry` unless chosen.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: self.name.renamed(name), ..self }
    }

    /// Tells `observer` of each further try ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { name: self.name.observed(observer), ..self }
    }
}

impl<S, C: Clone> Layer<S> for RetryLayer<C> {
    type Service = RetryService<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        RetryService { inner, rules: Arc::new(self.clone()) }
    }
}

/// A client that tries again: see [`RetryLayer`].
#[derive(Debug)]
pub struct RetryService<S, C = ByStatus> {
    inner: S,
    rules: Arc<RetryLayer<C>>,
}

impl<S: Clone, C> Clone for RetryService<S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rules: Arc::clone(&self.rules) }
    }
}

impl<S, B, C> Service<Request<B>> for RetryService<S, C>
where
    S: Service<Request<B>, Future: Send> + Clone + Send + 'static,
    S::Response: Send,
    S::Error: Send,
    C: Classify<S::Response, S::Error> + Send + Sync + 'static,
    B: Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !self.rules.all && !request.method().is_idempotent() {
            self.rules.retrier.budget().call();
            return Box::pin(self.inner.call(request));
        }
        // The first try calls the service that was asked; the others take clones and ask again.
        let again = self.inner.clone();
        let mut first = Some(self.inner.call(request.clone()));
        let rules = Arc::clone(&self.rules);
        Box::pin(async move {
            let telling = Arc::clone(&rules);
            let call = move || {
                let first = first.take();
                let further = first.is_none().then(|| (again.clone(), request.clone()));
                if further.is_some() {
                    telling.name.tell(LayerDid::TriedAgain);
                }
                async move {
                    match (first, further) {
                        (Some(first), _) => first.await,
                        (None, Some((service, request))) => call_when_ready(service, request).await,
                        (None, None) => unreachable!("a try is the first or a further one"),
                    }
                }
            };
            rules.retrier.run(call, |result| rules.classify.classify(result)).await.0
        })
    }
}
