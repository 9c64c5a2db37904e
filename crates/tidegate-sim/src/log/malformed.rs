//! Lines that are no request: why, and how they are shown.

use std::fmt;

use super::record::text;

/// Why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// No time, or a time that cannot be.
    #[error("no time that can be read")]
    Time,
    /// Nothing before the time.
    #[error("no client before the time")]
    Client,
    /// No quoted request.
    #[error("no request in quotes after the time")]
    Request,
    /// The status is no status.
    #[error("the status is not three digits")]
    Status,
    /// The size is no number.
    #[error("the size is not a number")]
    Bytes,
    /// More or fewer fields than the header has.
    #[error("not as many fields as the header line has")]
    Columns,
    /// The header line has no column for the time.
    #[error("the header line names no time column; name it with --column time=NAME")]
    Header,
    /// Not one JSON object.
    #[error("not one JSON object")]
    Json,
    /// The text that the `log_format` has behind its variable of this number, from 1, does not come; of 0, the text it begins with.
    #[error("not as the log format has it: {}", misfit(*.variable))]
    LogFormat {
        /// The number of the variable.
        variable: u16,
    },
    /// Fewer fields than an Application Load Balancer writes.
    #[error("fewer fields than a line of an Application Load Balancer has")]
    Alb,
    /// Not the fields that the `#Fields` line names.
    #[error("not as many fields as the #Fields line has")]
    Fields,
    /// A second `#Fields` line, with others, stands before it.
    #[error("the #Fields line before it is not the one at the beginning; give the files one by one")]
    OtherFields,
    /// Longer than [`crate::source::MAX_LINE`].
    #[error("longer than 64 KiB")]
    TooLong,
}

fn misfit(variable: u16) -> String {
    match variable {
        0 => "it begins otherwise".to_owned(),
        number => format!("variable {number} and the text behind it do not come"),
    }
}

/// A malformed line, to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedLine {
    /// The file.
    pub file: String,
    /// The number of the line, from 1.
    pub line: u64,
    /// What is wrong.
    pub why: Malformed,
    /// How it begins.
    pub excerpt: String,
}

impl fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.why, self.excerpt)
    }
}

/// Characters of a line that are shown.
const EXCERPT: usize = 120;

/// Returns how a line begins, without control characters.
pub(super) fn excerpt(line: &[u8]) -> String {
    text(line).chars().take(EXCERPT).map(|char| if char.is_control() { '·' } else { char }).collect()
}
