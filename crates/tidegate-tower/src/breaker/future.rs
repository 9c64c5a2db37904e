//! The future of a service behind a circuit breaker.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::classify::Classify;
use crate::given_up::Made;
use crate::guarded::{Entered, Inside};

pin_project! {
    /// The future of [`BreakerService`](crate::BreakerService).
    ///
    /// # Cancel safety
    /// Dropping the future reports no outcome to the breaker, and frees the place of a probe.
    pub struct BreakerFuture<F, P: Entered, Res, Err, C, A> {
        #[pin]
        stage: Stage<F, P, Res, Err, C, A>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<F, P: Entered, Res, Err, C, A> {
        Refused { result: Option<Result<Res, Err>> },
        // `future` comes first, so the work is dropped before the breaker is told.
        Called { #[pin] future: Made<F>, inside: Inside<P, C, A> },
    }
}

impl<F, P: Entered, Res, Err, C, A> BreakerFuture<F, P, Res, Err, C, A> {
    pub(super) const fn refused(result: Result<Res, Err>) -> Self {
        Self { stage: Stage::Refused { result: Some(result) } }
    }

    pub(super) const fn called(inside: Inside<P, C, A>, future: F) -> Self {
        Self { stage: Stage::Called { inside, future: Made::new(future) } }
    }
}

impl<F, P, Res, Err, C, A> Future for BreakerFuture<F, P, Res, Err, C, A>
where
    F: Future<Output = Result<Res, Err>>,
    P: Entered,
    C: Classify<Res, Err>,
{
    type Output = Result<Res, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().stage.project() {
            StageProjection::Refused { result } => {
                Poll::Ready(result.take().expect("a future is not polled after it has ended"))
            }
            StageProjection::Called { inside, future } => {
                let result = ready!(future.poll(cx));
                inside.ended(&result);
                Poll::Ready(result)
            }
        }
    }
}

impl<F, P: Entered, Res, Err, C, A> fmt::Debug for BreakerFuture<F, P, Res, Err, C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Refused { .. } => "refused",
            Stage::Called { .. } => "called",
        };
        f.debug_struct("BreakerFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
