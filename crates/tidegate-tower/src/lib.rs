//! Tidegate as tower layers: around any axum, tonic or hyper service or client.
//!
//! ```
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use tidegate::{Limiter, Quota};
//! use tidegate_tower::{RateLimitLayer, ServerStack};
//! use tower::{BoxError, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! // Two requests a minute; and no more at once than the server can do.
//! let limit = RateLimitLayer::all("all", Limiter::new(Quota::per_minute(2))?);
//! let stack = ServerStack::self_tuning("pages").rate_limit(limit);
//! let app: Router = Router::new().route("/", get(async || "the page")).layer(stack);
//!
//! let ask = || app.clone().oneshot(Request::new(Body::empty()));
//! assert_eq!(ask().await?.status(), 200);
//! assert_eq!(ask().await?.status(), 200);
//! assert_eq!(ask().await?.status(), 429);
//! # Ok(())
//! # }
//! ```
//!
//! * [`RateLimitLayer`]: limits requests per time, for all callers together or per key
//! * [`ConcurrencyLayer`]: limits requests in flight, by a fixed or an adaptive number, with a bounded queue in front
//! * [`BreakerLayer`]: refuses calls to a failing service until it answers again
//! * [`GateLayer`]: applies all policies of a gate; a request is charged to all of them or to none
//! * [`DeadlineLayer`], [`ForwardDeadlineLayer`]: read the time left from a header, and send it to the next service
//! * [`PriorityLayer`], [`ForwardPriorityLayer`]: read a request's priority from a header, and send it to the next
//!   service
//! * [`RetryLayer`]: retries failed calls that may succeed then, within a budget
//! * [`body::ReplayLayer`]: keeps request bodies while they are sent, so that they can be sent again
//! * [`ArrivingRetriesLayer`]: tells callers of an overloaded server not to try again while too many requests are retries
//! * [`LoadShedLayer`]: refuses requests that a busy service would leave waiting
//! * [`FallbackLayer`]: answers in place of calls that failed or were refused, for example with the last good answer
//! * [`ServerStack`], [`ClientStack`]: all of them in the right order
//! * [`ClientLayer`]: marks single layers as those of a client, as [`ClientStack`] does
//! * [`body`], [`classify`], [`parameter`], [`service`]: what programs name less often
//!
//! A layer that refuses a request does not call its inner service, and gives the reason in a [`Refused`]. Callers are
//! [told](parameter::Answers) by a response with a problem ([`Problems`], for HTTP servers), by a gRPC status
//! (`GrpcStatuses`, a feature), or by an error ([`Errors`] and [`OwnErrors`](parameter::OwnErrors), for clients). Layers
//! that judge how calls end can tell the refusals of an inner layer from failures of the service
//! ([`ByStatus`](classify::ByStatus)). Every layer that refuses, retries, or changes an answer can tell an
//! [`Observer`](tidegate::observer::Observer) what it does, and several layers may share one.
//!
//! By default a layer ends its part of a call at the head of the answer. For answers that are streamed,
//! `until_body_ends` of the concurrency, breaker, gate and deadline layers goes on to the end of the body
//! ([`HeldBody`](body::HeldBody), [`TimedBody`](body::TimedBody)).
//!
//! `poll_ready` of a layer takes no permits and no units: `call` takes them, and they are given back if its future is
//! dropped. So a caller that polls readiness and never calls does not block others. Calling without polling first
//! panics only if the inner service panics. An inner service may reserve something when it is polled, as tower's own
//! `ConcurrencyLimit` does; this is given back if the layer refuses the request or makes it wait.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answers;
mod arriving;
pub mod body;
mod breaker;
mod call_notes;
pub mod classify;
mod client;
mod concurrency;
mod deadline;
mod fallback;
mod gate;
mod guarded;
mod layered;
mod load_shed;
mod priority;
mod rate_limit;
mod real_cost;
mod refused;
mod replay;
mod retry;
mod stack;

#[cfg(feature = "grpc")]
#[cfg_attr(docsrs, doc(cfg(feature = "grpc")))]
pub use answers::GrpcStatuses;
pub use answers::{Errors, Problems};
pub use arriving::ArrivingRetriesLayer;
pub use breaker::BreakerLayer;
pub use client::ClientLayer;
pub use concurrency::ConcurrencyLayer;
pub use deadline::{DeadlineLayer, ForwardDeadlineLayer};
pub use fallback::FallbackLayer;
pub use gate::GateLayer;
pub use load_shed::LoadShedLayer;
pub use priority::{ForwardPriorityLayer, PriorityLayer};
pub use rate_limit::RateLimitLayer;
pub use real_cost::Spent;
pub use refused::Refused;
pub use retry::RetryLayer;
pub use stack::{ClientStack, ServerStack};
pub use tidegate::observer::RefusalCause;

/// What the layers take, and the types by which they remember it: how they tell callers, which limit, breaker or place a
/// request gets, and what answers in place of a failure.
///
/// Functions and the layers' own constructors make most of these, so programs name them only where they write out the
/// type of a layer, or implement one of the traits.
pub mod parameter {
    pub use crate::answers::{Answers, BoxedRefused, OwnErrors};
    pub use crate::breaker::Breakers;
    pub use crate::concurrency::{Alike, Entering};
    pub use crate::deadline::{BoundsCalls, WholeCallLayer};
    pub use crate::fallback::{Keep, LastOfKey, StandIn, StandsIn};
    pub use crate::gate::{Describe, HeldAdmission, WhenUndecided};
    pub use crate::guarded::{EachKey, Entered};
    pub use crate::priority::{Ceiling, priority_of};
    pub use crate::rate_limit::{Costing, EachKeyRead, KeyOf, Limits, NotCharged, ReadsKey};
}

/// The services that the layers make, for code that has to name their types. Their futures are named by
/// `Service::Future`.
pub mod service {
    pub use crate::layered::Layered;
    pub use crate::load_shed::LoadShedService;
    pub use crate::retry::RetryService;
}

/// The programs on the page about poorer answers.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/protection/degrading.md")]
struct DegradingPage;

/// The programs on the page about axum, tonic and the layers.
#[cfg(all(doctest, feature = "grpc"))]
#[doc = include_str!("../../../docs/axum-and-tonic.md")]
struct AxumAndTonicPage;
