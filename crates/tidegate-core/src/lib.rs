//! The pure arithmetic of rate limits and overload protection: it decides what is allowed.
//!
//! Nothing here reads a clock, takes a lock, does I/O or awaits. A limit is a [`Quota`]; its memory of one key is a
//! [`State`]; one pure function takes `(state, now, cost, max_wait)` and returns a decision with the next state.
//! Every store of states (a table in memory, the compare-and-set of a remote engine) calls that same function.
//!
//! * [`time`]: ticks, and the rate kept as an exact ratio
//! * [`decision`]: the request to a limit, and its answer
//! * [`Guard`]: limits on work in progress, which work enters and leaves; and the outcomes of work
//! * [`priority`]: how much a request matters
//! * [`Quota`], [`State`]: a complete limit of any algorithm, and its state
//! * [`rate`]: the rate-limit algorithms, one file each
//! * [`breaker`]: circuit breakers, which refuse calls to a service that fails
//! * [`concurrency`]: limits on how much work is in flight, fixed or moved by a law
//! * [`deadline`], [`retry`], [`retry_budget`]: how long work may take, and whether it is worth trying again
//! * [`throttle`]: computes the share of arrivals to refuse from how earlier work ended
//! * [`codel`]: which waiting request is served next, and which has waited too long
//! * [`following`]: a rate that follows a signal, such as the memory in use
//! * [`division`]: divides one limit among holders, each of which grants its part without asking the others
//! * [`envelope`]: measures by how much admissions exceeded a limit, and how much of the limit they used
//! * [`bytes`]: the stable, versioned byte form of states and quotas
//! * [`spelling`]: finds the known word that an unknown one probably means
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
pub mod following;
mod guard;
pub mod priority;
mod quota;
pub mod rate;
pub mod retry;
pub mod retry_budget;
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
