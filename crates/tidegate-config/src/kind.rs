//! The kinds of values that keys of the file may hold.

use super::grammars::Grammar;

/// The kind of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// The name of a policy.
    Name,
    /// The name of an attribute, such as `user.id`.
    Attribute,
    /// The name of a header.
    Header,
    /// `GET`
    Method,
    /// `quota-exceeded`, or a URI
    Problem,
    /// `llm.tokens`, or an expression
    Cost,
    /// `llm.output`, or an expression over the values that a settlement reports
    Settle,
    /// The name of a value that a settlement reports, such as `llm.output`.
    Usage,
    /// A whole number in a range.
    Whole(u64, u64),
    /// `100/s`
    Rate,
    /// `200ms`
    Span,
    /// `80%`. The two numbers are the range that the advice for a text that is no share names; a share outside it is
    /// refused later, with the reason.
    Percent(u8, u8),
    /// `20%`, or a number of units
    Kept,
    /// `cpu above 80%, until 70%`
    Condition,
    /// `memory 70%..90% to 100/s`
    Source,
    /// `127.0.0.1:8080`
    Socket,
    /// `10.0.0.0/8`
    Network,
    /// `Asia/Shanghai`
    Zone,
    /// `/api/**`
    Path,
    /// `*.example.com`
    Host,
    /// `*json*`
    Glob,
    /// `10.0.0.0/8` or `user.id=42`
    Entry,
    /// One of the words of the first list. Words of the second list are not available in this version.
    Word(&'static [&'static str], &'static [&'static str]),
    /// A list.
    List(&'static Kind),
    /// A single value or a list.
    OneOrMany(&'static Kind),
    /// A map with keys of the author's choice. The first kind is that of the keys, the second that of the values.
    Map(&'static Kind, &'static Kind),
    /// A map with these keys.
    Table(&'static Table),
    /// A scalar of the first kind, or a map or list of the second.
    Either(&'static Kind, &'static Kind),
    /// A value whose grammar only one or two keys use.
    Read(&'static Grammar),
    /// A key that is known but not available in this version.
    Unavailable,
    /// Not a key here, though authors may expect it; the text says what to write instead.
    Elsewhere(&'static str),
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The default, as a file would write it.
    pub(super) default: Option<&'static str>,
    pub(super) doc: &'static str,
}

/// A map with known keys.
#[derive(Debug)]
pub(super) struct Table {
    /// The name of the section in messages.
    pub(super) name: &'static str,
    pub(super) keys: &'static [Key],
    pub(super) required: &'static [&'static str],
}

impl Table {
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

pub(super) const fn key(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    doc: &'static str,
) -> Key {
    Key { name, kind, default, doc }
}
