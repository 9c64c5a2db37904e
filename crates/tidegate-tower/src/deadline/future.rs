//! A future that is given up at a deadline.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate::Tick;
use tidegate::clock::Sleep;
use tidegate::deadline::carry;
use tidegate::observer::RefusalCause;

use super::rules::DeadlineRules;
use crate::answers::Answers;
use crate::body::{AtHead, BodyDeadline, BoundsUntil};
use crate::call_notes::dropping_for_timeout;
use crate::refused::Refused;

pin_project! {
    /// The future of [`DeadlineService`](crate::service::DeadlineService) and [`ForwardDeadlineService`](crate::service::ForwardDeadlineService).
    ///
    /// # Cancel safety
    /// Dropping the future drops the service's future.
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
    /// Whether the work carries this deadline (in a server), so that layers and clients inside find it.
    pub(super) is_carried: bool,
    /// When the work began.
    pub(super) began: Tick,
    /// Whether a timeout counts as a failure of the work however short the time was; otherwise see
    /// [`DeadlineRules::is_failure_after`].
    pub(super) always_failure: bool,
}

impl Until {
    /// Returns whether a timeout counts as a failure of the work.
    #[cold]
    fn timeout_is_failure<A>(self, rules: &DeadlineRules<A>) -> bool {
        self.always_failure || rules.is_failure_after(self.tick.since(self.began))
    }

    /// Returns the cause that a caller is told after a timeout.
    #[cold]
    fn cause<A>(self, rules: &DeadlineRules<A>) -> RefusalCause {
        // A client's call for which little time was left is not a failure of the called service.
        if self.is_carried || self.timeout_is_failure(rules) {
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
            is_carried: self.is_carried,
            errors_from: (!self.is_carried).then(|| rules.told_time_ends(self.tick)),
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
                let (until, Until { tick, is_carried, .. }) = (*until, *until);
                let polled = if is_carried { carry(tick, || future.poll(cx)) } else { future.poll(cx) };
                match polled {
                    // The timeout, noticed by a timer of the client within: a channel of tonic ends a call by the
                    // `grpc-timeout` that it sends.
                    Poll::Ready(Err(error)) if !is_carried && rules.is_timeout(tick, &error) => {
                        rules.refuse(until.cause(rules))
                    }
                    Poll::Ready(mut result) => {
                        if let (Some(mark), Ok(head)) = (mark, &mut result) {
                            mark(head, &|| until.cut_short(rules));
                        }
                        return Poll::Ready(result.map(|head| U::answered(head, || until.of_body(rules))));
                    }
                    Poll::Pending => {
                        ready!(rules.poll_until(tick, sleep, cx));
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
        let stage = match &self.stage {
            DeadlineStage::Refused { .. } => "refused",
            DeadlineStage::Called { .. } => "called",
            DeadlineStage::Ended => "ended",
        };
        f.debug_struct("DeadlineFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
