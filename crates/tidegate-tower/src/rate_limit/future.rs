//! The future of a service behind a rate limit.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Request;
use pin_project_lite::pin_project;
use tidegate::{Answer, Reservation};
use tower_service::Service;

use super::rules::{Charge, RateLimitRules};
use crate::answers::Answers;
use crate::call_notes::{NotCalled, turn_came};

pin_project! {
    /// The future of [`RateLimitService`](crate::service::RateLimitService).
    ///
    /// `F` is the service's future, `S::Future`. As a parameter of its own it lets the compiler prove that a call with
    /// boxed errors is `Send`.
    ///
    /// # Cancel safety
    /// If the future is dropped while the request is held back, the charge is given back. If it is dropped later, the
    /// charge stands: the service may have done the work. So a request that waits in the queue of an inner layer and goes
    /// away there has spent its charge.
    pub struct RateLimitFuture<S, Req, F, Res, Err, A> {
        #[pin]
        stage: RateLimitStage<S, Req, F, Res, Err, A>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum RateLimitStage<S, Req, F, Res, Err, A> {
        Refused { result: Option<Result<Res, Err>> },
        Held { due: Due, call: Option<(S, Req)>, rules: Arc<RateLimitRules<A>>, not_called: NotCalled },
        // Its wait is over; it waits until the service is ready.
        AtTurn { charge: Uncalled, call: Option<(S, Req)>, rules: Arc<RateLimitRules<A>> },
        // `charge`: what is given back if a layer inside refuses the request.
        Called { #[pin] future: F, answer: Answer, charge: Option<Charge>, rules: Arc<RateLimitRules<A>> },
    }
}

/// A charge while the service is not yet called. Dropping it undoes the charge.
struct Uncalled(Option<Reservation>);

impl Drop for Uncalled {
    fn drop(&mut self) {
        if let Some(charge) = self.0.take() {
            charge.cancel();
        }
    }
}

/// Waits for the time at which a reservation may be used.
type Due = Pin<Box<dyn Future<Output = Reservation> + Send>>;

impl<S, Req, F, Res, Err, A> RateLimitFuture<S, Req, F, Res, Err, A> {
    pub(super) const fn refused(result: Result<Res, Err>) -> Self {
        Self { stage: RateLimitStage::Refused { result: Some(result) } }
    }

    pub(super) const fn called(
        future: F,
        answer: Answer,
        charge: Option<Charge>,
        rules: Arc<RateLimitRules<A>>,
    ) -> Self {
        Self { stage: RateLimitStage::Called { future, answer, charge, rules } }
    }

    pub(super) fn held(
        reservation: Reservation,
        service: S,
        request: Req,
        rules: Arc<RateLimitRules<A>>,
    ) -> Self {
        let due = Box::pin(reservation.due());
        Self {
            stage: RateLimitStage::Held { due, call: Some((service, request)), rules, not_called: NotCalled },
        }
    }
}

impl<S, B, A> Future for RateLimitFuture<S, Request<B>, S::Future, S::Response, S::Error, A>
where
    S: Service<Request<B>>,
    A: Answers<S::Response, S::Error>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const ENDED: &str = "a future is not polled after it has ended";
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::Refused { result } => return Poll::Ready(result.take().expect(ENDED)),
                StageProjection::Held { due, call, rules, .. } => {
                    let charge = Uncalled(Some(ready!(due.as_mut().poll(cx))));
                    turn_came();
                    let (call, rules) = (call.take(), Arc::clone(rules));
                    stage.set(RateLimitStage::AtTurn { charge, call, rules });
                }
                StageProjection::AtTurn { charge, call, rules } => {
                    let (service, _) = call.as_mut().expect(ENDED);
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        drop(Uncalled(charge.0.take()));
                        return Poll::Ready(Err(error));
                    }
                    let (mut service, mut request) = call.take().expect(ENDED);
                    let charge = charge.0.take().expect(ENDED);
                    let (answer, rules) = (charge.answer(), Arc::clone(rules));
                    let charge = rules.hand_over(charge, &mut request);
                    let future = service.call(request);
                    stage.set(RateLimitStage::Called { future, answer, charge, rules });
                }
                StageProjection::Called { future, answer, charge, rules } => {
                    let mut result = ready!(future.poll(cx));
                    if charge.is_some()
                        && rules.is_refused_before_work(&result)
                        && let Some(charge) = charge.take()
                    {
                        charge.undo();
                    }
                    if let Ok(response) = &mut result {
                        rules.add_limit_state::<_, S::Error>(response, answer);
                    }
                    return Poll::Ready(result);
                }
            }
        }
    }
}

impl<S, Req, F, Res, Err, A> fmt::Debug for RateLimitFuture<S, Req, F, Res, Err, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            RateLimitStage::Refused { .. } => "refused",
            RateLimitStage::Held { .. } => "held",
            RateLimitStage::AtTurn { .. } => "at its turn",
            RateLimitStage::Called { .. } => "called",
        };
        f.debug_struct("RateLimitFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
