//! Referer and user agent of a line in an access log, parsed only on demand.

use std::borrow::Cow;

use super::quoting::{known, quoted, undone};

/// The text after the byte count, or the values that other formats found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tail<'a> {
    /// `"referer" "agent" ...`, not parsed yet.
    Unread(&'a [u8]),
    /// Parsed values.
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
