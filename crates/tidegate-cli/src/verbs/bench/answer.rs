//! The result of an ask.

use std::fmt;
use std::sync::Arc;

/// The result of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) fate: Fate,
    /// The status, or a word for the error.
    pub(super) code: Code,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Allowed,
    Denied,
    /// Answered without a decision.
    Failed,
    /// Sent, but unknown whether it was decided.
    Lost,
    /// Not sent.
    Unsent,
}

/// The code of an answer: an HTTP status, or a word.
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
