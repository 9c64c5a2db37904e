//! The future of a service of which so many calls are worked on at once.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate::{Enter, Permit, TakeError};
use tower_service::Service;

use super::rules::Rules;
use crate::answers::Answers;
use crate::classify::Classify;
use crate::refused::{Cause, Refused};

pin_project! {
    /// The future of [`Concurrency`](crate::Concurrency).
    ///
    /// # Cancel safety
    /// Dropped in line, it leaves the line; dropped later, it returns its place, and the call teaches nothing.
    pub struct ConcurrencyFuture<S: Service<Req>, Req, C, A> {
        #[pin]
        stage: Stage<S, Req>,
        rules: Arc<Rules<C, A>>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S: Service<Req>, Req> {
        InLine { entry: Enter, call: Option<(S, Req)> },
        Called { permit: Option<Permit>, #[pin] future: S::Future },
    }
}

impl<S: Service<Req>, Req, C, A> ConcurrencyFuture<S, Req, C, A> {
    pub(super) fn called(permit: Permit, future: S::Future, rules: Arc<Rules<C, A>>) -> Self {
        Self { stage: Stage::Called { permit: Some(permit), future }, rules }
    }

    pub(super) fn in_line(entry: Enter, service: S, request: Req, rules: Arc<Rules<C, A>>) -> Self {
        Self { stage: Stage::InLine { entry, call: Some((service, request)) }, rules }
    }
}

impl<S, Req, C, A> Future for ConcurrencyFuture<S, Req, C, A>
where
    S: Service<Req>,
    C: Classify<S::Response, S::Error>,
    A: Answers<S::Response, S::Error>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut stage = this.stage;
        let Rules { name, told, classify, answers } = &**this.rules;
        loop {
            match stage.as_mut().project() {
                StageProjection::InLine { entry, call } => match ready!(Pin::new(entry).poll(cx)) {
                    Ok(permit) => {
                        let (mut service, request) =
                            call.take().expect("a future is not polled after it has ended");
                        let future = service.call(request);
                        stage.set(Stage::Called { permit: Some(permit), future });
                    }
                    Err(error) => {
                        let refused = Refused {
                            cause: Cause::Concurrency,
                            by: Some(Arc::clone(name)),
                            retry: error.retry(),
                        };
                        let answer = match &error {
                            TakeError::Denied(denied) => Some(told.answer(&denied.answer)),
                            TakeError::NotACost(_) => None,
                        };
                        return Poll::Ready(answers.refuse(refused, answer.as_ref()));
                    }
                },
                StageProjection::Called { permit, future } => {
                    let result = ready!(future.poll(cx));
                    if let Some(permit) = permit.take() {
                        permit.leave(classify.classify(&result).outcome);
                    }
                    return Poll::Ready(result);
                }
            }
        }
    }
}

impl<S: Service<Req>, Req, C, A> fmt::Debug for ConcurrencyFuture<S, Req, C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::InLine { .. } => "in line",
            Stage::Called { .. } => "called",
        };
        f.debug_struct("ConcurrencyFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
