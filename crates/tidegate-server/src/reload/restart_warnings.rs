//! Warns of reloads whose file changes settings that are read only at the start.
//!
//! Such a file is not refused, since it may be prepared for the next start. But without a warning, an operator who
//! raises `store.keys` would believe that the room is there now.

use crate::settings::AtStart;

/// Returns a warning for each section that differs from the start.
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
            format!("`{name}` is read only at the start: its changes take effect after a restart")
        })
        .collect()
}
