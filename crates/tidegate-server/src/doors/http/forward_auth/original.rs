//! The original request, read from the headers of a sub-request.
//!
//! Its method, path and host come from the three headers of the configured family, which the proxy sets. Each must be there,
//! once, and be what it should be: anything else shows that the proxy does not set it, so that it would be the caller's word.
//! Every other header is the caller's, and becomes `request.header.<name>`.
//!
//! A caller decides which headers he sends, and how many. Those that policies name are kept whatever else is there and however
//! long they are, which the bound on a head limits; the others fill what room is left. Bytes that are no UTF-8 are
//! percent-encoded: they count as what they are, not as absent.

use std::borrow::Cow;
use std::net::IpAddr;

use http::Method;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED,
    HOST, HeaderMap, HeaderName, HeaderValue, VIA,
};
use percent_encoding::percent_encode_byte;
use tidegate::Priority;
use tidegate::config::ForwardAuth;
use tidegate::policy::{Descriptor, IpSource};

use super::super::request_body::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};
use super::priority::priority;
use crate::problem::Problem;
use crate::proxy::Proxy;
use crate::spelling::quoted;

const TOKEN: HeaderName = HeaderName::from_static("x-tidegate-token");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Headers whose several lines are one list by their own definition.
const LISTS: [HeaderName; 8] =
    [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, COOKIE, FORWARDED, VIA, X_FORWARDED_FOR];

/// The request that a proxy got.
#[derive(Debug)]
pub(super) struct Original<'r> {
    pub(super) method: &'r str,
    pub(super) descriptor: Descriptor<'r>,
    pub(super) priority: Priority,
}

impl<'r> Original<'r> {
    /// Reads the original request; `peer` is the other end of the connection.
    ///
    /// At most 64 attributes, and beyond them those that policies name.
    ///
    /// # Errors
    /// 503 when the door is not set up; 400 when the proxy does not do its part; the door's status of a refusal, else 400,
    /// when the caller sent a header that policies name in a way that two readers would understand differently.
    pub(super) fn of(headers: &'r HeaderMap, peer: IpAddr, proxy: &Proxy) -> Result<Self, Problem> {
        let asks = proxy.asks()?;
        let family = &asks.original;
        let proxys = |detail: String| proxy.misconfigured(Problem::bad_request(detail));
        let set = |name: &str| once(headers, name).map_err(proxys);
        let (method, uri, host) = (set(family.method())?, set(family.uri())?, set(family.host())?);
        // Not for the log: a caller can write such a host, and the log is told once.
        let is_no = |what: &str, name: &str, value: &HeaderValue| {
            let value = text(value);
            Problem::bad_request(format!(
                "{name}: {} is no {what}; the proxy must set this header itself",
                quoted(&value)
            ))
        };
        let method = Method::from_bytes(method.as_bytes())
            .ok()
            .and(method.to_str().ok())
            .ok_or_else(|| is_no("method", family.method(), method))?;
        let path = path(text(uri)).ok_or_else(|| is_no("path", family.uri(), uri))?;
        if proxy.policies.is_ambiguous_path(&path) {
            let shown = quoted(&path);
            return Err(proxy.refused(format!(
                "servers read the `..` of {shown} differently, and a policy goes by the path; send it without"
            )));
        }
        let host = host_name(text(host)).ok_or_else(|| is_no("host", family.host(), host))?;
        let priority = priority(headers, peer, proxy, proxys)?;
        let lines = headers.get_all(proxy.client_ip.header.name()).iter().map(HeaderValue::as_bytes);
        let client = proxy.client_ip.find(peer, lines).map_err(|error| proxys(error.to_string()))?;
        if client.from == IpSource::Peer {
            proxy.took_peer_for_caller(client.address, headers);
        }

        let mut descriptor = Descriptor::from([
            ("request.method", Cow::Borrowed(method)),
            ("request.path", path),
            ("request.host", host),
            ("client.ip", Cow::Owned(client.address.to_string())),
        ]);
        let mut room = MAX_ATTRIBUTES - descriptor.pairs().count();
        let mut others = Vec::new();
        for name in headers.keys().filter(|name| **name != TOKEN) {
            let attribute = format!("request.header.{name}");
            if proxy.named.contains(&attribute) {
                room = room.saturating_sub(1);
                descriptor.push(attribute, value_of(headers, name).map_err(|detail| proxy.refused(detail))?);
            } else if proxy.is_taken_for_named(name) {
                let shown = quoted(name.as_str());
                return Err(proxy.refused(format!(
                    "many programs take the header {shown} for one that policies name; send that one, with its dashes"
                )));
            } else if is_the_callers(name, asks) {
                others.push((name, attribute));
            }
        }
        for (name, attribute) in others {
            let value = joined(headers, name);
            if room > 0 && name.as_str().len() <= MAX_NAME && value.len() <= MAX_VALUE {
                room -= 1;
                descriptor.push(attribute, value);
            }
        }
        Ok(Self { method, descriptor, priority })
    }
}

/// Says whether a header that no policy names tells something of the original request.
fn is_the_callers(name: &HeaderName, asks: &ForwardAuth) -> bool {
    ![CONNECTION, CONTENT_LENGTH, HOST].contains(name) && asks.headers().all(|own| own != name.as_str())
}

/// Returns the value of a header that the proxy sets, which is there once and not empty.
fn once<'r>(headers: &'r HeaderMap, name: &str) -> Result<&'r HeaderValue, String> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().filter(|line| !line.is_empty());
    let line = line.ok_or_else(|| {
        format!("the proxy sent no {name}, which tells of the original request; have it set that header, or name another proxy under forward_auth")
    })?;
    match lines.count() {
        0 => Ok(line),
        others => Err(format!(
            "{name} came {} times; the proxy must set it itself, in place of what its caller sent",
            others + 1
        )),
    }
}

/// Returns the value of a header that policies name.
///
/// # Errors
/// When it came with two values: the programs behind the proxy take the first, the last or both, and a caller could be
/// limited as one and served as the other.
fn value_of<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Result<Cow<'r, str>, String> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    if LISTS.contains(name) || first.is_none() {
        return Ok(joined(headers, name));
    }
    if lines.any(|line| Some(line) != first) {
        let shown = quoted(name.as_str());
        return Err(format!("the header {shown} came with several values; policies name it, send one"));
    }
    Ok(first.map(text).unwrap_or_default())
}

/// Joins the lines of one header as RFC 9110 has it, those of a cookie as RFC 6265.
fn joined<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Cow<'r, str> {
    let mut lines = headers.get_all(name).iter().map(text);
    let Some(mut all) = lines.next() else { return Cow::Borrowed("") };
    for line in lines {
        let all = all.to_mut();
        all.push_str(if *name == COOKIE { "; " } else { ", " });
        all.push_str(&line);
    }
    all
}

/// Returns a value as text; bytes that are no UTF-8 are percent-encoded, as RFC 3986 has them in a path.
fn text(value: &HeaderValue) -> Cow<'_, str> {
    let mut chunks = value.as_bytes().utf8_chunks();
    let Some(first) = chunks.next() else { return Cow::Borrowed("") };
    if first.invalid().is_empty() {
        // Only the last chunk ends without bytes that are no UTF-8.
        return Cow::Borrowed(first.valid());
    }
    let mut out = String::new();
    for chunk in std::iter::once(first).chain(chunks) {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|byte| percent_encode_byte(*byte)));
    }
    Cow::Owned(out)
}

/// Cuts a URL down to path and query, which policies cut off; `None` for what is neither a path, nor `*`, nor a URL.
fn path(uri: Cow<'_, str>) -> Option<Cow<'_, str>> {
    match uri {
        Cow::Borrowed(uri) => path_of(uri).map(Cow::Borrowed),
        Cow::Owned(uri) => path_of(&uri).map(|path| Cow::Owned(path.to_owned())),
    }
}

fn path_of(uri: &str) -> Option<&str> {
    if uri.starts_with('/') || uri == "*" {
        return Some(uri);
    }
    let (scheme, rest) = uri.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let after = rest.find(['/', '?', '#']).map_or("/", |start| &rest[start..]);
    is_scheme.then_some(if after.starts_with('/') { after } else { "/" })
}

/// Lower-cases a host and cuts off its port and a last dot; `None` for what is no host.
fn host_name(authority: Cow<'_, str>) -> Option<Cow<'_, str>> {
    let is_odd = |byte: u8| byte.is_ascii_whitespace() || b",/\\@?#".contains(&byte);
    if authority.bytes().any(is_odd) {
        return None;
    }
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority.as_ref(),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.is_empty() {
        return None;
    }
    let plain = host.len() == authority.len() && !host.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if plain { authority } else { Cow::Owned(host.to_ascii_lowercase()) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate::config::{Config, Format};

    use super::*;
    use crate::settings::Settings;

    const FILE: &str = "
version: 1
client_ip: { trusted_proxies: [10.0.0.0/8] }
forward_auth: { proxy: nginx }
access: { deny: [request.header.x-tenant=bad] }
policies:
  - name: key
    by: [request.header.x-api-key]
    match: { header: { accept: true, x_old: true } }
    cost: request.header.x-cost
    limit: { rate_by: request.header.x-plan, rates: { a: 1/s }, otherwise: 2/s }
";

    fn proxy(file: &str) -> Proxy {
        let (config, _) = Config::parse(file, "f", Format::Yaml).unwrap();
        Proxy::new(&Settings::from(config))
    }

    fn headers(extra: &[(&str, &[u8])]) -> HeaderMap {
        let proxys: [(&str, &[u8]); 4] = [
            ("x-original-method", b"GET"),
            ("x-original-uri", b"/thing?q"),
            ("x-original-host", b"Example.org:80"),
            ("x-forwarded-for", b"203.0.113.9"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in proxys.iter().filter(|(name, _)| extra.iter().all(|(other, _)| other != name)) {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        for (name, value) in extra {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn value(proxy: &Proxy, extra: &[(&str, &[u8])], name: &str) -> Result<Option<String>, String> {
        let headers = headers(extra);
        match Original::of(&headers, IpAddr::from([10, 0, 0, 1]), proxy) {
            Ok(original) => Ok(original.descriptor.value(name).map(str::to_owned)),
            Err(problem) => Err(problem.detail().to_owned()),
        }
    }

    #[test]
    fn the_request_is_read_from_the_chosen_family_alone() {
        let proxy = proxy(FILE);
        let others: [(&str, &[u8]); 5] = [
            ("x-forwarded-method", b"OPTIONS"),
            ("x-forwarded-uri", b"/free"),
            ("x-forwarded-host", b"other.org"),
            ("http_x_original_uri", b"/free"),
            ("x_original_uri", b"/free"),
        ];
        let read = |name: &str| value(&proxy, &others, name).unwrap().unwrap();
        assert_eq!(read("request.method"), "GET");
        assert_eq!(read("request.path"), "/thing?q");
        assert_eq!(read("request.host"), "example.org");
        assert_eq!(read("client.ip"), "203.0.113.9");
        assert_eq!(read("request.header.x-forwarded-uri"), "/free", "his header, as any other");
    }

    #[test]
    fn what_the_proxy_must_set_is_there_once_or_the_request_is_refused() {
        let proxy = proxy(FILE);
        for (name, bytes, says) in [
            ("x-original-method", &b""[..], "the proxy sent no x-original-method"),
            ("x-original-uri", b"", "the proxy sent no x-original-uri"),
            ("x-original-host", b"", "the proxy sent no x-original-host"),
            ("x-original-method", b"GET, OPTIONS", "x-original-method: `GET, OPTIONS` is no method"),
            ("x-original-method", b"GE\xffT", "`GE%FFT` is no method"),
            ("x-original-uri", b"thing", "x-original-uri: `thing` is no path"),
            ("x-original-uri", b"\xff://x/free", "is no path"),
            ("x-original-host", b"a.org, b.org", "`a.org, b.org` is no host"),
            ("x-original-host", b":80", "is no host"),
            ("x-forwarded-for", b"\xff", "is no address"),
        ] {
            let error = value(&proxy, &[(name, bytes)], "request.path").unwrap_err();
            assert!(error.contains(says), "{name}: {error}");
        }
        for name in ["x-original-method", "x-original-uri", "x-original-host"] {
            let error = value(&proxy, &[(name, b"/a"), (name, b"/a")], "request.path").unwrap_err();
            assert!(error.contains("came 2 times"), "{name}: {error}");
        }
    }

    #[test]
    fn bytes_count_as_what_they_are() {
        let proxy = proxy(FILE);
        let path = |uri: &[u8]| value(&proxy, &[("x-original-uri", uri)], "request.path").unwrap().unwrap();
        assert_eq!(path(b"/thing?\xff"), "/thing?%FF");
        assert_eq!(path("/caf\u{e9}".as_bytes()), "/caf\u{e9}");
        assert_eq!(path(b"http://other.org/thing?q"), "/thing?q");
        assert_eq!(path(b"HTTP://other.org?/free"), "/");
        assert_eq!(path(b"/free?://x/thing"), "/free?://x/thing");
        let key =
            |key: &[u8]| value(&proxy, &[("x-api-key", key)], "request.header.x-api-key").unwrap().unwrap();
        assert_eq!(key(b"k\xff"), "k%FF");
        assert_eq!(key("k\u{e9}".as_bytes()), "k\u{e9}");
        assert_eq!(key(b""), "");
        assert_eq!(key(&[b'k'; 60_000]).len(), 60_000, "of any length that a head may have");
    }

    #[test]
    fn fillers_push_out_nothing_that_policies_name() {
        let proxy = proxy(FILE);
        let fillers: Vec<String> = (0..200).map(|at| format!("a-filler-{at}")).collect();
        let mut all: Vec<(&str, &[u8])> = fillers.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
        let named = ["x-api-key", "x-cost", "x-plan", "x-tenant", "accept", "x_old"];
        all.extend(named.map(|name| (name, &b"1"[..])));
        for name in named {
            let found = value(&proxy, &all, &format!("request.header.{name}")).unwrap();
            assert_eq!(found.as_deref(), Some("1"), "{name}");
        }
        let headers = headers(&all);
        let original = Original::of(&headers, IpAddr::from([10, 0, 0, 1]), &proxy).unwrap();
        assert_eq!(original.descriptor.pairs().count(), MAX_ATTRIBUTES);
    }

    #[test]
    fn a_named_header_is_understood_in_one_way_or_refused() {
        let proxy = proxy(FILE);
        let key = |lines: &[(&str, &[u8])]| value(&proxy, lines, "request.header.x-api-key");
        assert!(key(&[("x-api-key", b"a"), ("x-api-key", b"b")]).unwrap_err().contains("several values"));
        assert_eq!(key(&[("x-api-key", b"a"), ("x-api-key", b"a")]).unwrap().as_deref(), Some("a"));
        assert!(key(&[("x_api_key", b"a")]).unwrap_err().contains("take the header `x_api_key` for one"));
        assert!(key(&[("x_api-key", b"a"), ("x-api-key", b"b")]).is_err());
        assert!(key(&[("x-old", b"a")]).unwrap_err().contains("`x-old`"), "either way");
        let other = [("x-other", &b"a"[..]), ("x-other", b"b"), ("x_third", b"c")];
        let joined = value(&proxy, &other, "request.header.x-other").unwrap();
        assert_eq!(joined.as_deref(), Some("a, b"), "no policy names it");
        let accept = [("accept", &b"a"[..]), ("accept", b"b")];
        assert_eq!(value(&proxy, &accept, "request.header.accept").unwrap().as_deref(), Some("a, b"));
    }

    #[test]
    fn hosts_are_one_spelling() {
        for (written, host) in [
            ("Example.org:8080", Some("example.org")),
            ("example.org.", Some("example.org")),
            ("EXAMPLE.ORG.:80", Some("example.org")),
            ("[::1]:80", Some("[::1]")),
            ("[::1]", Some("[::1]")),
            ("a@b", None),
            ("", None),
            (".", None),
        ] {
            assert_eq!(host_name(Cow::Borrowed(written)).as_deref(), host, "{written}");
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(
            lines in prop::collection::vec((0..12_usize, prop::collection::vec(any::<u8>(), 0..40)), 0..12),
        ) {
            let names = [
                "x-original-method", "x-original-uri", "x-original-host", "x-forwarded-for", "x-forwarded-uri",
                "x-api-key", "x_api_key", "accept", "cookie", "host", "x-tidegate-token", "x-other",
            ];
            let proxy = proxy(FILE);
            let mut all = HeaderMap::new();
            for (at, bytes) in &lines {
                let Ok(value) = HeaderValue::from_bytes(bytes) else { continue };
                all.append(names[*at], value);
            }
            let _ = Original::of(&all, IpAddr::from([10, 0, 0, 1]), &proxy);
        }
    }
}
