//! The future of a call that may be retried.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Request;
use pin_project_lite::pin_project;
use tidegate::Outcome;
use tidegate::observer::LayerDid;
use tidegate::retries::Verdict;
use tower_service::Service;

use super::again::Again;
use crate::classify::Classify;
use crate::ready::call_when_ready;

pin_project! {
    /// The future of [`RetryService`](crate::RetryService).
    ///
    /// # Cancel safety
    /// Dropped, it drops the try in progress; the budget is not refunded for a retry that it has paid for.
    pub struct RetryFuture<S: Service<Req>, Req, C> {
        #[pin]
        stage: Stage<S, Req, C>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S: Service<Req>, Req, C> {
        // The request may not be made twice.
        Once { #[pin] future: S::Future },
        First { #[pin] future: S::Future, copy: Option<(Req, Arc<Again<S, C>>)> },
        Further { tries: Tries<S::Response, S::Error> },
    }
}

/// The tries after the first.
type Tries<Res, Err> = Pin<Box<dyn Future<Output = Result<Res, Err>> + Send>>;

impl<S: Service<Req>, Req, C> RetryFuture<S, Req, C> {
    pub(super) const fn once(future: S::Future) -> Self {
        Self { stage: Stage::Once { future } }
    }

    pub(super) const fn first(future: S::Future, copy: Req, again: Arc<Again<S, C>>) -> Self {
        Self { stage: Stage::First { future, copy: Some((copy, again)) } }
    }
}

impl<S, B, C> Future for RetryFuture<S, Request<B>, C>
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
                if verdict.outcome == Outcome::Success {
                    return Poll::Ready(result);
                }
                Box::pin(further(again, request, result, verdict))
            }
            StageProjection::Further { tries } => return tries.as_mut().poll(cx),
        };
        stage.set(Stage::Further { tries });
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
    // Owns the request, which may not be `Sync`.
    let call = move || {
        calling.rules.name.notify(LayerDid::TriedAgain);
        call_when_ready(calling.service(), request.clone())
    };
    let rules = &again.rules;
    rules.retrier.run_on(first, verdict, call, |result| rules.classify.classify(result)).await.0
}

impl<S: Service<Req>, Req, C> fmt::Debug for RetryFuture<S, Req, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Once { .. } => "once",
            Stage::First { .. } => "first",
            Stage::Further { .. } => "further",
        };
        f.debug_struct("RetryFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
