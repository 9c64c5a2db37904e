//! Readiness: it belongs to the service that was asked, and may hold something until that one is called or goes.

use std::future::poll_fn;

use tower_service::Service;

/// Takes the service that is ready, and leaves a clone, which is not.
pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    std::mem::replace(service, clone)
}

/// Gives back what a service may have set aside when it said that it was ready, because it will not be called: a place of tower's
/// `ConcurrencyLimit`, a slot of its `Buffer`. Those give it back when the service that was asked goes.
pub(crate) fn give_back<S: Clone>(service: &mut S) {
    drop(take_ready(service));
}

/// Gives back readiness as [`give_back`] does, and returns a service to be asked again when its time has come.
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
