//! What came of an ask.

use std::fmt;
use std::sync::Arc;

/// What came of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) fate: Fate,
    /// A status, or the word of an error.
    pub(super) code: Code,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Allowed,
    Denied,
    /// Answered, and with no decision.
    Failed,
    /// Sent, and nobody knows whether it was decided.
    Lost,
    /// Not even sent.
    Unsent,
}

/// What names an answer: the status of HTTP, or a word.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Code {
    Status(u16),
    Word(Arc<str>),
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

impl Answer {
    pub(super) fn word(fate: Fate, word: &str) -> Self {
        Self { fate, code: Code::Word(word.into()) }
    }
}
