//! A service that was asked whether it is ready, taken away to be called later.

use std::future::poll_fn;

use tower_service::Service;

/// Takes the service that is ready, and leaves a clone: readiness belongs to the one that was asked, and a clone may not be ready.
pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    std::mem::replace(service, clone)
}

/// Waits until a service is ready and calls it.
pub(crate) async fn call_when_ready<S: Service<Req>, Req>(
    mut service: S,
    request: Req,
) -> Result<S::Response, S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}
