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
    let key = |key: &[u8]| value(&proxy, &[("x-api-key", key)], "request.header.x-api-key").unwrap().unwrap();
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
