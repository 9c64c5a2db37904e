//! The future of a service with a bounded number of calls in flight.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate::observer::RefusalCause;
use tidegate::{Enter, NoPlace, Permit, TakeError};
use tower_service::Service;

use crate::answers::Answers;
use crate::body::{AtHead, HoldsUntil};
use crate::call_notes::{Made, NotCalled, turn_came};
use crate::classify::Classify;
use crate::guarded::{GuardRules, Inside};

pin_project! {
    /// The future of [`ConcurrencyService`](crate::service::ConcurrencyService).
    ///
    /// `F` is the service's future, `S::Future`. As a parameter of its own it lets the compiler prove that a call with
    /// boxed errors is `Send`.
    ///
    /// # Cancel safety
    /// If the future is dropped while it waits in the queue, it leaves the queue. If it is dropped later, it returns its
    /// place, and the call counts for nothing.
    pub struct ConcurrencyFuture<S, Req, F, C, A, U = AtHead> {
        #[pin]
        stage: ConcurrencyStage<S, Req, F, C, A>,
        until: PhantomData<U>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum ConcurrencyStage<S, Req, F, C, A> {
        InQueue { entry: Enter, call: Option<(S, Req)>, rules: Arc<GuardRules<C, A>>, not_called: NotCalled },
        // It has its place, and waits until the service is ready.
        AtTurn { inside: Option<Inside<Permit, C, A>>, call: Option<(S, Req)> },
        // `future` comes first, so the work is dropped before its place is returned.
        Called { #[pin] future: Made<F>, inside: Inside<Permit, C, A> },
    }
}

impl<S, Req, F, C, A, U> ConcurrencyFuture<S, Req, F, C, A, U> {
    pub(super) const fn called(inside: Inside<Permit, C, A>, future: F) -> Self {
        Self { stage: ConcurrencyStage::Called { inside, future: Made::new(future) }, until: PhantomData }
    }

    pub(super) const fn in_line(
        entry: Enter,
        service: S,
        request: Req,
        rules: Arc<GuardRules<C, A>>,
    ) -> Self {
        let call = Some((service, request));
        Self {
            stage: ConcurrencyStage::InQueue { entry, call, rules, not_called: NotCalled },
            until: PhantomData,
        }
    }
}

impl<S, Req, C, A, U> Future for ConcurrencyFuture<S, Req, S::Future, C, A, U>
where
    S: Service<Req>,
    C: Classify<S::Response, S::Error>,
    A: Answers<S::Response, S::Error>,
    U: HoldsUntil<S::Response, Permit>,
{
    type Output = Result<U::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const ENDED: &str = "a future is not polled after it has ended";
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::InQueue { entry, call, rules, .. } => {
                    match ready!(Pin::new(entry).poll(cx)) {
                        Ok(permit) => {
                            turn_came();
                            let inside = Some(Inside::new(permit, Arc::clone(rules)));
                            let call = call.take();
                            stage.set(ConcurrencyStage::AtTurn { inside, call });
                        }
                        Err(error) => {
                            let denied = match &error {
                                TakeError::Denied(denied) => Some(denied),
                                TakeError::NotACost(_) => None,
                            };
                            // The entry asks for one place, and a bulkhead says why it refuses one.
                            let why = denied.and_then(|denied| denied.no_place);
                            let cause = RefusalCause::Concurrency(why.unwrap_or(NoPlace::TooManyPlaces));
                            let refused = rules.refuse(cause, denied);
                            return Poll::Ready(refused.map(U::refused));
                        }
                    }
                }
                StageProjection::AtTurn { inside, call } => {
                    let (service, _) = call.as_mut().expect(ENDED);
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        let result = Err(error);
                        if let Some(mut inside) = inside.take() {
                            inside.ended(&result);
                        }
                        return Poll::Ready(result.map(U::refused));
                    }
                    let (mut service, request) = call.take().expect(ENDED);
                    let inside = inside.take().expect(ENDED);
                    let future = Made::new(service.call(request));
                    stage.set(ConcurrencyStage::Called { inside, future });
                }
                StageProjection::Called { inside, future } => {
                    let result = ready!(future.poll(cx));
                    let outcome = inside.outcome_of(&result);
                    return Poll::Ready(match result {
                        Ok(response) => Ok(U::answered(response, outcome, inside)),
                        Err(error) => {
                            inside.end(outcome);
                            Err(error)
                        }
                    });
                }
            }
        }
    }
}

impl<S, Req, F, C, A, U> fmt::Debug for ConcurrencyFuture<S, Req, F, C, A, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            ConcurrencyStage::InQueue { .. } => "in the queue",
            ConcurrencyStage::AtTurn { .. } => "at its turn",
            ConcurrencyStage::Called { .. } => "called",
        };
        f.debug_struct("ConcurrencyFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
