//! Work that goes on after the head of an answer, for answers that are streamed. And request bodies that can be sent again.
//!
//! By default layers are done at the head. With `until_body_ends` they wrap the body: [`HeldBody`] keeps what a request
//! holds, and judges the call when the body has ended; [`TimedBody`] ends the body at the deadline. Which of the two is a
//! type parameter of the layer, [`AtHead`] or [`AtBodyEnd`], since it changes the type of the response.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http::Response;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::call_notes::{dropping_for_timeout, outcome_of_dropped_body};
use crate::classify::{LittleTime, of_body_error, of_trailers};
use crate::guarded::{Entered, Inside};
use crate::refused::{Name, Refused};
use tidegate::bulkhead::Permit;
use tidegate::clock::{Clock, Sleep};
use tidegate::deadline::carry;
use tidegate::limiter::Retry;
use tidegate::observer::RefusalCause;
use tidegate::{Outcome, Tick};

pub use crate::replay::{ReplayBody, ReplayError, ReplayLayer};

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
    /// The body within is passed on unchanged.
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

    const fn holding(
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
#[doc(hidden)]
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

    const fn bounded(body: B, deadline: BodyDeadline) -> Self {
        Self { body: Some(body), deadline: Some(deadline) }
    }
}

impl BodyDeadline {
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_mut().unwrap_or_else(PoisonError::into_inner);
        poll_until(&self.clock, self.until, sleep, cx)
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

/// Returns whether the time is up; otherwise wakes the task when it is. The timer is made at the first poll.
pub(crate) fn poll_until(
    clock: &Arc<dyn Clock>,
    until: Tick,
    sleep: &mut Option<Sleep>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    while {
        let sleeping = sleep.get_or_insert_with(|| clock.sleep_until(until));
        ready!(sleeping.as_mut().poll(cx));
        clock.now() < until
    } {
        // The timer may fire early: then sleep again.
        *sleep = None;
    }
    Poll::Ready(())
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

/// A layer is done at the head of an answer, while the body is still being sent; the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtHead;

/// A layer is done when the body of an answer has ended, has failed or is dropped. Responses then have a
/// [`HeldBody`] or a [`TimedBody`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AtBodyEnd;

/// How long a request holds `P`, which is a place or a breaker's call: [`AtHead`] or [`AtBodyEnd`].
pub trait HoldsUntil<Res, P: Entered>: sealed::Sealed {
    /// The response of the layer's service.
    type Response;

    /// Passes on a response for which nothing is held, such as a refusal.
    #[doc(hidden)]
    fn refused(response: Res) -> Self::Response;

    /// Returns whether a request goes on holding after the head of this answer.
    #[doc(hidden)]
    fn goes_on(response: &Res) -> bool;

    /// Passes on an answer with which a request goes on holding, and gives back what it holds at the end of the body.
    #[doc(hidden)]
    fn hold(response: Res, outcome: Outcome, entered: (P, Name)) -> Self::Response;

    /// Passes on an answer with this outcome as far as its head tells, and gives back what the request holds now or
    /// later.
    #[doc(hidden)]
    #[inline]
    fn answered<C, A>(response: Res, outcome: Outcome, inside: &mut Inside<P, C, A>) -> Self::Response {
        if Self::goes_on(&response)
            && let Some((mut entered, name)) = inside.detach()
        {
            entered.answer_begins();
            return Self::hold(response, outcome, (entered, name));
        }
        inside.end(outcome);
        Self::refused(response)
    }
}

/// What a deadline bounds: an answer's head ([`AtHead`]), or its body too ([`AtBodyEnd`]).
pub trait BoundsUntil<Res>: sealed::Sealed {
    /// The response of the layer's service.
    type Response;

    /// Passes on a response that no deadline bounds, such as a refusal.
    #[doc(hidden)]
    fn refused(response: Res) -> Self::Response;

    /// Passes on an answer whose head came in time.
    #[doc(hidden)]
    fn answered(response: Res, deadline: impl FnOnce() -> BodyDeadline) -> Self::Response;
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::AtHead {}
    impl Sealed for super::AtBodyEnd {}
}

impl<Res, P: Entered> HoldsUntil<Res, P> for AtHead {
    type Response = Res;

    #[inline]
    fn refused(response: Res) -> Res {
        response
    }

    #[inline]
    fn goes_on(_: &Res) -> bool {
        false
    }

    fn hold(response: Res, outcome: Outcome, (entered, name): (P, Name)) -> Res {
        entered.leave(outcome);
        name.ended(outcome);
        response
    }
}

impl<B: Body, P: Entered> HoldsUntil<Response<B>, P> for AtBodyEnd {
    type Response = Response<HeldBody<B, P>>;

    fn refused(response: Response<B>) -> Self::Response {
        response.map(HeldBody::free)
    }

    fn goes_on(response: &Response<B>) -> bool {
        !response.body().is_end_stream()
    }

    fn hold(response: Response<B>, outcome: Outcome, entered: (P, Name)) -> Self::Response {
        // A reader that has all of it may drop the body before it says that it has ended: servers do so at the length
        // that the head promises.
        let told = || response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        let length = response.body().size_hint().exact().or_else(told);
        let had_little_time = response.extensions().get::<LittleTime>().is_some();
        response.map(|body| HeldBody::holding(body, entered, outcome, length, had_little_time))
    }
}

impl<Res> BoundsUntil<Res> for AtHead {
    type Response = Res;

    #[inline]
    fn refused(response: Res) -> Res {
        response
    }

    #[inline]
    fn answered(response: Res, _: impl FnOnce() -> BodyDeadline) -> Res {
        response
    }
}

impl<B> BoundsUntil<Response<B>> for AtBodyEnd
where
    B: Body<Error: Into<BoxError>>,
{
    type Response = Response<TimedBody<B>>;

    fn refused(response: Response<B>) -> Self::Response {
        response.map(TimedBody::free)
    }

    fn answered(response: Response<B>, deadline: impl FnOnce() -> BodyDeadline) -> Self::Response {
        if response.body().is_end_stream() {
            return response.map(TimedBody::free);
        }
        let deadline = deadline();
        response.map(|body| TimedBody::bounded(body, deadline))
    }
}
