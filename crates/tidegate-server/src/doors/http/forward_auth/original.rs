//! Reads the original request from the headers of a sub-request.
//!
//! Its method, path and host come from the configured family's three headers, each present once and valid: otherwise
//! the proxy does not set it, and the caller may. Every other header is the caller's, as `request.header.<name>`.
//!
//! A caller chooses which headers to send, and how many. Headers that policies name are kept, however many and
//! long; the bound on a head limits them. Others decide nothing: they are read only for a refusal, which is
//! remembered, and fill the room left. Bytes that are not UTF-8 are percent-encoded, so that such values count and
//! are not treated as absent.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ptr;

use http::Method;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED,
    HOST, HeaderMap, HeaderName, HeaderValue, VIA,
};
use percent_encoding::percent_encode_byte;
use tidegate::config::{ForwardAuth, OriginalHeaders};
use tidegate::policy::{ClientIpError, Descriptor, IpSource};
use tidegate::priority::Priority;

use super::super::request_body::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};
use crate::problem::Problem;
use crate::proxy::{HEADER, Proxy};
use crate::text::quoted;

const TOKEN: HeaderName = HeaderName::from_static("x-tidegate-token");

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Headers that are lists, so several lines are one.
const LISTS: [HeaderName; 8] =
    [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, COOKIE, FORWARDED, VIA, X_FORWARDED_FOR];

/// The request that the proxy received.
#[derive(Debug)]
pub(super) struct Original<'r> {
    pub(super) method: &'r str,
    pub(super) descriptor: Descriptor<'r>,
    pub(super) priority: Priority,
}

impl<'r> Original<'r> {
    /// Reads what decides; `peer` is the other end of the connection. [`add_others`] reads the rest.
    ///
    /// # Errors
    /// 503 if the door is not set up; 400 if the proxy sets its headers wrongly; the door's status for refusals, or
    /// 400, for a header that policies name in a form that two readers take differently.
    pub(super) fn of(headers: &'r HeaderMap, peer: IpAddr, proxy: &Proxy) -> Result<Self, Problem> {
        let forward_auth = proxy.forward_auth()?;
        let family = &forward_auth.original;
        let proxys = |detail: String| Problem::bad_request(detail).of_proxy();
        let set = |name: &str, known: &Option<HeaderName>| {
            once(headers, name, known.as_ref(), family).map_err(proxys)
        };
        let [method, uri, host] = &proxy.original;
        let (method, uri, host) =
            (set(family.method(), method)?, set(family.uri(), uri)?, set(family.host(), host)?);
        // Not told as the proxy's problem: a caller can send such a host, and would use up a kind of what is told.
        let is_not_a = |what: &str, name: &str, value: &HeaderValue| {
            let value = text(value);
            Problem::bad_request(format!(
                "{name}: {} is not a {what}; the proxy must set this header itself",
                quoted(&value)
            ))
        };
        let method = Method::from_bytes(method.as_bytes())
            .ok()
            .and(method.to_str().ok())
            .ok_or_else(|| is_not_a("method", family.method(), method))?;
        let path = path(text(uri)).ok_or_else(|| is_not_a("path", family.uri(), uri))?;
        if proxy.policies.is_ambiguous_path(&path) {
            let shown = quoted(&path);
            return Err(proxy.refused(format!(
                "servers read the `..` of {shown} differently, and a policy depends on the path; send it without"
            )));
        }
        let host = host_name(text(host)).ok_or_else(|| is_not_a("host", family.host(), host))?;
        let priority = priority(headers, peer, proxy, proxys)?;
        let lines = proxy.forwarded.iter().flat_map(|name| headers.get_all(name)).map(HeaderValue::as_bytes);
        let client = proxy.client_ip.find(peer, lines).map_err(|error| match error {
            // A caller can write this entry, as it can the host.
            ClientIpError::Unreadable { hop: 2.., .. } => Problem::bad_request(error.to_string()),
            error => proxys(error.to_string()),
        })?;
        if client.from == IpSource::Peer {
            proxy.took_peer_for_caller(client.address, headers);
        }

        let mut descriptor = Descriptor::from([
            ("request.method", Cow::Borrowed(method)),
            ("request.path", path),
            ("request.host", host),
            ("client.ip", Cow::Owned(written(client.address))),
        ]);
        if proxy.names_headers {
            add_named(headers, proxy, &mut descriptor)?;
        }
        Ok(Self { method, descriptor, priority })
    }
}

/// Reads the priority from the header that the file names, from trusted proxies alone: others could claim any.
/// Without it, the file's default.
///
/// # Errors
/// 400 if it came several times (the proxy's problem, by `proxys`) or is not a priority.
fn priority(
    headers: &HeaderMap,
    peer: IpAddr,
    proxy: &Proxy,
    proxys: impl Fn(String) -> Problem,
) -> Result<Priority, Problem> {
    let forward_auth = proxy.forward_auth()?;
    let name = forward_auth.priority_header.as_ref().filter(|_| proxy.client_ip.trusts(peer));
    let Some(name) = name else { return Ok(forward_auth.default_priority) };
    let mut lines = headers.get_all(name).iter().filter(|line| !line.is_empty());
    let Some(line) = lines.next() else { return Ok(forward_auth.default_priority) };
    if lines.next().is_some() {
        let detail = format!(
            "{name} came several times; the proxy must set it itself, and replace what its caller sent"
        );
        return Err(proxys(detail));
    }
    // Not the proxy's problem: a caller may have written it.
    let value = String::from_utf8_lossy(line.as_bytes());
    value.parse().map_err(|error| Problem::bad_request(format!("{name}: {} {error}", quoted(&value))))
}

/// Adds headers that no policy names, for later questions about the refusal, up to 64 attributes.
pub(super) fn add_others<'r>(headers: &'r HeaderMap, proxy: &Proxy, descriptor: &mut Descriptor<'r>) {
    let Ok(forward_auth) = proxy.forward_auth() else { return };
    let mut room = MAX_ATTRIBUTES.saturating_sub(descriptor.pairs().count());
    let mut lines = headers.iter().peekable();
    while let Some((name, first)) = lines.next() {
        if *name == TOKEN || !is_the_callers(name, forward_auth) {
            continue;
        }
        if room == 0 {
            return;
        }
        // The lines of one header follow each other. So none is looked up.
        let mut value = text(first);
        while let Some((_, line)) = lines.next_if(|(next, _)| ptr::eq(*next, name)) {
            join(&mut value, name, &text(line));
        }
        if name.as_str().len() > MAX_NAME || value.len() > MAX_VALUE {
            continue;
        }
        let attribute = [HEADER, name.as_str()].concat();
        if !(proxy.names_headers && proxy.named.contains(&attribute)) {
            room -= 1;
            descriptor.push(attribute, value);
        }
    }
}

/// Adds the headers that policies name.
///
/// # Errors
/// If the caller sent one in a form that two readers take differently.
fn add_named<'r>(
    headers: &'r HeaderMap,
    proxy: &Proxy,
    descriptor: &mut Descriptor<'r>,
) -> Result<(), Problem> {
    let mut attribute = String::from(HEADER);
    for name in headers.keys().filter(|name| **name != TOKEN) {
        attribute.truncate(HEADER.len());
        attribute.push_str(name.as_str());
        if proxy.named.contains(&attribute) {
            let value = value_of(headers, name).map_err(|detail| proxy.refused(detail))?;
            descriptor.push(attribute.clone(), value);
        } else if proxy.is_taken_for_named(name) {
            let shown = quoted(name.as_str());
            return Err(proxy.refused(format!(
                "many programs treat the header {shown} like one that policies name; send that one, with its dashes"
            )));
        }
    }
    Ok(())
}

/// Returns the first header that no policy names and that programs may take for one that policies name. A request
/// with one is refused.
pub(super) fn taken_for_named<'r>(headers: &'r HeaderMap, proxy: &Proxy) -> Option<&'r HeaderName> {
    headers.keys().filter(|name| proxy.is_taken_for_named(name)).find(|name| {
        let attribute = [HEADER, name.as_str()].concat();
        **name != TOKEN && !proxy.named.contains(&attribute)
    })
}

/// Returns whether a header is the original request's, not the sub-request's or the proxy's.
fn is_the_callers(name: &HeaderName, forward_auth: &ForwardAuth) -> bool {
    ![CONNECTION, CONTENT_LENGTH, HOST].contains(name)
        && forward_auth.headers().all(|own| own != name.as_str())
}

/// Formats an address. IPv4 is done by hand: the formatter takes ten times as many instructions, and this runs for
/// each request.
fn written(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return address.to_string() };
    let (mut text, mut number) = (String::with_capacity("255.255.255.255".len()), itoa::Buffer::new());
    for (place, part) in address.octets().into_iter().enumerate() {
        if place > 0 {
            text.push('.');
        }
        text.push_str(number.format(part));
    }
    text
}

/// Returns a header that the proxy sets, once and not empty. `known`: the parsed name, if it is valid.
fn once<'r>(
    headers: &'r HeaderMap,
    name: &str,
    known: Option<&HeaderName>,
    family: &OriginalHeaders,
) -> Result<&'r HeaderValue, String> {
    let mut lines = known.into_iter().flat_map(|known| headers.get_all(known));
    let line = lines.next().filter(|line| !line.is_empty());
    let line = line.ok_or_else(|| {
        let advice = instead_of_missing(headers, name, family);
        format!("the proxy sent no {name}, which describes the original request; {advice}")
    })?;
    match lines.count() {
        0 => Ok(line),
        others => Err(format!(
            "{name} came {} times; the proxy must set it itself, and replace what its caller sent",
            others + 1
        )),
    }
}

/// Says what to do about a header that the proxy did not set.
fn instead_of_missing(headers: &HeaderMap, name: &str, family: &OriginalHeaders) -> String {
    let others = [(OriginalHeaders::Nginx, "nginx", ""), (OriginalHeaders::Caddy, "caddy", ", or traefik")];
    let came =
        |other: &OriginalHeaders| headers.contains_key(other.method()) && headers.contains_key(other.uri());
    let other = others.iter().find(|(other, ..)| other.uri() != family.uri() && came(other));
    if let Some((other, word, or)) = other {
        // Only then: a caller can send these too.
        let uri = other.uri();
        return format!("if it sets {uri} itself, write `forward_auth: {{ proxy: {word} }}`{or}");
    }
    let line = match name {
        _ if *family != OriginalHeaders::Nginx => None,
        "x-original-method" => Some("X-Original-Method $request_method"),
        "x-original-uri" => Some("X-Original-URI $request_uri"),
        _ => Some("X-Original-Host $host"),
    };
    let set = match line {
        Some(line) => format!("write `proxy_set_header {line};` into the location of nginx that asks"),
        None => "have it set that header".to_owned(),
    };
    format!("{set}, or name another proxy under forward_auth")
}

/// Returns the value of a header that policies use: one that they name, or one that says how long a caller waits.
///
/// # Errors
/// If it came with two values: the programs behind the proxy take the first, the last or both, so a caller could be
/// limited by one and served by the other.
fn value_of<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Result<Cow<'r, str>, String> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    if LISTS.contains(name) || first.is_none() {
        return Ok(joined(headers, name));
    }
    if lines.any(|line| Some(line) != first) {
        let shown = quoted(name.as_str());
        return Err(format!("the header {shown} came with several values; policies go by one, so send one"));
    }
    Ok(first.map(text).unwrap_or_default())
}

/// Joins the lines of one header as RFC 9110 defines, those of a cookie as RFC 6265.
fn joined<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Cow<'r, str> {
    let mut lines = headers.get_all(name).iter().map(text);
    let Some(mut all) = lines.next() else { return Cow::Borrowed("") };
    lines.for_each(|line| join(&mut all, name, &line));
    all
}

/// Appends the next line of a header.
fn join(all: &mut Cow<'_, str>, name: &HeaderName, line: &str) {
    let all = all.to_mut();
    all.push_str(if *name == COOKIE { "; " } else { ", " });
    all.push_str(line);
}

/// Returns a value as text. Bytes that are not UTF-8 are percent-encoded, as in a path (RFC 3986).
fn text(value: &HeaderValue) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(value.as_bytes()) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for chunk in value.as_bytes().utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|byte| percent_encode_byte(*byte)));
    }
    Cow::Owned(out)
}

/// Reduces a URL to path and query, which policies ignore; `None` if it is neither a path, nor `*`, nor a URL.
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

/// Lower-cases a host, without port and trailing dot; `None` if it is none.
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
    // A second port: servers disagree where the name ends.
    if host.is_empty() || (host.contains(':') && !host.starts_with('[')) {
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
    limit: { rate: { by: request.header.x-plan, values: { a: 1/s }, otherwise: 2/s } }
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
        let read = whole(&headers, proxy).map_err(|problem| problem.detail().to_owned())?;
        Ok(read.value(name).map(str::to_owned))
    }

    /// All attributes: those that decide, and the others.
    fn whole<'r>(headers: &'r HeaderMap, proxy: &Proxy) -> Result<Descriptor<'r>, Problem> {
        let mut original = Original::of(headers, IpAddr::from([10, 0, 0, 1]), proxy)?;
        add_others(headers, proxy, &mut original.descriptor);
        Ok(original.descriptor)
    }

    #[test]
    fn addresses_are_written_as_the_library_writes_them() {
        for address in ["0.0.0.0", "10.200.30.255", "255.255.255.255", "2001:db8::1", "::ffff:192.0.2.1"] {
            assert_eq!(written(address.parse().unwrap()), address);
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
            ("x-original-method", b"GET, OPTIONS", "x-original-method: `GET, OPTIONS` is not a method"),
            ("x-original-method", b"GE\xffT", "`GE%FFT` is not a method"),
            ("x-original-uri", b"thing", "x-original-uri: `thing` is not a path"),
            ("x-original-uri", b"\xff://x/free", "is not a path"),
            ("x-original-host", b"a.org, b.org", "`a.org, b.org` is not a host"),
            ("x-original-host", b":80", "is not a host"),
            ("x-forwarded-for", b"\xff", "is not an address"),
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
        assert_eq!(whole(&headers, &proxy).unwrap().pairs().count(), MAX_ATTRIBUTES);
    }

    #[test]
    fn a_named_header_is_understood_in_one_way_or_refused() {
        let proxy = proxy(FILE);
        let key = |lines: &[(&str, &[u8])]| value(&proxy, lines, "request.header.x-api-key");
        assert!(key(&[("x-api-key", b"a"), ("x-api-key", b"b")]).unwrap_err().contains("several values"));
        assert_eq!(key(&[("x-api-key", b"a"), ("x-api-key", b"a")]).unwrap().as_deref(), Some("a"));
        assert!(key(&[("x_api_key", b"a")]).unwrap_err().contains("treat the header `x_api_key` like one"));
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
            ("example.org:80:90", None),
            ("::1", None),
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
            let _ = whole(&all, &proxy);
        }
    }
}
