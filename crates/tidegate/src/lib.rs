//! Decides which requests pass, which wait and which are shed, within one process.
//!
//! ```
//! use tidegate::{Limiter, Quota};
//!
//! let limiter = Limiter::new(Quota::per_second(50))?;
//! let answer = limiter.allow();
//! let status = if answer.is_allowed() { 200 } else { 429 }; // `answer.retry()` says until when
//! # assert_eq!(status, 200);
//! # Ok::<(), tidegate::QuotaError>(())
//! ```
//!
//! What else there is, the most needed first; the [tour](#what-else-a-limit-can-do) shows each use of a limit:
//!
//! * [`KeyedLimiter`]: one limit per key, in bounded memory; [`Limiter::all`]: several limits at once
//! * [`Quota`], [`Key`], [`Cost`], [`Deadline`]: arguments that many calls take; [`Answer`] and [`Decision`]: what they
//!   return
//! * [`Bulkhead`]: bounds work in flight; a permit returns its place by itself
//! * [`Breaker`], [`KeyedBreaker`]: refuse calls to a failing service until it answers again
//! * [`deadline`]: the time left for a request, read from a header, carried through the task, and sent to the next
//!   service
//! * [`retries`]: retries within a shared budget
//! * [`gate`]: policies, store and clock together: one check over many limits, and the settling of its charges
//! * [`policy`]: which requests are limited, and how; `config` (feature `config`): policies and server settings read
//!   from a file
//! * `http_answer` (feature `http`): a decision in HTTP terms: the rate-limit headers, and the refusal with its problem
//!   document
//! * [`explain`]: why a request was denied, and by which policy
//! * [`priority`]: a request's importance, read from a header, carried through the task, and sent to the next service
//! * [`fallback`]: answers in place of work that was refused or failed
//! * [`switches`]: features turned off by hand or by a signal, with a reason and an optional end
//! * [`clock`]: sources of ticks; [`ManualClock`] is the one for tests
//! * [`observer`]: callbacks for decisions
//! * [`queue`]: runs jobs in order at a constant rate
//! * [`blocking_pool`]: threads for work that blocks, with a bounded queue before them
//! * [`coalesce`]: merges identical calls in flight into one
//! * [`hot_keys`]: finds the few keys that make up much of the traffic
//! * [`Precision`]: trades the accuracy of the time against the cost of a check
//! * [`store`]: settles lists of charges, each list atomically, all or nothing; [`cluster`]: how several nodes divide
//!   limits and share policies through an engine, a store outside the process that all nodes use, such as Redis or etcd
//! * [`rate`]: the algorithms of rate limits; [`concurrency`], [`throttle`], [`codel`], [`following`]: the laws that
//!   move a limit or shed load
//! * [`signals`]: how much of the machine is in use, for laws that adapt limits
//! * [`visible`]: makes untrusted text safe to print
#![doc = include_str!("docs/limiting.md")]
#![doc = include_str!("docs/features.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(doctest)]
mod doc_tests;

#[cfg(feature = "config")]
#[doc(inline)]
pub use tidegate_config as config;
#[doc(inline)]
pub use tidegate_core::{codel, concurrency, following, rate, throttle};
#[cfg(feature = "http")]
#[doc(inline)]
pub use tidegate_gate::http_answer;
#[doc(inline)]
pub use tidegate_gate::{
    Admission, Charged, Check, Descriptor, Entry, Gate, GateDecision, HeaderForm, InForce, LimitDecision,
    Policy, PolicySet, explain, gate, hot_keys, policy, switches,
};
#[doc(inline)]
pub use tidegate_limits::{
    Answer, Ask, Breaker, Bulkhead, Clock, Cost, Criticality, Deadline, Decision, Denied, Enter, Finish,
    JobQueue, Key, KeyedBreaker, KeyedLimiter, Limiter, ManualClock, NoPlace, NotACost, Outcome, Permit,
    Precision, Priority, QueueOrder, Quota, QuotaBuilder, QuotaError, Rate, Receipt, Replace, Reservation,
    Retry, Standing, SystemClock, TakeError, Tenants, Tick, Wait, blocking_pool, breaker, clock, coalesce,
    deadline, fallback, observer, priority, queue, retries, signals, visible,
};

/// Coordinates the nodes of a deployment through an engine: which nodes there are, which part of each limit each of them
/// may use, and which policies are in force.
pub mod cluster {
    #[doc(inline)]
    pub use tidegate_cluster::{
        Coordinator, CoordinatorError, Document, LocalCluster, Member, MemberReport, OwnReport, Part,
        conformance, policies, shares,
    };
}

/// Settles lists of charges, each in one step, all or nothing: the trait, the store in memory, and stores around other
/// stores.
pub mod store {
    #[doc(inline)]
    pub use tidegate_cluster::{
        ByteMap, CAS_ROUND_TRIPS, CasStore, Fallback, Leased, Read, Regional, Split, Versioned, Write,
        Written, fallback, leased,
    };
    #[doc(inline)]
    pub use tidegate_limits::store::*;
}

/// The program at the top of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
