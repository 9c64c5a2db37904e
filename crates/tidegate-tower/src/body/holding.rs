//! A body that holds a place, a breaker's call or a gate's admission until it ends.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate::{Outcome, Permit};

use crate::call_notes::outcome_of_dropped_body;
use crate::classify::{of_body_error, of_trailers};
use crate::guarded::Entered;
use crate::name::Name;

pin_project! {
    /// The body of an answer, which holds a place ([`Permit`]), a breaker's [`Call`](tidegate::breaker::Call) or a gate's
    /// [admission](crate::parameter::HeldAdmission) until it has ended: made by
    /// [`ConcurrencyLayer::until_body_ends`](crate::ConcurrencyLayer::until_body_ends),
    /// [`BreakerLayer::until_body_ends`](crate::BreakerLayer::until_body_ends) and
    /// [`GateLayer::until_body_ends`](crate::GateLayer::until_body_ends).
    ///
    /// What it holds is given back once, with this outcome:
    ///
    /// | the body | outcome |
    /// |---|---|
    /// | ends, also with the last frame, or has its whole announced length when it is dropped | success |
    /// | ends with trailers that have a `grpc-status` | that of the status, as for [`ByStatus`](crate::classify::ByStatus); ignored for `DEADLINE_EXCEEDED` if a [`ForwardDeadlineLayer`](crate::ForwardDeadlineLayer) inside had less than half of its usual time |
    /// | fails | failure; ignored if the error is a [`Refused`](crate::Refused) of an inner layer other than a timeout |
    /// | is dropped earlier | ignored; a failure if a [`DeadlineLayer`](crate::DeadlineLayer) outside drops it, as for a future |
    /// | follows a head that is no success (503, say) | that of the head, however the body ends |
    ///
    /// The frames, trailers, size and end of the body within are passed on unchanged.
    pub struct HeldBody<B, P: Entered = Permit> {
        // Comes first, so the work is dropped before its place is returned.
        #[pin]
        body: B,
        held: Option<BodyHold<P>>,
    }
}

/// What a body holds. Dropped, it is given back.
struct BodyHold<P: Entered> {
    /// `None` once it is given back.
    entered: Option<(P, Name)>,
    /// The outcome as far as the head told.
    head: Outcome,
    /// How many bytes of the announced length are missing; `None` if no length was announced.
    missing: Option<u64>,
    /// Whether the call had [little time](crate::classify::LittleTime).
    had_little_time: bool,
}

impl<B, P: Entered> HeldBody<B, P> {
    /// Wraps a body that holds nothing, such as the answer of a [`FallbackLayer`](crate::FallbackLayer).
    pub const fn free(body: B) -> Self {
        Self { body, held: None }
    }

    pub(super) const fn holding(
        body: B,
        entered: (P, Name),
        head: Outcome,
        length: Option<u64>,
        had_little_time: bool,
    ) -> Self {
        let entered = Some(entered);
        Self { body, held: Some(BodyHold { entered, head, missing: length, had_little_time }) }
    }
}

impl<P: Entered> BodyHold<P> {
    /// Gives back what is held, unless that has been done. `outcome` is that of the body; a head that is no success
    /// outweighs it.
    fn end(&mut self, outcome: Outcome) {
        let Some((entered, name)) = self.entered.take() else { return };
        let outcome = if self.head == Outcome::Success { outcome } else { self.head };
        entered.leave(outcome);
        name.ended(outcome);
    }
}

impl<P: Entered> Drop for BodyHold<P> {
    fn drop(&mut self) {
        // In a panic what is held gives itself back, and reports nothing.
        if !std::thread::panicking() {
            let complete = self.missing == Some(0);
            self.end(if complete { Outcome::Success } else { outcome_of_dropped_body() });
        }
    }
}

impl<B, P> Body for HeldBody<B, P>
where
    B: Body<Error: 'static>,
    P: Entered,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        let Some(held) = this.held else { return Poll::Ready(frame) };
        match &frame {
            None => held.end(Outcome::Success),
            Some(Err(error)) => held.end(of_body_error(error)),
            Some(Ok(frame)) => {
                if let (Some(missing), Some(data)) = (&mut held.missing, frame.data_ref()) {
                    *missing = missing.saturating_sub(data.remaining() as u64);
                }
                // Both are the last frame: a reader need not ask for another one.
                if let Some(trailers) = frame.trailers_ref() {
                    held.end(of_trailers(trailers, held.had_little_time));
                } else if this.body.is_end_stream() {
                    held.end(Outcome::Success);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that holds nothing, as [`Problems`](crate::Problems) of outer layers make it.
impl<B: From<String>, P: Entered> From<String> for HeldBody<B, P> {
    fn from(body: String) -> Self {
        Self::free(B::from(body))
    }
}

/// A body that holds nothing, as `GrpcStatuses` of outer layers make it.
impl<B: Default, P: Entered> Default for HeldBody<B, P> {
    fn default() -> Self {
        Self::free(B::default())
    }
}

impl<B, P: Entered> fmt::Debug for HeldBody<B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = self.held.as_ref().is_some_and(|held| held.entered.is_some());
        f.debug_struct("HeldBody").field("holds", &holds).finish_non_exhaustive()
    }
}
