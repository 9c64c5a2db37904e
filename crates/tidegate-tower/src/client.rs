//! The border of a client: tells the refusals of its layers from those of a server's own layers.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::call_notes::inside_client;
use crate::layered::Layered;

/// Marks the layers inside it as those of a client. Put it outermost around a client of single layers;
/// [`ClientStack`](crate::ClientStack) has one.
///
/// A limit of a server gives back the charge of a request that was refused before any work began. A service may work, call
/// a client, and return the client's [`Refused`](crate::Refused) unchanged: by the mark of this layer the charge stays.
/// Without it, callers would get that work for nothing whenever the client refuses.
///
/// A layer that makes calls in another task, such as tower's `Buffer`, hides the mark from the layers inside it: put a
/// `ClientLayer` inside such a layer too.
///
/// Costs three accesses to thread-local memory for each poll.
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
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: *self }
    }
}

impl<S: Service<Req>, Req> Service<Req> for Layered<S, ClientLayer> {
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
    /// A client's call.
    #[derive(Debug)]
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
