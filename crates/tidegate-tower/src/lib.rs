//! Tidegate as tower layers: around any axum, tonic or hyper service or client.
//!
//! * [`RateLimitLayer`]: so many requests in a time, for all together or for each key
//! * [`ConcurrencyLayer`]: so many at once, by a number that is fixed or finds itself, with a bounded line before them
//! * [`BreakerLayer`]: calls to a service that fails are refused until it answers again
//! * [`GateLayer`]: all policies of a gate, settled all or none
//! * [`DeadlineLayer`], [`ForwardDeadlineLayer`]: how much time is left, in from a header and out to the next service
//! * [`PriorityLayer`], [`ForwardPriorityLayer`]: how much a request matters, in from a header and out to the next service
//! * [`RetryLayer`]: tries again what may succeed then, within a budget
//! * [`LoadShedLayer`]: refuses what a busy service would leave waiting
//! * [`FallbackLayer`]: what is answered in place of a failure
//! * [`ServerStack`], [`ClientStack`]: all of them in the right order
//!
//! A layer that refuses does not call its service, and says why with a [`Refused`]. How that is told is chosen by [`Answers`]: as a response
//! with a problem ([`Problems`], for HTTP servers), as a gRPC status (`GrpcStatuses`, a feature), or as an error ([`Errors`], for clients).
//! Layers that judge how calls end do not take the refusals of a layer within for the service's own ([`ByStatus`]). Every layer can tell an
//! [`Observer`](tidegate::observer::Observer) what it does, and one may be told by all.
//!
//! Nothing is taken when a service is asked whether it is ready: permits and units are taken by the call, and given back if its future is
//! dropped. So a caller who asks and does not call holds nothing up, and one who calls without asking panics only where the service within
//! does. What the service within set aside when it was asked, as tower's own `ConcurrencyLimit` does, is given back where a request is refused
//! or has to wait.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answers;
mod arriving;
mod breaker;
mod classify;
mod concurrency;
mod deadline;
mod fallback;
pub mod future;
mod gate;
mod given_up;
mod guarded;
mod load_shed;
mod name;
mod priority;
mod rate_limit;
mod ready;
mod refused;
mod retry;
mod spent;
mod stack;

#[cfg(feature = "grpc")]
#[cfg_attr(docsrs, doc(cfg(feature = "grpc")))]
pub use answers::GrpcStatuses;
pub use answers::{Answers, Errors, Problems};
pub use arriving::{ArrivingRetriesLayer, ArrivingRetriesService};
pub use breaker::{BreakerLayer, BreakerOfKey, BreakerService, Breakers, OneBreaker};
pub use classify::{ByStatus, Classify, retry_after};
pub use concurrency::{Alike, ConcurrencyLayer, ConcurrencyService, Entering};
pub use deadline::{DeadlineLayer, DeadlineService, ForwardDeadlineLayer, ForwardDeadlineService};
pub use fallback::{FallbackLayer, FallbackService};
pub use gate::{Describe, GateLayer, GateService, WhenUndecided};
pub use guarded::Entered;
pub use load_shed::{LoadShedLayer, LoadShedService};
pub use priority::{
    Ceiling, ForwardPriorityLayer, ForwardPriorityService, PriorityLayer, PriorityService, priority_of,
};
pub use rate_limit::{All, Costing, EachKey, Limits, RateLimitLayer, RateLimitService};
pub use refused::Refused;
pub use retry::{RetryLayer, RetryService};
pub use spent::Spent;
pub use stack::{ClientStack, ServerStack};
pub use tidegate::observer::RefusalCause;

/// The program on the page about layers.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/protection/layers.md")]
struct Page;

/// The programs on the page for those who come from tower_governor.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/migration/tower-governor.md")]
struct FromTowerGovernor;
