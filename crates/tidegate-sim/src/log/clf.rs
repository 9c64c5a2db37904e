//! Access logs of Apache and nginx: common, combined, and combined preceded by a virtual host.
//!
//! ```text
//! [host:port] client ident user [dd/Mon/yyyy:HH:MM:SS +zone] "request" status bytes ["referer" "agent" ...]
//! ```
//! Reads each line in one pass with a vectorised byte search. Nothing is allocated. The text after the byte count is
//! only parsed on demand. A user may contain spaces, and a request may contain quotes, escaped or (in old logs) not.
//! So the time is recognised by its shape, and a quote ends the request only if a status follows.

use super::client::{self, Clients};
use super::csv::{is_escaped, known};
use super::fields::Tail;
use super::record::{Malformed, Record, RequestLine};
use super::time::{Timestamps, digits};

#[derive(Clone, Debug, Default)]
pub(super) struct Clf {
    times: Timestamps,
    vhost: bool,
    clients: Clients,
    /// Words were taken off the front of each line.
    behind: bool,
}

impl Clf {
    pub(super) fn new(vhost: bool, clients: Clients, behind: bool) -> Self {
        Self { vhost, clients, behind, ..Self::default() }
    }

    /// Parses only the time; returns it with the position of its opening bracket.
    pub(super) fn time(&mut self, line: &[u8]) -> Result<(u64, u32), Malformed> {
        // A line has at most 64 KiB.
        self.when(line).map(|(time, open, _)| (time, open as u32))
    }

    /// Finds the time. Returns it with the position of its opening bracket and the position after its closing bracket.
    #[inline]
    fn when(&mut self, line: &[u8]) -> Result<(u64, usize, usize), Malformed> {
        let mut from = 0;
        while let Some(at) = memchr::memchr(b'[', &line[from..]) {
            let open = from + at;
            let rest = &line[open + 1..];
            if let Some((stamp, [b']', ..])) = rest.split_first_chunk::<26>() {
                if let Some(time) = self.times.clf(stamp) {
                    return Ok((time, open, open + 28));
                }
            } else if let Some(end) = memchr::memchr(b']', rest)
                && let Some(time) = self.times.any(&rest[..end])
            {
                return Ok((time, open, open + end + 2));
            }
            from = open + 1;
        }
        Err(Malformed::Time)
    }

    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Result<Record<'a>, Malformed> {
        let (time, open, rest) = self.when(line)?;
        let mut record = Record::at(time);
        self.parts(line, open, rest, &mut record)?;
        Ok(record)
    }

    /// Fills a new record from a line whose time and opening bracket are known.
    pub(super) fn fill<'a>(
        &self,
        line: &'a [u8],
        open: u32,
        record: &mut Record<'a>,
    ) -> Result<(), Malformed> {
        let open = open as usize;
        let rest = match line.get(open + 27) {
            Some(b']') => open + 28,
            _ => memchr::memchr(b']', &line[open..]).map_or(line.len(), |close| open + close + 1),
        };
        self.parts(line, open, rest, record)
    }

    /// Refuses a line whose second field may be the client as well, and one whose client was taken off with what
    /// precedes other lines.
    #[cold]
    fn look_again(&self, client: &[u8], ident: &[u8]) -> Result<(), Malformed> {
        let ident = ident.strip_suffix(b",").unwrap_or(ident);
        if client::is_address(ident) || (self.clients == Clients::Names && client::is_host(ident)) {
            return Err(Malformed::TwoAddresses);
        }
        if client.is_empty() && (self.vhost || self.behind) {
            return Err(Malformed::Otherwise);
        }
        Ok(())
    }

    /// The fields before the time, whose bracket opens at `open`, and those after it, from `rest` on.
    #[inline]
    fn parts<'a>(
        &self,
        line: &'a [u8],
        open: usize,
        rest: usize,
        record: &mut Record<'a>,
    ) -> Result<(), Malformed> {
        let mut head = &line[..open];
        if self.vhost {
            let host;
            (host, head) = word(head).ok_or(Malformed::Client)?;
            record.host = match memchr::memrchr(b':', host) {
                Some(colon) => &host[..colon],
                None => host,
            };
        }
        let Some((client, head)) = client::split(self.clients, head) else { return Err(no_client(head)) };
        let (ident, user) = match head {
            // Nearly all lines have no such word, and no search is needed.
            [b'-', b' ', user @ ..] => (&head[..1], user),
            _ => word(head).ok_or(Malformed::Client)?,
        };
        if ident != b"-" || client.is_empty() {
            self.look_again(client, ident)?;
        }
        record.client = client;
        record.user = known(user.trim_ascii_end());
        let rest = line[rest..].trim_ascii_start();
        let (request, rest) = request(rest)?;
        let request = RequestLine::read(request);
        record.method = request.method;
        record.path = request.path;
        record.is_quoted = true;
        if !request.host.is_empty() {
            record.host = request.host;
        }
        let (status, rest) = word_or_rest(rest);
        record.status = match status {
            b"" | b"-" => None,
            [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
                Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
            }
            _ => return Err(Malformed::Status),
        };
        let (bytes, rest) = word_or_rest(rest);
        record.bytes = match bytes {
            b"" | b"-" => None,
            bytes => Some(digits(bytes).ok_or(Malformed::Bytes)?),
        };
        (record.status_text, record.bytes_text) = (known(status), known(bytes));
        record.tail = Tail::Unread(rest);
        Ok(())
    }
}

/// Says why a line has no client.
#[cold]
fn no_client(head: &[u8]) -> Malformed {
    if word(head).is_some() { Malformed::NoAddress } else { Malformed::Client }
}

#[inline]
fn request(rest: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let [b'"', rest @ ..] = rest else { return Err(Malformed::Request) };
    let mut from = 0;
    while let Some(at) = memchr::memchr(b'"', &rest[from..]) {
        let close = from + at;
        let after = &rest[close + 1..];
        if matches!(after, [] | [b' ', b'0'..=b'9' | b'-', ..]) && !is_escaped(&rest[..close]) {
            return Ok((&rest[..close], after.trim_ascii_start()));
        }
        from = close + 1;
    }
    Err(Malformed::Request)
}

/// Splits at the first space; `None` without a space or with an empty first word.
#[inline]
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = memchr::memchr(b' ', text)?;
    (space > 0).then(|| (&text[..space], &text[space + 1..]))
}

/// Words are short, so a plain loop beats a vectorised search.
#[inline]
fn word_or_rest(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == b' ') {
        Some(space) => (&text[..space], &text[space + 1..]),
        None => (text, b""),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn show(line: &str, vhost: bool) -> String {
        match Clf::new(vhost, Clients::Names, false).read(line.as_bytes()) {
            Err(error) => format!("malformed: {error}"),
            Ok(r) => {
                let t = |bytes: &[u8]| crate::log::text(bytes).into_owned();
                format!(
                    "{} {}|{}|{}|{}|{}|{:?}|{:?}|{}|{}",
                    r.time.as_nanos() / 1_000_000_000,
                    t(r.client),
                    t(r.user),
                    t(r.method),
                    t(r.host),
                    t(r.path),
                    r.status,
                    r.bytes,
                    t(&r.referer()),
                    t(&r.agent())
                )
            }
        }
    }

    #[test]
    fn lines() {
        const T: &str = "[17/May/2015:10:05:03 +0000]";
        let rows = [
            (
                format!(
                    "203.0.113.9 - - {T} \"GET /a?q HTTP/1.1\" 200 203 \"http://e.org/\" \"Agent/1.0 (x)\""
                ),
                "1431857103 203.0.113.9||GET||/a|Some(200)|Some(203)|http://e.org/|Agent/1.0 (x)",
            ),
            (
                format!("2001:db8::7 - ann {T} \"POST /login HTTP/2.0\" 401 -"),
                "1431857103 2001:db8::7|ann|POST||/login|Some(401)|None||",
            ),
            (
                format!("h - Ann Lee {T} \"GET / HTTP/1.0\" 304 0"),
                "1431857103 h|Ann Lee|GET||/|Some(304)|Some(0)||",
            ),
            (
                format!("h - - {T} \"GET /\\\"x\\\" HTTP/1.1\" 404 1 \"-\" \"say \\\"hi\\\" \\\\\""),
                "1431857103 h||GET||/\\\"x\\\"|Some(404)|Some(1)||say \"hi\" \\",
            ),
            (
                format!("h - - {T} \"GET /un\"quoted\" HTTP/1.0\" 404 -"),
                "1431857103 h||GET||/un\"quoted\"|Some(404)|None||",
            ),
            (format!("h - - {T} \"-\" 408 - \"-\" \"-\""), "1431857103 h|||||Some(408)|None||"),
            (format!("h - - {T} \"\" 400 0"), "1431857103 h|||||Some(400)|Some(0)||"),
            (format!("h - - {T} \"GET /a\" - -"), "1431857103 h||GET||/a|None|None||"),
            (format!("h - - {T} \"GET /a HTTP/1.0\""), "1431857103 h||GET||/a|None|None||"),
            (
                "h - - [2015-05-17T12:05:03+02:00] \"GET /a HTTP/1.0\" 200 5".to_owned(),
                "1431857103 h||GET||/a|Some(200)|Some(5)||",
            ),
            (
                format!("h - [odd] {T} \"GET /a HTTP/1.0\" 200 5"),
                "1431857103 h|[odd]|GET||/a|Some(200)|Some(5)||",
            ),
            (format!("h - - {T} GET /a 200 5"), "malformed: no request in quotes after the time"),
            (format!("h - - {T} \"GET /a HTTP/1.0\" 2000 5"), "malformed: the status is not three digits"),
            (format!("h - - {T} \"GET /a HTTP/1.0\" 200 5x"), "malformed: the size is not a number"),
            (
                "h - - [17/Foo/2015:10:05:03 +0000] \"GET / HTTP/1.0\" 200 5".to_owned(),
                "malformed: no readable time",
            ),
            (format!("{T} \"GET / HTTP/1.0\" 200 5"), "malformed: no client before the time"),
            ("free text".to_owned(), "malformed: no readable time"),
        ];
        for (line, want) in rows {
            assert_eq!(show(&line, false), want, "{line}");
        }
        assert_eq!(
            show(&format!("shop.example:443 203.0.113.9 - - {T} \"GET / HTTP/1.1\" 200 1"), true),
            "1431857103 203.0.113.9||GET|shop.example|/|Some(200)|Some(1)||"
        );
    }

    /// Policies must match the agent as it was sent, not as the log escapes it.
    #[test]
    fn a_request_is_described_as_it_was_sent() {
        let line = br#"h - - [17/May/2015:10:05:03 +0000] "GET /a\x22b HTTP/1.1" 200 5 "http://e.org/\"" "Mega/2.0 (\"x\"; \xC3\xBC)""#;
        let record = Clf::new(false, Clients::Names, false).read(line).unwrap();
        let request = record.describe();
        assert_eq!(request.value("request.path"), Some("/a\"b"));
        assert_eq!(request.value("request.header.referer"), Some("http://e.org/\""));
        assert_eq!(request.value("request.header.user-agent"), Some("Mega/2.0 (\"x\"; \u{fc})"));
        assert_eq!(record.path, br"/a\x22b", "as it is written");
    }

    #[test]
    fn latin_1_survives() {
        let line = b"h - - [17/May/2015:10:05:03 +0000] \"GET /gr\xfcn HTTP/1.0\" 200 5";
        assert_eq!(Clf::new(false, Clients::Names, false).read(line).unwrap().path, b"/gr\xfcn");
    }

    proptest! {
        #[test]
        fn garbage_is_counted_without_panic(
            bytes: Vec<u8>,
            text in "(h|-| |\\[17/May/2015:10:05:03 \\+0000\\]|\"|\\\\|\\]|200|GET|/|-){0,30}",
        ) {
            for vhost in [false, true] {
                let _ = Clf::new(vhost, Clients::Names, vhost).read(&bytes).map(|r| (r.agent().len(), r.referer().len()));
                let _ = Clf::new(vhost, Clients::Names, vhost).read(text.as_bytes()).map(|r| (r.agent().len(), r.referer().len()));
            }
        }
    }
}
