//! Puts all layers around a server or a client in the right order. Around a client is its border, which tells the refusals
//! of its layers from those of a server's own layers.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tower_layer::{Identity, Layer};
use tower_service::Service;

use crate::call_notes::inside_client;
use crate::concurrency::{Alike, ConcurrencyLayer};
use crate::deadline::{BoundsCalls, DeadlineLayer};
use crate::guarded::EachKey;
use crate::layered::Layered;

/// The time of a request whose caller does not say how long it waits: after ten seconds people have turned to something
/// else.
const USUAL_TIME: Duration = Duration::from_secs(10);

/// The longest time that a caller may ask for: proxies give up after a minute unless told otherwise.
const LONGEST_TIME: Duration = Duration::from_secs(60);

/// The layers around a server, put in the right order whatever order they are named in:
///
/// 1. the priority, which all following layers use;
/// 2. the fallback, which sees the refusals of all other layers;
/// 3. the count of retries, which tells callers of overloaded answers not to retry while there are too many;
/// 4. the deadline, so that time spent in a queue counts;
/// 5. the rate limit, before the queue: a caller that asks too often takes no place in it. The charge of a request
///    that the queue refuses is given back;
/// 6. the concurrency limit, last: a request that holds a place is being worked on.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tidegate::{Limiter, Quota};
/// use tidegate_tower::{DeadlineLayer, RateLimitLayer, ServerStack};
///
/// let stack = ServerStack::self_tuning("pages")
///     .rate_limit(RateLimitLayer::all("all", Limiter::new(Quota::per_second(1000))?))
///     .deadline(DeadlineLayer::within(Duration::from_secs(2), Duration::from_secs(30))?);
/// let app: Router = Router::new().route("/", get(async || "the page")).layer(stack);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerStack<F = Identity, D = Identity, R = Identity, C = Identity, T = Identity, P = Identity> {
    priority: P,
    fallback: F,
    retries: T,
    deadline: D,
    rate_limit: R,
    concurrency: C,
}

impl ServerStack {
    /// Makes a stack without layers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a stack that protects any server from overload: an adaptive concurrency limit with a short queue, and
    /// shedding before it ([`ConcurrencyLayer::self_tuning`]), inside a [`DeadlineLayer`] that gives a request ten seconds
    /// unless its caller says otherwise, and a minute at most. `name` is told to callers. [`ServerStack::concurrency`] and
    /// [`ServerStack::deadline`] replace the parts.
    ///
    /// Where requests wait for different dependencies, add [`ServerStack::by_dependency`].
    #[must_use]
    pub fn self_tuning(name: &str) -> ServerStack<Identity, DeadlineLayer, Identity, ConcurrencyLayer> {
        let deadline =
            DeadlineLayer::within(USUAL_TIME, LONGEST_TIME).expect("ten seconds are within a minute");
        Self::new().deadline(deadline).concurrency(ConcurrencyLayer::self_tuning(name))
    }
}

impl<F, D, R, T, P> ServerStack<F, D, R, ConcurrencyLayer, T, P> {
    /// Divides the places among the dependencies that requests wait for, so that one that hangs does not take all:
    /// [`ConcurrencyLayer::by_dependency`].
    ///
    /// # Examples
    /// ```
    /// use axum::{Router, extract::Request, routing::get};
    /// use tidegate_tower::ServerStack;
    ///
    /// let dependency = |request: &Request| if request.uri().path() == "/search" { "index" } else { "database" };
    /// let stack = ServerStack::self_tuning("pages").by_dependency(dependency);
    /// let app: Router = Router::new().route("/", get(async || "the page")).layer(stack);
    /// ```
    #[must_use]
    pub fn by_dependency<K>(self, key: K) -> ServerStack<F, D, R, ConcurrencyLayer<EachKey<Alike, K>>, T, P> {
        let Self { priority, fallback, retries, deadline, rate_limit, concurrency } = self;
        let concurrency = concurrency.by_dependency(key);
        ServerStack { priority, fallback, retries, deadline, rate_limit, concurrency }
    }
}

impl<F, D, R, C, T, P> ServerStack<F, D, R, C, T, P> {
    /// Sets the priority: a [`PriorityLayer`](crate::PriorityLayer).
    #[must_use]
    pub fn priority<L>(self, priority: L) -> ServerStack<F, D, R, C, T, L> {
        let Self { fallback, retries, deadline, rate_limit, concurrency, .. } = self;
        ServerStack { priority, fallback, retries, deadline, rate_limit, concurrency }
    }

    /// Sets the fallback.
    #[must_use]
    pub fn fallback<L>(self, fallback: L) -> ServerStack<L, D, R, C, T, P> {
        let Self { priority, retries, deadline, rate_limit, concurrency, .. } = self;
        ServerStack { priority, fallback, retries, deadline, rate_limit, concurrency }
    }

    /// Sets the count of retries: an [`ArrivingRetriesLayer`](crate::ArrivingRetriesLayer).
    #[must_use]
    pub fn retries<L>(self, retries: L) -> ServerStack<F, D, R, C, L, P> {
        let Self { priority, fallback, deadline, rate_limit, concurrency, .. } = self;
        ServerStack { priority, fallback, retries, deadline, rate_limit, concurrency }
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline<L>(self, deadline: L) -> ServerStack<F, L, R, C, T, P> {
        let Self { priority, fallback, retries, rate_limit, concurrency, .. } = self;
        ServerStack { priority, fallback, retries, deadline, rate_limit, concurrency }
    }

    /// Sets the rate limit, or a [`GateLayer`](crate::GateLayer) in its place.
    #[must_use]
    pub fn rate_limit<L>(self, rate_limit: L) -> ServerStack<F, D, L, C, T, P> {
        let Self { priority, fallback, retries, deadline, concurrency, .. } = self;
        ServerStack { priority, fallback, retries, deadline, rate_limit, concurrency }
    }

    /// Sets the concurrency limit.
    #[must_use]
    pub fn concurrency<L>(self, concurrency: L) -> ServerStack<F, D, R, L, T, P> {
        let Self { priority, fallback, retries, deadline, rate_limit, .. } = self;
        ServerStack { priority, fallback, retries, deadline, rate_limit, concurrency }
    }
}

impl<S, F, D, R, C, T, P> Layer<S> for ServerStack<F, D, R, C, T, P>
where
    C: Layer<S>,
    R: Layer<C::Service>,
    D: Layer<R::Service>,
    T: Layer<D::Service>,
    F: Layer<T::Service>,
    P: Layer<F::Service>,
{
    type Service = P::Service;

    fn layer(&self, inner: S) -> Self::Service {
        let limited = self.rate_limit.layer(self.concurrency.layer(inner));
        let answered = self.fallback.layer(self.retries.layer(self.deadline.layer(limited)));
        self.priority.layer(answered)
    }
}

/// The layers around a client, put in the right order whatever order they are named in:
///
/// 1. the fallback, after the last try;
/// 2. the priority, told once for all tries;
/// 3. the bound of the whole call, which comes with the deadline: its ceiling bounds waits for a turn, tries, and waits
///    between tries together;
/// 4. retries, so that each try passes all following layers;
/// 5. the circuit breaker, which sees the outcome of each try;
/// 6. the rate limit that the called service has set: a try that waits for it is not in flight, and holds no place;
/// 7. the concurrency limit: a try that holds a place is in flight, so an adaptive limit measures the service alone;
/// 8. the deadline, last: the service is told the time left when the call is sent.
///
/// Around all is a [`ClientLayer`], so that the limits of a server which calls this client know its refusals from those
/// of the server's own layers.
///
/// The rate limit comes before the places. A try that finds no place afterwards gives its unit back, unless the limit
/// [keeps charges](crate::RateLimitLayer::keeping_charges).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use axum::http::{Request, Response};
/// use tidegate::Breaker;
/// use tidegate::breaker::CircuitBreaker;
/// use tidegate::deadline::Timeouts;
/// use tidegate::retries::Retrier;
/// use tidegate_tower::{BreakerLayer, ClientStack, Errors, ForwardDeadlineLayer, RetryLayer};
/// use tower::{BoxError, Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let http = service_fn(|_: Request<String>| async { Ok::<_, BoxError>(Response::new("in stock".to_owned())) });
/// let stock = ClientStack::new()
///     .retry(RetryLayer::new(Retrier::default()))
///     .breaker(BreakerLayer::new("stock", Breaker::new(CircuitBreaker::builder())?).answering(Errors))
///     .deadline(ForwardDeadlineLayer::new(Timeouts::new(Duration::from_secs(1), Duration::from_secs(10))?))
///     .layer(http);
/// let answer = stock.oneshot(Request::get("/items").body(String::new())?).await?;
/// assert_eq!(answer.into_body(), "in stock");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientStack<
    F = Identity,
    T = Identity,
    B = Identity,
    C = Identity,
    R = Identity,
    D = Identity,
    P = Identity,
> {
    fallback: F,
    priority: P,
    retry: T,
    breaker: B,
    concurrency: C,
    rate_limit: R,
    deadline: D,
}

impl ClientStack {
    /// Makes a stack without layers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<F, T, B, C, R, D, P> ClientStack<F, T, B, C, R, D, P> {
    /// Sets the fallback.
    #[must_use]
    pub fn fallback<L>(self, fallback: L) -> ClientStack<L, T, B, C, R, D, P> {
        let Self { priority, retry, breaker, concurrency, rate_limit, deadline, .. } = self;
        ClientStack { fallback, priority, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the priority: a [`ForwardPriorityLayer`](crate::ForwardPriorityLayer).
    #[must_use]
    pub fn priority<L>(self, priority: L) -> ClientStack<F, T, B, C, R, D, L> {
        let Self { fallback, retry, breaker, concurrency, rate_limit, deadline, .. } = self;
        ClientStack { fallback, priority, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the retries.
    #[must_use]
    pub fn retry<L>(self, retry: L) -> ClientStack<F, L, B, C, R, D, P> {
        let Self { fallback, priority, breaker, concurrency, rate_limit, deadline, .. } = self;
        ClientStack { fallback, priority, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the circuit breaker.
    #[must_use]
    pub fn breaker<L>(self, breaker: L) -> ClientStack<F, T, L, C, R, D, P> {
        let Self { fallback, priority, retry, concurrency, rate_limit, deadline, .. } = self;
        ClientStack { fallback, priority, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the concurrency limit.
    #[must_use]
    pub fn concurrency<L>(self, concurrency: L) -> ClientStack<F, T, B, L, R, D, P> {
        let Self { fallback, priority, retry, breaker, rate_limit, deadline, .. } = self;
        ClientStack { fallback, priority, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the rate limit.
    #[must_use]
    pub fn rate_limit<L>(self, rate_limit: L) -> ClientStack<F, T, B, C, L, D, P> {
        let Self { fallback, priority, retry, breaker, concurrency, deadline, .. } = self;
        ClientStack { fallback, priority, retry, breaker, concurrency, rate_limit, deadline }
    }

    /// Sets the deadline: a [`ForwardDeadlineLayer`](crate::ForwardDeadlineLayer), which is put innermost and bounds each
    /// try. Its ceiling also bounds the whole call: see [`WholeCallLayer`](crate::parameter::WholeCallLayer).
    #[must_use]
    pub fn deadline<L: BoundsCalls>(self, deadline: L) -> ClientStack<F, T, B, C, R, L, P> {
        let Self { fallback, priority, retry, breaker, concurrency, rate_limit, .. } = self;
        ClientStack { fallback, priority, retry, breaker, concurrency, rate_limit, deadline }
    }
}

impl<S, F, T, B, C, R, D, P> Layer<S> for ClientStack<F, T, B, C, R, D, P>
where
    D: Layer<S> + BoundsCalls<WholeCall: Layer<T::Service>>,
    C: Layer<D::Service>,
    R: Layer<C::Service>,
    B: Layer<R::Service>,
    T: Layer<B::Service>,
    P: Layer<<D::WholeCall as Layer<T::Service>>::Service>,
    F: Layer<P::Service>,
{
    type Service = Layered<F::Service, ClientLayer>;

    fn layer(&self, inner: S) -> Self::Service {
        let called = self.concurrency.layer(self.deadline.layer(inner));
        let tried = self.breaker.layer(self.rate_limit.layer(called));
        let whole = self.deadline.whole_call().layer(self.retry.layer(tried));
        ClientLayer.layer(self.fallback.layer(self.priority.layer(whole)))
    }
}

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
///     .layer(ClientLayer)
///     .layer(BreakerLayer::new("stock", Breaker::new(CircuitBreaker::builder())?).answering(Errors))
///     .service(service_fn(async |_: Request<String>| Ok::<_, BoxError>(Response::new("in stock"))));
/// # let _ = stock;
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientLayer;

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
