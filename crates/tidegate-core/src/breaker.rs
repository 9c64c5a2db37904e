//! Circuit breakers: guards that refuse calls to a service that fails, and let them back in by steps.
//!
//! ```text
//!            a figure reaches its threshold              the open time is over
//!   closed ─────────────────────────────────▶ open ─────────────────────────────▶ half-open
//!     ▲                                         ▲     the first call is a probe      │   │ ▲
//!     │                                         └────────────────────────────────────┘   └─┘
//!     │                                              the calls say that it is ill        they say that it is well:
//!     │                                                                                  twice as many may be in flight,
//!     └───────────────────────────────────────────────────────────────────────────────── after the last step all
//! ```
//!
//! * What a closed breaker counts is a [`Window`]: of the last calls, or of time.
//! * Half-open it is a bulkhead of a few places, whose holders lapse: a probe that is lost gives its place up, so that no breaker stays
//!   half-open because somebody never came back. One that is cancelled says nothing, and gives its place back.
//! * The calls of each step are judged by a [`Judgement`]. A step doubles how many may be in flight, and does not let a share of all calls
//!   through: what overwhelms a service that comes back is work at once, and neither refusals nor random numbers have to be kept.
//! * A person can [`Force`] it into a state, for a time and a reason.
//!
//! Profiles named after other libraries compare as those do; see the methods of [`BreakerBuilder`].

mod builder;
mod by_time;
mod forced;
mod guard;
mod judgement;
mod machine;
mod outcomes;
mod parameters;
mod profiles;
mod rules;
mod shown;
mod state;
mod window;

pub use builder::BreakerBuilder;
pub use forced::{Force, Forced, WouldTrip};
pub use judgement::Judgement;
pub use machine::{Cause, Change};
pub use parameters::{CircuitBreaker, Evaluate};
pub use profiles::SentinelRule;
pub use rules::Figure;
pub use state::{CircuitBreakerState, Condition};
pub use window::{Totals, Window};
