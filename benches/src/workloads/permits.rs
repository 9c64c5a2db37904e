//! Protections while they have nothing to do: a place taken and returned, a call through a closed breaker, a request
//! through layers around a service that answers at once.

use std::future::{Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use anyhow::Result;
use http::{Request, Response};
use tower::Service;

use crate::measure::{Want, alone};
use crate::pair::{Figures, pair};

/// More places than threads, so that no entry is refused.
pub(crate) const PLACES: u64 = 1000;

/// One run over one guard.
pub(crate) struct Permits<'a> {
    pub(crate) figures: &'a mut Figures,
}

impl Permits<'_> {
    /// Measures a guard that threads can share: `pass` enters and leaves.
    pub(crate) fn shared(&mut self, pass: impl Fn() -> bool + Sync) -> Result<()> {
        self.alone(&pass)?;
        let both = pair(Want::Permitted, |_| &pass)?;
        self.figures.set_pair("permit.pair", &both);
        Ok(())
    }

    /// Measures a guard that belongs to one thread.
    pub(crate) fn alone(&mut self, pass: impl FnMut() -> bool) -> Result<()> {
        self.figures.set("permit", alone(Want::Permitted, pass)?);
        Ok(())
    }

    /// Measures a breaker that threads can share: `pass` enters and leaves with a success.
    pub(crate) fn breaker(&mut self, pass: impl Fn() -> bool + Sync) -> Result<()> {
        self.figures.set("breaker", alone(Want::Permitted, &pass)?);
        let both = pair(Want::Permitted, |_| &pass)?;
        self.figures.set_pair("breaker.pair", &both);
        Ok(())
    }

    /// Measures a service with layers around [`AnswersAtOnce`]: it is polled for readiness and called, and its future
    /// is polled to the end.
    pub(crate) fn layers<S: Service<Request<()>>>(&mut self, mut service: S) -> Result<()> {
        let mut context = Context::from_waker(Waker::noop());
        let pass = || {
            let asked = service.poll_ready(&mut context);
            matches!(asked, Poll::Ready(Ok(())))
                && matches!(pin!(service.call(Request::new(()))).poll(&mut context), Poll::Ready(Ok(_)))
        };
        self.figures.set("layers", alone(Want::Permitted, pass)?);
        Ok(())
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A service that answers at the first poll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswersAtOnce;

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
