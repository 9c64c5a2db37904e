//! Policies: which requests are limited, under which keys, by which limits.
//!
//! A [`Policy`] says which requests it applies to ([`Match`]), which attributes make the key that they are charged to
//! (`by`), and under which [`Limit`]s; a [`PolicySet`] holds the policies of a whole file. A request is a
//! [`Descriptor`]. The set turns it into a [`Plan`], which a store executes.
//!
//! Two rules decide how a request is read. *The path* is normalised before it is matched: the query is cut off, escapes
//! are decoded once, `//` and dot segments are resolved, and a path that servers read in several ways (an escaped
//! slash, a backslash, a `;parameter`) is matched in each reading. *A missing attribute* of the key counts as a value
//! of its own, distinct from the empty text; if all attributes of the key are missing, the policy is skipped, unless
//! [`Absent`] says otherwise.

mod access;
mod canary;
#[cfg(feature = "cel")]
mod cel_cost;
mod client_ip;
mod compiled;
mod cost;
mod cost_error;
mod deadline;
mod descriptor;
mod estimated_cost;
mod explain;
mod glob;
mod in_force;
mod index;
mod key;
mod matching;
mod named;
mod near_names;
mod over_limit;
#[cfg(feature = "config")]
mod overlap;
#[doc(hidden)]
pub mod path;
mod plan;
#[expect(clippy::module_inception, reason = "one policy lives in the file of its name")]
mod policy;
mod rate_grammar;
mod real_cost;
mod sensed;
mod sensing;
mod set;
mod share;
mod signal_rate;
mod source;
mod trigger;
mod usage;
mod when;
#[cfg(feature = "http")]
pub(crate) mod wrong_value;

#[doc(hidden)]
pub use access::host_bits;
pub use access::{Access, AccessEntry, AccessEntryError, AccessList, Block, Refusal};
pub use canary::Portion;
#[cfg(feature = "cel")]
pub use cel_cost::{Expression, ExpressionError};
pub use client_ip::{ClientIp, ClientIpError, ForwardHeader, FoundIp, IpSource, canonical, keyed_network};
pub use compiled::LimitRules;
pub(crate) use compiled::{Stated, UNKNOWN as UNKNOWN_COST};
#[cfg(any(test, feature = "config"))]
#[doc(hidden)]
pub use cost::is_attribute_name;
pub use cost::{CostErrors, CostRule, OnCostError};
pub use cost_error::CostError;
#[cfg(feature = "config")]
#[doc(hidden)]
pub use cost_error::MAX_EXPRESSION;
pub use deadline::time_left;
pub(crate) use deadline::{TIME_LEFT, shortest_time_left, state_time_left};
pub use descriptor::Descriptor;
pub use estimated_cost::Learning;
pub use explain::Relevance;
pub use glob::{Glob, GlobError, PathGlob};
pub use in_force::{Among, Holding};
#[doc(hidden)]
pub use key::CALLER_LIMIT;
#[cfg(feature = "ticket")]
pub(crate) use key::TICKET_MARK;
pub(crate) use key::{each_value, head_of_key, tag_of_key};
pub use key::{policy_of_key, text_of_key};
#[doc(hidden)]
pub use matching::host_name;
pub use matching::{Match, Want};
#[doc(hidden)]
pub use named::BUILT_IN;
pub use named::Named;
#[doc(hidden)]
pub use near_names::meant as name_meant;
pub(crate) use near_names::meant_among;
pub use over_limit::Over;
#[cfg(feature = "config")]
#[doc(hidden)]
pub use overlap::Overlap;
pub(crate) use plan::LINES;
pub use plan::{Line, Plan};
pub use policy::{
    Absent, Canary, CanaryError, CanaryGuard, ChargeOn, Choice, Deny, Direction, Limit, Mode, Policy, Terms,
};
#[cfg(feature = "config")]
#[doc(hidden)]
pub use rate_grammar::whole_number;
pub use rate_grammar::{GrammarError, Unit, UnitError, WrittenRate, span};
pub use real_cost::{RealCost, SettleBy, SettleRule, UnknownUsage};
pub use sensed::ConditionsError;
pub use sensing::{SignalError, SourceStanding};
pub use set::{PolicySet, PolicySetError};
pub use share::Share;
pub(crate) use share::Shares;
pub use signal_rate::Follows;
pub use source::{MeasureError, Source, SourceError};
pub use tidegate_limits::priority::{KeepFor, KeepForError, Kept};
pub use tidegate_limits::store::{Durable, OnStoreError};
pub(crate) use trigger::TriggerState;
pub use trigger::{Trigger, TriggerError};
pub use usage::{LLM_USAGE, Usage, UsageValue};
pub use when::{Condition, ConditionError};
