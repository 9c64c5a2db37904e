//! Priority layer of a server: reads the priority from a request, and carries it through the task.

use std::task::{Context, Poll};

use http::{HeaderName, Request};
use tidegate::Priority;
use tidegate::priority::{self, Carrying};
use tower_layer::Layer;
use tower_service::Service;

use super::header::{HEADER, priority_of, write};

/// Gives each request the priority that its caller names, up to a ceiling, for a server.
///
/// The priority is read from `x-tidegate-priority`, or a [header of your choice](Self::in_header), written as
/// `sheddable` or `sheddable/17`. [`ForwardPriorityLayer`](crate::ForwardPriorityLayer), a
/// [`GateLayer`](crate::GateLayer) that demotes, and a Tidegate server in its answers write it. Of several values the
/// lowest counts ([`priority_of`](crate::parameter::priority_of)). A request without a value that can be read has the priority that
/// the task already carries, from a layer outside, or else the default. No request has more than the ceiling; any caller may name less. Within the service the priority is [carried](tidegate::priority::carried), so that bulkheads, gates
/// and clients use it. A header that says something else is overwritten with it.
///
/// **Strangers** must not raise their own priority, because requests with the highest are refused last. At the edge let
/// the ceiling equal the default, as in [`PriorityLayer::default`], and raise it for authenticated requests
/// ([`PriorityLayer::ceiling_of`]). Behind a gateway that sets or removes the header itself, all four levels can be
/// trusted.
///
/// **Cohorts.** At the edge, a ceiling can also put each request into the cohort of its user ([`Priority::for_user`]), so
/// that under overload some users are served well: the page about layers has the program.
///
/// Never refuses. Costs a look-up of a header; allocates only if a header has to be set to a priority with a cohort.
///
/// # Examples
/// ```
/// use axum::{Router, extract::Request, routing::get};
/// use tidegate::{Criticality, Priority};
/// use tidegate_tower::PriorityLayer;
///
/// // Behind our own gateway: critical by default, and any level that the caller names.
/// let inside = PriorityLayer::new(Criticality::Critical, Criticality::CriticalPlus);
///
/// // At the edge: only signed-in users, as found out by an outer layer, may name more than critical.
/// #[derive(Clone)]
/// struct SignedIn;
/// let ceiling = |request: &Request| match request.extensions().get::<SignedIn>() {
///     Some(SignedIn) => Priority::of(Criticality::CriticalPlus),
///     None => Priority::of(Criticality::Critical),
/// };
/// let edge = PriorityLayer::default().ceiling_of(ceiling);
/// let app: Router = Router::new()
///     .route("/", get(async || format!("{:?}", tidegate::priority::carried())))
///     .layer(edge);
/// # let _ = inside;
/// ```
#[derive(Clone, Debug)]
pub struct PriorityLayer<C = Priority> {
    default: Priority,
    ceiling: C,
    header: HeaderName,
}

/// The highest priority that a request may name. A [`Priority`] is the same ceiling for all requests; functions of the
/// request that return one are ceilings too.
pub trait Ceiling<Req> {
    /// Returns the highest priority that the request may have.
    fn ceiling(&self, request: &Req) -> Priority;
}

impl<Req> Ceiling<Req> for Priority {
    fn ceiling(&self, _: &Req) -> Priority {
        *self
    }
}

impl<Req, F: Fn(&Req) -> Priority> Ceiling<Req> for F {
    fn ceiling(&self, request: &Req) -> Priority {
        self(request)
    }
}

impl Default for PriorityLayer {
    /// Gives each request [`Criticality::Critical`](tidegate::Criticality::Critical), or less if it names less.
    fn default() -> Self {
        Self::new(Priority::default(), Priority::default())
    }
}

impl PriorityLayer {
    /// Gives each request the priority that it names; the one that the task carries if it names none; `default` if there
    /// is neither. It is never above `ceiling`.
    #[must_use]
    pub fn new(default: impl Into<Priority>, ceiling: impl Into<Priority>) -> Self {
        Self { default: default.into(), ceiling: ceiling.into(), header: HEADER }
    }
}

impl<C> PriorityLayer<C> {
    /// Chooses the ceiling per request, by what an outer layer has found out about it, such as the signed-in user.
    /// Called once per request.
    #[must_use]
    pub fn ceiling_of<F>(self, ceiling: F) -> PriorityLayer<F> {
        PriorityLayer { default: self.default, ceiling, header: self.header }
    }

    /// Chooses the header in which callers name their priority; the default is `x-tidegate-priority`. If a
    /// [`GateLayer`](crate::GateLayer) inside lowers a priority, it [writes it
    /// there](crate::GateLayer::telling_priority_in) if it is told the same name.
    ///
    /// # Examples
    /// ```
    /// use http::HeaderName;
    /// use tidegate_tower::PriorityLayer;
    ///
    /// let layer = PriorityLayer::default().in_header(HeaderName::from_static("x-request-priority"));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn in_header(self, name: HeaderName) -> Self {
        Self { header: name, ..self }
    }
}

impl<S, C: Clone> Layer<S> for PriorityLayer<C> {
    type Service = PriorityService<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        PriorityService { inner, layer: self.clone() }
    }
}

/// A service whose requests have priorities: see [`PriorityLayer`].
#[derive(Clone, Debug)]
pub struct PriorityService<S, C = Priority> {
    inner: S,
    layer: PriorityLayer<C>,
}

impl<S, B, C> Service<Request<B>> for PriorityService<S, C>
where
    S: Service<Request<B>>,
    C: Ceiling<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Carrying<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let PriorityLayer { default, ceiling, header } = &self.layer;
        let named = priority_of(request.headers(), header);
        let priority = named.or_else(priority::carried).unwrap_or(*default).min(ceiling.ceiling(&request));
        // A header with a different priority would mislead code that reads it or passes it on.
        if request.headers().contains_key(header) {
            write(request.headers_mut(), header, priority);
        }
        // The call itself carries the priority too: a service may do much of its work there.
        let future = priority::carry(priority, || self.inner.call(request));
        priority::carry_through(priority, future)
    }
}
