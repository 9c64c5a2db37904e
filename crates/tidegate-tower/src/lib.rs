//! Tidegate as tower layers: around any axum, tonic or hyper service or client.
//!
//! * [`RateLimitLayer`]: limits requests per time, for all callers together or per key
//! * [`ConcurrencyLayer`]: limits requests in flight, by a fixed or an adaptive number, with a bounded queue in front
//! * [`BreakerLayer`]: refuses calls to a failing service until it answers again
//! * [`GateLayer`]: applies all policies of a gate; a request is charged to all of them or to none
//! * [`DeadlineLayer`], [`ForwardDeadlineLayer`]: read the time left from a header, and send it to the next service
//! * [`WholeCallLayer`]: bounds a client's whole call, with its waits and its retries
//! * [`PriorityLayer`], [`ForwardPriorityLayer`]: read a request's priority from a header, and send it to the next
//!   service
//! * [`RetryLayer`]: retries failed calls that may succeed then, within a budget
//! * [`ReplayLayer`]: keeps request bodies while they are sent, so that they can be sent again
//! * [`ArrivingRetriesLayer`]: tells callers of an overloaded server not to try again while too many requests are retries
//! * [`LoadShedLayer`]: refuses requests that a busy service would leave waiting
//! * [`FallbackLayer`]: answers in place of calls that failed or were refused, for example with the last good answer
//! * [`ServerStack`], [`ClientStack`]: all of them in the right order
//! * [`ClientLayer`]: marks single layers as those of a client, as [`ClientStack`] does
//!
//! A layer that refuses a request does not call its inner service, and gives the reason in a [`Refused`]. [`Answers`]
//! chooses how callers are told: as a response with a problem ([`Problems`], for HTTP servers), as a gRPC status
//! (`GrpcStatuses`, a feature), or as an error ([`Errors`] and [`OwnErrors`], for clients). Layers that judge how calls
//! end can tell the refusals of an inner layer from failures of the service ([`ByStatus`]). Every layer that refuses,
//! retries, or changes an answer can tell an [`Observer`](tidegate::observer::Observer) what it does, and several layers may
//! share one.
//!
//! By default a layer ends its part of a call at the head of the answer. For answers that are streamed,
//! `until_body_ends` of the concurrency, breaker, gate and deadline layers goes on to the end of the body ([`HeldBody`],
//! [`TimedBody`]).
//!
//! `poll_ready` of a layer takes no permits and no units: `call` takes them, and they are given back if its future is
//! dropped. So a caller that polls readiness and never calls does not block others. Calling without polling first
//! panics only if the inner service panics. An inner service may reserve something when it is polled, as tower's own
//! `ConcurrencyLimit` does; this is given back if the layer refuses the request or makes it wait.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answers;
mod arriving;
mod body;
mod breaker;
mod classify;
mod client;
mod concurrency;
mod deadline;
mod fallback;
pub mod future;
mod gate;
mod given_up;
mod guarded;
mod load_shed;
mod name;
mod poll_notes;
mod priority;
mod rate_limit;
mod ready;
mod real_cost;
mod refused;
mod replay;
mod retry;
mod stack;

#[cfg(feature = "grpc")]
#[cfg_attr(docsrs, doc(cfg(feature = "grpc")))]
pub use answers::GrpcStatuses;
pub use answers::{Answers, BoxedRefused, Errors, OwnErrors, Problems};
pub use arriving::{ArrivingRetriesLayer, ArrivingRetriesService};
pub use body::{AtBodyEnd, AtHead, BoundsUntil, HeldBody, HoldsUntil, ReplayBody, ReplayError, TimedBody};
pub use breaker::{BreakerLayer, BreakerOfKey, BreakerService, Breakers, OneBreaker};
#[cfg(feature = "grpc")]
#[cfg_attr(docsrs, doc(cfg(feature = "grpc")))]
pub use classify::judge_status;
pub use classify::{ByStatus, Classify, retry_after};
pub use client::{ClientLayer, ClientService};
pub use concurrency::{Alike, ConcurrencyLayer, ConcurrencyService, Entering};
pub use deadline::{
    BoundsCalls, DeadlineLayer, DeadlineService, ForwardDeadlineLayer, ForwardDeadlineService,
    WholeCallLayer, WholeCallService,
};
pub use fallback::{FallbackLayer, FallbackService, Keep, LastOfKey, OfKey, StandIn, StandsIn};
pub use gate::{Describe, GateLayer, GateService, HeldAdmission, WhenUndecided};
pub use guarded::Entered;
pub use load_shed::{LoadShedLayer, LoadShedService};
pub use priority::{
    Ceiling, ForwardPriorityLayer, ForwardPriorityService, PriorityLayer, PriorityService, priority_of,
};
pub use rate_limit::{
    All, Costing, EachKey, EachKeyRead, KeyOf, Limits, NotCharged, RateLimitLayer, RateLimitService, ReadsKey,
};
pub use real_cost::Spent;
pub use refused::Refused;
pub use replay::{ReplayLayer, ReplayService};
pub use retry::{RetryLayer, RetryService};
pub use stack::{ClientStack, ServerStack};
pub use tidegate::observer::RefusalCause;

/// The programs on the page about poorer answers.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/protection/degrading.md")]
struct DegradingPage;

/// The programs on the page about axum, tonic and the layers.
#[cfg(all(doctest, feature = "grpc"))]
#[doc = include_str!("../../../docs/axum-and-tonic.md")]
struct AxumAndTonicPage;
