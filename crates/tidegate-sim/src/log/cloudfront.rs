//! Standard logs of Amazon CloudFront: W3C extended log files with fields separated by tabs and named by a `#Fields`
//! line.
//!
//! Without that line, as in files without their comments, the fields are taken in the documented order. Date and time
//! are those of the answer, in UTC. CloudFront URL-encodes referer, user agent and cookie, which are decoded here.
//! The path is left encoded, because policies decode it themselves.
//!
//! Source: Amazon CloudFront developer guide, "Standard logging reference", log file fields.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode;

use super::fields::Fields;
use super::malformed::Malformed;
use super::quoting::known;
use super::record::Record;
use super::roles::Role;

/// The documented order of the fields, unless the user chose others.
const FIELDS: [&str; 33] = [
    "date",
    "time",
    "x-edge-location",
    "sc-bytes",
    "c-ip",
    "cs-method",
    "cs(Host)",
    "cs-uri-stem",
    "sc-status",
    "cs(Referer)",
    "cs(User-Agent)",
    "cs-uri-query",
    "cs(Cookie)",
    "x-edge-result-type",
    "x-edge-request-id",
    "x-host-header",
    "cs-protocol",
    "cs-bytes",
    "time-taken",
    "x-forwarded-for",
    "ssl-protocol",
    "ssl-cipher",
    "x-edge-response-result-type",
    "cs-protocol-version",
    "fle-status",
    "fle-encrypted-fields",
    "c-port",
    "time-to-first-byte",
    "x-edge-detailed-result-type",
    "sc-content-type",
    "sc-content-len",
    "sc-range-start",
    "sc-range-end",
];

/// The fewest fields of a line in a log without a `#Fields` line: the oldest logs end with the query.
const LEAST: usize = 12;

/// A line with more fields than this is not a log of requests.
const MAX_FIELDS: usize = 256;

/// Returns the name shown for a field, if it differs from its own, and its role in a record.
fn meaning(name: &str) -> (Option<&'static str>, Option<(Role, usize)>) {
    match name {
        "c-ip" => (None, Some((Role::Client, 1))),
        "cs-method" => (None, Some((Role::Method, 1))),
        "cs-uri-stem" => (None, Some((Role::Path, 1))),
        "x-host-header" => (None, Some((Role::Host, 1))),
        "cs(Host)" => (None, Some((Role::Host, 2))),
        "sc-status" => (None, Some((Role::Status, 1))),
        "sc-bytes" => (None, Some((Role::Bytes, 1))),
        "cs(Referer)" => (None, Some((Role::Referer, 1))),
        "cs(User-Agent)" => (None, Some((Role::Agent, 1))),
        "time-taken" => (None, Some((Role::Duration, 1))),
        "timestamp" | "timestamp(ms)" => (None, Some((Role::Time, 1))),
        "x-forwarded-for" => (Some("request.header.x-forwarded-for"), None),
        "cs(Cookie)" => (Some("request.header.cookie"), None),
        _ => (None, None),
    }
}

/// How the value of a field is handled.
#[derive(Clone, Copy)]
enum Field {
    Keep(u32),
    Decode(u32),
    Date,
    Clock,
    Skip,
}

/// Reads the lines of one log.
pub(super) struct CloudFront {
    columns: Vec<Field>,
    /// The names in the log's `#Fields` line; empty without that line.
    named: Vec<u8>,
    /// The number of the name for date and time combined.
    moment: Option<u32>,
    fields: Fields,
}

impl fmt::Debug for CloudFront {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudFront").field("columns", &self.columns.len()).finish_non_exhaustive()
    }
}

const FIELDS_LINE: &[u8] = b"#Fields:";

/// Returns the names of the `#Fields` line among the comments at the beginning of a log.
pub(super) fn fields_line(sample: &[u8]) -> Option<&[u8]> {
    let sample = sample.strip_prefix(b"\xef\xbb\xbf").unwrap_or(sample);
    let mut comments = sample.split(|byte| *byte == b'\n').take_while(|line| line.starts_with(b"#"));
    comments.find_map(names_of)
}

fn names_of(comment: &[u8]) -> Option<&[u8]> {
    comment.strip_prefix(FIELDS_LINE).map(<[u8]>::trim_ascii)
}

fn split(names: &[u8]) -> impl Iterator<Item = &[u8]> {
    names.split(u8::is_ascii_whitespace).filter(|name| !name.is_empty())
}

impl CloudFront {
    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Makes a reader for the names of a `#Fields` line; `None` stands for the documented names.
    pub(super) fn new(named: Option<&[u8]>, columns: &[(String, String)]) -> Self {
        let mut fields = Fields::new(columns);
        let names: Vec<Cow<'_, str>> = match named {
            Some(names) => split(names).take(MAX_FIELDS).map(super::text).collect(),
            None => FIELDS.map(Cow::Borrowed).to_vec(),
        };
        let mut field = |name: &str| {
            let (shown, role) = meaning(name);
            let number = fields.define(name, shown.unwrap_or(name).to_owned(), role);
            match (name, number) {
                ("date", _) => Field::Date,
                ("time", _) => Field::Clock,
                (_, None) => Field::Skip,
                ("cs(Referer)" | "cs(User-Agent)" | "cs(Cookie)", Some(number)) => Field::Decode(number),
                (_, Some(number)) => Field::Keep(number),
            }
        };
        let found = names.iter().map(|name| field(name)).collect();
        let moment = fields.define("date and time", "time".to_owned(), Some((Role::Time, 2)));
        Self { columns: found, named: named.unwrap_or_default().to_vec(), moment, fields }
    }

    /// Says whether the names of a `#Fields` line are those of CloudFront rather than of another server with W3C
    /// logs.
    pub(super) fn is_named(names: &[u8]) -> bool {
        let has = |wanted: &[u8]| split(names).any(|name| name == wanted);
        has(b"c-ip") && (has(b"x-edge-location") || has(b"x-edge-request-id") || has(b"x-edge-result-type"))
    }

    /// Says whether the lines after a comment have the same fields. Concatenated files repeat the `#Fields` line,
    /// which need not change the fields.
    pub(super) fn goes_on_below(&self, comment: &[u8], so_far: bool) -> bool {
        match names_of(comment) {
            Some(names) if self.named.is_empty() => {
                split(names).map(super::text).eq(FIELDS.map(Cow::Borrowed))
            }
            Some(names) => split(names).eq(split(&self.named)),
            None => so_far,
        }
    }

    pub(super) fn read(&mut self, line: &[u8]) -> Result<Record<'_>, Malformed> {
        self.fields.clear();
        let (mut date, mut clock): (&[u8], &[u8]) = (b"", b"");
        let mut columns = self.columns.iter();
        let mut count = 0;
        for value in line.split(|byte| *byte == b'\t') {
            let Some(field) = columns.next() else {
                if self.named.is_empty() {
                    break;
                }
                return Err(Malformed::Fields);
            };
            count += 1;
            let value = known(value);
            match *field {
                Field::Date => date = value,
                Field::Clock => clock = value,
                Field::Keep(name) if !value.is_empty() => self.fields.push(name, value),
                Field::Decode(name) if !value.is_empty() => {
                    self.fields.push(name, &Cow::from(percent_decode(value)));
                }
                _ => {}
            }
        }
        let least = if self.named.is_empty() { LEAST } else { self.columns.len() };
        if count < least {
            return Err(Malformed::Fields);
        }
        if let Some(name) = self.moment
            && !date.is_empty()
        {
            self.fields.push(name, &[date, b"T", clock].concat());
        }
        self.fields.record()
    }
}

#[cfg(test)]
mod tests;
