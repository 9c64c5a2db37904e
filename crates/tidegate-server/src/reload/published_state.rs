//! The state of the policies published for all nodes.

use std::sync::Arc;

use crate::settings::SharedPolicies;

/// The state of the policies published for all nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    /// The published policies in force; `None` if the file's are.
    pub(crate) in_force: Option<Arc<SharedPolicies>>,
    /// The version that was refused since then, and the reason; 0 for a document in an unknown format.
    pub(crate) refused: Option<(u64, Arc<str>)>,
}
