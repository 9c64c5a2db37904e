//! Warns of what a file that was read says and probably does not mean.

#[cfg(feature = "cel")]
pub(super) mod comparisons;
pub(super) mod duplicates;
mod law_conflicts;
pub(super) mod near_names;
pub(super) mod networks;
pub(super) mod settling;
