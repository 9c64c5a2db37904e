//! Referer and agent of an access log's line, which are looked for only when somebody asks.

use std::borrow::Cow;

use super::quoting::{known, quoted, undone};

/// What follows the byte count, or what other formats found in its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tail<'a> {
    /// `"referer" "agent" ...`, not yet looked at.
    Unread(&'a [u8]),
    /// Known already.
    Read { referer: &'a [u8], agent: &'a [u8] },
}

impl Default for Tail<'_> {
    fn default() -> Self {
        Self::Unread(b"")
    }
}

impl<'a> Tail<'a> {
    pub(super) fn referer(&self) -> Cow<'a, [u8]> {
        match *self {
            Self::Unread(rest) => undone(known(quoted(rest).0)),
            Self::Read { referer, .. } => Cow::Borrowed(referer),
        }
    }

    pub(super) fn agent(&self) -> Cow<'a, [u8]> {
        match *self {
            Self::Unread(rest) => undone(known(quoted(quoted(rest).1).0)),
            Self::Read { agent, .. } => Cow::Borrowed(agent),
        }
    }
}
