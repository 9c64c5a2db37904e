//! tower: its layers over a service that does nothing. A spent limit shows when the service is polled.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::Result;
use http::Request;
use tower::Service;
use tower::limit::rate::Rate;
use tower::limit::{ConcurrencyLimit, RateLimit};
use tower::load_shed::LoadShed;
use tower::timeout::Timeout;

use crate::workloads::One;
use crate::workloads::permits::{AnswersAtOnce, PLACES, Permits};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _entered = runtime.enter();
    let (count, period) = run.limit();
    let mut service = RateLimit::new(Nothing, Rate::new(count.into(), period));
    let mut context = Context::from_waker(Waker::noop());
    run.alone(move || {
        let ready = service.poll_ready(&mut context).is_ready();
        if ready {
            drop(service.call(()));
        }
        ready
    })
}

pub(crate) fn concurrency(run: &mut Permits<'_>) -> Result<()> {
    let mut service = ConcurrencyLimit::new(Nothing, PLACES as usize);
    let mut context = Context::from_waker(Waker::noop());
    run.alone(move || {
        let ready = service.poll_ready(&mut context).is_ready();
        if ready {
            drop(service.call(()));
        }
        ready
    })
}

/// A rate that is never used up.
fn rate() -> Rate {
    Rate::new(u64::MAX, SECOND)
}

/// Runs a service under a runtime, which the timers of tower's layers need.
fn layers<S: Service<Request<()>>>(run: &mut Permits<'_>, service: impl FnOnce() -> S) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _entered = runtime.enter();
    run.layers(service())
}

pub(crate) fn concurrency_layer(run: &mut Permits<'_>) -> Result<()> {
    layers(run, || ConcurrencyLimit::new(AnswersAtOnce, PLACES as usize))
}

pub(crate) fn rate_layer(run: &mut Permits<'_>) -> Result<()> {
    layers(run, || RateLimit::new(AnswersAtOnce, rate()))
}

pub(crate) fn load_shed(run: &mut Permits<'_>) -> Result<()> {
    layers(run, || LoadShed::new(AnswersAtOnce))
}

pub(crate) fn timeout(run: &mut Permits<'_>) -> Result<()> {
    layers(run, || Timeout::new(AnswersAtOnce, SECOND))
}

pub(crate) fn stack(run: &mut Permits<'_>) -> Result<()> {
    layers(run, || {
        let limited = RateLimit::new(ConcurrencyLimit::new(AnswersAtOnce, PLACES as usize), rate());
        LoadShed::new(Timeout::new(limited, SECOND))
    })
}

struct Nothing;

impl Service<()> for Nothing {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}
