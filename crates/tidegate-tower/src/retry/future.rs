//! The future of a call that may be retried.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Request;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use pin_project_lite::pin_project;
use tidegate::Outcome;
use tidegate::observer::LayerDid;
use tidegate::retries::{Verdict, header};
use tower_service::Service;

use super::Again;
use crate::call_notes::FurtherTry;
use crate::classify::Classify;
use crate::ready::call_when_ready;
use crate::replay::CanReplay;

pin_project! {
    /// The future of [`RetryService`](crate::service::RetryService).
    ///
    /// `F` is the service's future, `S::Future`. As a parameter of its own it lets the compiler prove that a call with
    /// boxed errors is `Send`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the try in progress; the budget is not refunded for a retry that it has paid for.
    pub struct RetryFuture<S, Req, F, Res, Err, C> {
        #[pin]
        stage: RetryStage<S, Req, F, Res, Err, C>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum RetryStage<S, Req, F, Res, Err, C> {
        // The request may not be made twice.
        Once { #[pin] future: F },
        First { #[pin] future: F, copy: Option<(Req, Arc<Again<S, C>>)> },
        Further { tries: Tries<Res, Err> },
    }
}

/// The tries after the first.
type Tries<Res, Err> = Pin<Box<dyn Future<Output = Result<Res, Err>> + Send>>;

impl<S, Req, F, Res, Err, C> RetryFuture<S, Req, F, Res, Err, C> {
    pub(super) const fn once(future: F) -> Self {
        Self { stage: RetryStage::Once { future } }
    }

    pub(super) const fn first(future: F, copy: Req, again: Arc<Again<S, C>>) -> Self {
        Self { stage: RetryStage::First { future, copy: Some((copy, again)) } }
    }
}

impl<S, B, C> Future for RetryFuture<S, Request<B>, S::Future, S::Response, S::Error, C>
where
    S: Service<Request<B>, Future: Send> + Clone + Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    C: Classify<S::Response, S::Error> + Send + Sync + 'static,
    B: Clone + Send + 'static,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        let tries = match stage.as_mut().project() {
            StageProjection::Once { future } => return future.poll(cx),
            StageProjection::First { future, copy } => {
                let result = ready!(future.poll(cx));
                let Some((request, again)) = copy.take() else { return Poll::Ready(result) };
                let verdict = again.rules.classify.classify(&result);
                if verdict.outcome == Outcome::Success || !CanReplay::of(&request) {
                    return Poll::Ready(result);
                }
                Box::pin(further(again, request, result, verdict))
            }
            StageProjection::Further { tries } => return tries.as_mut().poll(cx),
        };
        stage.set(RetryStage::Further { tries });
        match stage.project() {
            StageProjection::Further { tries } => tries.as_mut().poll(cx),
            _ => unreachable!("it was set to further tries"),
        }
    }
}

/// Retries a call whose first try has ended.
async fn further<S, B, C>(
    again: Arc<Again<S, C>>,
    request: Request<B>,
    first: Result<S::Response, S::Error>,
    verdict: Verdict,
) -> Result<S::Response, S::Error>
where
    S: Service<Request<B>> + Clone,
    C: Classify<S::Response, S::Error>,
    B: Clone,
{
    let calling = Arc::clone(&again);
    let can_replay = CanReplay::find(&request);
    let mut tried = 0_u32;
    // Owns the request, which may not be `Sync`.
    let call = move || {
        calling.rules.name.notify(LayerDid::TriedAgain);
        let mut request = request.clone();
        tried = tried.saturating_add(1);
        number(&mut request, tried);
        FurtherTry::new(call_when_ready(calling.service(), request))
    };
    let rules = &again.rules;
    let judge = |result: &_| match &can_replay {
        Some(can_replay) if !can_replay.get() => Outcome::Ignored.into(),
        _ => rules.classify.classify(result),
    };
    rules.retrier.run_on(first, verdict, call, judge).await.0
}

/// Writes into the headers how often the request was tried before, so that the service can tell retries from first tries.
fn number<B>(request: &mut Request<B>, tried: u32) {
    let headers = request.headers_mut();
    let is_grpc =
        headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let (name, number) = match is_grpc {
        true => (header::GRPC_ATTEMPTS, tried),
        // Counted from 1, which is the first try.
        false => (header::ENVOY_ATTEMPT, tried + 1),
    };
    headers.insert(HeaderName::from_static(name), HeaderValue::from(number));
}

impl<S, Req, F, Res, Err, C> fmt::Debug for RetryFuture<S, Req, F, Res, Err, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            RetryStage::Once { .. } => "once",
            RetryStage::First { .. } => "first",
            RetryStage::Further { .. } => "further",
        };
        f.debug_struct("RetryFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
