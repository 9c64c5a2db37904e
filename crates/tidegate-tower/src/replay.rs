//! Replay layer: keeps request bodies while they are sent, so that requests whose bodies cannot be cloned can be retried.

use std::task::{Context, Poll};

use http::Request;
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::body::ReplayBody;

/// Makes request bodies replayable, for a [`RetryLayer`](crate::RetryLayer) inside: tonic's, axum's and hyper's bodies
/// cannot be cloned, and a [`ReplayBody`] can.
///
/// Of each body up to a number of bytes is kept while it is sent. A request with a longer body, or one that failed while
/// it was sent, is tried once: its first answer is passed on. Nothing is kept of requests that are not retried, such as a
/// POST without [`RetryLayer::all_methods`](crate::RetryLayer::all_methods).
///
/// Costs about five allocations for each request, the list of frames that are kept, and a lock without contention for each
/// frame. Bytes that the body gives as `Bytes` are not copied.
///
/// # Examples
/// A client of tonic or hyper takes its own type of body, so the innermost step converts it:
/// ```
/// use axum::body::Body;
/// use axum::http::{Method, Request, Response, StatusCode};
/// use http_body_util::BodyExt;
/// use tidegate::retries::Retrier;
/// use tidegate_tower::{ReplayBody, ReplayLayer, RetryLayer};
/// use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let service = service_fn(|request: Request<Body>| async move {
///     let first = !request.headers().contains_key("x-envoy-attempt-count");
///     let body = request.into_body().collect().await?.to_bytes();
///     let status = if first { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
///     Ok::<_, BoxError>(Response::builder().status(status).body(Body::from(body))?)
/// });
/// let client = ServiceBuilder::new()
///     .layer(ReplayLayer::up_to(64 * 1024))
///     .layer(RetryLayer::new(Retrier::default()))
///     .map_request(|request: Request<ReplayBody<Body>>| request.map(Body::new))
///     .service(service);
/// let request = Request::builder().method(Method::PUT).body(Body::from("a page"))?;
/// let answer = client.oneshot(request).await?;
/// assert_eq!(answer.status(), StatusCode::OK, "the second try succeeds");
/// assert_eq!(answer.into_body().collect().await?.to_bytes(), "a page");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReplayLayer {
    most: usize,
}

impl ReplayLayer {
    /// Makes a layer that keeps up to `bytes` of each body, its trailers included. Each frame counts 64 bytes more.
    #[must_use]
    pub const fn up_to(bytes: usize) -> Self {
        Self { most: bytes }
    }
}

impl<S> Layer<S> for ReplayLayer {
    type Service = ReplayService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ReplayService { inner, most: self.most }
    }
}

/// A client whose request bodies can be sent again: see [`ReplayLayer`].
#[derive(Clone, Copy, Debug)]
pub struct ReplayService<S> {
    inner: S,
    most: usize,
}

impl<S, B> Service<Request<B>> for ReplayService<S>
where
    S: Service<Request<ReplayBody<B>>>,
    B: Body,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut request = request.map(|body| ReplayBody::new(body, self.most));
        let can_replay = request.body().can_replay();
        request.extensions_mut().insert(can_replay);
        self.inner.call(request)
    }
}
