//! Load-shedding layer: refuses requests at once while the service is not ready.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tidegate::limiter::Retry;
use tidegate::observer::{Observer, RefusalCause};
use tower_layer::Layer;
use tower_service::Service;

use crate::answers::{Answers, Problems};
use crate::layered::{Layered, give_back};
use crate::refused::Name;

/// Makes a service that is always ready, and refuses requests while the inner service is not ready.
///
/// Meant for services that report in `poll_ready` that they are busy. A [`ConcurrencyLayer`](crate::ConcurrencyLayer)
/// refuses by itself. Refusals and observers are told the name `load-shed`.
///
/// A service that is not ready is dropped and replaced by a clone, so that it does not keep what it reserved while it was
/// polled, such as a position in the queue of tower's `ConcurrencyLimit`. This costs a clone of the service per refusal.
///
/// # Examples
/// ```
/// use axum::body::Body;
/// use axum::http::{Request, Response};
/// use tidegate_tower::LoadShedLayer;
/// use tower::limit::ConcurrencyLimitLayer;
/// use tower::{BoxError, ServiceBuilder, service_fn};
///
/// // At most 16 requests at once; more are refused with 503, where tower's own limit alone would let them wait.
/// let service = ServiceBuilder::new()
///     .layer(LoadShedLayer::new())
///     .layer(ConcurrencyLimitLayer::new(16))
///     .service(service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(Response::new(Body::from("the page"))) }));
/// # let _ = service;
/// ```
#[derive(Debug)]
pub struct LoadShedLayer<A = Problems> {
    answers: A,
    name: Name,
    /// Whether the service inside said that it is ready, and was not called since.
    is_ready: bool,
}

/// A clone has not been polled for readiness.
impl<A: Clone> Clone for LoadShedLayer<A> {
    fn clone(&self) -> Self {
        Self { answers: self.answers.clone(), name: self.name.clone(), is_ready: false }
    }
}

impl Default for LoadShedLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl LoadShedLayer {
    /// Makes a layer that refuses while the inner service is not ready.
    #[must_use]
    pub fn new() -> Self {
        Self { answers: Problems, name: Name::new("load-shed"), is_ready: false }
    }
}

impl<A> LoadShedLayer<A> {
    /// Chooses how refusals are told; the default is [`Problems`].
    #[must_use]
    pub fn answering<B>(self, answers: B) -> LoadShedLayer<B> {
        LoadShedLayer { answers, name: self.name, is_ready: false }
    }

    /// Tells `observer` of refusals ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { name: self.name.observed(observer), ..self }
    }
}

impl<S, A: Clone> Layer<S> for LoadShedLayer<A> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, Req, A> Service<Req> for Layered<S, LoadShedLayer<A>>
where
    S: Service<Req> + Clone,
    A: Answers<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = LoadShedFuture<S::Future, S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // What the inner service answered counts for the next call, which polls again, so no waker is needed.
        self.layer.is_ready = match self.inner.poll_ready(cx) {
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => true,
            Poll::Pending => {
                // A place given to it now would stay unused until this connection polls again.
                give_back(&mut self.inner);
                false
            }
        };
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        // The call uses up the readiness.
        if std::mem::take(&mut self.layer.is_ready) {
            return LoadShedFuture { stage: LoadShedStage::Called { future: self.inner.call(request) } };
        }
        let LoadShedLayer { answers, name, .. } = &self.layer;
        let result = answers.refuse(name.refuse(RefusalCause::Busy, Retry::Unknown), None);
        LoadShedFuture { stage: LoadShedStage::Refused { result: Some(result) } }
    }
}

pin_project! {
    /// A call, or its refusal.
    #[derive(Debug)]
    pub struct LoadShedFuture<F, Res, Err> {
        #[pin]
        stage: LoadShedStage<F, Res, Err>,
    }
}

pin_project! {
    #[project = StageProjection]
    #[derive(Debug)]
    enum LoadShedStage<F, Res, Err> {
        Refused { result: Option<Result<Res, Err>> },
        Called { #[pin] future: F },
    }
}

impl<F, Res, Err> Future for LoadShedFuture<F, Res, Err>
where
    F: Future<Output = Result<Res, Err>>,
{
    type Output = Result<Res, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().stage.project() {
            StageProjection::Refused { result } => {
                Poll::Ready(result.take().expect("a future is not polled after it has ended"))
            }
            StageProjection::Called { future } => future.poll(cx),
        }
    }
}
