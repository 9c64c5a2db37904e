//! Tidegate as tower layers: around any axum, tonic or hyper service or client.
//!
//! * [`RateLimitLayer`]: so many requests in a time, for all together or for each key
//! * [`ConcurrencyLayer`]: so many at once, with a bounded line before them
//! * [`DeadlineLayer`], [`ForwardDeadlineLayer`]: how much time is left, in from a header and out to the next service
//! * [`RetryLayer`]: tries again what may succeed then, within a budget
//! * [`LoadShedLayer`]: refuses what a busy service would leave waiting
//! * [`FallbackLayer`]: what is answered in place of a failure
//! * [`ServerStack`], [`ClientStack`]: all of them in the right order
//!
//! A layer that refuses does not call its service, and says why with a [`Refused`]. How that is told is chosen by [`Answers`]: as a response
//! with a problem ([`Problems`], for HTTP servers), as a gRPC status (`GrpcStatuses`, a feature), or as an error ([`Errors`], for clients).
//!
//! Nothing is taken when a service is asked whether it is ready: permits and units are taken by the call, and given back if its future is
//! dropped. So a caller who asks and does not call holds nothing up, and one who calls without asking panics only where the service within does.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answers;
mod classify;
mod concurrency;
mod deadline;
mod fallback;
pub mod future;
mod load_shed;
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
pub use classify::{ByStatus, Classify, retry_after};
pub use concurrency::{Concurrency, ConcurrencyLayer};
pub use deadline::{Deadline, DeadlineLayer, ForwardDeadline, ForwardDeadlineLayer};
pub use fallback::{Fallback, FallbackLayer};
pub use load_shed::{LoadShed, LoadShedLayer};
pub use rate_limit::{All, EachKey, Limits, RateLimit, RateLimitLayer};
pub use refused::{Cause, Refused};
pub use retry::{Retry, RetryLayer};
pub use spent::Spent;
pub use stack::{ClientStack, ServerStack};

/// The programs on the page for those who come from tower_governor.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/migration/tower-governor.md")]
struct FromTowerGovernor;
