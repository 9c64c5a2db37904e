//! Deadline layer of a server: reads the time from a request, and carries it through the task.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Request;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{DeadlineRules, knobs, read};
use crate::answers::{Answers, Problems};
use crate::body::{AtBodyEnd, AtHead, BodyDeadline, BoundsUntil, poll_until};
use crate::call_notes::{dropping_for_timeout, within_ceiling};
use crate::layered::{Layered, give_back};
use crate::refused::Refused;
use tidegate::clock::Sleep;
use tidegate::deadline::{self, Deadline, Timeouts, carry};
use tidegate::observer::RefusalCause;
use tidegate::{QuotaError, Tick};

/// Gives each request the time that its caller allows it, for a server: see [`Timeouts`].
///
/// The time is the least of all values of `grpc-timeout` and Envoy's `x-envoy-expected-rq-timeout-ms`, or a [header of your
/// choice](Self::in_header) in its place. A value that cannot be read counts as absent; without any value the default
/// holds. The ceiling bounds the time that a stranger may ask for. If the task already carries a deadline, from a layer
/// outside, the earlier one holds. A request with too little time is refused before the service is called.
///
/// Within the service the deadline is [carried](tidegate::deadline::carried). If it passes before there is an answer,
/// the service's future is dropped and the request is refused. If the service had at least half of the default time,
/// that counts as its failure for the limits and breakers inside; with less time the caller was impatient, and the
/// request does not count.
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
///
/// # Cancel safety
/// Dropping a call drops the service's future.
#[derive(Debug)]
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
    /// [`Refused`](crate::Refused). By default the deadline bounds the head only. The service then answers with a
    /// [`TimedBody`](crate::body::TimedBody). A server breaks off the connection (HTTP/1.1) or the stream (HTTP/2), so that
    /// the caller can tell a body that was cut off from a whole one.
    ///
    /// Costs two reference counts for each answer, a reading of the clock for each frame, and a timer if a frame has to
    /// be waited for.
    #[must_use]
    pub fn until_body_ends(self) -> DeadlineLayer<A, AtBodyEnd> {
        DeadlineLayer { rules: self.rules, until: PhantomData }
    }
}

knobs!(DeadlineLayer);

impl<S, A, U> Layer<S> for DeadlineLayer<A, U> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, A, B, U> Service<Request<B>> for Layered<S, DeadlineLayer<A, U>>
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
        let rules = &self.layer.rules;
        let now = rules.clock.now();
        let sent = read(request.headers(), &rules.header);
        let deadline = rules.timeouts.deadline(now, sent);
        // A layer outside may have given the request less time, which neither a header nor a default lengthens.
        let deadline = deadline::carried().map_or(deadline, |carried| carried.at(&rules.clock).min(deadline));
        if !rules.timeouts.leaves(now, deadline, rules.needs) {
            give_back(&mut self.inner);
            return DeadlineFuture::refused(rules.refuse(RefusalCause::NoTimeLeft));
        }
        let until = Until { tick: deadline, began: now, scope: Scope::Request };
        // The call itself carries the deadline too: a service may do much of its work there.
        let future = until.within(|| self.inner.call(request));
        DeadlineFuture::until(future, until, Arc::clone(rules), None)
    }
}

pin_project! {
    /// A call that is given up at a deadline.
    pub struct DeadlineFuture<F, Res, Err, A, U = AtHead> {
        #[pin]
        stage: DeadlineStage<F, Res, Err, A>,
        bounds: PhantomData<U>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum DeadlineStage<F, Res, Err, A> {
        Refused { result: Option<Result<Res, Err>> },
        // The timer is only started if the service is not done at the first poll: most answers need no timer.
        Called {
            #[pin]
            future: F,
            until: Until,
            sleep: Option<Sleep>,
            rules: Arc<DeadlineRules<A>>,
            mark: Option<Mark<Res>>,
        },
        Ended,
    }
}

/// Looks at an answer of a called service. If it says that the time was up, it is marked with the refusal that the
/// function returns, if any.
pub(super) type Mark<Res> = fn(&mut Res, &dyn Fn() -> Option<Refused>);

/// When a future is given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub(super) tick: Tick,
    /// When the work began.
    pub(super) began: Tick,
    pub(super) scope: Scope,
}

/// What a deadline bounds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scope {
    /// A request at a server.
    Request,
    /// One try of a client. `own_time`: the request names the time itself, so a timeout is a failure however short it was.
    Try { own_time: bool },
    /// A client's whole call. `only_ceiling`: nobody has set a deadline.
    WholeCall { only_ceiling: bool },
}

impl Until {
    /// Runs a part of the work. All but a try carries the deadline, so that layers and clients inside find it.
    #[inline]
    pub(super) fn within<R>(self, work: impl FnOnce() -> R) -> R {
        match self.scope {
            Scope::Request => carry(self.tick, work),
            Scope::Try { .. } => work(),
            Scope::WholeCall { only_ceiling } => {
                let ceiling = only_ceiling.then_some(Deadline::Tick(self.tick));
                within_ceiling(ceiling, || carry(self.tick, work))
            }
        }
    }

    const fn is_try(self) -> bool {
        matches!(self.scope, Scope::Try { .. })
    }

    /// Returns whether the work had as much time as work usually has.
    #[cold]
    fn had_usual_time<A>(self, rules: &DeadlineRules<A>) -> bool {
        let is_usual = match self.scope {
            Scope::Request => false,
            Scope::Try { own_time } => own_time,
            Scope::WholeCall { only_ceiling } => only_ceiling,
        };
        is_usual || rules.is_failure_after(self.tick.since(self.began))
    }

    /// Returns whether a timeout counts as a failure of the work. What a try did is judged by the layer that bounds
    /// tries: a whole call that is cut off waits for something else, such as a service that is not ready.
    #[cold]
    fn timeout_is_failure<A>(self, rules: &DeadlineRules<A>) -> bool {
        !matches!(self.scope, Scope::WholeCall { .. }) && self.had_usual_time(rules)
    }

    /// Returns the cause that a caller is told after a timeout.
    #[cold]
    fn cause<A>(self, rules: &DeadlineRules<A>) -> RefusalCause {
        // A client's call for which little time was left is not a failure of the called service.
        if matches!(self.scope, Scope::Request) || self.had_usual_time(rules) {
            RefusalCause::TimedOut
        } else {
            RefusalCause::CutShort
        }
    }

    /// Returns the refusal to mark an answer with that says that the time was up, if the called service had little time:
    /// it usually notices the end of its time before this layer does, since it is told less.
    #[cold]
    fn cut_short<A>(self, rules: &DeadlineRules<A>) -> Option<Refused> {
        (self.cause(rules) == RefusalCause::CutShort).then(|| rules.mark(RefusalCause::CutShort))
    }

    /// Returns the same deadline for the body of an answer.
    #[cold]
    fn of_body<A>(self, rules: &DeadlineRules<A>) -> BodyDeadline {
        BodyDeadline {
            until: self.tick,
            clock: Arc::clone(&rules.clock),
            is_carried: !self.is_try(),
            errors_from: self.is_try().then(|| rules.told_time_ends(self.tick)),
            cause: self.cause(rules),
            is_failure: self.timeout_is_failure(rules),
            name: rules.name.clone(),
            sleep: Mutex::new(None),
        }
    }
}

impl<F, Res, Err, A, U> DeadlineFuture<F, Res, Err, A, U> {
    pub(super) const fn refused(result: Result<Res, Err>) -> Self {
        Self { stage: DeadlineStage::Refused { result: Some(result) }, bounds: PhantomData }
    }

    /// `mark` is given in a client.
    pub(super) const fn until(
        future: F,
        until: Until,
        rules: Arc<DeadlineRules<A>>,
        mark: Option<Mark<Res>>,
    ) -> Self {
        Self { stage: DeadlineStage::Called { future, until, sleep: None, rules, mark }, bounds: PhantomData }
    }
}

impl<F, Res, Err, A, U> Future for DeadlineFuture<F, Res, Err, A, U>
where
    F: Future<Output = Result<Res, Err>>,
    Err: 'static,
    A: Answers<Res, Err>,
    U: BoundsUntil<Res>,
{
    type Output = Result<U::Response, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        let result = match stage.as_mut().project() {
            StageProjection::Refused { result } => {
                result.take().expect("a future is not polled after it has ended")
            }
            StageProjection::Called { future, until, sleep, rules, mark } => {
                let until = *until;
                match until.within(|| future.poll(cx)) {
                    // The timeout, noticed by a timer of the client within: a channel of tonic ends a call by the
                    // `grpc-timeout` that it sends.
                    Poll::Ready(Err(error)) if until.is_try() && rules.is_timeout(until.tick, &error) => {
                        rules.refuse(until.cause(rules))
                    }
                    Poll::Ready(mut result) => {
                        if let (Some(mark), Ok(head)) = (mark, &mut result) {
                            mark(head, &|| until.cut_short(rules));
                        }
                        return Poll::Ready(result.map(|head| U::answered(head, || until.of_body(rules))));
                    }
                    Poll::Pending => {
                        ready!(poll_until(&rules.clock, until.tick, sleep, cx));
                        let rules = Arc::clone(rules);
                        // The work is dropped before its caller gets the answer.
                        dropping_for_timeout(until.timeout_is_failure(&rules), || {
                            stage.set(DeadlineStage::Ended);
                        });
                        rules.refuse(until.cause(&rules))
                    }
                }
            }
            StageProjection::Ended => panic!("a future is not polled after it has ended"),
        };
        Poll::Ready(result.map(U::refused))
    }
}

impl<F, Res, Err, A, U> fmt::Debug for DeadlineFuture<F, Res, Err, A, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadlineFuture").finish_non_exhaustive()
    }
}
