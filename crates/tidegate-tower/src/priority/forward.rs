//! Priority layer of a client: tells the next service the task's priority.

use std::task::{Context, Poll};

use http::{HeaderName, Request};
use tidegate::{Priority, priority};
use tower_layer::Layer;
use tower_service::Service;

use super::header::{HEADER, priority_of, write};

/// Tells the next service how much a request matters, for a client: the priority that the task
/// [carries](tidegate::priority::carried), in `x-tidegate-priority` or a [header of your choice](Self::in_header). In
/// gRPC this is metadata of the same name.
///
/// A lower priority that the request already names stays. A higher one is lowered to the carried one, since it may have
/// come from a stranger and been passed on. To raise a priority on purpose, carry it when the client is called:
/// `priority::carry(Criticality::CriticalPlus, || client.call(request))`. If the task carries none, the priority that
/// the request names stays, and a request that names none gets the [default](Self::by_default) of this layer, if it has
/// one. Of several values the lowest counts ([`priority_of`](crate::parameter::priority_of)), and it alone is sent. A header that cannot
/// be read counts as none and is not sent on.
///
/// Never refuses. Costs a look-up of a header and its insertion; an allocation if the priority has a cohort.
///
/// # Examples
/// ```
/// use tidegate::Criticality;
/// use tidegate_tower::{ClientStack, ForwardPriorityLayer};
///
/// // In a server: the priority of each request's caller is passed on.
/// let stack = ClientStack::new().priority(ForwardPriorityLayer::new());
/// // In a batch job: its requests are shed first.
/// let stack = ClientStack::new().priority(ForwardPriorityLayer::new().by_default(Criticality::Sheddable));
/// # let _ = stack;
/// ```
#[derive(Clone, Debug)]
pub struct ForwardPriorityLayer {
    default: Option<Priority>,
    header: HeaderName,
}

impl Default for ForwardPriorityLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl ForwardPriorityLayer {
    /// Makes a layer that tells the priority that the task carries, and nothing if the task carries none.
    #[must_use]
    pub const fn new() -> Self {
        Self { default: None, header: HEADER }
    }

    /// Chooses the priority to tell if the task carries none and the request names none.
    #[must_use]
    pub fn by_default(self, priority: impl Into<Priority>) -> Self {
        Self { default: Some(priority.into()), ..self }
    }

    /// Chooses the header that the next service reads; the default is `x-tidegate-priority`.
    ///
    /// # Examples
    /// ```
    /// use http::HeaderName;
    /// use tidegate_tower::ForwardPriorityLayer;
    ///
    /// let layer = ForwardPriorityLayer::new().in_header(HeaderName::from_static("x-request-priority"));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn in_header(self, name: HeaderName) -> Self {
        Self { header: name, ..self }
    }
}

impl<S> Layer<S> for ForwardPriorityLayer {
    type Service = ForwardPriorityService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ForwardPriorityService { inner, layer: self.clone() }
    }
}

/// A client that tells the next service its priorities: see [`ForwardPriorityLayer`].
#[derive(Clone, Debug)]
pub struct ForwardPriorityService<S> {
    inner: S,
    layer: ForwardPriorityLayer,
}

impl<S, B> Service<Request<B>> for ForwardPriorityService<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let ForwardPriorityLayer { default, header } = &self.layer;
        let headers = request.headers_mut();
        let named = priority_of(headers, header);
        let priority = match (named, priority::carried()) {
            (Some(named), Some(carried)) => Some(named.min(carried)),
            (one, other) => one.or(other).or(*default),
        };
        match priority {
            Some(priority) => write(headers, header, priority),
            None => drop(headers.remove(header)),
        }
        self.inner.call(request)
    }
}
