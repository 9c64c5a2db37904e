//! Decides which requests pass, which wait and which are shed, within one process.
//!
//! ```
//! use tidegate::{Limiter, Quota};
//!
//! let limiter = Limiter::new(Quota::per_second(50))?;
//! let status = if limiter.allow().is_allowed() { 200 } else { 429 };
//! # assert_eq!(status, 200);
//! # Ok::<(), tidegate::QuotaError>(())
//! ```
//!
//! The [tour](#what-else-a-limit-can-do) shows each use of a limit. Beyond it, the most needed first:
//!
//! * [`KeyedLimiter`]: one limit per key, in bounded memory; [`Limiter::all`]: several limits at once
//! * [`Bulkhead`]: bounds work in flight; a permit returns its place by itself
//! * [`Breaker`]: refuses calls to a failing service until it answers again
//! * [`Gate`] over a set of [policies](policy): one check over many limits, and the settling of its charges; `config`
//!   (feature `config`) reads policies from a file, `http_answer` (feature `http`) says a decision in HTTP terms
//! * [`deadline`] and [`priority`]: read from a header, carried through the task, and sent to the next service
//! * [`cluster`]: how several nodes divide limits and share policies through an engine, a store outside the process that
//!   all nodes use, such as Redis or etcd
#![doc = include_str!("docs/limiting.md")]
#![doc = include_str!("docs/features.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(doctest)]
mod doc_tests;

#[cfg(feature = "config")]
#[doc(inline)]
pub use tidegate_config as config;
#[cfg(feature = "http")]
#[doc(inline)]
pub use tidegate_gate::http_answer;
#[doc(inline)]
pub use tidegate_gate::{Gate, policy};
#[doc(hidden)]
pub use tidegate_limits::visible;
#[doc(inline)]
pub use tidegate_limits::{
    Breaker, Bulkhead, Cost, KeyedLimiter, Limiter, Outcome, Quota, QuotaError, Tick, clock, deadline,
    observer, priority, retries,
};

/// Limits per time: what their calls take and return, the algorithms, and a queue at a constant rate.
pub mod limiter {
    #[doc(inline)]
    pub use tidegate_core::rate;
    #[doc(inline)]
    pub use tidegate_limits::{
        Answer, Ask, Decision, Denied, Finish, Key, NotACost, Precision, QuotaBuilder, Rate, Receipt,
        Replace, Reservation, Retry, Standing, TakeError, Wait, queue,
    };
}

/// Limits on work in flight: entries and permits, threads for work that blocks, and identical calls merged into one.
pub mod bulkhead {
    #[doc(inline)]
    pub use tidegate_limits::{Enter, NoPlace, Permit, QueueOrder, Tenants, blocking_pool, coalesce};
}

/// Circuit breakers, which refuse calls to a failing service until it answers again, and answers in place of work that
/// was refused or failed.
pub mod breaker {
    #[doc(inline)]
    pub use tidegate_limits::breaker::*;
    #[doc(inline)]
    pub use tidegate_limits::fallback;
}

/// Laws that move a limit or shed load, and readings of the machine that they go by.
///
/// A unit of a concurrency limit is a *place*: work takes it on entry and returns it when it ends; time alone does not
/// refill it.
pub mod concurrency {
    #[doc(inline)]
    pub use tidegate_core::concurrency::*;
    #[doc(inline)]
    pub use tidegate_core::{codel, signal_rate, throttle};
    #[doc(inline)]
    pub use tidegate_limits::signals;
}

/// Policies, stores and a clock together: one check decides many limits, all or nothing. Why it denied, which keys are
/// hot, and features turned off by hand or by a signal.
pub mod gate {
    #[doc(inline)]
    pub use tidegate_gate::gate::*;
    #[doc(inline)]
    pub use tidegate_gate::{explain, hot_keys, switches};
}

/// Coordinates the nodes of a deployment through an engine: which nodes there are, which part of each limit each of them
/// may use, and which policies are in force.
pub mod cluster {
    #[doc(inline)]
    pub use tidegate_cluster::{
        Coordinator, CoordinatorError, Document, LocalCluster, Member, MemberReport, OwnReport, Part,
        conformance, policies, shares,
    };
}

/// Stores, which execute lists of charges, each in one step, all or nothing: the trait, the store in memory, and stores
/// around other stores.
pub mod store {
    #[doc(inline)]
    pub use tidegate_cluster::{
        ByteMap, CAS_ROUND_TRIPS, CasStore, Fallback, Leased, Read, Regional, Split, Successor, Versioned,
        Write, Written, fallback, leased,
    };
    #[doc(inline)]
    pub use tidegate_limits::store::*;
}

/// The program at the top of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
