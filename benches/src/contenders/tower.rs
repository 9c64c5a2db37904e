//! tower: its layers over a service that does nothing. A limit that is spent shows when the service is polled.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll, Waker};

use anyhow::Result;
use tower::Service;
use tower::limit::rate::Rate;
use tower::limit::{ConcurrencyLimit, RateLimit};

use crate::workloads::One;
use crate::workloads::permits::{PLACES, Permits};

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
