//! Recognises the format of a log from its first lines.

use super::alb::Alb;
use super::clf::Clf;
use super::cloudfront::{CloudFront, fields_line};
use super::csv;
use super::format::Format;
use super::malformed::excerpt;
use super::reader::{Reader, is_blank};
use super::tail::Tail;

/// The error if no known format fits the first lines of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the format cannot be told from its first lines; name it with --format; it begins: {excerpt}")]
pub struct FormatError {
    excerpt: String,
}

impl FormatError {
    fn new(line: &[u8]) -> Self {
        Self { excerpt: excerpt(line) }
    }
}

/// The number of lines examined. Access logs may begin with malformed lines from scanners; the header of a table must
/// be the first line.
const LINES: usize = 20;

/// Returns a reader for the format of the first bytes of a log.
pub(super) fn reader(
    format: &Format,
    columns: &[(String, String)],
    sample: &[u8],
) -> Result<(Format, Reader), FormatError> {
    let named = fields_line(sample);
    let mut lines =
        sample.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).filter(|line| !is_blank(line));
    let first = lines.clone().next().unwrap_or(b"");
    let first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
    let found = match format {
        Format::Auto if named.is_some_and(CloudFront::is_named) => Format::CloudFront,
        Format::Auto if first.is_empty() => Format::Combined,
        Format::Auto if first.starts_with(b"{") => Format::Json,
        Format::Auto if csv::header(first, columns).is_some() => Format::Csv,
        Format::Auto => access(lines.by_ref().take(LINES)).ok_or_else(|| FormatError::new(first))?,
        given => given.clone(),
    };
    let reader = match &found {
        Format::Json => Reader::Json(super::json::Json::new(columns)),
        Format::Csv => {
            let guess = if first.contains(&b'\t') { b'\t' } else { b',' };
            Reader::Csv(Box::new(csv::Csv::new(csv::header(first, columns).unwrap_or(guess), columns)))
        }
        Format::Alb => Reader::Alb(Box::new(Alb::new(columns))),
        Format::CloudFront => Reader::CloudFront(Box::new(CloudFront::new(named, columns))),
        Format::LogFormat(format) => Reader::LogFormat(Box::new(format.cutter(columns))),
        Format::Vhost => Reader::Clf(Clf::new(true)),
        Format::Auto | Format::Common | Format::Combined => Reader::Clf(Clf::new(false)),
    };
    Ok((found, reader))
}

/// Recognises the kind of access log from the first line that is valid in one of them.
fn access<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<Format> {
    lines.find_map(|line| {
        if Alb::new(&[]).read(line).is_ok() {
            return Some(Format::Alb);
        }
        if CloudFront::new(None, &[]).read(line).is_ok() {
            return Some(Format::CloudFront);
        }
        let record = Clf::new(false).read(line).ok()?;
        let vhost = is_vhost(record.client) && Clf::new(true).read(line).is_ok();
        Some(match (vhost, record.tail) {
            (true, _) => Format::Vhost,
            (false, Tail::Unread(b"")) => Format::Common,
            (false, _) => Format::Combined,
        })
    })
}

/// Says whether a first word is `host:port`: a single colon followed by digits. An IPv6 address has more colons.
fn is_vhost(word: &[u8]) -> bool {
    let mut parts = word.split(|byte| *byte == b':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(host), Some(port), None) => {
            !host.is_empty() && !port.is_empty() && port.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}
