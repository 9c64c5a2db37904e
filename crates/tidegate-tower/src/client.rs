//! The border of a client: its layers' refusals are known from those of a server's own layers.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::call_notes::inside_client;

/// Marks the layers inside it as those of a client. Put it outermost around a client of single layers;
/// [`ClientStack`](crate::ClientStack) has one.
///
/// A [`RateLimitLayer`](crate::RateLimitLayer) or [`GateLayer`](crate::GateLayer) of a server gives back the charge of a
/// request that was refused before any work began. If the service works, calls a client, and returns the client's
/// [`Refused`](crate::Refused) unchanged, the mark of this layer tells the server's limit that the service had worked, and
/// the charge stays. Without the mark, callers would get that work without a charge whenever the client refuses.
///
/// A layer that makes calls in another task, such as tower's `Buffer`, hides the mark from the layers inside it: put a
/// `ClientLayer` inside such a layer too.
///
/// Costs three accesses to thread-local memory for each poll. Has no state.
///
/// # Examples
/// ```
/// use http::{Request, Response};
/// use tidegate::Breaker;
/// use tidegate::breaker::CircuitBreaker;
/// use tidegate_tower::{BreakerLayer, ClientLayer, Errors};
/// use tower::{BoxError, ServiceBuilder, service_fn};
///
/// let stock = ServiceBuilder::new()
///     .layer(ClientLayer::new())
///     .layer(BreakerLayer::new("stock", Breaker::new(CircuitBreaker::builder())?).answering(Errors))
///     .service(service_fn(async |_: Request<String>| Ok::<_, BoxError>(Response::new("in stock"))));
/// # let _ = stock;
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ClientLayer;

impl ClientLayer {
    /// Makes the layer.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for ClientLayer {
    type Service = ClientService<S>;

    fn layer(&self, inner: S) -> ClientService<S> {
        ClientService { inner }
    }
}

/// A client: see [`ClientLayer`].
#[derive(Clone, Copy, Debug)]
pub struct ClientService<S> {
    inner: S,
}

impl<S: Service<Req>, Req> Service<Req> for ClientService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = ClientFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        inside_client(|| self.inner.poll_ready(cx))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        ClientFuture { call: inside_client(|| self.inner.call(request)) }
    }
}

pin_project! {
    /// The future of [`ClientService`](crate::service::ClientService).
    ///
    /// # Cancel safety
    /// Dropping the future drops the call.
    pub struct ClientFuture<F> {
        #[pin]
        call: F,
    }
}

impl<F: Future> Future for ClientFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let call = self.project().call;
        inside_client(|| call.poll(cx))
    }
}

impl<F> fmt::Debug for ClientFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientFuture").finish_non_exhaustive()
    }
}
