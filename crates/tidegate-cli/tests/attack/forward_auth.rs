//! A caller behind the real nginx and the real Caddy, configured as in the manual, tries to be served without being
//! limited.
//!
//! One request a day is allowed for `/api/thing`, for all callers together. Once that is spent, a caller who reads
//! `a thing` has bypassed the gate, by some header, method, spelling or byte.

use std::net::SocketAddr;

use crate::attack::proxy::{FAILS_OPEN, NAMES_THE_POLICY, Proxy};
use crate::attack::raw::{Answer, send};
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::{Desk, Serving};

const FILE: &str = "version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
access: { deny: [request.header.x-tenant=barred, request.path=/api/secret] }
policies:
  - name: per-path
    match: { path: /paths/** }
    by: [request.path]
    limit: { rate: 1/day }
  - name: api
    match: { path: /api/**, host: example.org }
    limit: { rate: 1/day }
  - name: per-key
    match: { path: /free }
    by: [request.header.x-api-key]
    limit: { rate: 1/day }
  - name: witness
    by: [attack.witness]
    limit: { rate: 1000000/s }
";

/// Headers with which a caller might imitate the proxy, or make the proxy leave out headers.
const HEADERS: [&[u8]; 45] = [
    b"X-Original-URI: /free",
    b"X-Original-URI: /\xff",
    b"X-Original-URL: /free",
    b"X-Original-URL: https://example.org/free",
    b"X-Original-Method: OPTIONS",
    b"X-Original-Host: other.org",
    b"X-Forwarded-Uri: /free",
    b"X-Forwarded-Uri:",
    b"X-Forwarded-Method: OPTIONS",
    b"X-Forwarded-Host: other.org",
    b"X-Forwarded-Host: \xff",
    b"X-Forwarded-Prefix: /free",
    b"X-Forwarded-For: \xff",
    b"X-Forwarded-For: ,,,",
    b"X-Forwarded-For: unknown",
    b"Forwarded: for=9.9.9.9;host=other.org",
    b"X-Rewrite-URL: /free",
    b"X-HTTP-Method-Override: OPTIONS",
    b"X_Original_URI: /free",
    b"X_Forwarded_Uri: /free",
    b"HTTP_X_ORIGINAL_URI: /free",
    b"HTTP-X-Forwarded-Uri: /free",
    b"x-original-uri : /free",
    b"Connection: X-Original-URI, X-Original-Method, X-Original-Host",
    b"Connection: X-Forwarded-Uri, X-Forwarded-Method, X-Forwarded-Host, X-Forwarded-For",
    b"Connection: upgrade",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"Origin: https://other.org",
    b"Access-Control-Request-Headers: x",
    b"Access-Control-Request-Method: GET",
    b"Authorization: Bearer 0123456789abcdef",
    b"Cookie: a=b",
    b"X-Tidegate-Token: 0123456789abcdef",
    b"X-Tidegate-Decision-Id: 1",
    b"Content-Length: 0",
    b"Transfer-Encoding: identity",
    b"TE: trailers",
    b"Trailer: X-Original-URI",
    b"Range: bytes=0-",
    b"If-None-Match: \"x\"",
    b"X-Accel-Redirect: /free",
    b"X-Sendfile: /free",
    b"X-Api-Key: k",
    b"X-Tenant: good",
];

/// Addresses of the thing, and of paths that only look like it.
const TARGETS: [&[u8]; 34] = [
    b"/api/thing?\xff",
    b"/api/thing?deny_status=200",
    b"/api/thing?options=pass&deny_status=418",
    b"/api/thing?a{b}\"c|d\\e^`<>",
    b"/api/thing?%",
    b"/api/thing?/../../free",
    b"/api/thing?://x/free",
    b"/api/thing#/../../free",
    b"/api/thing/",
    b"/api/thing//",
    b"/api/thing/.",
    b"//api/thing",
    b"/./api/thing",
    b"/free/../api/thing",
    b"/free/%2e%2e/api/thing",
    b"/free/..%2fapi/thing",
    b"/free%2f..%2fapi/thing",
    b"/free/..;/api/thing",
    b"/free\\..\\api\\thing",
    b"/%61pi/thing",
    b"/api%2fthing",
    b"/api%2Fthing",
    b"/api/th%69ng",
    b"/%2561pi/thing",
    b"/api/thing;x=1",
    b"/api;x=1/thing",
    b"/api/thing%00",
    b"/api/thing\xff",
    b"/\xff/../api/thing",
    b"/%ff/../api/thing",
    b"/?/../api/thing",
    b"/%3f/../api/thing",
    b"/%23/../api/thing",
    b"http://example.org/api/thing",
];

const METHODS: [&[u8]; 8] = [b"GET", b"HEAD", b"OPTIONS", b"options", b"get", b"POST", b"PUT", b"PROPFIND"];

/// Sends a request with these bytes; `None` if it was closed without an answer.
pub(crate) fn ask(proxy: SocketAddr, method: &[u8], target: &[u8], headers: &[&[u8]]) -> Option<Answer> {
    let mut bytes = [method, b" ", target, b" HTTP/1.1\r\nHost: example.org\r\n"].concat();
    for header in headers {
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"Connection: close\r\n\r\n");
    send(proxy, &bytes).ok().and_then(|answers| answers.into_iter().next())
}

/// Requires that the thing is not served.
#[track_caller]
pub(crate) fn is_refused(proxy: SocketAddr, method: &[u8], target: &[u8], headers: &[&[u8]]) {
    let Some(answer) = ask(proxy, method, target, headers) else { return };
    let shown = || {
        let headers = headers.join(&b" | "[..]);
        let words = [method, target, &headers[..]].map(|bytes| bytes.escape_ascii().to_string());
        format!("{words:?}: {answer:?}")
    };
    assert!(!answer.body.contains("a thing"), "{}", shown());
    assert_ne!(answer.status, 418, "{}", shown());
}

pub(crate) fn served(proxy: SocketAddr, target: &str, headers: &[&[u8]]) -> u16 {
    ask(proxy, b"GET", target.as_bytes(), headers).unwrap().status
}

fn nobody_walks_around(proxy: SocketAddr, seed: &str) {
    assert_eq!(served(proxy, "/api/thing", &[]), 200, "the one of the day");
    assert_eq!(served(proxy, "/api/thing", &[]), 429);
    assert_eq!(served(proxy, "/free", &[]), 200);
    for target in TARGETS {
        METHODS.iter().for_each(|method| is_refused(proxy, method, target, &[]));
    }
    for header in HEADERS {
        METHODS.iter().for_each(|method| is_refused(proxy, method, b"/api/thing", &[header]));
        is_refused(proxy, b"GET", b"/api/thing", &[header, header]);
    }
    let mut seed = Seed::printed(seed);
    for _ in 0..rounds(300, 20_000) {
        let headers: Vec<&[u8]> = (0..seed.below(6)).map(|_| *seed.one_of(&HEADERS)).collect();
        let target = if seed.below(3) == 0 { spelled(&mut seed) } else { seed.one_of(&TARGETS).to_vec() };
        let method: &&[u8] = seed.one_of(&METHODS);
        is_refused(proxy, method, &target, &headers);
    }
    assert_eq!(served(proxy, "/free", &[]), 200, "honest callers are served");
}

/// Generates a spelling of the thing's path, sometimes with an invalid byte.
fn spelled(seed: &mut Seed) -> Vec<u8> {
    let between: [&[u8]; 16] = [
        b"/",
        b"//",
        b"/./",
        b"/x/../",
        b"/%2e/",
        b"/x/%2e%2e/",
        b"%2f",
        b"\\",
        b"/;a/../",
        b";b/",
        b"/%5c../",
        b"/\xfe/../",
        b"%2f..",
        b"/..;/",
        b"/%3b/../",
        b"/x%2f../",
    ];
    let mut path = b"/".to_vec();
    for (at, part) in [&b"api"[..], b"thing"].into_iter().enumerate() {
        if at > 0 || seed.below(2) == 0 {
            for _ in 0..=seed.below(3) {
                let separator: &&[u8] = seed.one_of(&between);
                path.extend_from_slice(separator);
            }
        }
        for byte in part {
            match seed.below(4) {
                0 => path.extend_from_slice(format!("%{byte:02x}").as_bytes()),
                1 => path.extend_from_slice(format!("%{byte:02X}").as_bytes()),
                _ => path.push(*byte),
            }
        }
    }
    match seed.below(4) {
        0 => path.extend_from_slice(b"?\xff"),
        1 => path.extend_from_slice(&seed.bytes(1)),
        _ => {}
    }
    // Bytes that end the request line are another attack.
    path.retain(|byte| !matches!(byte, b'\r' | b'\n' | b' ' | 0));
    path
}

/// A caller limited by a header must not be able to hide that header.
fn nobody_hides_a_named_header(proxy: SocketAddr) {
    let fillers: Vec<Vec<u8>> = (0..70).map(|at| format!("A-Filler-{at}: x").into_bytes()).collect();
    let among = |headers: &[&'static [u8]]| -> Vec<Vec<u8>> {
        fillers.iter().cloned().chain(headers.iter().map(|header| header.to_vec())).collect()
    };
    assert_eq!(served(proxy, "/free", &[b"X-Api-Key: K"]), 200);
    let long = [&b"X-Padding: "[..], &[b'x'; 7000]].concat();
    for hidden in [
        among(&[b"X-Api-Key: K"]),
        vec![long, b"X-Api-Key: K".to_vec()],
        vec![b"X-Api-Key: K".to_vec(), b"X-Api-Key: K".to_vec()],
        vec![b"X-Api-Key: K".to_vec(), b"X-Api-Key: other".to_vec()],
        vec![b"X-Api-Key: other".to_vec(), b"x-api-key: K".to_vec()],
        vec![b"X-Api-Key:  K\t".to_vec()],
        among(&[b"X-Tenant: barred"]),
        among(&[b"X-Tenant: barred", b"X-Tenant: barred"]),
        vec![b"X-Tenant: barred".to_vec(), b"X-Tenant: good".to_vec()],
        among(&[b"X-Tenant: barred", b"Origin: https://a.org", b"Access-Control-Request-Method: GET"]),
    ] {
        let lines: Vec<&[u8]> = hidden.iter().map(Vec::as_slice).collect();
        let answer = ask(proxy, b"GET", b"/free", &lines).unwrap();
        assert_eq!(
            answer.status / 100,
            4,
            "{:?}: {answer:?}",
            hidden.last().map(|last| last.escape_ascii().to_string())
        );
    }
}

fn behind(name: &str) -> Serving {
    Desk::with(FILE).serve(&["--forward-auth", name])
}

#[test]
fn nobody_walks_around_behind_nginx() {
    let mut serving = behind("nginx");
    let Some(nginx) = Proxy::nginx(serving.addr) else { return };
    nobody_walks_around(nginx.addr, "behind_nginx");
    nobody_hides_a_named_header(nginx.addr);
    no_other_spelling_is_another_path(nginx.addr);
    a_preflight_reads_nothing(nginx.addr);
    // A request without a host is served as the site that answers it, and limited as that site.
    for line in ["GET /api/thing HTTP/1.0\r\n\r\n", "GET /api/thing HTTP/1.0\r\nHost:\r\n\r\n"] {
        let answers = send(nginx.addr, line.as_bytes()).unwrap_or_default();
        assert!(answers.iter().all(|answer| !answer.body.contains("a thing")), "{answers:?}");
    }
    serving.is_well();
}

/// If nginx is configured to fail open, a caller must not be able to make the server close without an answer, or
/// answer more than nginx reads.
#[test]
fn nobody_opens_nginx_that_fails_open() {
    let mut serving = behind("nginx");
    let Some(nginx) = Proxy::nginx_by_recipes(serving.addr, &[FAILS_OPEN, NAMES_THE_POLICY]) else { return };
    nobody_walks_around(nginx.addr, "nginx_that_fails_open");
    nobody_hides_a_named_header(nginx.addr);
    let long = [&b"X-Padding: "[..], &[b'x'; 8000]].concat();
    for count in [1, 3, 4, 100, 255, 256, 257, 300, 1000, 3000] {
        let lines: Vec<Vec<u8>> = (0..count).map(|at| format!("A-{at}: x").into_bytes()).collect();
        let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        is_refused(nginx.addr, b"GET", b"/api/thing", &lines);
        is_refused(nginx.addr, b"GET", b"/api/thing", &vec![long.as_slice(); count.min(8)]);
        let target = [&b"/api/thing?"[..], &vec![b'%'; count * 10]].concat();
        is_refused(nginx.addr, b"GET", &target, &[]);
    }
    serving.is_well();
}

#[test]
fn nobody_walks_around_behind_caddy() {
    let mut serving = behind("caddy");
    let Some(caddy) = Proxy::caddy(serving.addr) else { return };
    nobody_walks_around(caddy.addr, "behind_caddy");
    nobody_hides_a_named_header(caddy.addr);
    no_other_spelling_is_another_path(caddy.addr);
    a_preflight_reads_nothing(caddy.addr);
    // Caddy forwards header names with underscores, which CGI treats as dashes. nginx drops them.
    assert_eq!(served(caddy.addr, "/free", &[b"X_Api_Key: K"]), 400);
    assert_eq!(served(caddy.addr, "/free", &[b"X-Api_Key: K", b"X-Api-Key: mine"]), 400);
    // A byte that is invalid in URLs must not be answered with 502.
    assert_eq!(served(caddy.addr, "/free", &[]), 200);
    assert_eq!(ask(caddy.addr, b"GET", b"/free?\xff", &[]).unwrap().status, 200);
    serving.is_well();
}

/// The path as a value, in a key and in a deny-list must not treat `\` and `;` specially: neither proxy does.
fn no_other_spelling_is_another_path(proxy: SocketAddr) {
    assert_eq!(served(proxy, "/paths/thing", &[]), 200, "the one of the day");
    for before in ["", "q\\x/../", ";a/../", "q%5cx/../", "q;/%2e%2e/", "/x//../../", "q%2fx/../../"] {
        let secret = ask(proxy, b"GET", format!("/api/{before}secret").as_bytes(), &[]);
        assert!(!secret.is_some_and(|answer| answer.body.contains("a secret")), "{before}");
        let thing = ask(proxy, b"GET", format!("/paths/{before}thing").as_bytes(), &[]);
        assert!(!thing.is_some_and(|answer| answer.body.contains("a path's thing")), "{before}");
        let thing = ask(proxy, b"GET", format!("/{before}paths/thing").as_bytes(), &[]);
        assert!(!thing.is_some_and(|answer| answer.body.contains("a path's thing")), "{before}");
    }
}

/// Caddy's file server answers `OPTIONS` with the file, so a fake browser preflight must not pass uncharged.
#[track_caller]
fn a_preflight_reads_nothing(proxy: SocketAddr) {
    let preflight: [&[u8]; 2] = [b"Origin: https://other.org", b"Access-Control-Request-Method: GET"];
    for _ in 0..3 {
        is_refused(proxy, b"OPTIONS", b"/api/thing", &preflight);
    }
}

#[test]
fn the_quickstart_behind_a_proxy_limits_each_caller_by_himself() {
    let desk = Desk::with(FILE);
    std::fs::remove_file(desk.path("p.yaml")).unwrap();
    let mut serving =
        Serving::start(desk.command(&["serve", "--http", "127.0.0.1:0", "--forward-auth", "caddy"]));
    let from = |client: &str| {
        let headers = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-host", "example.org"),
            ("x-forwarded-for", client),
        ];
        serving.ask("GET", "/v1/forward-auth", &headers, "")
    };
    for client in ["203.0.113.9", "203.0.113.10"] {
        let answer = from(client);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.header("ratelimit").unwrap().contains("\"per-ip\";r=9"), "{client}: {answer:?}");
    }
    serving.is_well();
}

#[test]
fn a_door_that_nobody_set_up_lets_nobody_through() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    for family in ["original", "forwarded"] {
        let names = ["method", "uri", "host"].map(|part| format!("x-{family}-{part}"));
        let headers = [(&*names[0], "GET"), (&*names[1], "/free"), (&*names[2], "example.org")];
        let answer = serving.ask("GET", "/v1/forward-auth", &headers, "");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.body.contains("--forward-auth NAME"), "{answer:?}");
    }
    serving.hears("sub-requests of a proxy are refused");
    if let Some(caddy) = Proxy::caddy(serving.addr) {
        assert_eq!(served(caddy.addr, "/free", &[]), 503);
    }
    if let Some(nginx) = Proxy::nginx(serving.addr) {
        assert_eq!(served(nginx.addr, "/free", &[]), 500);
    }
    serving.is_well();
}
