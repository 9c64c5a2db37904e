//! A future that is given up at a deadline.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate::Tick;
use tidegate::clock::Sleep;
use tidegate::deadline::carry;

use super::rules::Rules;
use crate::answers::Answers;
use crate::refused::Cause;

pin_project! {
    /// The future of [`Deadline`](crate::Deadline) and [`ForwardDeadline`](crate::ForwardDeadline).
    ///
    /// # Cancel safety
    /// Dropped, it drops the service's future.
    pub struct DeadlineFuture<F, Res, Err, A> {
        #[pin]
        stage: Stage<F, Res, Err, A>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<F, Res, Err, A> {
        Refused { result: Option<Result<Res, Err>> },
        // The sleep is begun when the service is not done at the first poll: most answers need no timer.
        Called { #[pin] future: F, until: Tick, carried: Option<Tick>, sleep: Option<Sleep>, rules: Arc<Rules<A>> },
        Ended,
    }
}

impl<F, Res, Err, A> DeadlineFuture<F, Res, Err, A> {
    pub(super) const fn refused(result: Result<Res, Err>) -> Self {
        Self { stage: Stage::Refused { result: Some(result) } }
    }

    /// Gives `future` up at `until`; while it is polled, it finds `carried` as its deadline.
    pub(super) const fn until(future: F, until: Tick, carried: Option<Tick>, rules: Arc<Rules<A>>) -> Self {
        Self { stage: Stage::Called { future, until, carried, sleep: None, rules } }
    }
}

impl<F, Res, Err, A> Future for DeadlineFuture<F, Res, Err, A>
where
    F: Future<Output = Result<Res, Err>>,
    A: Answers<Res, Err> + Clone,
{
    type Output = Result<Res, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        let result = match stage.as_mut().project() {
            StageProjection::Refused { result } => {
                result.take().expect("a future is not polled after it has ended")
            }
            StageProjection::Called { future, until, carried, sleep, rules } => {
                let polled = match *carried {
                    Some(deadline) => carry(deadline, || future.poll(cx)),
                    None => future.poll(cx),
                };
                match polled {
                    Poll::Ready(result) => result,
                    Poll::Pending => {
                        while {
                            let sleeping = sleep.get_or_insert_with(|| rules.clock.sleep_until(*until));
                            ready!(sleeping.as_mut().poll(cx));
                            rules.clock.now() < *until
                        } {
                            // Sleeps may end early.
                            *sleep = None;
                        }
                        let refused = rules.refuse(Cause::TimedOut);
                        // The work is given up before its caller is told.
                        stage.set(Stage::Ended);
                        refused
                    }
                }
            }
            StageProjection::Ended => panic!("a future is not polled after it has ended"),
        };
        Poll::Ready(result)
    }
}

impl<F, Res, Err, A> fmt::Debug for DeadlineFuture<F, Res, Err, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match &self.stage {
            Stage::Refused { .. } => "refused",
            Stage::Called { .. } => "called",
            Stage::Ended => "ended",
        };
        f.debug_struct("DeadlineFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
