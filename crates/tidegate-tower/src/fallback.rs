//! What is answered in place of a failure.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate::Outcome;
use tower_layer::Layer;
use tower_service::Service;

use crate::classify::{ByStatus, Classify};

/// Puts what a function returns in the place of an answer that failed, a refusal by a layer within included.
///
/// The function is given the answer and may return it as it is. Answers that succeeded, or failed by the caller's own mistake, pass untouched.
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
}

impl<F> FallbackLayer<F> {
    /// Asks a function for what to answer in place of a failure.
    #[must_use]
    pub const fn new(in_place: F) -> Self {
        Self { in_place, classify: ByStatus }
    }
}

impl<F, C> FallbackLayer<F, C> {
    /// Chooses what is a failure; [`ByStatus`] unless chosen.
    #[must_use]
    pub fn judging<D>(self, classify: D) -> FallbackLayer<F, D> {
        FallbackLayer { in_place: self.in_place, classify }
    }
}

impl<S, F: Clone, C: Clone> Layer<S> for FallbackLayer<F, C> {
    type Service = Fallback<S, F, C>;

    fn layer(&self, inner: S) -> Self::Service {
        Fallback { inner, in_place: self.in_place.clone(), classify: self.classify.clone() }
    }
}

/// A service with a fallback: see [`FallbackLayer`].
#[derive(Clone, Debug)]
pub struct Fallback<S, F, C = ByStatus> {
    inner: S,
    in_place: F,
    classify: C,
}

impl<S, Req, F, C> Service<Req> for Fallback<S, F, C>
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
        FallbackFuture { future, in_place: self.in_place.clone(), classify: self.classify.clone() }
    }
}

pin_project! {
    /// The future of [`Fallback`].
    pub struct FallbackFuture<Fut, F, C> {
        #[pin]
        future: Fut,
        in_place: F,
        classify: C,
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
            Outcome::Failure | Outcome::Overloaded => (this.in_place)(result),
            Outcome::Success | Outcome::CallersFault | Outcome::Ignored => result,
        })
    }
}

impl<Fut, F, C> fmt::Debug for FallbackFuture<Fut, F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackFuture").finish_non_exhaustive()
    }
}
