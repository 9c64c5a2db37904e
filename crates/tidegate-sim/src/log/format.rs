//! The formats that logs are written in, and their names.

use std::fmt;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Told by the first lines of each file.
    #[default]
    Auto,
    /// Common log format: no referer, no agent.
    Common,
    /// Combined log format, as Apache and nginx write by default.
    Combined,
    /// Combined behind `host:port`, as Debian's `other_vhosts_access.log`.
    Vhost,
    /// One JSON object per line.
    Json,
    /// Comma- or tab-separated, with a header line.
    Csv,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Common => "common",
            Self::Combined => "combined",
            Self::Vhost => "vhost",
            Self::Json => "json",
            Self::Csv => "csv",
        })
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        const ALL: [Format; 6] =
            [Format::Auto, Format::Common, Format::Combined, Format::Vhost, Format::Json, Format::Csv];
        ALL.into_iter().find(|format| format.to_string() == word).ok_or_else(|| {
            let near = crate::words::nearest(word, &["auto", "common", "combined", "vhost", "json", "csv"]);
            format!("`{word}` is not a log format{near}; use auto, common, combined, vhost, json or csv")
        })
    }
}
