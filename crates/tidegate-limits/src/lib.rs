//! The limits and guards of one process: limiters, bulkheads, breakers, queues, deadlines, retries, signals, clocks,
//! and the store in memory.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod background;
mod block_on;
pub mod blocking_pool;
pub mod breaker;
mod bulkhead;
pub mod clock;
pub mod coalesce;
pub mod deadline;
mod deferred_panic;
#[doc(hidden)]
pub mod duration_text;
pub mod fallback;
mod job;
mod key;
mod keyed;
mod limiter;
pub mod observer;
mod precision;
pub mod priority;
pub mod queue;
mod refusal_reason;
mod reservation;
pub mod retries;
mod rng;
mod seqlock;
pub mod signals;
pub mod store;
#[doc(hidden)]
pub mod sync;
mod task_local;
mod thread_buffers;
pub mod visible;
mod wait;

pub use answer::{Answer, Denied, TakeError};
#[doc(hidden)]
pub use background::Background;
#[doc(hidden)]
pub use block_on::block_on;
pub use breaker::{Breaker, KeyedBreaker};
pub use bulkhead::{Bulkhead, Enter, Permit, QueueOrder, Tenants};
pub use clock::{Clock, ManualClock, SystemClock};
pub use deadline::Deadline;
pub use key::Key;
pub use keyed::KeyedLimiter;
pub use limiter::Limiter;
pub use precision::Precision;
pub use queue::JobQueue;
pub use refusal_reason::NoPlace;
pub use reservation::Reservation;
#[doc(hidden)]
pub use thread_buffers::{Borrowed, Buffers};
pub use tidegate_core::{
    Ask, Cost, Criticality, Decision, Finish, NotACost, Outcome, Priority, Quota, QuotaBuilder, QuotaError,
    Rate, Receipt, Replace, Retry, Standing, Tick,
};
pub use wait::Wait;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/protection/bulkheads.md")]
struct Bulkheads;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/protection/breakers.md")]
struct Breakers;
