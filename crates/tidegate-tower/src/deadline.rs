//! How much time is left: read from a request, carried through the task, and told to the next service.

mod future;
mod rules;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tidegate::QuotaError;
use tidegate::clock::{Clock, SystemClock};
use tidegate::deadline::header::{
    ENVOY_TIMEOUT, GRPC_TIMEOUT, read_grpc_timeout, read_millis, write_grpc_timeout,
};
use tidegate::deadline::{self, Timeouts};
use tidegate::observer::{Observer, RefusalCause};
use tower_layer::Layer;
use tower_service::Service;

pub use self::future::DeadlineFuture;
use self::future::Until;
use self::rules::Rules;
use crate::answers::{Answers, Problems};
use crate::given_up::{hurried, is_hurried};
use crate::name::Name;
use crate::ready::give_back;

const GRPC: HeaderName = HeaderName::from_static(GRPC_TIMEOUT);
const ENVOY: HeaderName = HeaderName::from_static(ENVOY_TIMEOUT);

/// Gives each request the time that its caller allows it, for a server: see [`Timeouts`].
///
/// The time is read from `grpc-timeout` and from Envoy's `x-envoy-expected-rq-timeout-ms`, the lesser of both; a value that cannot be read counts as none, and
/// the default holds, as it does for whoever sends none. What strangers ask for is bounded by the ceiling. Within the service the deadline is
/// [carried](tidegate::deadline::carried). When it has come and there is no answer, the service's future is dropped and the request is
/// refused; a request that has too little time is refused before it is begun.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tidegate::deadline::Timeouts;
/// use tidegate_tower::DeadlineLayer;
///
/// // Two seconds unless the caller says otherwise, 30 at most; the work takes 20 ms at least.
/// let timeouts = Timeouts::new(Duration::from_secs(2), Duration::from_secs(30))?;
/// let app: Router = Router::new()
///     .route("/", get(async || format!("{:?}", tidegate::deadline::carried())))
///     .layer(DeadlineLayer::new(timeouts).needing(Duration::from_millis(20)));
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeadlineLayer<A = Problems> {
    rules: Arc<Rules<A>>,
}

impl DeadlineLayer {
    /// Gives each request its time by these rules.
    #[must_use]
    pub fn new(timeouts: Timeouts) -> Self {
        let clock = Arc::new(SystemClock::new());
        Self {
            rules: Arc::new(Rules {
                name: Name::new("deadline"),
                timeouts,
                needs: Duration::ZERO,
                clock,
                answers: Problems,
            }),
        }
    }

    /// As [`DeadlineLayer::new`], with a default and a ceiling, and no time kept back for the way.
    ///
    /// # Errors
    /// As [`Timeouts::new`].
    pub fn within(default: Duration, ceiling: Duration) -> Result<Self, QuotaError> {
        Timeouts::new(default, ceiling).map(Self::new)
    }
}

impl<A: Clone> DeadlineLayer<A> {
    /// Refuses requests that have less time left than the work takes at least; zero unless set.
    #[must_use]
    pub fn needing(self, least: Duration) -> Self {
        let rules = Arc::unwrap_or_clone(self.rules);
        Self { rules: Arc::new(Rules { needs: least, ..rules }) }
    }

    /// Sets the clock; the [`SystemClock`] unless set.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        let rules = Arc::unwrap_or_clone(self.rules);
        Self { rules: Arc::new(Rules { clock: Arc::new(clock), ..rules }) }
    }

    /// Chooses how refusals are told; [`Problems`] unless chosen.
    #[must_use]
    pub fn answering<B>(self, answers: B) -> DeadlineLayer<B> {
        DeadlineLayer { rules: Arc::new(Arc::unwrap_or_clone(self.rules).answering(answers)) }
    }

    /// Chooses the name that refusals and observers are told; `deadline` unless chosen.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let rules = Arc::unwrap_or_clone(self.rules);
        Self { rules: Arc::new(Rules { name: rules.name.renamed(name), ..rules }) }
    }

    /// Tells `observer` of refusals ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        let rules = Arc::unwrap_or_clone(self.rules);
        Self { rules: Arc::new(Rules { name: rules.name.observed(observer), ..rules }) }
    }
}

impl<S, A> Layer<S> for DeadlineLayer<A> {
    type Service = DeadlineService<S, A>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadlineService { inner, rules: Arc::clone(&self.rules) }
    }
}

/// A service whose requests have deadlines: see [`DeadlineLayer`].
#[derive(Debug)]
pub struct DeadlineService<S, A = Problems> {
    inner: S,
    rules: Arc<Rules<A>>,
}

impl<S: Clone, A> Clone for DeadlineService<S, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rules: Arc::clone(&self.rules) }
    }
}

impl<S, A, B> Service<Request<B>> for DeadlineService<S, A>
where
    S: Service<Request<B>> + Clone,
    A: Answers<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future, S::Response, S::Error, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.rules;
        let now = rules.clock.now();
        let asked = asked(request.headers());
        let deadline = rules.timeouts.deadline(now, asked);
        if !rules.timeouts.leaves(now, deadline, rules.needs) {
            give_back(&mut self.inner);
            return DeadlineFuture::refused(rules.refuse(RefusalCause::NoTimeLeft));
        }
        let is_ours = asked.is_none_or(|asked| asked >= rules.timeouts.default_time());
        // A service may do much of its work in the call itself.
        let future = deadline::carry(deadline, || hurried(!is_ours, || self.inner.call(request)));
        DeadlineFuture::until(future, Until { tick: deadline, is_carried: true, is_ours }, Arc::clone(rules))
    }
}

/// Tells the next service how much time is left, for a client: what the task [carries](tidegate::deadline::carried), less the margin of
/// [`Timeouts`]; without a deadline the default.
///
/// gRPC requests are told by `grpc-timeout`, others by `x-envoy-expected-rq-timeout-ms`; a shorter time that the request names already stays.
/// A call for which nothing is left is not made, and one that has no answer in time is given up.
#[derive(Clone, Debug)]
pub struct ForwardDeadlineLayer<A = crate::Errors> {
    rules: Arc<Rules<A>>,
}

impl ForwardDeadlineLayer {
    /// Tells the next service of the time that these rules leave it.
    #[must_use]
    pub fn new(timeouts: Timeouts) -> Self {
        let clock = Arc::new(SystemClock::new());
        Self {
            rules: Arc::new(Rules {
                name: Name::new("deadline"),
                timeouts,
                needs: Duration::ZERO,
                clock,
                answers: crate::Errors,
            }),
        }
    }
}

impl<A: Clone> ForwardDeadlineLayer<A> {
    /// Makes no call that has less time left than it takes at least; zero unless set.
    #[must_use]
    pub fn needing(self, least: Duration) -> Self {
        let rules = Arc::unwrap_or_clone(self.rules);
        Self { rules: Arc::new(Rules { needs: least, ..rules }) }
    }

    /// Sets the clock; the [`SystemClock`] unless set.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        let rules = Arc::unwrap_or_clone(self.rules);
        Self { rules: Arc::new(Rules { clock: Arc::new(clock), ..rules }) }
    }

    /// Chooses how refusals are told; as [`Errors`](crate::Errors) unless chosen.
    #[must_use]
    pub fn answering<B>(self, answers: B) -> ForwardDeadlineLayer<B> {
        ForwardDeadlineLayer { rules: Arc::new(Arc::unwrap_or_clone(self.rules).answering(answers)) }
    }

    /// Chooses the name that refusals and observers are told; `deadline` unless chosen.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let rules = Arc::unwrap_or_clone(self.rules);
        Self { rules: Arc::new(Rules { name: rules.name.renamed(name), ..rules }) }
    }

    /// Tells `observer` of refusals ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        let rules = Arc::unwrap_or_clone(self.rules);
        Self { rules: Arc::new(Rules { name: rules.name.observed(observer), ..rules }) }
    }
}

impl<S, A> Layer<S> for ForwardDeadlineLayer<A> {
    type Service = ForwardDeadlineService<S, A>;

    fn layer(&self, inner: S) -> Self::Service {
        ForwardDeadlineService { inner, rules: Arc::clone(&self.rules) }
    }
}

/// A client that tells of deadlines: see [`ForwardDeadlineLayer`].
#[derive(Debug)]
pub struct ForwardDeadlineService<S, A = crate::Errors> {
    inner: S,
    rules: Arc<Rules<A>>,
}

impl<S: Clone, A> Clone for ForwardDeadlineService<S, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rules: Arc::clone(&self.rules) }
    }
}

impl<S, A, B> Service<Request<B>> for ForwardDeadlineService<S, A>
where
    S: Service<Request<B>> + Clone,
    A: Answers<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future, S::Response, S::Error, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Rules { timeouts, needs, clock, .. } = &*self.rules;
        let now = clock.now();
        let carried =
            deadline::carried().map_or_else(|| timeouts.deadline(now, None), |carried| carried.at(clock));
        let own = asked(request.headers());
        let until = timeouts.for_step(now, carried, own).map_or(now, |left| now.after(left));
        let told = timeouts.for_next_hop(now, until).filter(|_| timeouts.leaves(now, until, *needs));
        let Some(told) = told else {
            give_back(&mut self.inner);
            return DeadlineFuture::refused(self.rules.refuse(RefusalCause::NoTimeLeft));
        };
        if !tell(request.headers_mut(), told) {
            give_back(&mut self.inner);
            return DeadlineFuture::refused(self.rules.refuse(RefusalCause::NoTimeLeft));
        }
        let until = Until { tick: until, is_carried: false, is_ours: !(is_hurried() && until == carried) };
        DeadlineFuture::until(self.inner.call(request), until, Arc::clone(&self.rules))
    }
}

/// Reads how much time a request's caller gives it: the lesser of what both headers say, since a proxy may wait for less time than its client. Of
/// several values of a header the first counts.
fn asked(headers: &HeaderMap) -> Option<Duration> {
    let grpc = headers.get(GRPC).and_then(|value| read_grpc_timeout(value.as_bytes()));
    let envoy = headers.get(ENVOY).and_then(|value| read_millis(value.as_bytes()));
    grpc.into_iter().chain(envoy).min()
}

/// Writes how much time is left; says no where that is none in the header's unit.
fn tell(headers: &mut HeaderMap, left: Duration) -> bool {
    let is_grpc =
        headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if is_grpc {
        let value = HeaderValue::try_from(write_grpc_timeout(left));
        headers.insert(GRPC, value.expect("digits and a letter are a header's value"));
        return true;
    }
    let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    headers.insert(ENVOY, HeaderValue::from(millis));
    millis > 0
}
