//! Which policies a request meets, found the slow and obvious way: each word of the file is tried on the request in
//! turn. Without an index or compilation, it shares nothing with the real matcher, not even the normalisation of paths.

use std::net::IpAddr;

use super::words::{Ask, FileWords, MatchWords, PolicyWords};

/// A request: its attributes, with each name once.
pub(crate) type Request = [(String, String)];

/// Returns the indices of the policies that charge a request, in order.
pub(crate) fn charged(file: &FileWords, request: &Request) -> Vec<usize> {
    let each = file.policies.iter().enumerate();
    each.filter(|(_, policy)| speaks(policy, request) && has_key(policy, request)).map(|(at, _)| at).collect()
}

/// Returns the policy whose deny list refuses a request; `Some(None)` for the deny list of the file.
pub(crate) fn refused(file: &FileWords, request: &Request) -> Option<Option<usize>> {
    if file.deny.iter().any(|entry| holds(entry, request)) {
        return Some(None);
    }
    let refuses = |policy: &PolicyWords| {
        speaks(policy, request) && policy.deny.iter().any(|entry| holds(entry, request))
    };
    file.policies.iter().position(refuses).map(Some)
}

fn raw<'r>(request: &'r Request, name: &str) -> Option<&'r str> {
    request.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
}

/// The value of an attribute in the form that is compared.
fn value(request: &Request, name: &str) -> Option<String> {
    let raw = raw(request, name)?;
    Some(match name {
        "request.path" => reading(raw, [true, true, true, false]),
        "request.host" => host(raw),
        _ => raw.to_owned(),
    })
}

fn speaks(policy: &PolicyWords, request: &Request) -> bool {
    let outbound = raw(request, "request.direction") == Some("outbound");
    if policy.off || policy.outbound != outbound {
        return false;
    }
    // One reading of the path must satisfy the whole policy, including its `not`.
    match raw(request, "request.path") {
        None => fits(&policy.matching, request, None),
        Some(path) => readings(path).iter().any(|path| fits(&policy.matching, request, Some(path))),
    }
}

fn fits(words: &MatchWords, request: &Request, path: Option<&str>) -> bool {
    if !words.method.is_empty() {
        let Some(have) = raw(request, "request.method") else { return false };
        if !words.method.iter().any(|want| want.eq_ignore_ascii_case(have)) {
            return false;
        }
    }
    if !words.host.is_empty() {
        let Some(have) = raw(request, "request.host").map(host) else { return false };
        if !words.host.iter().any(|want| glob(&want.to_ascii_lowercase(), &have)) {
            return false;
        }
    }
    if !words.path.is_empty() {
        let Some(have) = path else { return false };
        if !words.path.iter().any(|want| path_glob(want, have)) {
            return false;
        }
    }
    let headers =
        words.header.iter().map(|(name, ask)| (format!("request.header.{}", name.to_ascii_lowercase()), ask));
    let attributes = words.attributes.iter().map(|(name, ask)| (name.clone(), ask));
    for (name, ask) in headers.chain(attributes) {
        let have = value(request, &name);
        let agreed = match (ask, have) {
            (Ask::There, have) => have.is_some(),
            (Ask::Missing, have) => have.is_none(),
            (Ask::OneOf(_), None) => false,
            (Ask::OneOf(wants), Some(have)) => wants.iter().any(|want| glob(want, &have)),
        };
        if !agreed {
            return false;
        }
    }
    !words.not.as_ref().is_some_and(|not| fits(not, request, path))
}

fn has_key(policy: &PolicyWords, request: &Request) -> bool {
    let there = policy.by.iter().filter(|name| value(request, name).is_some()).count();
    match policy.absent.as_str() {
        "charge" => true,
        "skip" => there == policy.by.len(),
        _ => policy.by.is_empty() || there > 0,
    }
}

/// Says whether an entry of a list matches a request.
fn holds(entry: &str, request: &Request) -> bool {
    if let Some((name, want)) = entry.split_once('=')
        && name != "client.ip"
    {
        return value(request, name).as_deref() == Some(want);
    }
    let network = entry.strip_prefix("client.ip=").unwrap_or(entry);
    let Some(address) = raw(request, "client.ip").and_then(|text| text.parse::<IpAddr>().ok()) else {
        return false;
    };
    let (base, bits) = network.split_once('/').unwrap_or((network, ""));
    let Ok(base) = base.parse::<IpAddr>() else { return false };
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let ((have, width), (want, base_width)) = (number(address), number(base));
    let bits: u32 = bits.parse().unwrap_or(base_width);
    let shift = base_width - bits;
    width == base_width && (shift == 128 || have >> shift == want >> shift)
}

/// Returns the host without its port, in lower case.
pub(crate) fn host(raw: &str) -> String {
    let mut host = raw.to_ascii_lowercase();
    if let Some(inner) =
        host.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(inner, _)| inner.to_owned())
    {
        host = inner;
    } else if host.matches(':').count() == 1 {
        host.truncate(host.find(':').unwrap_or(host.len()));
    }
    host.strip_suffix('.').unwrap_or(&host).to_owned()
}

/// Returns the ways to read a path: escaped slashes decoded or not, backslashes as slashes or not, parameters dropped
/// or not, and `..` removing the last segment, or the last segment that is not empty.
pub(crate) fn readings(raw: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for bits in 0..16_u8 {
        let read = reading(raw, [1, 2, 4, 8].map(|bit| bits & bit > 0));
        if !all.contains(&read) {
            all.push(read);
        }
    }
    all
}

fn reading(raw: &str, [slashes, backslashes, parameters, empty]: [bool; 4]) -> String {
    let path = raw.split(['?', '#']).next().unwrap_or_default();
    let mut text = decoded(path, slashes);
    if backslashes {
        text = text.replace('\\', "/");
    }
    let bare = |segment: &str| match parameters {
        true => segment.split(';').next().unwrap_or_default().to_owned(),
        false => segment.to_owned(),
    };
    climbed(text.split('/').map(bare), empty)
}

fn decoded(path: &str, slashes: bool) -> String {
    let mut text: Vec<u8> = Vec::new();
    let mut rest = path.as_bytes();
    while !rest.is_empty() {
        let code = match rest {
            [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                u8::from_str_radix(&format!("{}{}", char::from(*high), char::from(*low)), 16).ok()
            }
            _ => None,
        };
        match code {
            Some(b'/') if !slashes => text.extend(b"%2F"),
            Some(b'\\') if !slashes => text.extend(b"%5C"),
            Some(other) => text.push(other),
            None => text.push(rest[0]),
        }
        rest = &rest[if code.is_some() { 3 } else { 1 }..];
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn climbed(segments: impl Iterator<Item = String>, empty: bool) -> String {
    let mut kept: Vec<String> = Vec::new();
    for (at, segment) in segments.enumerate() {
        if segment == ".." {
            kept.pop();
        } else if segment != "." && (!segment.is_empty() || empty && at > 0) {
            kept.push(segment);
        }
    }
    kept.retain(|segment| !segment.is_empty());
    format!("/{}", kept.join("/"))
}

/// Expands `{a,b}`.
pub(crate) fn written_out(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let Some((inner, after)) = rest.split_once('}') else { return Vec::new() };
    let tails = written_out(after);
    inner
        .split(',')
        .flat_map(|choice| tails.iter().map(move |tail| format!("{before}{choice}{tail}")))
        .collect()
}

fn glob(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    written_out(pattern).iter().any(|pattern| same(&pattern.chars().collect::<Vec<_>>(), &text))
}

fn same(pattern: &[char], text: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['*', rest @ ..] => (0..=text.len()).any(|taken| same(rest, &text[taken..])),
        [want, rest @ ..] => match text {
            [have, text @ ..] => (*want == '?' || want == have) && same(rest, text),
            [] => false,
        },
    }
}

fn path_glob(pattern: &str, path: &str) -> bool {
    let split = |text: &str| -> Vec<Vec<char>> {
        text.split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| segment.chars().collect())
            .collect()
    };
    let path = split(path);
    written_out(pattern).iter().any(|pattern| same_path(&split(pattern), &path))
}

fn same_path(pattern: &[Vec<char>], path: &[Vec<char>]) -> bool {
    match pattern {
        [] => path.is_empty(),
        [first, rest @ ..] if first == &['*', '*'] => {
            (0..=path.len()).any(|taken| same_path(rest, &path[taken..]))
        }
        [want, rest @ ..] => match path {
            [have, path @ ..] => same(want, have) && same_path(rest, path),
            [] => false,
        },
    }
}
