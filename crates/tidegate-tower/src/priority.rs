//! Priority layers: read a request's priority, carry it through the task, and tell it to the next service.

use std::task::{Context, Poll};

use http::Request;
use http::header::{AsHeaderName, HeaderMap, HeaderName, HeaderValue};
use tower_layer::Layer;
use tower_service::Service;

use crate::layered::Layered;
use tidegate::priority::header::{TIDEGATE_PRIORITY, read_priority};
use tidegate::priority::{self, Carrying, Priority};

const HEADER: HeaderName = HeaderName::from_static(TIDEGATE_PRIORITY);

/// Reads a priority from a header, written as `sheddable` or `sheddable/17`. Of several values, in lines of their own or
/// separated by commas, the lowest that can be read counts, since a proxy in front may have added its own to a stranger's.
/// `None` if none can be read.
///
/// Do not use it on headers that strangers send: a caller that may choose its own priority is refused last.
/// [`PriorityLayer`](crate::PriorityLayer) has a ceiling for them.
///
/// # Examples
/// ```
/// use http::Request;
/// use tidegate::Bulkhead;
/// use tidegate::bulkhead::Enter;
/// use tidegate_tower::ConcurrencyLayer;
/// use tidegate_tower::parameter::priority_of;
///
/// let entering = |entry: Enter, request: &Request<String>| {
///     // Set by our own gateway, which removes the header from strangers' requests.
///     entry.priority(priority_of(request.headers(), "x-priority").unwrap_or_default())
/// };
/// let layer = ConcurrencyLayer::new("pages", Bulkhead::new(64)?).entering(entering);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[must_use]
pub fn priority_of(headers: &HeaderMap, name: impl AsHeaderName) -> Option<Priority> {
    let lines = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .filter_map(|value| read_priority(value.trim_ascii()))
        .min()
}

/// Replaces a header by a priority, unless it says just that.
fn write(headers: &mut HeaderMap, name: &HeaderName, priority: Priority) {
    let mut lines = headers.get_all(name).into_iter();
    let is_said = lines.next().is_some_and(|line| read_priority(line.as_bytes()) == Some(priority));
    if !is_said || lines.next().is_some() {
        let value = match priority.cohort() {
            0 => HeaderValue::from_static(priority.level().as_str()),
            _ => HeaderValue::try_from(priority.to_string()).expect("words and digits are a header's value"),
        };
        headers.insert(name, value);
    }
}

/// Gives each request the priority that its caller names, up to a ceiling, for a server.
///
/// The priority is read from `x-tidegate-priority`, or a [header of your choice](Self::in_header), by
/// [`priority_of`](crate::parameter::priority_of). A request without a value that can be read has the priority that the task
/// already carries, from a layer outside, or else the default. No request has more than the ceiling. Within the service
/// the priority is [carried](tidegate::priority::carried), so that bulkheads, gates and clients use it. A header that says
/// something else is overwritten with it.
///
/// **Strangers** must not raise their own priority. At the edge let the ceiling equal the default, as in
/// [`PriorityLayer::default`], and raise it for authenticated requests ([`PriorityLayer::ceiling_of`]). Behind a gateway
/// that sets or removes the header itself, all four levels can be trusted.
///
/// **Cohorts.** A ceiling can also put each request into the cohort of its user ([`Priority::for_user`]), so that under
/// overload some users are served well.
///
/// Never refuses. Costs a look-up of a header; allocates only if a header has to be set to a priority with a cohort.
///
/// # Examples
/// ```
/// use axum::{Router, extract::Request, routing::get};
/// use tidegate::priority::{Criticality, Priority};
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
    /// Gives each request [`Criticality::Critical`](tidegate::priority::Criticality::Critical), or less if it names less.
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
    /// Chooses the ceiling of each request, by what an outer layer has found out about it, such as the signed-in user.
    #[must_use]
    pub fn ceiling_of<F>(self, ceiling: F) -> PriorityLayer<F> {
        PriorityLayer { default: self.default, ceiling, header: self.header }
    }

    /// Chooses the header in which callers name their priority; the default is `x-tidegate-priority`. If a
    /// [`GateLayer`](crate::GateLayer) inside lowers a priority, it [writes it
    /// there](crate::GateLayer::telling_priority_in) if it is told the same name.
    #[must_use]
    pub fn in_header(self, name: HeaderName) -> Self {
        Self { header: name, ..self }
    }
}

impl<S, C: Clone> Layer<S> for PriorityLayer<C> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, B, C> Service<Request<B>> for Layered<S, PriorityLayer<C>>
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

/// Tells the next service how much a request matters, for a client: the priority that the task
/// [carries](tidegate::priority::carried), in `x-tidegate-priority` or a [header of your choice](Self::in_header). In
/// gRPC this is metadata of the same name.
///
/// A lower priority that the request already names stays. A higher one is lowered to the carried one, since it may have
/// come from a stranger. To raise a priority on purpose, carry it when the client is called:
/// `priority::carry(Criticality::CriticalPlus, || client.call(request))`. If the task carries none, the priority that
/// the request names stays, and a request that names none gets the [default](Self::by_default) of this layer, if it has
/// one. The header is read by [`priority_of`](crate::parameter::priority_of). One that cannot be read is not sent on.
///
/// Never refuses. Costs a look-up of a header and its insertion; an allocation if the priority has a cohort.
///
/// # Examples
/// ```
/// use tidegate::priority::Criticality;
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
    #[must_use]
    pub fn in_header(self, name: HeaderName) -> Self {
        Self { header: name, ..self }
    }
}

impl<S> Layer<S> for ForwardPriorityLayer {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, B> Service<Request<B>> for Layered<S, ForwardPriorityLayer>
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
