//! The future of a service behind a rate limit.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Request;
use pin_project_lite::pin_project;
use tidegate::http_answer::NamedLimit;
use tidegate::{Answer, Reservation};
use tower_service::Service;

use crate::answers::Answers;
use crate::spent::Spent;

/// How those who passed are told of the limit.
type Told<A> = (Arc<NamedLimit>, A);

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// # Cancel safety
    /// Dropped while the request is held back, it gives back what was charged. Dropped later, the charge stands: the service may have done
    /// the work.
    pub struct RateLimitFuture<S: Service<Req>, Req, A> {
        #[pin]
        stage: Stage<S, Req, A>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S: Service<Req>, Req, A> {
        Refused { result: Option<Result<S::Response, S::Error>> },
        Held { due: Due, call: Option<(bool, S, Req, Told<A>)> },
        Called { #[pin] future: S::Future, answer: Answer, told: Told<A> },
    }
}

/// A reservation until the work may act.
type Due = Pin<Box<dyn Future<Output = Reservation> + Send>>;

impl<S: Service<Req>, Req, A> RateLimitFuture<S, Req, A> {
    pub(super) const fn refused(result: Result<S::Response, S::Error>) -> Self {
        Self { stage: Stage::Refused { result: Some(result) } }
    }

    pub(super) const fn called(future: S::Future, answer: Answer, told: Told<A>) -> Self {
        Self { stage: Stage::Called { future, answer, told } }
    }

    pub(super) fn held(
        reservation: Reservation,
        settling: bool,
        service: S,
        request: Req,
        told: Told<A>,
    ) -> Self {
        let due = Box::pin(reservation.due());
        Self { stage: Stage::Held { due, call: Some((settling, service, request, told)) } }
    }
}

impl<S, B, A> Future for RateLimitFuture<S, Request<B>, A>
where
    S: Service<Request<B>>,
    A: Answers<S::Response, S::Error>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::Refused { result } => {
                    return Poll::Ready(result.take().expect("a future is not polled after it has ended"));
                }
                StageProjection::Held { due, call } => {
                    let reservation = ready!(due.as_mut().poll(cx));
                    let (settling, mut service, mut request, told) =
                        call.take().expect("a future is not polled after it has ended");
                    let answer = reservation.answer();
                    if settling {
                        request.extensions_mut().insert(Spent::of(reservation));
                    }
                    let future = service.call(request);
                    stage.set(Stage::Called { future, answer, told });
                }
                StageProjection::Called { future, answer, told } => {
                    let mut result = ready!(future.poll(cx));
                    if let Ok(response) = &mut result {
                        let (named, answers) = told;
                        answers.tell(response, &named.answer(answer));
                    }
                    return Poll::Ready(result);
                }
            }
        }
    }
}

impl<S: Service<Req>, Req, A> fmt::Debug for RateLimitFuture<S, Req, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Refused { .. } => "refused",
            Stage::Held { .. } => "held",
            Stage::Called { .. } => "called",
        };
        f.debug_struct("RateLimitFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
