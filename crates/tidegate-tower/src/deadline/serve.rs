//! Deadline layer of a server: reads the time from a request, and carries it through the task.

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
use super::rules::{Rules, knobs};
use crate::answers::{Answers, Problems};
use crate::ready::give_back;

/// Gives each request the time that its caller allows it, for a server: see [`Timeouts`].
///
/// The time is the least of all values of `grpc-timeout` and Envoy's `x-envoy-expected-rq-timeout-ms`. A value that
/// cannot be read counts as absent; without any value the default holds. The ceiling bounds the time that a stranger may ask for.
/// Within the service the deadline is [carried](tidegate::deadline::carried). If it passes before there is an answer,
/// the service's future is dropped and the request is refused. If the service had at least half of the default time,
/// that counts as its failure for the limits and breakers within; with less time its caller was impatient, and it counts
/// for nothing. A request with too little time is refused before the service is called.
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
pub struct DeadlineLayer<A = Problems> {
    rules: Arc<Rules<A>>,
}

impl DeadlineLayer {
    /// Makes a layer that gives each request its time by these rules.
    #[must_use]
    pub fn new(timeouts: Timeouts) -> Self {
        Self { rules: Arc::new(Rules::new(timeouts, Problems)) }
    }

    /// Same as [`DeadlineLayer::new`], with a default and a ceiling, and no margin for the network.
    ///
    /// # Errors
    /// The same as [`Timeouts::new`].
    pub fn within(default: Duration, ceiling: Duration) -> Result<Self, QuotaError> {
        Timeouts::new(default, ceiling).map(Self::new)
    }
}

knobs!(DeadlineLayer);

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
        let sent = read(request.headers());
        let deadline = rules.timeouts.deadline(now, sent);
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
        )
    }
}
