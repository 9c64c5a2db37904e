//! The fields of a line that have no place in a record, under the names that the log gives them.

use super::roles::Role;
use super::span::Unit;

/// A field name of the log, and its meaning.
#[derive(Clone, Debug)]
pub(super) struct Name {
    /// The name that extras show: the log's name, or the attribute that the user gave it.
    pub(super) shown: String,
    pub(super) role: Option<Role>,
    /// Its position among the names of its role; lower wins. 0: the user named it.
    pub(super) rank: usize,
    /// The unit of its values, if they are durations.
    pub(super) unit: Unit,
}

/// A name and a value of the current line: the number of the name, and the range of the value in the text of all
/// values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) name: u32,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// The fields of a line that have no role, and the duration of the request.
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
            // The duration is an extra too, under the log's name, so that policies can count by it.
            let extra = name.role.is_none_or(|role| role == Role::Duration);
            extra.then(|| (name.shown.as_str(), value()))
        })
    }
}
