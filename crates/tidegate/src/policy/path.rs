//! What a request's path is before patterns see it.
//!
//! A limit on `/login` is worth nothing if `//login`, `/./login` or `/%6Cogin` reach the same handler uncounted. So the path
//! is normalised first: the query and fragment are cut off, percent-escapes are decoded once (those of `/` and `\` stay as
//! they are), empty and `.` segments are dropped, `..` removes the segment before it and never climbs above the root, and a
//! slash at the end does not count.
//!
//! What remains are the paths that servers read in two ways: an escaped slash, a backslash, a `;parameter` in a segment. For
//! these a second, lenient reading is made (escapes decoded, backslashes as slashes, parameters dropped), and a policy
//! matches if it matches either: whichever way the server behind reads it, the caller has not walked around the limit.
//!
//! Case counts. An escape is decoded once only: `%2565` is `%65`, as it is for the servers behind.

use std::borrow::Cow;

/// A request path in the one or two ways it can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Readings<'d> {
    strict: Cow<'d, str>,
    lenient: Option<String>,
}

impl<'d> Readings<'d> {
    /// Reads a path. Borrows unless there is something to normalise.
    pub(crate) fn of(raw: &'d str) -> Self {
        if let Some(plain) = plain(raw) {
            let trimmed = plain.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(plain);
            return Self { strict: Cow::Borrowed(trimmed), lenient: None };
        }
        let raw = &raw[..raw.find(['?', '#']).unwrap_or(raw.len())];
        let strict = resolve(&decode(raw, false), false);
        let lenient = resolve(&decode(raw, true), true);
        Self { lenient: (lenient != strict).then_some(lenient), strict: Cow::Owned(strict) }
    }

    /// Returns the readings, one or two.
    pub(crate) fn each(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.strict.as_ref()).chain(self.lenient.as_deref())
    }
}

/// Returns a path without query and fragment if it is its own normal form, but perhaps for one slash at the end.
///
/// One pass, since it is made for every request.
fn plain(raw: &str) -> Option<&str> {
    let mut after_slash = false;
    for (at, byte) in raw.bytes().enumerate() {
        match byte {
            b'?' | b'#' => return raw.get(..at).filter(|path| path.starts_with('/')),
            b'%' | b'\\' | b';' => return None,
            b'/' | b'.' if after_slash => return None,
            _ => after_slash = byte == b'/',
        }
    }
    raw.starts_with('/').then_some(raw)
}

fn decode(path: &str, slashes_too: bool) -> String {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = (byte == b'%').then(|| hex(bytes.get(at + 1..at + 3)?)).flatten();
        match escaped {
            Some(b'/' | b'\\') if !slashes_too => out.extend_from_slice(&bytes[at..at + 3]),
            Some(decoded) => out.push(decoded),
            None => out.push(byte),
        }
        at += if escaped.is_some() { 3 } else { 1 };
    }
    match String::from_utf8(out) {
        Ok(text) => text,
        Err(not_text) => String::from_utf8_lossy(not_text.as_bytes()).into_owned(),
    }
}

fn hex(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()
}

/// Drops empty and dot segments, climbs on `..`.
fn resolve(path: &str, lenient: bool) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let separators: &[char] = if lenient { &['/', '\\'] } else { &['/'] };
    for segment in path.split(separators) {
        let segment = if lenient { segment.split(';').next().unwrap_or("") } else { segment };
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            _ => kept.push(segment),
        }
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in kept {
        out.push('/');
        out.push_str(segment);
    }
    if out.is_empty() {
        out.push('/');
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn readings(path: &str) -> Vec<String> {
        Readings::of(path).each().map(str::to_owned).collect()
    }

    #[test]
    fn disguises_are_taken_off() {
        for (raw, read) in [
            ("/login", &["/login"][..]),
            ("/login/", &["/login"]),
            ("/login?next=/a#b", &["/login"]),
            ("//login", &["/login"]),
            ("/./login", &["/login"]),
            ("/a/../login", &["/login"]),
            ("/../../login", &["/login"]),
            ("/%6Cogin", &["/login"]),
            ("/a/%2e%2E/login", &["/login"]),
            ("/%256Cogin", &["/%6Cogin"]),
            ("/%zz", &["/%zz"]),
            ("/.well-known/x", &["/.well-known/x"]),
            ("/api%2Fsearch", &["/api%2Fsearch", "/api/search"]),
            ("/x%2f..%2flogin", &["/x%2f..%2flogin", "/login"]),
            ("\\login", &["/\\login", "/login"]),
            ("/login;jsessionid=1", &["/login;jsessionid=1", "/login"]),
            ("", &["/"]),
            ("/", &["/"]),
            ("login", &["/login"]),
            ("/%ff", &["/\u{fffd}"]),
        ] {
            assert_eq!(readings(raw), read, "{raw}");
        }
    }

    proptest! {
        #[test]
        fn a_reading_reads_as_itself(raw in "[/.a%2eF;\\\\]{0,20}") {
            for reading in readings(&raw) {
                prop_assert!(reading.starts_with('/'));
                prop_assert!(!reading.contains("//"), "{}", reading);
                prop_assert!(!reading.split('/').any(|segment| segment == ".." || segment == "."), "{}", reading);
            }
        }
    }
}
