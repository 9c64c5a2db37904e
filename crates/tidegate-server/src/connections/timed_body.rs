//! A request body that must arrive in time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tidegate::http_answer::server_parts::in_words;
use tokio::time::{Sleep, sleep};

/// A body that fails with [`TooSlow`] if it is not complete in time. The time starts when its reader first has to wait.
///
/// The time covers the whole body, so a slow trickle of bytes does not extend it. A body that is there already costs no
/// timer.
#[derive(Debug)]
pub(super) struct TimedBody {
    body: Incoming,
    time: Duration,
    due: Option<Pin<Box<Sleep>>>,
}

/// The error if the whole body did not arrive within this time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the body did not arrive within {}", in_words(self.0))]
pub(crate) struct TooSlow(pub(crate) Duration);

impl TimedBody {
    pub(super) fn new(body: Incoming, time: Duration) -> Self {
        Self { body, time, due: None }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let time = self.time;
        let late = |due: &mut Pin<Box<Sleep>>, cx: &mut Context<'_>| due.as_mut().poll(cx).is_ready();
        // The deadline is checked first: a peer that always has another byte ready would otherwise never meet it.
        if self.due.as_mut().is_some_and(|due| late(due, cx)) {
            return Poll::Ready(Some(Err(TooSlow(time).into())));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if self.due.is_none() && late(self.due.insert(Box::pin(sleep(time))), cx) {
            return Poll::Ready(Some(Err(TooSlow(time).into())));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
