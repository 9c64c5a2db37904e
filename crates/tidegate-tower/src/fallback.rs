//! Fallback layer: replaces answers that failed.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate::Outcome;
use tidegate::observer::{LayerDid, Observer};
use tower_layer::Layer;
use tower_service::Service;

use crate::classify::{ByStatus, Classify};
use crate::name::Name;

/// Replaces an answer that failed, including a refusal by an inner layer, by the answer that a function returns.
///
/// The function is given the failed answer and may return it unchanged. Answers that succeeded, or that failed by the
/// caller's own mistake, are not touched.
///
/// # Examples
/// ```
/// use std::convert::Infallible;
/// use axum::{Router, response::Response, routing::get};
/// use tidegate_tower::FallbackLayer;
///
/// let in_place = |_: Result<Response, Infallible>| Ok::<_, Infallible>(Response::new("what everybody reads".into()));
/// let app: Router = Router::new().route("/", get(async || "for you")).layer(FallbackLayer::new(in_place));
/// ```
#[derive(Clone, Debug)]
pub struct FallbackLayer<F, C = ByStatus> {
    in_place: F,
    classify: C,
    name: Name,
}

impl<F> FallbackLayer<F> {
    /// Makes a layer that asks `in_place` for the answer in place of a failure.
    #[must_use]
    pub fn new(in_place: F) -> Self {
        Self { in_place, classify: ByStatus, name: Name::new("fallback") }
    }
}

impl<F, C> FallbackLayer<F, C> {
    /// Chooses which answers are failures; the default is [`ByStatus`].
    #[must_use]
    pub fn judging<D>(self, classify: D) -> FallbackLayer<F, D> {
        FallbackLayer { in_place: self.in_place, classify, name: self.name }
    }

    /// Chooses the name that observers are told; the default is `fallback`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: self.name.renamed(name), ..self }
    }

    /// Tells `observer` each time an answer is replaced ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { name: self.name.observed(observer), ..self }
    }
}

impl<S, F: Clone, C: Clone> Layer<S> for FallbackLayer<F, C> {
    type Service = FallbackService<S, F, C>;

    fn layer(&self, inner: S) -> Self::Service {
        FallbackService {
            inner,
            in_place: self.in_place.clone(),
            classify: self.classify.clone(),
            name: self.name.clone(),
        }
    }
}

/// A service with a fallback: see [`FallbackLayer`].
#[derive(Clone, Debug)]
pub struct FallbackService<S, F, C = ByStatus> {
    inner: S,
    in_place: F,
    classify: C,
    name: Name,
}

impl<S, Req, F, C> Service<Req> for FallbackService<S, F, C>
where
    S: Service<Req>,
    F: Fn(Result<S::Response, S::Error>) -> Result<S::Response, S::Error> + Clone,
    C: Classify<S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = FallbackFuture<S::Future, F, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let future = self.inner.call(request);
        FallbackFuture {
            future,
            in_place: self.in_place.clone(),
            classify: self.classify.clone(),
            name: self.name.clone(),
        }
    }
}

pin_project! {
    /// The future of [`FallbackService`](crate::FallbackService).
    pub struct FallbackFuture<Fut, F, C> {
        #[pin]
        future: Fut,
        in_place: F,
        classify: C,
        name: Name,
    }
}

impl<Fut, F, C, Res, Err> Future for FallbackFuture<Fut, F, C>
where
    Fut: Future<Output = Result<Res, Err>>,
    F: Fn(Result<Res, Err>) -> Result<Res, Err>,
    C: Classify<Res, Err>,
{
    type Output = Result<Res, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.future.poll(cx));
        Poll::Ready(match this.classify.classify(&result).outcome {
            Outcome::Success | Outcome::CallersFault => result,
            Outcome::Failure | Outcome::Overloaded | Outcome::Ignored => {
                this.name.notify(LayerDid::FellBack);
                (this.in_place)(result)
            }
        })
    }
}

impl<Fut, F, C> fmt::Debug for FallbackFuture<Fut, F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackFuture").finish_non_exhaustive()
    }
}
