//! The log formats and their names.

use std::fmt;

use super::log_format::LogFormat;

/// The format of a log's lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Recognised from the first lines of each file.
    #[default]
    Auto,
    /// Common log format: without referer and user agent.
    Common,
    /// Combined log format, the default of Apache and nginx.
    Combined,
    /// Combined format preceded by `host:port`, as in Debian's `other_vhosts_access.log`.
    Vhost,
    /// One JSON object per line.
    Json,
    /// Separated by commas or tabs, with a header line.
    Csv,
    /// The access log format of AWS Application Load Balancers.
    Alb,
    /// The standard log format of Amazon CloudFront.
    CloudFront,
    /// W3C extended log files, as IIS writes them: a `#Fields` line names the fields.
    W3c,
    /// The default text format of Envoy.
    Envoy,
    /// The default text format of Istio's proxies.
    Istio,
    /// The HTTP log format of HAProxy.
    HaProxy,
    /// A format given as an nginx `log_format`. It has no name of its own.
    LogFormat(LogFormat),
}

/// The formats that have a name, with their names.
const WORDS: [(&str, Format); 12] = [
    ("auto", Format::Auto),
    ("common", Format::Common),
    ("combined", Format::Combined),
    ("vhost", Format::Vhost),
    ("json", Format::Json),
    ("csv", Format::Csv),
    ("alb", Format::Alb),
    ("cloudfront", Format::CloudFront),
    ("w3c", Format::W3c),
    ("envoy", Format::Envoy),
    ("istio", Format::Istio),
    ("haproxy", Format::HaProxy),
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
