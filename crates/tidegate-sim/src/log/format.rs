//! The formats that logs are written in, and their names.

use std::fmt;

use super::log_format::LogFormat;

/// How lines are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// As Application Load Balancers of AWS write them.
    Alb,
    /// As Amazon CloudFront writes its standard logs.
    CloudFront,
    /// As a `log_format` of nginx says. Has no word of its own: it is given as nginx writes it.
    LogFormat(LogFormat),
}

/// The formats that a word names, with their words.
const WORDS: [(&str, Format); 8] = [
    ("auto", Format::Auto),
    ("common", Format::Common),
    ("combined", Format::Combined),
    ("vhost", Format::Vhost),
    ("json", Format::Json),
    ("csv", Format::Csv),
    ("alb", Format::Alb),
    ("cloudfront", Format::CloudFront),
];

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(_, format)| format == self).map_or("log_format", |(word, _)| *word);
        f.write_str(word)
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let words = WORDS.each_ref().map(|(word, _)| *word);
        let found = WORDS.into_iter().find(|(have, _)| *have == word);
        found.map(|(_, format)| format).ok_or_else(|| {
            let near = crate::words::nearest(word, &words);
            format!("`{word}` is not a log format{near}; use one of {}", words.join(", "))
        })
    }
}
