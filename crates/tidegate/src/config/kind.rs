//! What a key of the file may hold.

use super::grammars::Grammar;

/// Words that were called something else in earlier versions, with what they are called now.
pub(super) const RENAMED: [(&str, &str); 1] = [("whole", "full")];

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A value, compared as it is.
    Text,
    /// The name of a policy.
    Name,
    /// The name of an attribute, as `user.id`.
    Attribute,
    /// The name of a header.
    Header,
    /// `GET`
    Method,
    /// `quota-exceeded`, or a URI
    Problem,
    /// `llm.tokens`, or an expression
    Cost,
    /// `llm.output`, or an expression over what a settlement tells
    Settle,
    /// The name of a value that a settlement tells, as `llm.output`.
    Usage,
    /// A whole number in a range.
    Whole(u64, u64),
    /// `100/s`
    Rate,
    /// `200ms`
    Span,
    /// `80%`
    Percent,
    /// `20%`, or a number of units
    Kept,
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
    /// One of these words.
    Word(&'static [&'static str], &'static [&'static str]),
    /// A list.
    List(&'static Kind),
    /// One, or a list.
    OneOrMany(&'static Kind),
    /// A map with keys of the author's choice: of the first kind, with values of the second.
    Map(&'static Kind, &'static Kind),
    /// A map with these keys.
    Table(&'static Table),
    /// A scalar of the first kind, or a map or list of the second.
    Either(&'static Kind, &'static Kind),
    /// What one key or two have a grammar of their own for.
    Read(&'static Grammar),
    /// Known, and not in this version.
    Unavailable,
    /// Not a key here, though it might be looked for; the text says what to write.
    Elsewhere(&'static str),
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// As it would be written.
    pub(super) default: Option<&'static str>,
    pub(super) doc: &'static str,
}

/// A map with known keys.
#[derive(Debug)]
pub(super) struct Table {
    /// What it is called in messages.
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
