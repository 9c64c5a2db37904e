//! Decides which requests may pass, which must wait and which are shed: everything that lives in one process.
//!
//! * [`Limiter`], [`KeyedLimiter`]: allow, reserve, wait; one limit, several at once, or one per key in bounded memory
//! * [`Precision`]: how exactly they take the time, and what a check costs
//! * [`Bulkhead`]: so much at once; a permit returns its place by itself; [`concurrency`]: what moves the limit, and who shares it
//! * [`deadline`]: the time that is left, in from a header, through the task, out to the next service
//! * [`priority`]: how much a request matters, in from a header, through the task, out to the next service
//! * [`retries`]: calls tried again, within a budget that all share
//! * [`fallback`]: what stands in for work that was refused or failed
//! * [`coalesce`]: identical calls in flight made into one
//! * [`hot_keys`]: the few keys that make up much of the traffic
//! * [`blocking_pool`]: threads for work that blocks, and a bounded line before them
//! * [`switches`]: features turned off by hand or by a signal, for a while and for a reason
//! * [`Breaker`], [`KeyedBreaker`]: calls to a service that fails are refused until it answers again
//! * [`queue`]: jobs run in order at a constant rate
//! * [`observer`]: who is told about decisions
//! * [`Key`], [`Cost`], [`Deadline`]: what is handed to them
//! * `http_answer`, a feature: an answer's headers, and the 429 with its problem
//! * [`clock`]: where ticks come from; a virtual clock for tests
//! * [`cluster`]: what several nodes agree on through an engine
//! * [`explain`]: why a request was denied, and by which policy
//! * [`gate`]: policies, store and clock together: one check over many limits, and what becomes of what it charged
//! * [`policy`]: who is limited, by what
//! * `config`, a feature: policies and server settings read from a file
//! * [`signals`]: how much of the machine is in use, as laws want to know it
//! * [`store`]: settles lists of charges, each in one step, all or nothing
//! * [`visible`]: text from elsewhere, made safe to print
//! * [`Quota`], [`Decision`] and the other words of the field come from [`tidegate_core`]; [`rate`]: one file per algorithm
#![doc = include_str!("docs/limiting.md")]
#![doc = include_str!("docs/features.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod background;
mod block_on;
pub mod blocking_pool;
pub mod breaker;
mod bulkhead;
mod carried;
pub mod clock;
pub mod cluster;
pub mod coalesce;
#[cfg(feature = "config")]
pub mod config;
pub mod deadline;
mod draw;
pub mod explain;
pub mod fallback;
pub mod gate;
mod header_form;
pub mod hot_keys;
#[cfg(feature = "http")]
pub mod http_answer;
mod job;
mod key;
mod keyed;
mod later;
mod limiter;
#[cfg(doctest)]
mod manual;
pub mod observer;
pub mod policy;
mod precision;
pub mod priority;
pub mod queue;
mod reservation;
pub mod retries;
#[cfg_attr(not(feature = "http"), allow(unreachable_pub, reason = "`http_answer` hands it to the server"))]
mod rounded;
mod seqlock;
pub mod signals;
pub mod store;
pub mod switches;
mod sync;
mod thread_buffers;
mod time_bound;
pub mod visible;
mod wait;

pub use answer::{Answer, Denied, TakeError};
pub use breaker::{Breaker, KeyedBreaker};
pub use bulkhead::{Bulkhead, Enter, Permit, QueueOrder, Tenants};
pub use clock::{Clock, ManualClock, SystemClock};
pub use deadline::Deadline;
pub use gate::{Admission, Charged, Check, Entry, Gate, GateDecision, InForce, LimitDecision};
pub use header_form::HeaderForm;
pub use key::Key;
pub use keyed::KeyedLimiter;
pub use limiter::Limiter;
pub use policy::{Descriptor, Policy, PolicySet};
pub use precision::Precision;
pub use queue::JobQueue;
pub use reservation::Reservation;
pub use tidegate_core::{
    Ask, Cost, Criticality, Decision, Finish, NotACost, Outcome, Priority, Quota, QuotaBuilder, QuotaError,
    Rate, Receipt, Replace, Retry, Standing, Tick,
};
#[doc(inline)]
pub use tidegate_core::{codel, concurrency, following, rate, throttle};
pub use wait::Wait;

/// The program on the first screen of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The programs on the page about bulkheads.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/protection/bulkheads.md")]
struct Bulkheads;

/// The programs on the page about breakers.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/protection/breakers.md")]
struct Breakers;
