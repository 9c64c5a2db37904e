//! Several keys that behave like one crawler.

use crate::suggest::signs::Evidence;

/// What the keys of a group share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::suggest) enum Shared {
    /// The same agent.
    Agent(String),
    /// The same first parts of their addresses, as a pattern.
    Network(String),
}

/// Several keys that behave like one crawler.
#[derive(Clone, Debug)]
pub(in crate::suggest) struct Group {
    pub(in crate::suggest) shared: Shared,
    pub(in crate::suggest) evidence: Evidence,
}
