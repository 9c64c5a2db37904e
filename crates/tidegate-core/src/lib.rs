//! What is allowed: the pure arithmetic of rate limits.
//!
//! Nothing here reads a clock, takes a lock, does I/O or awaits. A limit is a [`Quota`]; what it remembers of one key is
//! a [`State`]; one pure function takes `(state, now, cost, max_wait)` and returns a decision with the next state.
//! Whoever stores the states (a memory table, a remote engine's compare-and-set) calls the same function.
//!
//! * [`time`]: ticks, and the rate kept as an exact ratio
//! * [`decision`]: what is asked and what is answered
//! * [`guard`]: what one enters and leaves, and how work ends
//! * [`priority`]: how much a request matters
//! * [`quota`]: a complete limit of any algorithm, and its state
//! * [`rate`]: one file per algorithm, one shape
//! * [`breaker`]: who refuses calls to a service that fails
//! * [`concurrency`]: how much may be in flight, and what moves that limit
//! * [`deadline`], [`retry`], [`retry_budget`]: how long work may take, and whether it is worth trying again
//! * [`throttle`]: which share of arrivals is refused, by how earlier work ended
//! * [`codel`]: who of a waiting line is served, and who has waited too long
//! * [`following`]: a rate that follows a signal, as the memory in use
//! * [`division`]: one limit over several who grant it on their own
//! * [`envelope`]: by how much too much was admitted, and how much of a limit was used
//! * [`bytes`]: the stable, versioned byte form of states and quotas
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod average;
pub mod breaker;
pub mod bytes;
mod changed;
pub mod codel;
pub mod concurrency;
pub mod deadline;
pub mod decision;
pub mod division;
pub mod envelope;
mod error;
pub mod following;
pub mod guard;
mod kept;
mod knob;
pub mod priority;
pub mod quota;
pub mod rate;
pub mod retry;
pub mod retry_budget;
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
