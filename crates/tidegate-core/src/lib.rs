//! The pure arithmetic of rate limits and overload protection: it decides what is allowed.
//!
//! Nothing here reads a clock, takes a lock, does I/O or awaits. A limit is a [`Quota`]; its memory of one key is a
//! [`State`]; one pure function takes `(state, now, cost, max_wait)` and returns a decision with the next state.
//! Every store of states (a table in memory, the compare-and-set of a remote engine) calls that same function.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod average;
pub mod breaker;
pub mod bytes;
pub mod codel;
pub mod concurrency;
pub mod deadline;
pub mod decision;
pub mod division;
pub mod envelope;
mod error;
mod guard;
pub mod priority;
mod quota;
pub mod rate;
pub mod retry;
pub mod retry_budget;
pub mod signal_rate;
pub mod spelling;
pub mod throttle;
pub mod time;
mod window;

pub use algorithm::Algorithm;
pub use decision::{Ask, Cost, Decision, NotACost, Receipt, Replace, Retry, Standing, Transition};
pub use error::QuotaError;
pub use guard::{Finish, Guard, Outcome};
pub use priority::{Criticality, Priority};
pub use quota::{Quota, QuotaBuilder, State};
pub use time::{Rate, Tick};
