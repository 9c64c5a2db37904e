//! Tables with a header line, separated by commas or tabs.
//!
//! A quoted field does not span lines: a log has one request per line.

use std::borrow::Cow;
use std::fmt;

use super::fields::{Fields, means_time};
use super::record::{Malformed, Record};

/// The first line read is the header.
pub(super) struct Csv {
    cut: csv_core::Reader,
    /// The number of each column's name, once the header is read; `None` for names beyond the limit.
    columns: Vec<Option<u32>>,
    is_open: bool,
    fields: Fields,
    /// The fields of the current line, one after another, and the end of each.
    out: Vec<u8>,
    ends: Vec<usize>,
}

impl fmt::Debug for Csv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Csv").field("columns", &self.columns.len()).finish_non_exhaustive()
    }
}

/// A line with more columns than this is not a table of requests.
const MAX_COLUMNS: usize = 1_024;

impl Csv {
    pub(super) fn new(delimiter: u8, columns: &[(String, String)]) -> Self {
        // Tab-separated traces contain bare quotes in their paths and never quote fields.
        let cut = csv_core::ReaderBuilder::new().delimiter(delimiter).quoting(delimiter != b'\t').build();
        Self {
            cut,
            columns: Vec::new(),
            is_open: false,
            fields: Fields::new(columns),
            out: vec![0; crate::source::MAX_LINE + 1],
            ends: vec![0; MAX_COLUMNS],
        }
    }

    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Returns the number of fields in `out` and `ends`.
    fn cut(&mut self, line: &[u8]) -> Result<usize, Malformed> {
        use csv_core::ReadRecordResult as Step;
        self.cut.reset();
        let (mut read, mut written, mut count) = (0, 0, 0);
        loop {
            // An empty input marks the end of the line.
            let (step, from, to, ends) =
                self.cut.read_record(&line[read..], &mut self.out[written..], &mut self.ends[count..]);
            (read, written, count) = (read + from, written + to, count + ends);
            match step {
                Step::InputEmpty => {}
                Step::Record => return Ok(count),
                Step::End | Step::OutputFull | Step::OutputEndsFull => return Err(Malformed::Columns),
            }
        }
    }

    fn field(&self, index: usize) -> std::ops::Range<usize> {
        (if index == 0 { 0 } else { self.ends[index - 1] })..self.ends[index]
    }

    /// Reads a line; `None` for the header.
    pub(super) fn read(&mut self, line: &[u8]) -> Result<Option<Record<'_>>, Malformed> {
        let count = self.cut(line)?;
        if !self.is_open {
            for index in 0..count {
                let name = &self.out[self.field(index)];
                let name = super::text(name.trim_ascii()).into_owned();
                self.columns.push(self.fields.number(&name));
            }
            self.fields.host_may_be_client();
            self.is_open = true;
            return if self.fields.know_time() { Ok(None) } else { Err(Malformed::Header) };
        }
        if count != self.columns.len() {
            return Err(Malformed::Columns);
        }
        self.fields.clear();
        for index in 0..count {
            if let Some(name) = self.columns[index] {
                let field = self.field(index);
                self.fields.push(name, &self.out[field]);
            }
        }
        self.fields.record().map(Some)
    }
}

/// Returns the delimiter of a header, which must have a time column.
pub(super) fn header(line: &[u8], columns: &[(String, String)]) -> Option<u8> {
    let line = std::str::from_utf8(line).ok()?;
    let is_time = |name: &str| {
        let name = name.trim().trim_matches('"');
        means_time(name) || columns.iter().any(|(attribute, column)| attribute == "time" && column == name)
    };
    ['\t', ',']
        .into_iter()
        .find(|delimiter| line.contains(*delimiter) && line.split(*delimiter).any(is_time))
        .map(|delimiter| delimiter as u8)
}

/// Returns the bytes, or nothing for `-`, which marks a missing value.
pub(super) fn known(bytes: &[u8]) -> &[u8] {
    if bytes == b"-" { b"" } else { bytes }
}

/// Says whether the byte after these is escaped: they end in an odd number of backslashes.
pub(super) fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

pub(super) fn quoted(text: &[u8]) -> (&[u8], &[u8]) {
    let [b'"', rest @ ..] = text.trim_ascii_start() else { return (b"", b"") };
    let ends = memchr::memchr_iter(b'"', rest);
    match ends.into_iter().find(|close| !is_escaped(&rest[..*close])) {
        Some(close) => (&rest[..close], &rest[close + 1..]),
        None => (rest, b""),
    }
}

/// Undoes the escapes of a quoted text, as Apache and nginx write them: `\"`, `\\`, `\xHH`, and `\n` and the like.
/// Invalid escapes stay as they are. Allocates only if there is a backslash.
///
/// # Source
/// `ap_escape_logitem` of Apache httpd's `server/util.c`; `ngx_http_log_escape` of nginx's `ngx_http_log_module.c`.
pub(super) fn undone(value: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memchr(b'\\', value) else { return Cow::Borrowed(value) };
    let (plain, mut rest) = value.split_at(first);
    let mut out = plain.to_vec();
    while let [byte, after @ ..] = rest {
        let (byte, after) = escaped(rest).unwrap_or((*byte, after));
        out.push(byte);
        rest = after;
    }
    Cow::Owned(out)
}

fn escaped(text: &[u8]) -> Option<(u8, &[u8])> {
    let [b'\\', sign, after @ ..] = text else { return None };
    let byte = match sign {
        b'"' | b'\\' => *sign,
        b'b' => 0x08,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 0x0b,
        b'f' => 0x0c,
        b'r' => b'\r',
        _ => return hex_escaped(text),
    };
    Some((byte, after))
}

/// Decodes `\xHH` at the front; `None` if there is something else.
pub(super) fn hex_escaped(text: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let [b'\\', b'x', high, low, after @ ..] = text else { return None };
    Some((digit(*high)? << 4 | digit(*low)?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        let rows: [(&str, &[u8]); 9] = [
            ("plain", b"plain"),
            (
                r#"Crawl/2.0 (\"http://mega.example\"; contact)"#,
                b"Crawl/2.0 (\"http://mega.example\"; contact)",
            ),
            (r"\x22a\x5Cb\x22", b"\"a\\b\""),
            (r"gr\xC3\xBCn \xfc", b"gr\xc3\xbcn \xfc"),
            (r"DOMAIN\\ann", b"DOMAIN\\ann"),
            (r"a\tb\r\nc", b"a\tb\r\nc"),
            (r"a\d \x2 \xzz", br"a\d \x2 \xzz"),
            (r"\\x41", br"\x41"),
            ("end\\", b"end\\"),
        ];
        for (written, was) in rows {
            assert_eq!(&*undone(written.as_bytes()), was, "{written}");
        }
        assert!(matches!(undone(b"plain"), Cow::Borrowed(_)));
    }
}
