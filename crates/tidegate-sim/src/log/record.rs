//! What a line is read as: a request, or why it is none.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use tidegate::Tick;
use tidegate::policy::Descriptor;

use super::csv::undone;
use super::fields::{Extras, Tail, Wanted};

/// One request of a log, borrowed from the line it was read from.
///
/// Text is bytes: logs contain Latin-1 and garbage. Empty means that the log does not have the value. Use [`text`] to
/// get UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The time of the request, in nanoseconds since 1970-01-01T00:00:00Z.
    pub time: Tick,
    /// The client, by address or host name.
    pub client: &'a [u8],
    /// The user who signed in.
    pub user: &'a [u8],
    /// The method.
    pub method: &'a [u8],
    /// The path, without query, as written in the log.
    pub path: &'a [u8],
    /// The requested host.
    pub host: &'a [u8],
    /// The status of the answer.
    pub status: Option<u16>,
    /// The size of the answer.
    pub bytes: Option<u64>,
    /// The duration, if the log has it in a known unit.
    pub duration: Option<Duration>,
    /// The path has the escapes of an access log.
    pub(super) is_quoted: bool,
    pub(super) status_text: &'a [u8],
    pub(super) bytes_text: &'a [u8],
    pub(super) tail: Tail<'a>,
    pub(super) extras: Extras<'a>,
}

impl<'a> Record<'a> {
    pub(super) fn at(time: u64) -> Self {
        Self {
            time: Tick::from_nanos(time),
            client: b"",
            user: b"",
            method: b"",
            path: b"",
            host: b"",
            status: None,
            bytes: None,
            duration: None,
            is_quoted: false,
            status_text: b"",
            bytes_text: b"",
            tail: Tail::default(),
            extras: Extras::default(),
        }
    }

    /// Returns the user agent. In access logs it is searched for on demand: the search costs about 20 ns that most
    /// replays need not pay. Allocates only if an access log escaped something in it.
    #[must_use]
    pub(crate) fn agent(&self) -> Cow<'a, [u8]> {
        self.tail.agent()
    }

    /// Returns the referer. Searched for on demand, like [`Record::agent`].
    #[must_use]
    pub(crate) fn referer(&self) -> Cow<'a, [u8]> {
        self.tail.referer()
    }

    /// The log names a user, and the status is below 400.
    #[must_use]
    pub(crate) fn is_signed_in(&self) -> bool {
        !self.user.is_empty() && self.status.is_some_and(|status| status < 400)
    }

    /// The other values of the line, as (name, value).
    pub(crate) fn extras(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        self.extras.iter()
    }

    /// Returns one of the extras by name; `None` if the line does not have it.
    #[must_use]
    pub fn extra(&self, name: &str) -> Option<&'a [u8]> {
        self.extras().find(|(have, _)| *have == name).map(|(_, value)| value)
    }
}

impl Record<'_> {
    /// Describes the request as the server would: `request.method`, `request.path`, `request.host`, `client.ip`,
    /// `user.id`, `request.header.user-agent`, `request.header.referer`, then attributes that only a log has:
    /// `response.status`, `response.bytes` and the extras under their own names. Values that the log does not have
    /// are left out.
    #[must_use]
    pub fn describe(&self) -> Descriptor<'_> {
        self.describe_only(&Wanted::ALL)
    }

    pub(crate) fn describe_only(&self, wanted: &Wanted) -> Descriptor<'_> {
        let mut request = Descriptor::new();
        self.describe_into(wanted, &mut request);
        request
    }

    /// A descriptor is large, so it is filled in place.
    pub(crate) fn describe_into<'r>(&'r self, wanted: &Wanted, request: &mut Descriptor<'r>) {
        let push = |request: &mut Descriptor<'r>, wanted, name: &'static str, value| {
            if wanted && !<[u8]>::is_empty(value) {
                request.push(name, text(value));
            }
        };
        let push_cow = |request: &mut Descriptor<'r>, name: &'static str, value: Cow<'r, [u8]>| {
            if !value.is_empty() {
                request.push(name, whole_text(value));
            }
        };
        push(request, wanted.method, "request.method", self.method);
        if wanted.path && self.is_quoted {
            push_cow(request, "request.path", undone(self.path));
        } else {
            push(request, wanted.path, "request.path", self.path);
        }
        push(request, wanted.host, "request.host", self.host);
        push(request, wanted.client, "client.ip", self.client);
        push(request, wanted.user, "user.id", self.user);
        // Finding these two takes a search in the line.
        if wanted.agent {
            push_cow(request, "request.header.user-agent", self.agent());
        }
        if wanted.referer {
            push_cow(request, "request.header.referer", self.referer());
        }
        push(request, wanted.status, "response.status", self.status_text);
        push(request, wanted.bytes, "response.bytes", self.bytes_text);
        for (name, value) in self.extras() {
            if wanted.has_extra(name) {
                request.push(name, text(value));
            }
        }
    }
}

/// Reads bytes as UTF-8 or, where they are not, as Latin-1: different bytes stay different.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|&byte| char::from(byte)).collect()),
    }
}

fn whole_text(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        Cow::Borrowed(bytes) => text(bytes),
        Cow::Owned(bytes) => Cow::Owned(text(&bytes).into_owned()),
    }
}

/// Method, host if the target is a whole URL, path without query.
///
/// Parts are empty if the line is malformed, as from scanners: it was a request all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestLine<'a> {
    pub(super) method: &'a [u8],
    pub(super) host: &'a [u8],
    pub(super) path: &'a [u8],
}

impl<'a> RequestLine<'a> {
    pub(super) fn read(line: &'a [u8]) -> Self {
        // Methods are short, so a plain loop beats a vectorised search.
        let length = line.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'_').count();
        let (method, rest) = line.split_at(length);
        let [b' ', rest @ ..] = rest else { return Self::default() };
        if !(1..=20).contains(&length) {
            return Self::default();
        }
        // The target ends at the last space if a version follows. HTTP/0.9 has no version, and old clients sent
        // spaces in paths.
        let end = match rest {
            // Nearly all lines end like this, and no search is needed.
            [target @ .., b' ', b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => target.len(),
            _ => match memchr::memrchr(b' ', rest) {
                Some(at) if rest[at + 1..].starts_with(b"HTTP/") => at,
                _ => rest.len(),
            },
        };
        let (host, path) = target(&rest[..end]);
        Self { method, host, path }
    }
}

/// Splits a target into host and path without query.
pub(super) fn target(target: &[u8]) -> (&[u8], &[u8]) {
    let (mut host, mut path): (&[u8], &[u8]) = (b"", target);
    if !target.starts_with(b"/")
        && let Some(rest) = target.strip_prefix(b"http://").or_else(|| target.strip_prefix(b"https://"))
    {
        let end = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
        (host, path) = (&rest[..end], &rest[end..]);
        if path.is_empty() {
            path = b"/";
        }
    }
    let end = memchr::memchr2(b'?', b'#', path).unwrap_or(path.len());
    (host, &path[..end])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Malformed {
    /// No time, or an invalid one.
    #[error("no readable time")]
    Time,
    /// None of the line's fields is a time.
    #[error("no field is known as the time; name it with --column time=NAME")]
    NoTime,
    /// The field of the client is no address, in a log whose clients are addresses; or the column that the user named
    /// for it has neither an address nor a host name.
    #[error("no client before the time")]
    Client,
    /// The field of the client is no address, in a log whose clients are addresses; or the column that the user named
    /// for it has neither an address nor a host name.
    #[error(
        "the field taken for the client is no address; name another with --column client.ip=NAME, describe the lines with --log-format, or \
         give --format combined if clients are host names"
    )]
    NoAddress,
    /// Something stands between the first field and the user that is an address itself.
    #[error(
        "the second field is an address too, so it is unclear which is the client; name the fields with --log-format"
    )]
    TwoAddresses,
    /// The line lacks what the first lines have before the client, or the text that they hold.
    #[error("does not begin as the first lines do")]
    Otherwise,
    /// No quoted request after the time.
    #[error("no request in quotes after the time")]
    Request,
    /// The status is not three digits.
    #[error("the status is not three digits")]
    Status,
    /// The size is not a number.
    #[error("the size is not a number")]
    Bytes,
    /// More or fewer fields than in the header.
    #[error("not as many fields as the header line has")]
    Columns,
    #[error("the header line names no time column; name it with --column time=NAME")]
    Header,
    /// Not a single JSON object.
    #[error("not one JSON object")]
    Json,
    /// The text that follows this variable in the `log_format` is missing.
    #[error("does not match the log format: {}", misfit(*.variable))]
    LogFormat {
        /// The number of the variable, from 1; 0 for the text that the format begins with.
        variable: u16,
    },
    /// Fewer fields than an Application Load Balancer writes.
    #[error("fewer fields than a line of an Application Load Balancer has")]
    Alb,
    /// More or fewer fields than in the `#Fields` line.
    #[error("not as many fields as the #Fields line has")]
    Fields,
    /// The line follows another `#Fields` line that names other fields.
    #[error("the #Fields line before it differs from the first one; give the files one by one")]
    OtherFields,
    /// Longer than 64 KiB.
    #[error("longer than 64 KiB")]
    TooLong,
}

fn misfit(variable: u16) -> String {
    match variable {
        0 => "it begins otherwise".to_owned(),
        number => format!("variable {number} and the text after it are missing"),
    }
}

/// A malformed line, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedLine {
    pub(crate) file: String,
    pub(crate) line: u64,
    pub(crate) why: Malformed,
    pub(crate) excerpt: String,
}

impl fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.why, self.excerpt)
    }
}

/// The most characters of a line that are shown.
const EXCERPT: usize = 120;

/// Returns the beginning of a line, with `·` in place of control characters.
pub(super) fn excerpt(line: &[u8]) -> String {
    text(line).chars().take(EXCERPT).map(|char| if char.is_control() { '·' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines() {
        let rows: [(&str, [&str; 3]); 12] = [
            ("GET /a?b=c HTTP/1.1", ["GET", "", "/a"]),
            ("GET / HTTP/1.0", ["GET", "", "/"]),
            ("GET /old", ["GET", "", "/old"]),
            ("GET /a b c HTTP/1.0", ["GET", "", "/a b c"]),
            ("GET /a b c", ["GET", "", "/a b c"]),
            ("GET http://example.org/x?y HTTP/1.1", ["GET", "example.org", "/x"]),
            ("GET https://example.org HTTP/1.1", ["GET", "example.org", "/"]),
            ("CONNECT example.org:443 HTTP/1.1", ["CONNECT", "", "example.org:443"]),
            ("OPTIONS * HTTP/1.1", ["OPTIONS", "", "*"]),
            ("-", ["", "", ""]),
            ("", ["", "", ""]),
            ("\\x16\\x03\\x01 \\x02", ["", "", ""]),
        ];
        for (line, [method, host, path]) in rows {
            let want =
                RequestLine { method: method.as_bytes(), host: host.as_bytes(), path: path.as_bytes() };
            assert_eq!(RequestLine::read(line.as_bytes()), want, "{line}");
        }
    }

    #[test]
    fn bytes_that_are_no_utf8_survive_as_latin_1() {
        assert_eq!(text("grün".as_bytes()), "grün");
        assert_eq!(text(b"gr\xfcn"), "grün");
    }
}
