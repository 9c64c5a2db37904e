//! Counts layers that have nothing to do, around a service that answers at once: each alone, and all of a client or a
//! server.

use std::future::{Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::Result;
use http::{Request, Response};
use tidegate::breaker::CircuitBreaker;
use tidegate::concurrency::Vegas;
use tidegate::deadline::Timeouts;
use tidegate::retries::{Retrier, Retries, RetryBudget, SharedBudget};
use tidegate::{Breaker, Bulkhead, KeyedLimiter, Limiter, Quota};
use tidegate_tower::classify::ByStatus;
use tidegate_tower::parameter::{Alike, EachKey};
use tidegate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, DeadlineLayer, Errors, FallbackLayer, ForwardDeadlineLayer,
    RateLimitLayer, RetryLayer, ServerStack,
};
use tower_layer::{Identity, Layer};
use tower_service::Service;

use crate::counted::Want::Permitted;
use crate::counted::{Stepping, path};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn run() -> Result<()> {
    around("no layer", || Ok(Identity::new()))?;
    around("layers of a server", || {
        let deadline = DeadlineLayer::within(SECOND, SECOND)?.with_clock(Stepping::by(0));
        let places = Bulkhead::adaptive(Vegas::default()).with_clock(Stepping::by(0));
        Ok(ServerStack::new()
            .fallback(FallbackLayer::new(|answer| answer))
            .deadline(deadline)
            .rate_limit(RateLimitLayer::all("all", plenty()?))
            .concurrency(ConcurrencyLayer::new("places", places)))
    })?;
    around("layers of a client", || {
        Ok(ClientStack::new()
            .fallback(FallbackLayer::new(|answer| answer))
            .retry(retry())
            .breaker(breaker()?)
            .concurrency(places()?)
            .rate_limit(rate()?)
            .deadline(deadline()?))
    })?;
    around("layer: retry", || Ok(retry()))?;
    around("layer: breaker", breaker)?;
    around("layer: places", places)?;
    around("layer: rate limit", rate)?;
    around("layer: rate limit of a key", keyed_rate)?;
    around("layer: deadline of a client", deadline)
}

fn plenty() -> Result<Limiter> {
    let limiter = Limiter::new(Quota::per_second(1_000_000_000).burst(1_000_000_000))?;
    Ok(limiter.with_clock(Stepping::by(0)))
}

fn retry() -> RetryLayer {
    let budget = SharedBudget::with_clock(RetryBudget::default(), Stepping::by(0));
    RetryLayer::new(Retrier::new(Retries::default(), budget))
}

fn breaker() -> Result<BreakerLayer<Breaker, ByStatus, Errors>> {
    let breaker = Breaker::new(CircuitBreaker::builder())?.with_clock(Stepping::by(0));
    Ok(BreakerLayer::new("calls", breaker).answering(Errors))
}

fn places() -> Result<ConcurrencyLayer<Alike, ByStatus, Errors>> {
    Ok(ConcurrencyLayer::new("places", Bulkhead::new(1000)?).answering(Errors))
}

fn rate() -> Result<RateLimitLayer<Limiter, Errors>> {
    Ok(RateLimitLayer::all("all", plenty()?).answering(Errors))
}

fn keyed_rate() -> Result<RateLimitLayer<EachKey<KeyedLimiter, KeyOf>, Errors>> {
    let limiter = KeyedLimiter::new(Quota::per_second(1_000_000_000).burst(1_000_000_000), 1000)?;
    let key: KeyOf = |_| "10.0.0.7";
    Ok(RateLimitLayer::each("each", limiter.with_clock(Stepping::by(0)), key).answering(Errors))
}

type KeyOf = fn(&Request<()>) -> &'static str;

fn deadline() -> Result<ForwardDeadlineLayer> {
    Ok(ForwardDeadlineLayer::new(Timeouts::new(SECOND, SECOND)?).with_clock(Stepping::by(0)))
}

/// A request that passes: the service is polled for readiness and called, and its future is polled to the end.
fn around<L>(name: &str, layer: impl Fn() -> Result<L>) -> Result<()>
where
    L: Layer<AnswersAtOnce, Service: Service<Request<()>>>,
{
    path(name, Permitted, 1, || {
        let mut service = layer()?.layer(AnswersAtOnce);
        Ok(move || {
            let mut context = Context::from_waker(Waker::noop());
            let is_ready = matches!(service.poll_ready(&mut context), Poll::Ready(Ok(())));
            let answer = pin!(service.call(Request::new(()))).poll(&mut context);
            is_ready && matches!(answer, Poll::Ready(Ok(_)))
        })
    })
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A service that answers at the first poll.
#[derive(Clone, Copy, Debug)]
struct AnswersAtOnce;

impl Service<Request<()>> for AnswersAtOnce {
    type Response = Response<String>;
    type Error = Error;
    type Future = Ready<Result<Response<String>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(String::new())))
    }
}
