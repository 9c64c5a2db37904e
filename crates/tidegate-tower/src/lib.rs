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
//! [`ServerStack`] and [`ClientStack`] put the layers in the right order. [`body`], [`classify`], [`parameter`] and
//! [`service`] have what programs name less often.
//!
//! A layer that refuses a request does not call its inner service, and gives the reason in a [`Refused`]. Callers are
//! [told](parameter::Answers) by a response with a problem ([`Problems`], for HTTP servers), by a gRPC status
//! (`GrpcStatuses`, feature `grpc`), or by an error ([`Errors`] and [`OwnErrors`](parameter::OwnErrors), for clients). Layers
//! that judge how calls end tell the refusals of an inner layer from failures of the service
//! ([`ByStatus`](classify::ByStatus)). Layers that refuse, retry, or change an answer can tell an
//! [`Observer`](tidegate::observer::Observer).
//!
//! By default a layer ends its part of a call at the head of the answer. For answers that are streamed,
//! `until_body_ends` of some layers goes on to the end of the [`body`].
//!
//! `poll_ready` of a layer takes no permits and no units: `call` takes them, and they are given back if its future is
//! dropped. So a caller that polls readiness and never calls does not block others. An inner service may reserve
//! something when it is polled, as tower's own `ConcurrencyLimit` does; this is given back if the layer refuses the
//! request or makes it wait. Calling without polling first panics only if the inner service panics.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answers;
pub mod body;
mod breaker;
mod call_notes;
pub mod classify;
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
pub use breaker::BreakerLayer;
pub use concurrency::ConcurrencyLayer;
pub use deadline::{DeadlineLayer, ForwardDeadlineLayer};
pub use fallback::FallbackLayer;
pub use gate::GateLayer;
pub use load_shed::LoadShedLayer;
pub use priority::{ForwardPriorityLayer, PriorityLayer};
pub use rate_limit::RateLimitLayer;
pub use real_cost::Spent;
pub use refused::Refused;
pub use retry::{ArrivingRetriesLayer, RetryLayer};
pub use stack::{ClientLayer, ClientStack, ServerStack};
pub use tidegate::observer::RefusalCause;

/// What the layers take: how they tell callers, which limit, breaker or place a request gets, and what answers in place of
/// a failure. Programs name these where they write out the type of a layer, or implement one of the traits.
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
