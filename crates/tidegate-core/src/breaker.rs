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
//! * Half-open a breaker is a bulkhead with few places, and the places lapse. So no breaker stays half-open because a
//!   holder never came back. A cancelled probe gives its place back.
//! * The calls of each step are judged by a [`Judgement`]. Each step doubles how many calls may be in flight, instead
//!   of letting a share of all calls through: work in flight is what overwhelms a recovering service, and a limit on
//!   it needs neither counts of refusals nor random numbers.
//! * A breaker that [sheds](BreakerBuilder::shed_at_most) stays closed, and refuses by chance the share of calls that
//!   goes beyond what its threshold allows.
//! * A person can [`Force`] the breaker into a state, for a time and with a reason.
//!
//! Profiles named after other libraries compare in the same way as those libraries; see the methods of
//! [`CircuitBreaker`].

mod builder;
mod forced;
mod guard;
mod judgement;
mod machine;
mod outcomes;
mod parameters;
mod profiles;
mod rules;
mod shed;
mod shown;
mod state;

pub use builder::BreakerBuilder;
pub use forced::{Force, Forced, WouldTrip};
pub use judgement::Judgement;
pub use machine::{Cause, Change};
pub use outcomes::{Totals, Window};
pub use parameters::{CircuitBreaker, Evaluate};
pub use profiles::SentinelRule;
pub use rules::Figure;
pub use shown::Admitted;
pub use state::{CircuitBreakerState, Condition};
