//! Deadline layer of a server: reads the time from a request, and carries it through the task.

use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use tidegate::QuotaError;
use tidegate::deadline::{self, Timeouts};
use tidegate::observer::RefusalCause;
use tower_layer::Layer;
use tower_service::Service;

use super::future::{DeadlineFuture, Until};
use super::header::read;
use super::rules::{DeadlineRules, knobs};
use crate::answers::{Answers, Problems};
use crate::body::{AtBodyEnd, AtHead, BoundsUntil};
use crate::ready::give_back;

/// Gives each request the time that its caller allows it, for a server: see [`Timeouts`].
///
/// The time is the least of all values of `grpc-timeout` and Envoy's `x-envoy-expected-rq-timeout-ms`, or a [header of your
/// choice](Self::in_header) in its place. A value that cannot be read counts as absent; without any value the default holds. The ceiling bounds the time that a stranger may ask for.
/// If the task already carries a deadline, from a layer outside, the earlier one holds.
/// Within the service the deadline is [carried](tidegate::deadline::carried). If it passes before there is an answer,
/// the service's future is dropped and the request is refused. If the service had at least half of the default time,
/// that counts as its failure for the limits and breakers inside; with less time the caller was impatient, and the
/// request does not count. A request with too little time is refused before the service is called.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tidegate::deadline::Timeouts;
/// use tidegate_tower::DeadlineLayer;
///
/// // Two seconds by default, 30 at most; the work takes at least 20 ms.
/// let timeouts = Timeouts::new(Duration::from_secs(2), Duration::from_secs(30))?;
/// let app: Router = Router::new()
///     .route("/", get(async || format!("{:?}", tidegate::deadline::carried())))
///     .layer(DeadlineLayer::new(timeouts).needing(Duration::from_millis(20))?);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeadlineLayer<A = Problems, U = AtHead> {
    rules: Arc<DeadlineRules<A>>,
    until: PhantomData<U>,
}

impl DeadlineLayer {
    /// Makes a layer that gives each request its time by these rules.
    #[must_use]
    pub fn new(timeouts: Timeouts) -> Self {
        Self { rules: Arc::new(DeadlineRules::new(timeouts, Problems)), until: PhantomData }
    }

    /// Same as [`DeadlineLayer::new`], with a default and a ceiling, and no margin for the network.
    ///
    /// # Errors
    /// The same as [`Timeouts::new`].
    pub fn within(default: Duration, ceiling: Duration) -> Result<Self, QuotaError> {
        Timeouts::new(default, ceiling).map(Self::new)
    }
}

impl<A> DeadlineLayer<A> {
    /// Bounds the body of an answer too: at the deadline of its request the body ends with an error, a
    /// [`Refused`](crate::Refused). By default the deadline bounds the head only, and a body goes on for as long as it
    /// likes. The service then answers with a [`TimedBody`](crate::body::TimedBody), which also carries the deadline while it is
    /// polled. A server breaks off the connection (HTTP/1.1) or the stream (HTTP/2), so that the caller can tell a body
    /// that was cut off from a whole one.
    ///
    /// Costs two reference counts for each answer, a reading of the clock for each frame, and a timer if a frame has to
    /// be waited for.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use axum::{Router, body::Body, routing::get};
    /// use tidegate_tower::DeadlineLayer;
    ///
    /// let whole = DeadlineLayer::within(Duration::from_secs(10), Duration::from_secs(60))?.until_body_ends();
    /// let app: Router = Router::new().route("/", get(async || Body::from("the report"))).layer(whole);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn until_body_ends(self) -> DeadlineLayer<A, AtBodyEnd> {
        DeadlineLayer { rules: self.rules, until: PhantomData }
    }
}

knobs!(DeadlineLayer);

impl<S, A, U> Layer<S> for DeadlineLayer<A, U> {
    type Service = DeadlineService<S, A, U>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadlineService { inner, rules: Arc::clone(&self.rules), until: PhantomData }
    }
}

/// A service whose requests have deadlines: see [`DeadlineLayer`].
#[derive(Debug)]
pub struct DeadlineService<S, A = Problems, U = AtHead> {
    inner: S,
    rules: Arc<DeadlineRules<A>>,
    until: PhantomData<U>,
}

impl<S: Clone, A, U> Clone for DeadlineService<S, A, U> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rules: Arc::clone(&self.rules), until: PhantomData }
    }
}

impl<S, A, B, U> Service<Request<B>> for DeadlineService<S, A, U>
where
    S: Service<Request<B>, Error: 'static> + Clone,
    A: Answers<S::Response, S::Error>,
    U: BoundsUntil<S::Response>,
{
    type Response = U::Response;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future, S::Response, S::Error, A, U>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.rules;
        let now = rules.clock.now();
        let sent = read(request.headers(), &rules.header);
        let deadline = rules.timeouts.deadline(now, sent);
        // A layer outside may have given the request less time, which neither a header nor a default lengthens.
        let deadline = deadline::carried().map_or(deadline, |carried| carried.at(&rules.clock).min(deadline));
        if !rules.timeouts.leaves(now, deadline, rules.needs) {
            give_back(&mut self.inner);
            return DeadlineFuture::refused(rules.refuse(RefusalCause::NoTimeLeft));
        }
        // The call itself carries the deadline too: a service may do much of its work there.
        let future = deadline::carry(deadline, || self.inner.call(request));
        DeadlineFuture::until(
            future,
            Until { tick: deadline, began: now, is_carried: true, always_failure: false },
            Arc::clone(rules),
            None,
        )
    }
}
