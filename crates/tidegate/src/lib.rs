//! Decides which requests pass, which wait and which are shed, within one process.
//!
//! * [`Limiter`], [`KeyedLimiter`]: rate limits that allow, reserve or wait; one limit, several at once, or one per key
//!   in bounded memory
//! * [`Precision`]: trades the accuracy of the time against the cost of a check
//! * [`Bulkhead`]: bounds work in flight; a permit returns its place by itself; [`concurrency`]: the laws that adapt
//!   the number of places, and tenants' shares
//! * [`deadline`]: the time left for a request, read from a header, carried through the task, and sent to the next
//!   service
//! * [`priority`]: a request's importance, read from a header, carried through the task, and sent to the next service
//! * [`retries`]: retries within a shared budget
//! * [`fallback`]: answers in place of work that was refused or failed
//! * [`coalesce`]: merges identical calls in flight into one
//! * [`hot_keys`]: finds the few keys that make up much of the traffic
//! * [`blocking_pool`]: threads for work that blocks, with a bounded queue before them
//! * [`switches`]: features turned off by hand or by a signal, with a reason and an optional end
//! * [`Breaker`], [`KeyedBreaker`]: refuse calls to a failing service until it answers again
//! * [`queue`]: runs jobs in order at a constant rate
//! * [`observer`]: callbacks for decisions
//! * [`Key`], [`Cost`], [`Deadline`]: arguments that many of these calls take
//! * `http_answer` (feature `http`): a decision in HTTP terms: the rate-limit headers, and the refusal with its problem
//!   document
//! * [`clock`]: sources of ticks, with a virtual clock for tests
//! * [`cluster`]: how several nodes divide limits and share policies through an engine, a store outside the process
//!   that all nodes use, such as Redis or etcd
//! * [`explain`]: why a request was denied, and by which policy
//! * [`gate`]: policies, store and clock together: one check over many limits, and the settling of its charges
//! * [`policy`]: which requests are limited, and how
//! * `config` (feature `config`): policies and server settings read from a file
//! * [`signals`]: how much of the machine is in use, for laws that adapt limits
//! * [`store`]: settles lists of charges, each list atomically, all or nothing
//! * [`visible`]: makes untrusted text safe to print
//! * [`Quota`], [`Decision`] and other common types come from [`tidegate_core`]; [`rate`] has the rate-limit
//!   algorithms, one file each
#![doc = include_str!("docs/limiting.md")]
#![doc = include_str!("docs/features.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod background;
mod block_on;
pub mod blocking_pool;
pub mod breaker;
mod bulkhead;
pub mod clock;
pub mod cluster;
pub mod coalesce;
#[cfg(feature = "config")]
pub mod config;
pub mod deadline;
mod deferred_panic;
#[cfg(doctest)]
mod doc_tests;
#[cfg_attr(not(feature = "http"), allow(unreachable_pub, reason = "`http_answer` hands it to the server"))]
mod duration_text;
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
mod no_place;
pub mod observer;
pub mod policy;
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
pub mod switches;
mod sync;
mod task_local;
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
pub use no_place::NoPlace;
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

/// The program at the top of the README.
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
