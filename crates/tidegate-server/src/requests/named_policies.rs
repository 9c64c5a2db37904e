//! Looks up policies that a caller names.

use tidegate::policy::PolicySet;

use crate::spelling::{nearest, quoted};

/// The error if no policy has the given name.
#[derive(Debug, thiserror::Error)]
#[error("there is no policy {}{}", quoted(name), meant.as_ref().map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default())]
pub(crate) struct NoPolicy {
    name: String,
    /// The policy that was probably meant.
    pub(crate) meant: Option<String>,
}

/// Returns the index of the policy with this name.
///
/// # Errors
/// [`NoPolicy`], with the nearest name.
pub(crate) fn find(set: &PolicySet, name: &str) -> Result<usize, NoPolicy> {
    set.find(name).map(|(at, _)| at).ok_or_else(|| {
        let known = set.policies().iter().map(|policy| policy.name.as_str());
        NoPolicy { meant: nearest(name, known).map(str::to_owned), name: name.to_owned() }
    })
}
