//! The future of a service behind a circuit breaker.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::body::{AtHead, HoldsUntil};
use crate::call_notes::{Made, watching_for_turn};
use crate::classify::Classify;
use crate::guarded::{Entered, Inside};

pin_project! {
    /// The future of [`BreakerService`](crate::service::BreakerService).
    ///
    /// # Cancel safety
    /// Dropping the future reports no outcome to the breaker, and frees the place of a probe.
    pub struct BreakerFuture<F, P: Entered, Res, Err, C, A, U = AtHead> {
        #[pin]
        stage: BreakerStage<F, P, Res, Err, C, A>,
        until: PhantomData<U>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum BreakerStage<F, P: Entered, Res, Err, C, A> {
        Refused { result: Option<Result<Res, Err>> },
        // `future` comes first, so the work is dropped before the breaker is told.
        Called { #[pin] future: Made<F>, inside: Inside<P, C, A> },
    }
}

impl<F, P: Entered, Res, Err, C, A, U> BreakerFuture<F, P, Res, Err, C, A, U> {
    pub(super) const fn refused(result: Result<Res, Err>) -> Self {
        Self { stage: BreakerStage::Refused { result: Some(result) }, until: PhantomData }
    }

    pub(super) const fn called(inside: Inside<P, C, A>, future: F) -> Self {
        Self { stage: BreakerStage::Called { inside, future: Made::new(future) }, until: PhantomData }
    }
}

impl<F, P, Res, Err, C, A, U> Future for BreakerFuture<F, P, Res, Err, C, A, U>
where
    F: Future<Output = Result<Res, Err>>,
    P: Entered,
    C: Classify<Res, Err>,
    U: HoldsUntil<Res, P>,
{
    type Output = Result<U::Response, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().stage.project() {
            StageProjection::Refused { result } => {
                let result = result.take().expect("a future is not polled after it has ended");
                Poll::Ready(result.map(U::refused))
            }
            StageProjection::Called { inside, future } => {
                let (polled, turn_came) = watching_for_turn(|| future.poll(cx));
                if turn_came {
                    inside.work_begins();
                }
                let result = ready!(polled);
                let outcome = inside.outcome_of(&result);
                Poll::Ready(match result {
                    Ok(response) => Ok(U::answered(response, outcome, inside)),
                    Err(error) => {
                        inside.end(outcome);
                        Err(error)
                    }
                })
            }
        }
    }
}

impl<F, P: Entered, Res, Err, C, A, U> fmt::Debug for BreakerFuture<F, P, Res, Err, C, A, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            BreakerStage::Refused { .. } => "refused",
            BreakerStage::Called { .. } => "called",
        };
        f.debug_struct("BreakerFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
