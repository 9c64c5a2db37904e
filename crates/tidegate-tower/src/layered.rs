//! The service that most layers make, and how it handles the readiness of the service inside. Readiness belongs to the
//! instance that was polled, which may hold a resource until it is called or dropped.

use std::future::poll_fn;
use std::pin::Pin;

use tower_service::Service;

/// A call that names only the types of its answer and its error.
pub(crate) type Calling<Res, Err> = Pin<Box<dyn Future<Output = Result<Res, Err>> + Send>>;

/// A service with the layer `L` of this crate around it. What it does stands at the layer.
#[derive(Clone, Copy, Debug)]
pub struct Layered<S, L> {
    pub(crate) inner: S,
    pub(crate) layer: L,
}

/// Gives a service of a layer a `oneshot` of its own.
///
/// That of tower's `ServiceExt` has the service in the type of its future. Where a task has to be `Send`, the compiler
/// forgets the lifetimes in the types that it holds across an await, also that of `Box<dyn Error>` in a closure inside the
/// service, and proves for any lifetime that each layer is a service. That cannot be proved: layers look for refusals in
/// errors by their types, for which an error has to be `'static`. And a judge or a fallback takes errors of one lifetime.
macro_rules! oneshot {
    ($service:ident, $layer:ident) => {
        impl<S, $layer> $service<S, $layer> {
            /// Waits until the service is ready, and calls it once. In place of `oneshot` of tower's `ServiceExt`, this can be
            /// awaited in handlers and spawned tasks, whatever the service is made of.
            ///
            /// Costs an allocation. A service that is not `Send` has `ServiceExt::oneshot(service, request)`.
            ///
            /// # Cancel safety
            /// Dropping the future drops the call.
            pub fn oneshot<Req>(
                self,
                request: Req,
            ) -> $crate::layered::Calling<
                <Self as tower_service::Service<Req>>::Response,
                <Self as tower_service::Service<Req>>::Error,
            >
            where
                Self: tower_service::Service<Req, Future: Send> + Send + 'static,
                Req: Send + 'static,
            {
                Box::pin($crate::layered::call_when_ready(self, request))
            }
        }
    };
}

oneshot!(Layered, L);

pub(crate) use oneshot;

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
