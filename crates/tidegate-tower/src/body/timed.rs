//! A body that ends at a deadline.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate::clock::{Clock, Sleep};
use tidegate::deadline::carry;
use tidegate::observer::RefusalCause;
use tidegate::{Retry, Tick};

use crate::call_notes::dropping_for_timeout;
use crate::name::Name;
use crate::refused::Refused;

type BoxError = Box<dyn Error + Send + Sync>;

pin_project! {
    /// The body of an answer, which ends with an error at the deadline of its request: made by
    /// [`DeadlineLayer::until_body_ends`](crate::DeadlineLayer::until_body_ends) and
    /// [`ForwardDeadlineLayer::until_body_ends`](crate::ForwardDeadlineLayer::until_body_ends).
    ///
    /// The error is a [`Refused`](crate::Refused), boxed; errors of the body within are boxed too. The body within is
    /// dropped before, and a place that it [holds](crate::body::HeldBody) learns of the timeout. In a server the deadline is
    /// [carried](tidegate::deadline::carried) while the body is polled.
    ///
    /// The deadline is noticed when the body is polled, and while a poll waits for the next frame. A server that cannot
    /// send, because its caller does not read, does not poll.
    pub struct TimedBody<B> {
        // `None` once the time is up.
        #[pin]
        body: Option<B>,
        // `None` once the body has ended, and for a body without a deadline.
        deadline: Option<BodyDeadline>,
    }
}

/// The deadline of a body.
pub struct BodyDeadline {
    pub(crate) until: Tick,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether the body carries the deadline: in a server.
    pub(crate) is_carried: bool,
    /// From here on an error of the body counts as the timeout, noticed by a timer of the client within; `None` in a
    /// server.
    pub(crate) errors_from: Option<Tick>,
    /// What a reader is told when the time is up.
    pub(crate) cause: RefusalCause,
    /// Whether the timeout is a failure of what the body within holds.
    pub(crate) is_failure: bool,
    /// The layer that set the deadline.
    pub(crate) name: Name,
    /// Made when a poll has to wait. The lock makes the body `Sync`, and is never taken.
    pub(crate) sleep: Mutex<Option<Sleep>>,
}

impl fmt::Debug for BodyDeadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyDeadline").field("until", &self.until).finish_non_exhaustive()
    }
}

impl<B> TimedBody<B> {
    /// Wraps a body without a deadline, such as the answer of a [`FallbackLayer`](crate::FallbackLayer).
    pub const fn free(body: B) -> Self {
        Self { body: Some(body), deadline: None }
    }

    pub(super) const fn bounded(body: B, deadline: BodyDeadline) -> Self {
        Self { body: Some(body), deadline: Some(deadline) }
    }
}

impl BodyDeadline {
    /// Returns whether the time is up; otherwise wakes the task when it is.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The timer may fire early: then sleep again.
        while self.clock.now() < self.until {
            let sleeping = sleep.get_or_insert_with(|| self.clock.sleep_until(self.until));
            if sleeping.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            *sleep = None;
        }
        Poll::Ready(())
    }

    fn is_up(&self) -> bool {
        self.clock.now() >= self.until
    }

    /// Says whether an error of the body is the timeout, noticed by a timer of the client within.
    fn is_behind(&self, error: &BoxError) -> bool {
        self.errors_from.is_some_and(|from| self.clock.now() >= from)
            && Refused::of_source(&**error).is_none()
    }

    fn refuse(&self) -> BoxError {
        self.name.refuse(self.cause, Retry::Unknown).into()
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Error: Into<BoxError>>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        let Some(body) = this.body.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        let Some(deadline) = this.deadline.as_mut() else {
            return body.poll_frame(cx).map_err(Into::into);
        };
        if !deadline.is_up() {
            let polled = if deadline.is_carried {
                carry(deadline.until, || body.poll_frame(cx))
            } else {
                body.poll_frame(cx)
            };
            match polled.map_err(Into::into) {
                Poll::Ready(Some(Err(error))) if deadline.is_behind(&error) => {
                    let refused = deadline.refuse();
                    *this.deadline = None;
                    return Poll::Ready(Some(Err(refused)));
                }
                Poll::Ready(Some(Ok(frame))) if frame.is_data() => return Poll::Ready(Some(Ok(frame))),
                Poll::Ready(last) => {
                    *this.deadline = None;
                    return Poll::Ready(last);
                }
                Poll::Pending if deadline.poll_up(cx).is_pending() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        // The work is dropped before its reader is told.
        dropping_for_timeout(deadline.is_failure, || this.body.set(None));
        let refused = deadline.refuse();
        *this.deadline = None;
        Poll::Ready(Some(Err(refused)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// A body without a deadline, as [`Problems`](crate::Problems) of outer layers make it.
impl<B: From<String>> From<String> for TimedBody<B> {
    fn from(body: String) -> Self {
        Self::free(B::from(body))
    }
}

/// A body without a deadline, as `GrpcStatuses` of outer layers make it.
impl<B: Default> Default for TimedBody<B> {
    fn default() -> Self {
        Self::free(B::default())
    }
}

impl<B> fmt::Debug for TimedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = self.deadline.as_ref().map(|deadline| deadline.until);
        f.debug_struct("TimedBody").field("until", &until).finish_non_exhaustive()
    }
}
