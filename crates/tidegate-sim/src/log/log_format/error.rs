//! Errors in a format, with their place.

use std::fmt;

/// An error in a `log_format`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFormatError {
    /// The line and the column in characters, both from 1; `None` for the format as a whole.
    place: Option<(usize, usize)>,
    /// Whether the format has several lines, so that the message names the line.
    several: bool,
    what: String,
}

impl LogFormatError {
    pub(super) fn whole(what: String) -> Self {
        Self { place: None, several: false, what }
    }

    /// An error at a byte of the text.
    pub(super) fn at(text: &str, byte: usize, what: impl Into<String>) -> Self {
        // The fallback is never used: errors are at ASCII characters, which are character boundaries.
        let before = text.get(..byte).unwrap_or(text);
        let line = before.rsplit('\n').next().unwrap_or("");
        let place = (before.matches('\n').count() + 1, line.chars().count() + 1);
        Self { place: Some(place), several: text.contains('\n'), what: what.into() }
    }
}

impl fmt::Display for LogFormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) if self.several => write!(f, "line {line}, column {column}: ")?,
            Some((_, column)) => write!(f, "column {column}: ")?,
            None => f.write_str("the format ")?,
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for LogFormatError {}
