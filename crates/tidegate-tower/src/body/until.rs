//! When a layer is done with an answer: at its head, or at the end of its body.

use std::error::Error;

use http::Response;
use http::header::CONTENT_LENGTH;
use http_body::Body;
use tidegate::Outcome;

use super::holding::HeldBody;
use super::timed::{BodyDeadline, TimedBody};
use crate::classify::LittleTime;
use crate::guarded::{Entered, Inside};
use crate::name::Name;

/// A layer is done at the head of an answer; the default. The place of a streamed answer is then free, and its call
/// judged, while the body is still being sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtHead;

/// A layer is done when the body of an answer has ended, has failed or is dropped. Responses then have a
/// [`HeldBody`] or a [`TimedBody`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AtBodyEnd;

/// How long a request holds `P`, which is a place or a breaker's call: [`AtHead`] or [`AtBodyEnd`]. Not to be
/// implemented by other crates.
pub trait HoldsUntil<Res, P: Entered>: sealed::Sealed {
    /// The response of the layer's service.
    type Response;

    /// Passes on a response for which nothing is held, such as a refusal.
    #[doc(hidden)]
    fn refused(response: Res) -> Self::Response;

    /// Returns whether a request goes on holding when the head of this answer is there.
    #[doc(hidden)]
    fn goes_on(response: &Res) -> bool;

    /// Passes on an answer with this outcome as far as its head tells, and gives back what the request holds at the end of
    /// the body. Only for answers with which it goes on holding.
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

/// What a deadline bounds: an answer's head ([`AtHead`]), or its body too ([`AtBodyEnd`]). Not to be implemented by
/// other crates.
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
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
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
