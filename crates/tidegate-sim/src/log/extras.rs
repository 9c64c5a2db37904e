//! The fields of a line that a record has no place for, under the names the log gives them.

use super::roles::Role;
use super::span::Unit;

/// A name that was seen, and what it means.
#[derive(Clone, Debug)]
pub(super) struct Name {
    /// As extras show it: the log's name, or the attribute the user gave it.
    pub(super) shown: String,
    pub(super) role: Option<Role>,
    /// Place in the list of its role; 0 when the user named it.
    pub(super) rank: usize,
    /// What one is, of a duration.
    pub(super) unit: Unit,
}

/// One (name, value) pair of the line at hand: the name by number, the value in the text of all values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) name: u32,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// The fields of a line that have no role, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extras<'a> {
    pub(super) names: &'a [Name],
    pub(super) pairs: &'a [Pair],
    pub(super) text: &'a [u8],
}

impl<'a> Extras<'a> {
    pub(super) fn iter(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.pairs.iter().filter_map(move |pair| {
            let name = &self.names[pair.name as usize];
            let value = || &self.text[pair.start as usize..pair.end as usize];
            // How long it took is told beside the record's own, under the log's name: policies may count by it.
            let extra = name.role.is_none_or(|role| role == Role::Duration);
            extra.then(|| (name.shown.as_str(), value()))
        })
    }
}
