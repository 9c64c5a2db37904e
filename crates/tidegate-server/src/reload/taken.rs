//! What came of the policies that were put for all nodes.

use std::sync::Arc;

use crate::settings::SharedPolicies;

/// What came of the policies that were put for all nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    /// Those in force; `None` where the file's are.
    pub(crate) in_force: Option<Arc<SharedPolicies>>,
    /// The version that was refused since, and why; 0 for a document in a form that this program does not know.
    pub(crate) refused: Option<(u64, Arc<str>)>,
}
