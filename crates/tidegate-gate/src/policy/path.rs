//! Normalises the path of a request, which patterns are compared with.
//!
//! A limit on `/login` is useless if `//login`, `/./login` or `/%6Cogin` reaches the same handler uncounted. So the
//! path is normalised first: the query and fragment are cut off, percent-escapes are decoded once (those of `/` and `\`
//! stay, in upper case), empty and `.` segments are dropped, `..` removes the segment before it and never climbs above
//! the root, and a trailing slash is ignored.
//!
//! Servers disagree about some paths: an escaped slash, a backslash, a `;parameter` in a segment, `..` after an empty
//! segment. For these there is a second, lenient reading (escapes decoded, backslashes as slashes, parameters dropped),
//! and one reading for each combination in which a server is lenient in some points and strict in the rest: nginx and
//! Go decode the escaped slash and keep parameters, servlet containers do the opposite. A policy matches if it matches
//! any reading, so the caller cannot avoid the limit, whichever way the server behind reads the path.
//!
//! Paths are case-sensitive. An escape is decoded only once: `%2565` becomes `%65`, as in the servers behind.

use std::borrow::Cow;

/// How many leading segments of a path the index of policies distinguishes: enough for `/api/v1/users/*`.
pub(crate) const DEPTH: usize = 4;

/// The different readings of a request path: nearly always one, at most 16.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Readings<'d> {
    strict: NormalPath<'d>,
    lenient: Option<Box<NormalPath<'d>>>,
    /// The readings of servers that are lenient in some points only.
    mixed: Box<[NormalPath<'d>]>,
}

/// The changes that a server may make to a path in addition to the strict normalisation.
#[derive(Clone, Copy, Debug, Default)]
struct Leniency {
    /// Decodes the escapes of `/` and `\`.
    slashes: bool,
    /// Treats `\` as a slash.
    backslashes: bool,
    /// Drops the `;parameters` of segments.
    parameters: bool,
    /// Lets `..` remove an empty segment, as RFC 3986 does, instead of dropping empty segments first.
    empty: bool,
}

impl Leniency {
    const LENIENT: Self = Self { slashes: true, backslashes: true, parameters: true, empty: false };

    /// Returns all combinations that can make a difference for a path.
    fn each(path: &str) -> impl Iterator<Item = Self> {
        let escaped = |of: &[u8]| {
            path.as_bytes().windows(3).any(|three| three[0] == b'%' && hex(&three[1..]) == Some(of[0]))
        };
        let backslash = escaped(b"\\");
        let can = Self {
            slashes: backslash || escaped(b"/"),
            backslashes: backslash || path.contains('\\'),
            parameters: path.contains(';') || escaped(b";"),
            empty: path.contains("..") || escaped(b"."),
        };
        let all = (0..16_u8).map(|bits| Self {
            slashes: bits & 1 > 0,
            backslashes: bits & 2 > 0,
            parameters: bits & 4 > 0,
            empty: bits & 8 > 0,
        });
        all.filter(move |leniency| {
            (can.slashes || !leniency.slashes)
                && (can.backslashes || !leniency.backslashes)
                && (can.parameters || !leniency.parameters)
                && (can.empty || !leniency.empty)
        })
    }
}

/// A path in its normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NormalPath<'d> {
    text: Cow<'d, str>,
    ends: Ends,
}

/// The end positions of the first [`DEPTH`] segments of a path, 16 bits each, the first in the lowest bits; 0 if there
/// are fewer segments.
///
/// Packed into one word, since it is computed for every request. The first end of 2¹⁶ or more and all later ones are
/// left out: no policy has such a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ends(u64);

const _: () = assert!(DEPTH * 16 == u64::BITS as usize);

impl<'d> Readings<'d> {
    /// Normalises a path in all its readings. Borrows if there is nothing to normalise.
    pub(crate) fn of(raw: &'d str) -> Self {
        if let Some(strict) = plain(raw) {
            return Self { strict, lenient: None, mixed: Box::default() };
        }
        let raw = &raw[..raw.find(['?', '#']).unwrap_or(raw.len())];
        let read = |leniency: Leniency| resolve(&decode(raw, leniency.slashes), leniency);
        let (strict, lenient) = (read(Leniency::default()), read(Leniency::LENIENT));
        let mut mixed: Vec<String> = Vec::new();
        for other in Leniency::each(raw).map(read) {
            if other != strict && other != lenient && !mixed.contains(&other) {
                mixed.push(other);
            }
        }
        let lenient = (lenient != strict).then(|| Box::new(NormalPath::owned(lenient)));
        Self {
            strict: NormalPath::owned(strict),
            lenient,
            mixed: mixed.into_iter().map(NormalPath::owned).collect(),
        }
    }

    /// Returns the readings, all distinct, the strict one first.
    #[inline]
    pub(crate) fn each(&self) -> impl Iterator<Item = &NormalPath<'d>> {
        std::iter::once(&self.strict).chain(self.lenient.as_deref()).chain(&self.mixed)
    }
}

/// Reports whether servers may resolve a `..` of the path differently: `/a\x/../b` is `/a/b` to one and `/b` to
/// another.
pub(crate) fn is_ambiguous(raw: &str) -> bool {
    let path = &raw[..raw.find(['?', '#']).unwrap_or(raw.len())];
    let climbs =
        path.contains("..") || path.as_bytes().windows(3).any(|three| three.eq_ignore_ascii_case(b"%2e"));
    climbs && Readings::of(raw).each().nth(1).is_some()
}

/// Returns the single reading that represents a path as a value: in keys, lists, tables and expressions.
///
/// It is the lenient reading if there is one; otherwise a caller would get a key of its own for each `;parameter` it
/// makes up.
pub fn for_values(raw: &str) -> Cow<'_, str> {
    let readings = Readings::of(raw);
    readings.lenient.map_or(readings.strict.text, |lenient| lenient.text)
}

/// Returns the strict reading of a text without a query: escapes decoded once, dot segments resolved.
#[cfg(feature = "config")]
pub fn strictly(text: &str) -> String {
    resolve(&decode(text, false), Leniency::default())
}

impl Ends {
    /// Adds the end of the segment with this index.
    #[inline]
    fn add(&mut self, index: usize, end: usize) {
        if index < DEPTH && end <= 0xffff {
            self.0 |= (end as u64) << (16 * index);
        }
    }

    fn of(path: &str) -> Self {
        let mut ends = Self::default();
        let slashes = path.bytes().enumerate().skip(1).filter(|(_, byte)| *byte == b'/').map(|(at, _)| at);
        let all = slashes.chain((path.len() > 1).then_some(path.len()));
        all.take(DEPTH).enumerate().for_each(|(index, end)| ends.add(index, end));
        ends
    }
}

impl NormalPath<'_> {
    fn owned(text: String) -> Self {
        Self { ends: Ends::of(&text), text: Cow::Owned(text) }
    }

    /// Returns the whole path.
    #[inline]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the prefixes of the path by segments: the first segment, the first two, and so on up to [`DEPTH`]. The
    /// root has none.
    #[inline]
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &str> {
        let mut ends = self.ends.0;
        std::iter::from_fn(move || {
            let end = (ends & 0xffff) as usize;
            ends >>= 16;
            (end > 0).then(|| &self.text[..end])
        })
    }
}

/// Returns the reading of a path that is already in normal form, apart from a query and perhaps a trailing slash;
/// `None` for any other.
///
/// A single pass, since it is made for every request.
fn plain(raw: &str) -> Option<NormalPath<'_>> {
    if !raw.starts_with('/') {
        return None;
    }
    let (mut ends, mut segments, mut start, mut end) = (Ends::default(), 0, 1, raw.len());
    for (at, byte) in raw.bytes().enumerate().skip(1) {
        match byte {
            b'/' if at > start => {
                ends.add(segments, at);
                segments += 1;
                start = at + 1;
            }
            b'.' if at > start => {}
            b'/' | b'.' | b'%' | b'\\' | b';' => return None,
            b'?' | b'#' => {
                end = at;
                break;
            }
            _ => {}
        }
    }
    if end > start {
        ends.add(segments, end);
    } else if start > 1 {
        // A trailing slash is ignored, except that of the root.
        end = start - 1;
    }
    Some(NormalPath { text: Cow::Borrowed(&raw[..end]), ends })
}

fn decode(path: &str, slashes_too: bool) -> String {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = (byte == b'%').then(|| hex(bytes.get(at + 1..at + 3)?)).flatten();
        match escaped {
            // In upper case: servers do not distinguish `%2f` from `%2F`, so patterns and keys must not either.
            Some(b'/' | b'\\') if !slashes_too => {
                out.extend(bytes[at..at + 3].iter().map(u8::to_ascii_uppercase));
            }
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

/// Drops empty and dot segments, and removes the segment before each `..`.
fn resolve(path: &str, leniency: Leniency) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let separators: &[char] = if leniency.backslashes { &['/', '\\'] } else { &['/'] };
    for (at, segment) in path.split(separators).enumerate() {
        let segment = if leniency.parameters { segment.split(';').next().unwrap_or("") } else { segment };
        match segment {
            // Before the first slash there is no segment.
            "" if leniency.empty && at > 0 => kept.push(segment),
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            _ => kept.push(segment),
        }
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in kept.into_iter().filter(|segment| !segment.is_empty()) {
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
        Readings::of(path).each().map(|reading| reading.text().to_owned()).collect()
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
            ("/x%2f..%2flogin", &["/x%2F..%2Flogin", "/login"]),
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

    /// nginx and Caddy serve `/api/thing` for the first of these paths, which was neither the strict nor the lenient reading.
    #[test]
    fn servers_may_be_lenient_in_one_thing_and_strict_in_another() {
        for (raw, read) in [
            ("/%2fapi/;a/../thing", "/api/thing"),
            ("/%2Fapi/x;a/../thing", "/api/thing"),
            ("/api\\x/../api/thing", "/api/thing"),
            ("/x%5C../api\\thing", "/x%5C../api/thing"),
            ("/api//../thing", "/api/thing"),
            ("/api/;/../thing", "/api/thing"),
            ("/x%2f;/..;/api/thing", "/x/api/thing"),
        ] {
            let all = readings(raw);
            assert!(all.contains(&read.to_owned()), "{raw}: {all:?}");
            assert!(all.len() <= 16, "{raw}: {all:?}");
        }
        assert_eq!(readings("/a/../login/%2e./x").len(), 1, "nothing to be lenient in");
    }

    #[test]
    fn prefixes_end_with_segments() {
        let prefixes =
            |path: &str| -> Vec<String> { Readings::of(path).strict.prefixes().map(str::to_owned).collect() };
        for disguise in ["/a/bc/d", "/a/bc/d/?q=/x/y", "//a/bc/./d/"] {
            assert_eq!(prefixes(disguise), ["/a", "/a/bc", "/a/bc/d"], "{disguise}");
        }
        for deep in ["/1/2/3/4/5/6", "/1//2/3/4/5"] {
            assert_eq!(prefixes(deep), ["/1", "/1/2", "/1/2/3", "/1/2/3/4"], "{deep}");
        }
    }

    proptest! {
        #[test]
        fn the_short_way_reads_as_the_long_one(raw in "/?[a./]{0,8}[/.a%2eF;?#\\\\]{0,8}") {
            if let Some(reading) = plain(&raw) {
                let cut = &raw[..raw.find(['?', '#']).unwrap_or(raw.len())];
                for leniency in Leniency::each(&raw) {
                    prop_assert_eq!(reading.text(), resolve(&decode(cut, leniency.slashes), leniency));
                }
                prop_assert_eq!(reading.ends, Ends::of(reading.text()));
            }
        }

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
