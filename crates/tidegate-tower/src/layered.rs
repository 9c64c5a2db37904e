//! The service that most layers make, and how it handles the readiness of the service inside. Readiness belongs to the
//! instance that was polled, which may hold a resource until it is called or dropped.

use std::future::poll_fn;

use tower_service::Service;

/// A service with the layer `L` of this crate around it. What it does stands at the layer.
#[derive(Clone, Copy, Debug)]
pub struct Layered<S, L> {
    pub(crate) inner: S,
    pub(crate) layer: L,
}

/// Takes the service that is ready, and leaves a clone, which has not been polled.
pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    std::mem::replace(service, clone)
}

/// Gives back what a service that will not be called may have reserved when it said that it was ready: a place of
/// tower's `ConcurrencyLimit`, a slot of its `Buffer`. These give it back when the polled instance is dropped.
pub(crate) fn give_back<S: Clone>(service: &mut S) {
    drop(take_ready(service));
}

/// Gives back readiness like [`give_back`], and returns a service to poll again later.
pub(crate) fn for_later<S: Clone>(service: &mut S) -> S {
    give_back(service);
    service.clone()
}

/// Waits until a service is ready and calls it.
pub(crate) async fn call_when_ready<S: Service<Req>, Req>(
    mut service: S,
    request: Req,
) -> Result<S::Response, S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}
