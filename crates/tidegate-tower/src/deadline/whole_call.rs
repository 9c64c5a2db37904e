//! The bound of a client's whole call: its waits for a turn, its tries, and the waits between them.
//!
//! [`ForwardDeadlineLayer`](crate::ForwardDeadlineLayer) is the innermost layer of a client and bounds one try. This layer
//! is outside the retries, and carries a deadline, so that retries, queues and rate limits inside see it. Each try gets the
//! default time, or what is left of the deadline if that is less.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Request;
use pin_project_lite::pin_project;
use tidegate::clock::Sleep;
use tidegate::deadline::{carried, carry};
use tidegate::observer::RefusalCause;
use tidegate::{Deadline, Tick};
use tower_layer::{Identity, Layer};
use tower_service::Service;

use super::forward::ForwardDeadlineLayer;
use super::rules::DeadlineRules;
use super::serve::DeadlineLayer;
use crate::answers::{Answers, Errors};
use crate::call_notes::{dropping_for_timeout, is_only_ceiling, within_ceiling};
use crate::ready::give_back;

/// A deadline layer of a client that bounds each try, from which [`ClientStack`](crate::ClientStack) makes the layer that
/// bounds the whole call: [`ForwardDeadlineLayer`], or `Identity` for none. With a [`DeadlineLayer`] in that place nothing
/// bounds the whole call.
///
/// # Examples
/// A layer of the program's own that bounds each try, in a stack that does not bound the whole call:
/// ```
/// use std::time::Duration;
/// use tidegate_tower::ClientStack;
/// use tidegate_tower::parameter::BoundsCalls;
/// use tower_layer::{Identity, Layer};
///
/// #[derive(Clone)]
/// struct TryTimeout(Duration);
///
/// impl BoundsCalls for TryTimeout {
///     type WholeCall = Identity;
///     fn whole_call(&self) -> Identity {
///         Identity::new()
///     }
/// }
/// # impl<S> Layer<S> for TryTimeout {
/// #     type Service = S;
/// #     fn layer(&self, inner: S) -> S { inner }
/// # }
///
/// let stack = ClientStack::new().deadline(TryTimeout(Duration::from_secs(1)));
/// # let _ = stack;
/// ```
pub trait BoundsCalls {
    /// The layer around the retries.
    type WholeCall;

    /// Makes the layer around the retries.
    fn whole_call(&self) -> Self::WholeCall;
}

impl BoundsCalls for Identity {
    type WholeCall = Self;

    fn whole_call(&self) -> Self {
        Self::new()
    }
}

/// The time that a request names bounds a try, and nothing bounds the whole call.
impl<A, U> BoundsCalls for DeadlineLayer<A, U> {
    type WholeCall = Identity;

    fn whole_call(&self) -> Identity {
        Identity::new()
    }
}

impl<A, U> BoundsCalls for ForwardDeadlineLayer<A, U> {
    type WholeCall = WholeCallLayer<A>;

    fn whole_call(&self) -> WholeCallLayer<A> {
        WholeCallLayer { rules: self.rules() }
    }
}

/// Bounds a client's whole call by the ceiling of its [`ForwardDeadlineLayer`], or by the deadline that the task
/// [carries](tidegate::deadline::carried) if that is earlier: waits for a turn, tries, and waits between tries together.
/// [`ClientStack`](crate::ClientStack) puts it around the retries.
///
/// A call for which no time is left is refused before it takes anything. A call that is not done in time is given up;
/// usually the part of it that waits is the first to notice.
///
/// Costs a reading of the clock, and a timer for a call that is not answered at the first poll.
#[derive(Debug)]
pub struct WholeCallLayer<A = Errors> {
    rules: Arc<DeadlineRules<A>>,
}

impl<A> Clone for WholeCallLayer<A> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules) }
    }
}

impl<S, A> Layer<S> for WholeCallLayer<A> {
    type Service = WholeCallService<S, A>;

    fn layer(&self, inner: S) -> Self::Service {
        WholeCallService { inner, rules: Arc::clone(&self.rules) }
    }
}

/// A client whose whole calls are bounded: see [`WholeCallLayer`].
#[derive(Debug)]
pub struct WholeCallService<S, A = Errors> {
    inner: S,
    rules: Arc<DeadlineRules<A>>,
}

impl<S: Clone, A> Clone for WholeCallService<S, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rules: Arc::clone(&self.rules) }
    }
}

impl<S, A, B> Service<Request<B>> for WholeCallService<S, A>
where
    S: Service<Request<B>> + Clone,
    A: Answers<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = WholeCallFuture<S::Future, S::Response, S::Error, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.rules;
        let (now, carried) = (rules.clock.now(), carried());
        let ceiling = now.after(rules.timeouts.ceiling());
        let tick = carried.map_or(ceiling, |carried| carried.at(&rules.clock).min(ceiling));
        if !rules.timeouts.leaves(now, tick, rules.needs) {
            give_back(&mut self.inner);
            let result = Some(rules.refuse(RefusalCause::NoTimeLeft));
            return WholeCallFuture { stage: WholeCallStage::Refused { result } };
        }
        let until = Until { tick, began: now, only_ceiling: carried.is_none_or(is_only_ceiling) };
        let future = until.within(|| self.inner.call(request));
        WholeCallFuture {
            stage: WholeCallStage::Called { future, until, sleep: None, rules: Arc::clone(rules) },
        }
    }
}

/// The bound of one call.
#[derive(Clone, Copy, Debug)]
struct Until {
    tick: Tick,
    began: Tick,
    /// Whether nobody has set a deadline.
    only_ceiling: bool,
}

impl Until {
    /// Runs a part of the call, which carries the deadline.
    fn within<R>(self, work: impl FnOnce() -> R) -> R {
        let ceiling = self.only_ceiling.then_some(Deadline::Tick(self.tick));
        within_ceiling(ceiling, || carry(self.tick, work))
    }

    /// Returns what a caller is told when the time is up.
    fn cause<A>(self, rules: &DeadlineRules<A>) -> RefusalCause {
        let is_usual = self.only_ceiling || rules.is_failure_after(self.tick.since(self.began));
        if is_usual { RefusalCause::TimedOut } else { RefusalCause::CutShort }
    }
}

pin_project! {
    /// The future of [`WholeCallService`](crate::service::WholeCallService).
    ///
    /// # Cancel safety
    /// Dropping the future drops the call.
    pub struct WholeCallFuture<F, Res, Err, A> {
        #[pin]
        stage: WholeCallStage<F, Res, Err, A>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum WholeCallStage<F, Res, Err, A> {
        Refused { result: Option<Result<Res, Err>> },
        Called { #[pin] future: F, until: Until, sleep: Option<Sleep>, rules: Arc<DeadlineRules<A>> },
        Ended,
    }
}

impl<F, Res, Err, A> Future for WholeCallFuture<F, Res, Err, A>
where
    F: Future<Output = Result<Res, Err>>,
    A: Answers<Res, Err>,
{
    type Output = Result<Res, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const ENDED: &str = "a future is not polled after it has ended";
        let mut stage = self.project().stage;
        match stage.as_mut().project() {
            StageProjection::Refused { result } => Poll::Ready(result.take().expect(ENDED)),
            StageProjection::Called { future, until, sleep, rules } => {
                if let Poll::Ready(result) = until.within(|| future.poll(cx)) {
                    return Poll::Ready(result);
                }
                ready!(rules.poll_until(until.tick, sleep, cx));
                let (until, rules) = (*until, Arc::clone(rules));
                // What a try did is judged by the layer that bounds tries. Here the call waits for something else, such
                // as a service that is not ready, so it counts for nothing.
                dropping_for_timeout(false, || stage.set(WholeCallStage::Ended));
                Poll::Ready(rules.refuse(until.cause(&rules)))
            }
            StageProjection::Ended => panic!("{ENDED}"),
        }
    }
}

impl<F, Res, Err, A> fmt::Debug for WholeCallFuture<F, Res, Err, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match &self.stage {
            WholeCallStage::Refused { .. } => "refused",
            WholeCallStage::Called { .. } => "called",
            WholeCallStage::Ended => "ended",
        };
        f.debug_struct("WholeCallFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
