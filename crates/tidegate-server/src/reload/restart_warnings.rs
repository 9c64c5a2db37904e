//! Warnings of a reload whose file says something else of what is read at the start only.
//!
//! Such a file is not refused: it may be made ready for the next start. But an operator who raises `store.keys` and reads no warning would
//! believe that there is room now.

use crate::settings::AtStart;

/// Returns one warning for each section that is not as it was at the start.
pub(super) fn of(before: Option<&AtStart>, after: Option<&AtStart>) -> Vec<String> {
    let (Some(before), Some(after)) = (before, after) else { return Vec::new() };
    let sections = [
        ("server", before.server != after.server),
        ("store", before.store != after.store),
        ("tickets", before.tickets != after.tickets),
    ];
    let changed = sections.into_iter().filter(|(_, changed)| *changed);
    changed
        .map(|(name, _)| {
            format!("`{name}` is read at the start only: what has changed there holds after a restart")
        })
        .collect()
}
