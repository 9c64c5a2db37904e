//! Several keys that ask as one crawler would.

use crate::suggest::signs::Evident;

/// What several keys share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::suggest) enum Shared {
    /// One agent.
    Agent(String),
    /// The first parts of their addresses, as a pattern.
    Network(String),
}

/// Several keys that ask as one crawler would.
#[derive(Clone, Debug)]
pub(in crate::suggest) struct Group {
    pub(in crate::suggest) shared: Shared,
    pub(in crate::suggest) evident: Evident,
}
